// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon divides memory, among processes that answer as QEMU does.

use crate::command::bifold_in;
use crate::daemon::Daemon;
use crate::reclaim_qemu::{MIB, Qemu, children, orphans, signal, stop, until};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// A configuration for one guest, by its name: what is wanted of it follows from the limit.
fn configure(dir: &Path, name: &str, limit: &str, rule: &str) {
    let text = format!(
        "[recording]\nfile = \"vms.jsonl\"\n[memory]\nlimit = \"{limit}\"\npolicy = \"equal\"\ninterval_s = 1\nmin_stay_s = 0\n\
         [[vm]]\nname = \"{name}\"\n[vm.memory]\n{rule}\n"
    );
    std::fs::write(dir.join("c.toml"), text).unwrap();
}

fn start(qemu: &Qemu, limit: &str, rule: &str) -> Daemon {
    start_by(Daemon::start, qemu, limit, rule)
}

fn start_by(start: fn(&Path) -> Daemon, qemu: &Qemu, limit: &str, rule: &str) -> Daemon {
    configure(qemu.dir.path(), &qemu.name, limit, rule);
    let daemon = start(qemu.dir.path());
    daemon.waits_for("READY=1\n");
    daemon.unheard()
}

fn ctl(qemu: &Qemu, ask: &str) -> String {
    bifold_in(qemu.dir.path(), &format!("ctl --state state {ask}")).quietly()
}

/// What `ctl status` has about the guest.
fn memory(qemu: &Qemu) -> Value {
    let status: Value = serde_json::from_str(&ctl(qemu, "status --format json")).unwrap();
    status["memory"]["guests"][0].clone()
}

#[test]
fn the_daemon_takes_what_its_policy_wants_and_gives_it_back_when_asked_and_at_its_end() {
    let qemu = Qemu::start("divided");
    let daemon = start(&qemu, "400M", "act = true");
    assert!(until(|| qemu.state() == (400, 1)), "{:?} {:?}", qemu.state(), memory(&qemu));
    assert!(until(|| memory(&qemu)["note"] == "112 MiB are taken"), "{}", memory(&qemu));
    // An operator's order finds the guest taken.
    let busy = qemu.order(&["300"]).output().unwrap();
    assert!(String::from_utf8_lossy(&busy.stderr).contains("held by process"), "{busy:?}");
    // A larger limit gives a part back, and a smaller one takes it again.
    configure(qemu.dir.path(), &qemu.name, "450M", "act = true");
    ctl(&qemu, "reload");
    assert!(until(|| qemu.state().0 == 450));
    configure(qemu.dir.path(), &qemu.name, "350M", "act = true");
    ctl(&qemu, "reload");
    assert!(until(|| qemu.state().0 == 350));
    let told = ctl(&qemu, &format!("undo {}", qemu.name));
    assert!(told.contains("gets its memory back and is held"), "{told}");
    assert!(qemu.is_as_found() && memory(&qemu)["state"] == "held");
    // The guest is the operator's now.
    assert!(qemu.order(&["400", "--for", "1"]).output().unwrap().status.success());
    ctl(&qemu, &format!("release {}", qemu.name));
    assert!(until(|| qemu.state().0 == 350));
    let explained = ctl(&qemu, &format!("explain {}", qemu.name));
    assert!(explained.contains("gives 112 MiB, to 400 MiB (its part of the limit)"), "{explained}");
    // The rule goes, and the memory comes back, with the statistics' interval.
    std::fs::write(qemu.dir.path().join("c.toml"), "").unwrap();
    ctl(&qemu, "reload");
    assert!(qemu.is_as_found());
    configure(qemu.dir.path(), &qemu.name, "350M", "act = true");
    ctl(&qemu, "reload");
    assert!(until(|| qemu.state().0 == 350));
    daemon.signal("-TERM");
    let (status, log) = daemon.ends();
    assert_eq!(status, Some(0), "{log}");
    assert!(qemu.is_as_found(), "{log}");
}

