// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What orders have left that were killed.

use super::*;
use bifold_host::guest_memory::MonitorPlace;
use bifold_host::held::{Guardian, Journal};
use bifold_live::order::{Record, WHAT, Way};
use std::path::PathBuf;

/// Leaves a journal of an order that found 2 GiB.
fn leave(folder: &Path, pid: u32, least: u64, kept: bool) -> PathBuf {
    let places = places(folder, (pid, 4711));
    let record = Record {
        guest: (pid, 4711),
        name: "left".into(),
        monitor: MonitorPlace::Socket("/nonexistent/monitor".into()),
        way: Way::Balloon,
        device: "balloon0".into(),
        found: 2 * GIB,
        least,
        dimms: 0,
        besides: 0,
        polling: None,
        kept,
    };
    let journal = Journal { what: WHAT.into(), pid: 1, found: record.values() };
    journal.write(&places.journal).unwrap();
    places.journal
}

#[test]
fn an_order_waits_for_what_the_journal_of_the_last_one_says() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    let folder = tempfile::tempdir().unwrap();
    let mut awaits = |least, kept| {
        leave(folder.path(), 100, least, kept);
        let guardian = Guardian { program: "/bin/false".into(), words: Vec::new() };
        let place = Place { folder: folder.path().into(), guardian };
        let host = fake.host.host();
        let guest = fake.guest(100);
        GuestThread::new(guest.control.clone(), place, host, guest.live.clone()).awaits()
    };
    assert_eq!(awaits(GIB, false), Some(2 * GIB));
    // Statistics alone, and what a user has kept, take nothing that is to come back.
    assert_eq!((awaits(2 * GIB, false), awaits(GIB, true)), (None, None));
}

#[test]
fn what_killed_orders_left_is_given_back_whatever_the_rules_say() {
    let mut fake = Fake::new("");
    let folder = tempfile::tempdir().unwrap();
    let leave = |pid, kept| leave(folder.path(), pid, GIB, kept);
    // Nothing is left of the second, whose process has ended; what was kept stays, and what another process
    // holds.
    let (web, ended, kept, held) =
        (leave(100, false), leave(300, false), leave(301, true), leave(302, false));
    let lock = std::fs::File::create(held.with_extension("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let guardian = Guardian { program: "/bin/false".into(), words: Vec::new() };
    fake.memory.order_at(Some(Place { folder: folder.path().into(), guardian }));
    let mut said = String::new();
    let begun = Instant::now();
    while (ended.exists() || !said.contains("/nonexistent/monitor")) && begun.elapsed().as_secs() < 60 {
        said += &fake.tick(1);
        sleep(Duration::from_millis(10));
    }
    assert!(!ended.exists() && kept.exists() && held.exists(), "{said}");
    assert!(
        said.contains("VM left (process 100) has not got back what a killed order had left taken"),
        "{said}"
    );
    // It is tried on: here, the process ends.
    std::fs::remove_dir_all(fake.host.host().proc.join("100")).unwrap();
    drop(lock);
    while (web.exists() || held.exists()) && begun.elapsed().as_secs() < 60 {
        sleep(Duration::from_millis(10));
    }
    assert!(!web.exists() && !held.exists() && kept.exists());
}
