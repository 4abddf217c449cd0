// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share run` with four tiny guests under the real KSM, where there is one and we are root.
//!
//! No time is asserted: a run ends so many seconds after its guests are ready, however long they take.

use bifold_host::Host;
use bifold_host::ksm::{Ksm, Setting, Settings};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// More than any step here takes on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// KSM, or the reason why there is none for us.
fn ksm() -> Option<Ksm> {
    let missing = |why: &str| eprintln!("skipped: {why}");
    let Ok(ksm) = Ksm::of(&Host::live()) else {
        missing("this kernel has no KSM");
        return None;
    };
    if fs::OpenOptions::new().write(true).open(ksm.dir().join("run")).is_err() {
        missing("KSM can be changed by root only");
        return None;
    }
    if bifold_capture::qemu::find().is_err() {
        missing("no emulator");
        return None;
    }
    Some(ksm)
}

fn experiment(dir: &Path, name: &str, length: u32) -> std::path::PathBuf {
    let path = dir.join("tiny.toml");
    let text = format!(
        "title = 'four tiny guests'\n[time]\nlength = {length}\nsample = 1\npotential = [{}]\n\
         [ksm]\npages_to_scan = 20000\nsleep_millisecs = 20\nsmart_scan = 0\nuse_zero_pages = 0\nadvisor_mode = 'none'\n\
         [[guest]]\nname = '{name}'\ncount = 4\nmemory_mib = 96\n\
         workload = {{ kind = 'synthetic', buffer_mib = 16, write_rate = '1/32', sleep = 1 }}\n",
        length - 2
    );
    fs::write(&path, text).unwrap();
    path
}

fn start(experiment: &Path, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_bifold"))
        .args(["share", "run", "--scale", "1"])
        .args(more)
        .arg(experiment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs it to its end; again if somebody else drives KSM just now.
fn finish(experiment: &Path, more: &[&str]) -> Output {
    let begun = Instant::now();
    loop {
        let out = start(experiment, more).wait_with_output().unwrap();
        let busy = String::from_utf8_lossy(&out.stderr).contains("KSM is driven by");
        if !busy || begun.elapsed() > LONG {
            return out;
        }
    }
}

/// QEMU processes of guests whose names begin so.
fn guests(name: &str) -> usize {
    let of = |e: fs::DirEntry| fs::read(e.path().join("cmdline")).unwrap_or_default();
    let named = format!("\0-name\0{name}-").into_bytes();
    let is = |c: &Vec<u8>| c.windows(named.len()).any(|w| w == named);
    fs::read_dir("/proc").unwrap().flatten().map(of).filter(is).count()
}

fn until(mut so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !so() {
        if begun.elapsed() > LONG {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Settings that stay while nobody drives KSM.
fn lasting(ksm: &Ksm) -> Settings {
    ksm.settings().unwrap()
}

// One test, as both halves need KSM for themselves.
#[test]
fn four_tiny_guests_share_and_a_killed_run_leaves_nothing_behind() {
    let Some(ksm) = ksm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    fs::create_dir(&whole).unwrap();
    let (csv, html, md) = (whole.join("rows.csv"), whole.join("r.html"), whole.join("r.md"));
    let dump = whole.join("images");
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let toml = experiment(&whole, "bifold-e2e-a", 12);
    let words = [path(&csv), path(&html), path(&md), path(&dump)];
    let more = [
        "--format",
        "csv",
        "-o",
        &words[0],
        "--report",
        &words[1],
        "--markdown",
        &words[2],
        "--dump",
        &words[3],
    ];
    let out = finish(&toml, &more);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}\n{said}", out.status);
    let rows = fs::read_to_string(&csv).unwrap();
    let mut reader = csv::Reader::from_reader(rows.as_bytes());
    let head = reader.headers().unwrap().clone();
    let at = |name: &str| head.iter().position(|h| h == name).unwrap();
    let (guest, sharing, used, unshared) =
        (at("guest"), at("pages_sharing"), at("used_bytes"), at("unshared_bytes"));
    let all: Vec<csv::StringRecord> = reader.records().map(|r| r.unwrap()).collect();
    let last = all.iter().rev().find(|r| &r[guest] == "all").unwrap();
    let number = |i: usize| last[i].parse::<u64>().unwrap();
    // Each guest has 4096 equal pages, and the kernel's text besides: most of it is found in 12 s of
    // up to a million pages per second.
    assert!(number(sharing) > 8192, "{} pages merged", number(sharing));
    assert!(number(used) < number(unshared));
    for n in 1..=4 {
        assert!(all.iter().any(|r| r[guest] == format!("bifold-e2e-a-{n}")), "no row of guest {n}");
    }
    assert!(fs::read_to_string(&html).unwrap().contains("four tiny guests"));
    assert!(fs::read_to_string(&md).unwrap().contains("| case |"));
    let images = fs::read_dir(&dump).unwrap().flatten().filter(|e| e.metadata().unwrap().len() == 96 << 20);
    assert_eq!(images.count(), 4);
    assert_eq!(guests("bifold-e2e-a"), 0);

    // The other half: a run that is killed as its guests boot.
    let toml = experiment(dir.path(), "bifold-e2e-b", 600);
    let mut before = lasting(&ksm);
    let mut run = start(&toml, &["-q"]);
    let up = until(|| {
        if run.try_wait().unwrap().is_some() {
            // Somebody else had KSM.
            before = lasting(&ksm);
            run = start(&toml, &["-q"]);
        }
        guests("bifold-e2e-b") == 4 && ksm.settings().unwrap().get(Setting::Run) == Some(1)
    });
    assert!(up, "the guests came up under KSM");
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(until(|| guests("bifold-e2e-b") == 0), "the guests end with the run");
    assert!(until(|| ksm.settings().unwrap() == before), "{} is not {before}", ksm.settings().unwrap());
}

#[test]
fn what_is_wrong_with_an_experiment_is_said_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.toml");
    for (text, expected) in [("titel = 'x'", "titel"), ("title = 'x'", "time"), ("[", "x.toml")] {
        fs::write(&path, text).unwrap();
        let out = start(&path, &[]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("x.toml") && said.contains(expected), "{said}");
    }
    let out = start(&dir.path().join("none.toml"), &[]).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("none.toml"));
}