#[test]
fn without_act_nothing_of_a_guest_changes_and_the_recording_has_what_is_wanted() {
    let qemu = Qemu::start("observed");
    let daemon = start(&qemu, "400M", "");
    assert!(until(|| memory(&qemu)["done"] == "would-take"), "{}", memory(&qemu));
    assert_eq!(memory(&qemu)["wants_bytes"], json!(400 * MIB));
    assert!(memory(&qemu)["findings"].to_string().contains("QEMU does not ask"), "{}", memory(&qemu));
    assert_eq!((qemu.state(), qemu.journal().exists()), ((512, 0), false));
    daemon.signal("-TERM");
    let (_, log) = daemon.ends();
    assert!(
        log.contains(&format!("VM {} (process {}) would give 112 MiB", qemu.name, qemu.child.id())),
        "{log}"
    );
    let recording = std::fs::read_to_string(qemu.dir.path().join("vms.jsonl")).unwrap();
    let line = recording.lines().find(|l| l.contains("would-take")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["schema"], &line["policy"]), (&json!("bifold.memory-decision/1"), &json!("equal")));
    assert_eq!(qemu.state(), (512, 0));
}

#[test]
fn a_killed_daemons_guests_get_their_memory_back() {
    // How many kills, all at once: each has a guest and a daemon of its own.
    let count = std::env::var("BIFOLD_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6u64);
    let threads = (0..count).map(|n| {
        std::thread::spawn(move || {
            let qemu = Qemu::start(&format!("killed{n}"));
            let daemon = start(&qemu, "300M", "act = true");
            std::thread::sleep(Duration::from_millis(12_000 * n / count));
            daemon.signal("-KILL");
            daemon.ends();
            assert!(qemu.is_as_found(), "kill {n} of {count}: {:?}", qemu.state());
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_daemon_gives_back_what_one_left_that_was_killed_with_its_guardians() {
    let _others = orphans(FlockOperation::NonBlockingLockExclusive);
    let qemu = Qemu::start("orphan");
    let daemon = start_by(Daemon::start_beside_orphans, &qemu, "400M", "act = true");
    assert!(until(|| qemu.state().0 == 400));
    // The daemon must not see its guardian's end.
    stop(&daemon.child);
    for guardian in children(daemon.child.id()) {
        kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    }
    daemon.signal("-KILL");
    daemon.ends();
    assert_eq!((qemu.state().0, qemu.journal().exists()), (400, true));
    // Its rule only observes.
    let next = start_by(Daemon::start_beside_orphans, &qemu, "8G", "");
    assert!(until(|| qemu.state().0 == 512), "{}", memory(&qemu));
    next.signal("-TERM");
    let (status, log) = next.ends();
    assert!(log.contains("gets 512 MiB again"), "{log}");
    assert!(status == Some(0) && qemu.is_as_found(), "{log}");
}

#[test]
fn a_silent_monitor_holds_nothing_up_and_another_controller_keeps_its_size() {
    let qemu = Qemu::start("silent");
    let other = Qemu::start("other");
    let daemon = start(&qemu, "400M", "act = true");
    assert!(until(|| qemu.state().0 == 400));
    stop(&qemu.child);
    // The daemon answers, reads on, and sees what it does not see.
    assert!(until(|| memory(&qemu)["state"] == "not seen"), "{}", memory(&qemu));
    signal(&qemu.child, Signal::CONT);
    assert!(until(|| memory(&qemu)["state"] != "not seen"), "{}", memory(&qemu));
    daemon.signal("-TERM");
    assert_eq!(daemon.ends().0, Some(0));
    assert!(qemu.is_as_found());
    // Another program orders a size that no order asked for.
    let daemon = start(&other, "400M", "act = true");
    assert!(until(|| memory(&other)["note"] == "112 MiB are taken"));
    other.monitor().ask("balloon", json!({ "value": 200 * MIB })).unwrap();
    assert!(until(|| memory(&other)["state"] == "cannot"), "{}", memory(&other));
    daemon.signal("-TERM");
    let (status, log) = daemon.ends();
    assert!(status == Some(0) && log.contains("another program orders sizes"), "{log}");
    assert_eq!((other.state(), other.journal().exists()), ((200, 0), false));
}
