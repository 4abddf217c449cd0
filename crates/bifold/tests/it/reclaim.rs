// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders about the sizes of guests, on processes that answer as QEMU does.

use crate::reclaim_qemu::{MIB, Qemu, hears, lines_of, signal, text};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

#[test]
fn an_order_holds_its_size_for_its_time_and_gives_it_back() {
    let qemu = Qemu::start("for");
    let output = qemu.order(&["400", "--for", "1"]).output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "uses 100 MiB, least size 164 MiB",
        "512 MiB -> 448 MiB",
        "holds at 400 MiB",
        "everything is given back",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(qemu.is_as_found());
    assert!(!qemu.journal().with_extension("lock").exists(), "locks do not pile up");
}

#[test]
fn what_an_order_may_not_do_is_refused_and_changes_nothing() {
    let qemu = Qemu::start("refused");
    let refused = |arguments: &[&str], status: i32, part: &str| {
        let output = qemu.order(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", text(&output));
        assert!(text(&output).contains(part), "{}", text(&output));
        assert!(qemu.is_as_found());
    };
    refused(&["150"], 1, "150 MiB are below its least size, 164 MiB");
    refused(&["600"], 1, "it has 512 MiB");
    refused(&["400", "--by", "virtio-mem"], 1, "no device of virtio-mem");
    refused(&["200", "--floor", "300"], 1, "--floor says so");
    if std::fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .any(|l| l.contains(" cgroup ") && l.contains("memory"))
    {
        refused(&["400", "--by", "cgroup"], 77, "cgroup v1");
    }
    qemu.tell("running", false);
    refused(&["400"], 1, "its vCPUs do not run (QEMU says `paused`)");
    let output = qemu.order(&["400", "--dry-run"]).output().unwrap();
    assert!(text(&output).contains("do not run"), "{}", text(&output));
    qemu.tell("running", true);
    let output = qemu.order(&["400", "--dry-run"]).output().unwrap();
    assert!(text(&output).contains("would go from 512 MiB to 400 MiB by balloon"), "{}", text(&output));
    assert!(qemu.is_as_found());
}

#[test]
fn a_guest_that_needs_its_memory_or_does_not_follow_gets_it_back() {
    let qemu = Qemu::start("needs");
    let mut order = qemu.order(&["300"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(order.stdout.take().unwrap()).lines();
    hears(&mut lines, "holds at 300 MiB");
    // Another order has to wait, and says for whom.
    let busy = text(&qemu.order(&["200"]).output().unwrap());
    assert!(busy.contains(&format!("held by process {}", order.id())), "{busy}");
    qemu.tell("used", 290);
    hears(&mut lines, "are available in it, less than 32 MiB: everything is given back");
    assert_eq!(order.wait().unwrap().code(), Some(1));
    assert!(qemu.is_as_found());
    qemu.tell("used", 100);
    qemu.tell("deaf", true);
    let stuck = text(&qemu.order(&["300"]).output().unwrap());
    assert!(stuck.starts_with("Some(1)") && stuck.contains("its size stays at 512 MiB"), "{stuck}");
    assert!(qemu.is_as_found());
}

#[test]
fn a_size_that_is_kept_stays_until_it_is_restored() {
    let qemu = Qemu::start("keep");
    let kept = qemu.order(&["448", "--keep", "--format", "jsonl"]).output().unwrap();
    let events = lines_of(&kept).into_iter().map(|l| l["event"].as_str().unwrap().to_owned());
    assert_eq!(events.collect::<Vec<_>>(), ["begin", "step", "hold"]);
    assert_eq!(qemu.state(), (448, 0));
    // A later order that is refused or stopped before its first step changes nothing.
    assert!(text(&qemu.order(&["150"]).output().unwrap()).contains("below its least size"));
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (448, 0)));
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(order.stdout.take().unwrap()).lines();
    hears(&mut lines, "has 448 MiB");
    signal(&order, Signal::INT);
    hears(&mut lines, "stays as an earlier order has left it");
    order.wait().unwrap();
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (448, 0)));
    // Another one goes on from there, and everything comes back to the first size.
    assert!(qemu.order(&["400", "--keep"]).output().unwrap().status.success());
    assert_eq!(qemu.state(), (400, 0));
    let restore = |more: &[&str]| qemu.bifold("restore").arg(&qemu.name).args(more).output().unwrap();
    qemu.monitor().ask("balloon", json!({ "value": 200 * MIB })).unwrap();
    let changed = restore(&[]);
    assert!(text(&changed).contains("has 200 MiB now, which no order asked for"), "{}", text(&changed));
    assert_eq!((changed.status.code(), qemu.state()), (Some(1), (200, 0)));
    // A further order would take that size for its own.
    let changed = text(&qemu.order(&["190", "--for", "1"]).output().unwrap());
    assert!(changed.contains("has 200 MiB now, which no order asked for"), "{changed}");
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (200, 0)));
    assert!(restore(&["--force"]).status.success());
    assert!(qemu.is_as_found());
    assert!(text(&restore(&[])).contains("no order has taken memory"));
    assert!(qemu.order(&["448", "--keep"]).output().unwrap().status.success());
    qemu.monitor().ask("balloon", json!({ "value": 300 * MIB })).unwrap();
    assert!(text(&restore(&["--keep"])).contains("stays at 300 MiB"));
    assert_eq!((qemu.journal().exists(), qemu.state()), (false, (300, 0)));
}

