// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `doctor`, and what guests need.

use crate::command::{Ran, bifold, bifold_in, command, names, ran};
use crate::stopping::{interrupt, wait_for_events};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

/// Whether guests can be started here; if not, `doctor` has said why.
pub fn no_guest_here() -> bool {
    let lacking = bifold("doctor").status == 77;
    if lacking {
        eprintln!("skipped: this machine cannot run a guest, see `bifold doctor`");
    }
    lacking
}

/// Runs a shell command in a small guest.
pub fn guest(dir: &Path, options: &str, script: &str) -> Ran {
    let mut c = command(options.split_whitespace());
    c.args(["-m", "256", "--", "/bin/sh", "-c", script]);
    c.current_dir(dir);
    ran(c)
}

#[test]
fn doctor_tells_the_same_in_words_and_in_json() {
    let (words, json) = (bifold("doctor"), bifold("doctor --format json"));
    assert_eq!(words.status, json.status);
    let v: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(v["schema"], "bifold.doctor/1");
    assert_eq!(words.status, if v["ok"] == true { 0 } else { 77 });
    for check in v["checks"].as_array().unwrap() {
        assert!(words.stdout.contains(check["name"].as_str().unwrap()));
    }
}

#[test]
fn a_recorded_guest_gives_the_same_figures_and_its_output_goes_to_stderr() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "echo to-stdout; echo to-stderr >&2; exit 7";
    let live = guest(dir.path(), "record -q -o a.bifold --format json", script);
    assert_eq!(live.status, 7, "{}", live.stderr);
    assert_eq!(live.stderr, "to-stdout\nto-stderr\n");
    let live: serde_json::Value = serde_json::from_str(&live.stdout).unwrap();
    assert_eq!(live["exit"]["value"], 7);
    assert_eq!(live["checks"]["failed"], 0);
    assert!(live["checks"]["made"].as_u64().unwrap() > 0);

    let mut c = command(["compare", "-q", "a.bifold", "--format", "json"]);
    c.current_dir(dir.path());
    let again: serde_json::Value = serde_json::from_str(&ran(c).quietly()).unwrap();
    for same in ["outcome", "exit", "checks", "capture_checks"] {
        assert_eq!(live[same], again[same], "{same}");
    }
    assert_eq!(live["guest"], again["guest"]);
    assert!(live["guest"]["kernel"].is_string() && live["guest"]["qemu"].is_string());
}

#[test]
fn a_command_ended_by_a_signal_passes_it_on_as_shells_do() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ran = guest(dir.path(), "record -q -o a.bifold", "kill -SEGV $$");
    assert_eq!(ran.status, 128 + 11, "{}", ran.stderr);
    assert!(ran.stdout.contains("killed by signal 11"), "{}", ran.stdout);
    // Its recording says so too; reading it succeeds.
    let again = bifold_in(dir.path(), "compare -q a.bifold").quietly();
    assert!(again.contains("killed by signal 11"), "{again}");
}

#[test]
fn a_command_that_hangs_is_stopped_and_what_it_did_is_shown() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ran = guest(dir.path(), "record -q --timeout 2 -o part.bifold", "while :; do :; done");
    assert_eq!(ran.status, 124, "{}", ran.stderr);
    assert!(ran.stdout.contains("PARTIAL: stopped at the time limit"), "{}", ran.stdout);
    assert_eq!(names(dir.path()), ["part.bifold"]);
}

#[test]
fn ctrl_c_ends_the_guest_and_shows_what_is_there() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut c = command(["record", "-o", "part.bifold", "-m", "256", "--report", "r.html", "--"]);
    c.args(["/bin/sh", "-c", "while :; do :; done"]);
    c.current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = c.spawn().unwrap();
    // The guest's own start has some hundred thousand bytes.
    wait_for_events(dir.path(), 1_000_000);
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(130), "{stderr}");
    assert!(stdout.contains("PARTIAL: interrupted"), "{stdout}{stderr}");
    assert_eq!(names(dir.path()), ["part.bifold", "r.html"]);
}

