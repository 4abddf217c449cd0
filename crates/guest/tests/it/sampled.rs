// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sampled runs: what is counted between windows is what a whole run counts.

use bifold_guest::{GuestSpec, Region, Windows};
use bifold_trace::event::gap;
use bifold_trace::{CommandExit, Event, Thin, decode};
use std::collections::BTreeSet;

use crate::support::{compile, exact, qemu_missing, run};

/// Processes that fault, write and end, and a loop between them. Faults come in the middle of blocks.
const FORKS: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    static volatile unsigned sum;
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        if (child == 0) {
            char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (int j = 0; j < 1 << 20; j += 4096)
                p[j] = (char)(i + p[(j * 7 + 4096) & ((1 << 20) - 1)]);
            memset(p + 5, i, 70000);
            _exit(0);
        }
        for (int j = 0; j < 40000; j++)
            sum += j ^ sum << 1;
        waitpid(child, 0, 0);
    }
    return 0;
}
"#;

/// Events that are counted in all parts, each with the instructions before it.
fn counted(words: &[u64]) -> Vec<(u64, String)> {
    let (mut at, mut instructions, mut out) = (0, 0, Vec::new());
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        at += n;
        match event {
            Event::Insns(n) => instructions += n,
            Event::Load(_)
            | Event::LoadDependent(_)
            | Event::LoadBeforeChain(_)
            | Event::Store(_)
            | Event::StoreOther(_)
            | Event::Fetch(_)
            | Event::Check { .. }
            | Event::Block(_)
            | Event::Gap(_) => {}
            // It has the number of accesses.
            Event::Stats(s) => assert_eq!(s.instructions, instructions),
            // The instructions before a record of the log are not counted first.
            log @ Event::Log { .. } => out.push((0, format!("{log:?}"))),
            other => out.push((instructions, format!("{other:?}"))),
        }
    }
    out
}

/// Where Linux has its own code, modules behind it.
const KERNEL_CODE: u64 = 0xffff_ffff_8000_0000;

/// The pages of the named blocks.
fn pages(words: &[u64]) -> BTreeSet<u64> {
    let (mut at, mut out) = (0, BTreeSet::new());
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        at += n;
        if let Event::Block(start) = event {
            out.insert(start >> 12);
        }
    }
    out
}

/// Begin and length of each whole window, in instructions.
fn windows(words: &[u64]) -> Vec<(u64, u64)> {
    let (mut at, mut instructions, mut begun, mut out) = (0, 0, None, Vec::new());
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        at += n;
        match event {
            Event::Insns(n) => instructions += n,
            Event::Gap(code) => {
                out.extend(begun.take().map(|begun| (begun, instructions - begun)));
                begun = (code == gap::MEASURE).then_some(instructions);
            }
            _ => {}
        }
    }
    out
}

#[test]
fn windows_lie_where_thinning_puts_them() {
    if qemu_missing() {
        return;
    }
    let forks = compile("forks-thinned", FORKS);
    let places = Windows { window: 5_000, warm_up: 5_000, period: 400_000, seed: 1, doubles: 2 };
    let stream = |sample| {
        let region = Region { sample, ..Region::default() };
        run(&GuestSpec { region, ..exact(&[forks.to_str().unwrap()]) }).unwrap().1
    };
    let mut thinned = Vec::new();
    Thin::new(places).take(&stream(None), &mut thinned).unwrap();
    let [expected, got] = [&thinned, &stream(Some(places))].map(|words| windows(words));
    // Some periods have doubled, and windows have become longer.
    assert!(expected.last().unwrap().1 > 2 * places.window, "{expected:?}");
    assert!(expected.len().abs_diff(got.len()) <= 1, "{expected:?} {got:?}");
    for (e, g) in expected.iter().zip(&got) {
        // User code of a gap is asked every 65,536 instructions, recorded code every 4,096.
        assert!(e.0.abs_diff(g.0) < 80_000 && e.1.abs_diff(g.1) < 10_000, "{e:?} {g:?}");
    }
}

#[test]
fn a_sampled_run_counts_instructions_and_events_as_a_whole_run_does() {
    if qemu_missing() {
        return;
    }
    let forks = compile("forks", FORKS);
    let sample = |windows: Option<Windows>, attribute: bool| {
        let region = Region { sample: windows, ..Region::default() };
        let s = GuestSpec { region, attribute, ..exact(&[forks.to_str().unwrap()]) };
        let (report, words) = run(&s).unwrap();
        assert!(report.complete && report.exit == CommandExit::Code(0));
        assert_eq!(report.stats.cr3_mismatches + report.stats.table_mismatches, 0);
        (report.stats.instructions, counted(&words), words)
    };
    // Blocks of gaps have calls if costs are attributed.
    for attribute in [false, true] {
        let (instructions, all, whole) = sample(None, attribute);
        assert!(all.len() > 2000, "{}", all.len());
        let mut named = Vec::new();
        // Many windows, and none: the rest of the run is a gap.
        for (window, period) in [(20_000, 400_000), (1000, 10_000_000)] {
            let windows = Windows { window, warm_up: window, period, seed: 1, doubles: 0 };
            let (sum, sampled, words) = sample(Some(windows), attribute);
            assert!(words.len() < whole.len() * 3 / 4, "{} of {} words", words.len(), whole.len());
            assert_eq!(sum, instructions, "{window}:{period}");
            let differ = all.iter().zip(&sampled).find(|(a, b)| a != b);
            assert!(
                differ.is_none() && all.len() == sampled.len(),
                "{window}:{period}, {attribute}: {differ:?}"
            );
            named.push(pages(&words));
        }
        // A gap names blocks that have no events in a whole run, and in some builds of the kernel a page has
        // only such blocks. No gap names a place where nothing runs: a page of user code that has no events,
        // or one outside of the kernel's code.
        let whole = pages(&whole);
        let kernel = || whole.iter().filter(|page| **page >= KERNEL_CODE >> 12);
        // Blocks have names where costs are attributed.
        let code = kernel().min().copied().unwrap_or(1)..=kernel().max().copied().unwrap_or(0);
        assert_eq!(code.is_empty(), !attribute);
        for page in named.iter().flatten().filter(|page| !whole.contains(page)) {
            assert!(code.contains(page), "{attribute}: {page:#x}");
        }
    }
}