#[test]
fn watching_changes_nothing_unless_asked_and_then_sets_it_back() {
    let qemu = Qemu::start("watch");
    let watch = |more: &[&str]| {
        let mut command = qemu.bifold("watch");
        command.args([&qemu.name, "-i", "1", "--format", "jsonl"]).args(more);
        command
    };
    let lines = lines_of(&watch(&["-n", "2"]).output().unwrap());
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[1]["actual_bytes"], &lines[1]["guest_available_bytes"]),
        (&json!(512 * MIB), &Value::Null)
    );
    assert_eq!((lines[1]["process_faults_per_second"].is_number(), qemu.state()), (true, (512, 0)));
    let lines = lines_of(&watch(&["-n", "3", "--stats"]).output().unwrap());
    assert_eq!(lines[2]["guest_available_bytes"], json!(412 * MIB));
    assert!(qemu.is_as_found());
    let mut watching = watch(&["--stats"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(watching.stdout.take().unwrap()).lines(), &format!("{}", 412 * MIB));
    assert_eq!(qemu.state(), (512, 1));
    let busy = text(&qemu.order(&["400"]).output().unwrap());
    assert!(busy.contains("held by process"), "{busy}");
    signal(&watching, Signal::KILL);
    watching.wait().unwrap();
    assert!(qemu.is_as_found());
}

#[test]
fn advice_names_what_is_missing() {
    let qemu = Qemu::start("advise");
    let output = qemu.bifold("advise").args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let own = document["findings"].as_array().unwrap().iter().filter(|f| f["vm"] == json!(qemu.name));
    assert_eq!(own.map(|f| f["rule"].as_str().unwrap()).collect::<Vec<_>>(), ["statistics-off"]);
    assert_eq!(qemu.state(), (512, 0));
}

/// What a `virsh` of this test answers: the monitor of a paused guest.
const VIRSH: &str = r#"#!/bin/sh
case "$*" in
*"--domain 6c1f22d0-54f4-4c5c-9a4b-0c5a4f1e9a10 --cmd"*) ;;
*) echo "error: no domain" >&2; exit 1 ;;
esac
case "$*" in
*query-cpus-fast*) echo '{"return":[{"cpu-index":0,"thread-id":THREAD}]}' ;;
*query-status*) echo '{"return":{"status":"paused","running":false},"id":"libvirt-1"}' ;;
*query-memory-size-summary*) echo '{"return":{"base-memory":1048576}}' ;;
*) echo '{"id":"libvirt-2","error":{"class":"CommandNotFound","desc":"not here"}}' ;;
esac
"#;

