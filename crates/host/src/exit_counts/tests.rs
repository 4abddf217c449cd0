// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracefs made of files. A trigger's file is a log of what was written to it.

use super::*;
use crate::tests::put;
use crate::tracing::TracingError;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A host with tracefs mounted, and this process.
fn host() -> (tempfile::TempDir, Host) {
    let (dir, host) = crate::tests::host();
    fs::create_dir_all(host.tracing.join("instances")).unwrap();
    fs::create_dir_all(host.proc.join(std::process::id().to_string())).unwrap();
    (dir, host)
}

/// What the kernel puts into an instance.
fn fill(at: &Path, without: &[Counter]) {
    for counter in Counter::ALL.iter().filter(|c| !without.contains(c)) {
        let event = at.join("events").join(counter.event());
        put(&event.join("trigger"), b"");
        put(&event.join("hist"), b"");
    }
    put(&at.join("buffer_size_kb"), b"1408\n");
}

/// The directories of instances, by name.
fn instances(host: &Host) -> Vec<PathBuf> {
    let entries = fs::read_dir(host.tracing.join("instances")).unwrap();
    let mut all: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn started(host: &Host, without: &[Counter]) -> (ExitCounters, PathBuf) {
    let instance = Instance::create(host).unwrap();
    let at = instances(host).pop().unwrap();
    fill(&at, without);
    (ExitCounters::within(host, instance).unwrap(), at)
}

/// Writes a table of threads, second keys and counts as the kernel prints it.
fn print(at: &Path, counter: Counter, entries: &[(u32, Option<u64>, u64)], dropped: u64) {
    let mut text = "# event histogram\n#\n# trigger info: hist:keys=common_pid [active]\n#\n\n".to_owned();
    for (thread, key, count) in entries {
        let key = key.map_or(String::new(), |k| format!(", exit_reason: {k:>10}"));
        text += &format!("{{ common_pid: {thread:>10}{key} }} hitcount: {count:>10}\n");
    }
    let hits: u64 = entries.iter().map(|e| e.2).sum();
    let number = entries.len();
    text += &format!("\nTotals:\n    Hits: {hits}\n    Entries: {number}\n    Dropped: {dropped}\n");
    fs::write(at.join("events").join(counter.event()).join("hist"), text).unwrap();
}

fn print_empty(at: &Path) {
    Counter::ALL.iter().for_each(|&counter| print(at, counter, &[], 0));
}

fn trigger(at: &Path, counter: Counter) -> String {
    fs::read_to_string(at.join("events").join(counter.event()).join("trigger")).unwrap()
}

#[test]
fn triggers_are_set_and_removed() {
    let (_dir, host) = host();
    let (counters, at) = started(&host, &[]);
    let name = format!("bifold-{}-0", std::process::id());
    assert_eq!(at, host.tracing.join("instances").join(name));
    let set = Counter::ALL.map(|c| trigger(&at, c));
    assert_eq!(
        set,
        [
            "hist:keys=common_pid,exit_reason:size=32768\n",
            "hist:keys=common_pid,error_code:size=32768\n",
            "hist:keys=common_pid:size=4096 if exception == 14 && reinjected == 0\n",
            "hist:keys=common_pid:size=4096\n",
            "hist:keys=common_pid:size=4096 if failed == 0\n",
        ]
    );
    drop(counters);
    for (counter, set) in Counter::ALL.into_iter().zip(set) {
        assert_eq!(trigger(&at, counter), format!("{set}!{set}"));
    }
}

#[test]
fn tables_are_read_anew_each_time() {
    let (_dir, host) = host();
    let (counters, at) = started(&host, &[Counter::UnsyncPages]);
    print_empty_without(&at, Counter::UnsyncPages);
    print(&at, Counter::Exits, &[(7, Some(48), 4), (8, Some(30), 9)], 0);
    let before = counters.read().unwrap();
    print(&at, Counter::Exits, &[(7, Some(48), 5), (8, Some(30), 9), (7, Some(12), 9)], 0);
    print(&at, Counter::PageFaults, &[(7, Some(0x181), 1)], 0);
    print(&at, Counter::InjectedPageFaults, &[(7, None, 3), (8, None, 4)], 0);
    print(&at, Counter::EmulatedInstructions, &[(7, None, 3)], 1);
    let seen = counters.read().unwrap().since(&before).threads(&[7]);
    let expected = ExitCounts {
        exits: Ok(BTreeMap::from([(48, 1), (12, 9)])),
        page_faults: Ok(BTreeMap::from([(0x181, 1)])),
        injected_page_faults: Ok(3),
        unsync_pages: Err(Unknown::NoEvent),
        emulated_instructions: Err(Unknown::Dropped { events: 1 }),
    };
    assert_eq!(seen, expected);
}

fn print_empty_without(at: &Path, without: Counter) {
    Counter::ALL.iter().filter(|c| **c != without).for_each(|&counter| print(at, counter, &[], 0));
}

#[test]
fn a_table_without_its_histogram_is_an_error_that_names_the_file() {
    let (_dir, host) = host();
    let (counters, at) = started(&host, &[]);
    print_empty(&at);
    let file = at.join("events/kvm/kvm_page_fault/hist");
    let cases = [
        ("", "it is cut off, or its trigger was removed"),
        // What the kernel prints if it has no memory to sort a table.
        ("\nTotals:\n    Hits: 5\n    Entries: 0\n    Dropped: 0\n", "out of memory"),
    ];
    for (text, why) in cases {
        fs::write(&file, text).unwrap();
        let message = counters.read().unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot read {}: ", file.display())), "{message}");
        assert!(message.ends_with(why), "{message}");
    }
}

#[test]
fn a_restart_ends_one_interval_and_begins_the_next() {
    let (_dir, host) = host();
    let (mut counters, old) = started(&host, &[]);
    let (new, fresh) = started(&host, &[]);
    assert_ne!(old, fresh);
    [&old, &fresh].into_iter().for_each(|at| print_empty(at));
    let exits = |at: &Path, count| print(at, Counter::Exits, &[(7, Some(30), count)], 0);
    let of = |table: ExitTable| table.threads(&[7]).exits.unwrap();
    exits(&old, 100);
    let earlier = counters.read().unwrap();
    exits(&old, 110);
    exits(&fresh, 2);
    let restart = counters.replace_by(new).unwrap();
    assert_eq!(of(restart.last.since(&earlier)), BTreeMap::from([(30, 10)]));
    exits(&fresh, 9);
    let now = counters.read().unwrap();
    assert_eq!(of(now.since(&restart.first)), BTreeMap::from([(30, 7)]));
    // The former tables count no more, the new ones do.
    let lines = |at| trigger(at, Counter::Exits).lines().count();
    assert_eq!((lines(&old), lines(&fresh)), (2, 1));
}

#[test]
fn a_restart_that_fails_leaves_the_former_tables() {
    let (_dir, host) = host();
    let (mut counters, old) = started(&host, &[]);
    let (new, _) = started(&host, &[]);
    print_empty(&old);
    // The new tables are no histograms.
    assert!(matches!(counters.replace_by(new), Err(ExitCountersError::Table(_))));
    assert_eq!(trigger(&old, Counter::Exits).lines().count(), 1);
    counters.read().unwrap();
}

#[test]
fn only_instances_of_ended_processes_are_removed() {
    let (_dir, host) = host();
    let live = std::process::id();
    let kept =
        [format!("bifold-{live}-0"), "bifold-999999999".into(), "bifold-x-0".into(), "other-1-0".into()];
    let ended = ["bifold-999999999-0", "bifold-999999998-17"];
    for name in kept.iter().map(String::as_str).chain(ended) {
        fs::create_dir(host.tracing.join("instances").join(name)).unwrap();
    }
    remove_leftovers(&host);
    let mut expected: Vec<_> = kept.iter().map(|n| host.tracing.join("instances").join(n)).collect();
    expected.sort();
    assert_eq!(instances(&host), expected);
    // A second instance of this process has another name.
    let second = Instance::create(&host).unwrap();
    assert!(host.tracing.join(format!("instances/bifold-{live}-1")).is_dir());
    drop(second);
    assert_eq!(instances(&host), expected);
}

#[test]
fn the_buffer_shrinks_where_that_changes_no_other_buffer() {
    let (_dir, host) = host();
    let at = |n| host.tracing.join(format!("instances/bifold-{}-{n}", std::process::id()));
    let size = |n| fs::read_to_string(at(n).join("buffer_size_kb")).unwrap();
    let old = Instance::create(&host).unwrap();
    fill(&at(0), &[]);
    old.shrink_buffer();
    assert_eq!(size(0), "1408\n");
    let new = Instance::create(&host).unwrap();
    fill(&at(1), &[]);
    put(&at(1).join("buffer_subbuf_size_kb"), b"4\n");
    new.shrink_buffer();
    assert_eq!(size(1), "1408\n1\n");
}

#[test]
fn what_a_host_lacks_is_said_with_the_file() {
    let (_dir, bare) = crate::tests::host();
    let error = ExitCounters::start(&bare).unwrap_err();
    assert!(
        matches!(&error, ExitCountersError::Tracing(TracingError::NotMounted { path }) if path.ends_with("tracing/instances"))
    );
    assert!(error.to_string().contains("mount -t tracefs"), "{error}");

    let (_dir, host) = host();
    let start = |without: &[Counter], take: &str| {
        let instance = Instance::create(&host).unwrap();
        let at = instances(&host).pop().unwrap();
        fill(&at, without);
        let _ = fs::remove_file(at.join(take));
        ExitCounters::within(&host, instance).map(|_| at)
    };
    assert!(start(&[Counter::PageFaults, Counter::UnsyncPages], "").is_ok());
    let error = start(&Counter::ALL, "").unwrap_err();
    assert!(matches!(&error, ExitCountersError::NoKvmEvents { .. }), "{error}");
    assert!(error.to_string().contains("events/kvm/kvm_exit"), "{error}");
    let error = start(&[], "events/kvm/kvm_exit/hist").unwrap_err();
    assert!(matches!(&error, ExitCountersError::NoHistograms { .. }), "{error}");
    // Without the right to trace, tracefs is empty.
    put(&host.sys.join("kernel/security/lockdown"), b"none integrity [confidentiality]\n");
    for error in [start(&Counter::ALL, "").unwrap_err(), locked(&bare, &host)] {
        assert!(
            matches!(error, ExitCountersError::Tracing(TracingError::LockedDown { .. }))
                && error.cannot_work_here(),
            "{error}"
        );
    }
}

/// The error of a host without tracefs that is locked down as the other host is.
fn locked(bare: &Host, other: &Host) -> ExitCountersError {
    ExitCounters::start(&Host { sys: other.sys.clone(), ..bare.clone() }).unwrap_err()
}

#[test]
fn refusals_of_the_kernel_are_told_apart() {
    let error = |number| {
        let source = io::Error::from_raw_os_error(number);
        TracingError::io("open", Path::new("/t/events/kvm/kvm_exit/hist"), source)
    };
    let [not_root, locked, no_memory] = [13, 1, 12].map(error);
    assert_eq!(
        not_root.to_string(),
        "cannot open /t/events/kvm/kvm_exit/hist: only root may; run the command with sudo"
    );
    assert!(matches!(locked, TracingError::LockedDown { .. }));
    assert!(matches!(no_memory, TracingError::Io { .. }) && !no_memory.cannot_work_here());
}
