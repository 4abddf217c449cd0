// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the quick tests. Each has a name and a line that says what it expects.
//!
//! Most tests are jobs for a laboratory with a check of their outputs (`TestBody::Jobs`). Tests that need the
//! same KVM share a boot, because a boot takes longer than most tests (`run.rs`), and a test may find while
//! it runs that this machine lacks something. The crate libtest-mimic has neither.

mod cgroup;
mod exits;
mod hand_made;
mod inner;
mod inside;
mod limited;
mod live;
mod mode;
mod place;
mod poke;
mod run;
mod stat;
mod storm;
mod switch;

pub use poke::poke;
pub use run::{Outcome, run};

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use bifold_tiny_vmm::switch::Runs;

use crate::BUSYBOX;
use crate::lab::job::Job;
use crate::lab::{Lab, Output};
use crate::validate::predict::Predicted;

/// A quick test.
#[derive(Debug)]
pub struct Test {
    /// The test's name.
    pub name: &'static str,
    /// What the test expects.
    pub about: &'static str,
    body: TestBody,
}

/// The paging mode of a laboratory's KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paging {
    Nested,
    Shadow,
}

#[derive(Debug)]
enum TestBody {
    /// Jobs for a laboratory with this KVM, and a check of their outputs.
    Jobs { paging: Paging, jobs: fn() -> Result<Vec<Job>>, check: fn(&Shared, &[Output]) -> Result<()> },
    /// A function that boots laboratories itself.
    Own(fn(&Shared) -> Result<()>),
}

type Once<T> = OnceLock<Result<T, String>>;

/// Values that several tests need. The first of these tests makes them.
struct Shared<'a> {
    lab: &'a Lab,
    flags: Once<Vec<String>>,
    predicted: Once<BTreeMap<&'static str, Predicted>>,
}

fn once<T>(cell: &Once<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    cell.get_or_init(|| make().map_err(|e| format!("{e:#}"))).as_ref().map_err(|e| anyhow::anyhow!("{e}"))
}

const fn jobs(
    paging: Paging,
    jobs: fn() -> Result<Vec<Job>>,
    check: fn(&Shared, &[Output]) -> Result<()>,
) -> TestBody {
    TestBody::Jobs { paging, jobs, check }
}

const fn own(test: fn(&Shared) -> Result<()>) -> TestBody {
    TestBody::Own(test)
}

use Paging::{Nested, Shadow};

macro_rules! tests {
    ($($name:literal $body:ident($($arg:expr),+): $about:literal,)*) => {
        /// All tests. Tests of one boot run in this order.
        pub static ALL: &[Test] = &[$(Test { name: $name, about: $about, body: $body($($arg),+) }),*];
    };
}

