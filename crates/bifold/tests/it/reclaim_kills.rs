// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes back when orders about guests' sizes, or their guardians, are killed or stand still.

use crate::reclaim_qemu::{MIB, Qemu, children, hears, orphans, signal, stop, text, until};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// How many kills the test makes, all at once: each has its own guest.
fn kills() -> u64 {
    std::env::var("BIFOLD_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

#[test]
fn a_size_comes_back_when_its_order_is_killed_at_any_moment() {
    let count = kills();
    let threads = (0..count).map(|n| {
        std::thread::spawn(move || {
            let qemu = Qemu::start(&format!("kill{n}"));
            let mut order = qemu.order(&["300"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(12_000 * n / count));
            signal(&order, Signal::KILL);
            order.wait().unwrap();
            assert!(qemu.is_as_found(), "kill {n} of {count}: {:?}", qemu.state());
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn when_order_and_guardian_are_killed_the_journal_stays_for_restore() {
    let _others = orphans(FlockOperation::NonBlockingLockExclusive);
    let qemu = Qemu::start("both");
    killed_with_its_guardian(&qemu);
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (400, 1)));
    assert!(qemu.bifold("restore").arg(&qemu.name).output().unwrap().status.success());
    assert!(qemu.is_as_found());
}

#[test]
fn a_long_interval_of_statistics_is_shortened_for_the_order() {
    let qemu = Qemu::start("seldom");
    qemu.tell("polling", 3600);
    let start = || {
        let mut order = qemu.order(&["448"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 448 MiB");
        assert_eq!(qemu.state(), (448, 1));
        order
    };
    let mut order = start();
    signal(&order, Signal::KILL);
    order.wait().unwrap();
    assert!(until(|| !qemu.journal().exists()));
    assert_eq!(qemu.state(), (512, 3600));
    // Another program's interval stays.
    let mut order = start();
    qemu.tell("polling", 2);
    signal(&order, Signal::INT);
    order.wait().unwrap();
    assert_eq!(qemu.state(), (512, 2));
}

#[test]
fn a_size_comes_back_though_the_journals_folder_is_removed() {
    let qemu = Qemu::start("logout");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    std::fs::remove_file(qemu.journal()).unwrap();
    signal(&order, Signal::KILL);
    order.wait().unwrap();
    assert!(until(|| qemu.state() == (512, 0)), "{:?}", qemu.state());
}

#[test]
fn a_guardian_does_not_take_another_orders_journal_for_its_own() {
    let qemu = Qemu::start("foreign");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    let own = std::fs::read_to_string(qemu.journal()).unwrap();
    let found = |mib: u64| format!("\nfound {}\n", mib * MIB);
    let other =
        own.replace(&format!("\npid {}\n", order.id()), "\npid 1\n").replace(&found(512), &found(400));
    assert!(other.contains("\npid 1\n") && other.contains(&found(400)), "{own}");
    std::fs::write(qemu.journal(), &other).unwrap();
    let guardian = format!("/proc/{}/cmdline", children(order.id())[0]);
    signal(&order, Signal::KILL);
    order.wait().unwrap();
    assert!(until(|| qemu.state() == (512, 0)), "{:?}", qemu.state());
    // A zombie has no words.
    assert!(until(|| std::fs::read(&guardian).unwrap_or_default().is_empty()));
    assert_eq!(std::fs::read_to_string(qemu.journal()).unwrap(), other);
    std::fs::remove_file(qemu.journal()).unwrap();
}

/// An order that holds 400 MiB and is killed with its guardian.
fn killed_with_its_guardian(qemu: &Qemu) {
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    // It must not see its guardian's end.
    stop(&order);
    for guardian in children(order.id()) {
        kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    }
    signal(&order, Signal::KILL);
    order.wait().unwrap();
}

#[test]
fn an_order_whose_guardian_is_killed_gives_back_and_ends() {
    let qemu = Qemu::start("alone");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    for guardian in children(order.id()) {
        kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    }
    let output = order.wait_with_output().unwrap();
    assert!(text(&output).contains("runs no longer"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(qemu.is_as_found());
}

#[test]
fn a_guardian_that_cannot_give_back_says_so_and_ends_at_a_signal() {
    let qemu = Qemu::start("stuck");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    let guardian = Pid::from_raw(children(order.id())[0]).unwrap();
    stop(&qemu.child);
    signal(&order, Signal::KILL);
    let mut lines = BufReader::new(order.stderr.take().unwrap()).lines();
    order.wait().unwrap();
    hears(&mut lines, &format!("process {} tries", guardian.as_raw_pid()));
    kill_process(guardian, Signal::TERM).unwrap();
    hears(&mut lines, "is not given back");
    signal(&qemu.child, Signal::CONT);
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (400, 1)));
    let restored = qemu.bifold("restore").args([&qemu.name, "--force"]).output().unwrap();
    assert!(restored.status.success() && qemu.is_as_found(), "{}", text(&restored));
}

#[test]
fn an_order_that_stands_still_loses_its_guest() {
    let qemu = Qemu::start("still");
    let mut order = qemu.order(&["300"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "-> ");
    signal(&order, Signal::STOP);
    assert!(until(|| qemu.state() == (512, 0)), "{:?}", qemu.state());
    // It orders nothing when it goes on.
    signal(&order, Signal::CONT);
    let output = order.wait_with_output().unwrap();
    assert!(text(&output).contains("stands still during an order"), "{}", text(&output));
    assert!(text(&output).contains("runs no longer"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(qemu.is_as_found());
}

#[test]
fn the_size_of_a_guest_on_its_way_is_not_taken_for_its_own() {
    let _others = orphans(FlockOperation::NonBlockingLockExclusive);
    let qemu = Qemu::start("way");
    killed_with_its_guardian(&qemu);
    // The next order gives 512 MiB back, sees 400, and then 512.
    qemu.tell("late", 1);
    let moves = text(&qemu.order(&["350", "--for", "1"]).output().unwrap());
    assert!(moves.contains("its size moves, from 400 to 512 MiB"), "{moves}");
    assert!(qemu.is_as_found());
    qemu.tell("late", 0);
    killed_with_its_guardian(&qemu);
    // A guest that does not follow: the next order's end still gives back what the first one found.
    qemu.tell("deaf", true);
    let mut order = qemu.order(&["350"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "has 400 MiB");
    signal(&order, Signal::INT);
    order.wait().unwrap();
    qemu.tell("deaf", false);
    assert!(qemu.is_as_found());
}