#[test]
fn programs_that_cannot_run_are_one_message() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), "x").unwrap();
    std::fs::write(dir.path().join("script"), "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(dir.path().join("script"), Permissions::from_mode(0o755)).unwrap();
    for (program, status, expected) in [
        ("no-such-program", 127, "program not found"),
        ("./data", 126, "not an executable file"),
        // Only the kernel can tell, in the guest.
        ("./script", 126, "No such file or directory"),
    ] {
        let mut c = command(["compare", "-m", "256", "--report", "r.html", "--", program]);
        c.current_dir(dir.path());
        let text = ran(c).refused();
        assert!(text.starts_with(&format!("status {status}\nbifold: ")) && text.contains(expected), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }
    assert_eq!(names(dir.path()), ["data", "script"]);
}

#[test]
fn a_working_directory_that_the_guest_lacks_is_one_message() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = guest(dir.path(), "compare -q", "true").refused();
    assert!(text.starts_with("status 125\nbifold: in the guest: the working directory"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn standard_input_is_passed_and_written_files_are_kept() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("input"), "1 2 3\n").unwrap();
    let run = |keep: &str| {
        let mut c = command([
            "compare",
            "-m",
            "256",
            "--keep",
            keep,
            "--",
            "sh",
            "-c",
            "wc; echo x > /tmp/bifold-kept",
        ]);
        c.current_dir(dir.path()).stdin(std::fs::File::open(dir.path().join("input")).unwrap());
        ran(c)
    };
    let first = run("kept");
    assert_eq!(first.status, 0, "{}", first.stderr);
    let counts: Vec<&str> = first.stderr.split_whitespace().take(3).collect();
    assert_eq!(counts, ["1", "3", "6"], "{}", first.stderr);
    assert!(first.stderr.contains("1 file, 4 KiB written in the guest, kept in kept"), "{}", first.stderr);
    assert_eq!(std::fs::read_to_string(dir.path().join("kept/tmp/bifold-kept")).unwrap(), "x\n");
    assert!(first.stdout.contains("repeats to the bit"), "{}", first.stdout);
    // What is there already is not overwritten.
    assert!(run("kept").refused().contains("not empty"));
}

#[test]
fn a_guest_of_four_vcpus_and_two_nodes_has_local_and_remote_references() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "taskset -c 3 sh -c 'cat /sys/devices/system/node/has_cpu; ls /usr/bin | sort | tail -n 1'";
    let options = "record -q --fast --vcpus 4 --guest-nodes 2 -o four.bifold";
    let recorded = guest(dir.path(), options, script);
    assert_eq!(recorded.status, 0, "{}", recorded.stderr);
    assert!(recorded.stderr.starts_with("0-1\n"), "{}", recorded.stderr);
    assert!(recorded.stdout.contains("4 vCPUs, 2 NUMA nodes"), "{}", recorded.stdout);
    let refused = crate::command::bifold_in(dir.path(), "compare --placement smp four.bifold").refused();
    assert!(refused.starts_with("status 2\n") && refused.contains("add --vm started"), "{refused}");
    let placed = "compare -q --vm started --format json --placement all four.bifold";
    let all = crate::command::bifold_in(dir.path(), placed);
    let v: serde_json::Value = serde_json::from_str(&all.quietly()).unwrap();
    assert_eq!(v["checks"]["failed"], 0);
    assert_eq!(v["outcome"]["placed"]["guest_nodes"], 2);
    let nested = &v["outcome"]["configs"][1];
    let share = |placement: &str, kind: &str| {
        let rows = nested["placed"].as_array().unwrap();
        let row = rows.iter().find(|r| r["placement"] == placement).unwrap();
        let [local, remote] = ["local", "remote"].map(|side| row[kind][side].as_f64().unwrap());
        remote / (local + remote)
    };
    // Guest and host agree on nodes: what the guest's kernel placed near is near, and crossed it is far.
    assert!(share("guest-numa", "data") < 0.5, "{}", share("guest-numa", "data"));
    for kind in ["data", "guest_tables"] {
        let sum = share("guest-numa", kind) + share("crossed", kind);
        assert!((sum - 1.0).abs() < 1e-9, "{kind}: {sum}");
    }
    // A walk's references to guest tables that are all remote.
    assert_eq!(
        (share("remote-guest-tables", "guest_tables"), share("remote-guest-tables", "host_tables")),
        (1.0, 0.0)
    );
}