// A test's name, its body and what it expects.
tests! {
    "lab" jobs(Nested, lab, lab_check): "a program's output, exit status and files come back",
    "inner-nested" jobs(Nested, inner::jobs, inner::check): "stock QEMU boots Linux under nested paging, as the captured guest sees it",
    "inner-shadow" jobs(Shadow, inner::jobs, inner::check): "stock QEMU boots Linux under shadow paging, as the captured guest sees it",
    "guests-nested-4k" jobs(Nested, || hand_made::jobs("count", "4k"), hand_made::check): "hand-made guests exit as predicted, phase by phase",
    "guests-nested-2m" jobs(Nested, || hand_made::jobs("count", "2m-shared"), hand_made::check): "hand-made guests on shared 2 MB pages (QEMU's memfd) exit as predicted",
    "guests-shadow-4k" jobs(Shadow, || hand_made::jobs("count", "4k"), hand_made::check): "hand-made guests exit as predicted under shadow paging",
    "guests-shadow-2m" jobs(Shadow, || hand_made::jobs("count", "2m-shared"), hand_made::check): "hand-made guests on shared 2 MB pages exit as predicted under shadow paging",
    "walks-nested-4k" jobs(Nested, || hand_made::jobs("walks", "4k"), hand_made::check): "an access reads exactly the table entries that the model's walker reads",
    "walks-nested-2m" jobs(Nested, || hand_made::jobs("walks", "2m"), hand_made::check): "an access to 2 MB pages reads exactly the entries that the walker reads",
    "walks-shadow-4k" jobs(Shadow, || hand_made::jobs("walks", "4k"), hand_made::check): "an access reads exactly the entries of shadow tables that the walker reads",
    "walks-shadow-2m" jobs(Shadow, || hand_made::jobs("walks", "2m"), hand_made::check): "an access to 2 MB pages reads exactly the entries of shadow tables that the walker reads",
    "exits-nested-4k" own(exits::nested): "exits of a Linux guest's programs are as predicted under nested paging",
    "exits-shadow-4k" own(exits::shadow): "exits of a Linux guest's programs are as predicted under shadow paging",
    "exits-pae" own(exits::pae): "exits of a Linux guest in 32-bit mode with PAE are as predicted under shadow paging",
    "five-levels" own(exits::five_levels): "a Linux guest uses 5 levels under nested and shadow paging",
    "reclaim-cgroup" own(cgroup::set): "`reclaim set --by cgroup` takes memory of a guest in a cgroup, which stays whole",
    "inside" own(inside::guests): "a laboratory runs inside the laboratory, and a guest runs inside that",
    "limited" own(limited::swaps): "a guest of which the host holds a part swaps and keeps its memory",
    "switch-control" own(|s| switch::check(s, Runs::Control)): "switches work with vCPUs in every state, and are refused where they must be",
    "switch-sound" own(|s| switch::check(s, Runs::Sound)): "switches that cannot come about, protection keys, and VMMs that set state meanwhile leave a sound VM",
    "switch-memory" own(|s| switch::check(s, Runs::Memory)): "kept tables, dirty logs, memory slots and guest tables survive switches",
    "switch-host" own(|s| switch::check(s, Runs::Host)): "guest memory survives switches during KSM, swapping and splits of huge pages",
    "mode" own(mode::ours): "bifold mode lists a VM and switches it",
    "mode-unmodified" own(mode::unmodified): "bifold mode says what an unmodified KVM lacks",
    "stat" own(stat::exits): "bifold stat counts the exits that a trace of every exit counts, in both modes",
    "live-watched" own(live::watched): "bifold stat sees progress and page faults of guests that report, in both modes",
    "live" own(live::daemon): "the daemon follows the phases of guests, is killed meanwhile, costs less than either mode, and gives back",
    "place" own(place::placed): "a guest on a host with two nodes has threads and pages where they were placed",
    "nodes" own(place::nodes): "tables and data of hand-made guests lie on the nodes that the model says, in every placement",
    "place-plan" own(place::planned): "a guest started from bifold's plan is sound, mistakes are named, undo leaves the host as it was",
    "storm" own(storm::plain): "a guest whose paging mode is switched 100 times keeps its memory",
    "storm-keys" own(storm::keys): "a guest with protection keys, born in shadow paging, has its rights and its memory",
    "storm-noise" own(storm::noisy): "a guest keeps its memory over switches, splits of huge pages and dirty logs",
    "storm-migrate" own(storm::migrated): "a guest keeps its memory over switches and two migrations",
}

/// Names of all tests, for the command line.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|t| t.name).collect()
}

/// The tests with these names, or all tests if there are no names.
pub fn named(names: &[String]) -> Result<Vec<&'static Test>> {
    for name in names {
        ensure!(ALL.iter().any(|t| t.name == name), "no test is called {name}; lab test --list names them");
    }
    Ok(ALL.iter().filter(|t| names.is_empty() || names.iter().any(|n| n == t.name)).collect())
}

const NUMBERS: usize = 100_000;

fn lab() -> Result<Vec<Job>> {
    let script = format!(
        "echo said; echo wrong >&2; {BUSYBOX} seq {NUMBERS} > {out}/numbers; : > {out}/empty; exit 3",
        out = crate::lab::job::at::OUT
    );
    Ok(vec![Job::sh(&script), Job::sh("kill -9 $$")])
}

fn lab_check(_: &Shared, outputs: &[Output]) -> Result<()> {
    let [first, second] = outputs else { anyhow::bail!("{} outputs of 2 jobs", outputs.len()) };
    let d = &first.done;
    let got = (d.status, d.stdout.as_str(), d.stderr.as_str());
    ensure!(got == (3, "said\n", "wrong\n"), "a program that exits with 3 came back as {got:?}");
    let names: Vec<&str> = first.files.keys().map(String::as_str).collect();
    ensure!(names == ["empty", "numbers"], "its files came back as {names:?}");
    let numbers = String::from_utf8_lossy(&first.files["numbers"]).into_owned();
    let right = numbers.lines().enumerate().all(|(i, l)| l.parse() == Ok(i + 1));
    ensure!(right && numbers.lines().count() == NUMBERS, "a file of {} bytes came back wrong", numbers.len());
    ensure!(second.done.status == -9, "a killed program has status {}", second.done.status);
    ensure!(second.files.is_empty(), "the second program has files of the first");
    Ok(())
}

/// Fails with the program's standard error unless its exit status is 0.
fn succeeded(output: &Output) -> Result<()> {
    let d = &output.done;
    ensure!(d.status == 0, "exit status {}: {}", d.status, d.stderr.trim());
    Ok(())
}

/// The output of a test with one job.
fn single(outputs: &[Output]) -> Result<&Output> {
    outputs.first().context("no output")
}