#[test]
fn libvirts_monitor_is_asked_through_virsh() {
    let qemu = Qemu::with("libvirt", |_| {
        let line = "-uuid 6c1f22d0-54f4-4c5c-9a4b-0c5a4f1e9a10 -chardev socket,id=charmonitor,fd=25,server=on \
                    -mon chardev=charmonitor,id=monitor,mode=control";
        line.split_whitespace().map(String::from).collect()
    });
    let virsh = qemu.dir.path().join("virsh");
    let path = format!("{}:{}", qemu.dir.path().display(), std::env::var("PATH").unwrap());
    let refused = |path: &str| text(&qemu.order(&["400"]).env("PATH", path).output().unwrap());
    let missing = refused("/usr/bin:/bin");
    if !Path::new("/usr/bin/virsh").exists() {
        assert!(missing.contains("libvirt has the monitor, and virsh does not run"), "{missing}");
    }
    let answers = |thread: u32| {
        std::fs::write(&virsh, VIRSH.replace("THREAD", &thread.to_string())).unwrap();
        std::fs::set_permissions(&virsh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    answers(1);
    let another = refused(&path);
    assert!(another.contains("does not run in process"), "{another}");
    answers(qemu.child.id());
    let paused = refused(&path);
    assert!(paused.contains("QEMU says `paused`"), "{paused}");
    let mut watch = qemu.bifold("watch");
    let lines = lines_of(
        &watch.args([&qemu.name, "-n", "1", "--format", "jsonl"]).env("PATH", path).output().unwrap(),
    );
    assert_eq!((&lines[0]["state"], &lines[0]["size_bytes"]), (&json!("paused"), &json!(1 << 20)));
}

#[test]
fn what_a_balloon_holds_comes_back_though_a_dimm_was_plugged() {
    let qemu = Qemu::start("dimm");
    assert!(qemu.order(&["448", "--keep"]).output().unwrap().status.success());
    qemu.tell("dimms", 1024);
    assert_eq!(qemu.state(), (1472, 0));
    assert!(qemu.order(&["1400", "--keep"]).output().unwrap().status.success());
    assert!(qemu.bifold("restore").arg(&qemu.name).output().unwrap().status.success());
    assert_eq!((qemu.journal().exists(), qemu.state()), (false, (1536, 0)));
    let mut order = qemu.order(&["1472"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(order.stdout.take().unwrap()).lines();
    hears(&mut lines, "holds at 1472 MiB");
    qemu.tell("dimms", 2048);
    hears(&mut lines, "everything is given back");
    order.wait().unwrap();
    assert_eq!((qemu.journal().exists(), qemu.state()), (false, (2560, 0)));
}

#[test]
fn a_guest_that_has_ended_is_found_by_its_name() {
    let mut qemu = Qemu::start("ended");
    assert!(qemu.order(&["448", "--keep"]).output().unwrap().status.success());
    qemu.child.kill().unwrap();
    qemu.child.wait().unwrap();
    let restored = text(&qemu.bifold("restore").arg(&qemu.name).output().unwrap());
    assert!(restored.contains(&format!("VM {}: the guest has ended", qemu.name)), "{restored}");
    assert!(!qemu.journal().exists());
}

#[test]
fn ctrl_c_gives_back_and_a_guest_that_ends_is_an_end() {
    let mut qemu = Qemu::start("ctrl-c");
    let start = |qemu: &Qemu| {
        let mut order = qemu.order(&["448"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 448 MiB");
        order
    };
    let mut order = start(&qemu);
    signal(&order, Signal::INT);
    order.wait().unwrap();
    assert!(qemu.is_as_found());
    let mut order = start(&qemu);
    let journal = qemu.journal();
    qemu.child.kill().unwrap();
    qemu.child.wait().unwrap();
    assert_eq!(order.wait().unwrap().code(), Some(1));
    assert!(!journal.exists());
    let _ = std::fs::remove_file(journal.with_extension("lock"));
}
