// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim run`: what is wrong about an experiment's file, and one small guest, where there are QEMU
//! and such a kernel.
//!
//! No time is asserted: a run ends so many seconds after its guest is ready, however long that takes.

use crate::command::bifold_in;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// More than any step here takes on a busy machine.
const LONG: Duration = Duration::from_secs(600);

fn experiment(name: &str, length: u32) -> String {
    format!(
        "title = 'one small guest'\nhost_memory_mib = 200\n[time]\nlength = {length}\ninterval = 1\n\
         [[guest]]\nname = '{name}'\ncount = 1\nmemory_mib = 256\nleast_mib = 100\nswap_mib = 64\n\
         phases = [{{ seconds = 3, memory_mib = 16, files_mib = 8, rate = 20 }}, {{ seconds = 2, memory_mib = 8, rate = 5 }}]\n\
         [[case]]\nname = 'equal'\npolicy = 'equal'\nreporting = true\n"
    )
}

#[test]
fn what_is_wrong_about_a_file_is_named_with_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let mut said = String::new();
    let good = experiment("small", 20);
    for (from, to) in [
        ("host_memory_mib = 200", "host_memory_mib = 20"),
        ("interval = 1", "interval = 0.2"),
        ("interval = 1", "intervall = 1"),
        ("count = 1", "count = 0"),
        ("memory_mib = 256", "memory_mib = 32"),
        ("least_mib = 100", "least_mib = 300"),
        ("memory_mib = 16,", "memory_mib = 16000,"),
        ("rate = 20", "rate = -1"),
        ("policy = 'equal'", "policy = 'curves'"),
        ("policy = 'equal'", "policy = 'equal'\nsize_mib = 128"),
        ("[[case]]\nname = 'equal'\npolicy = 'equal'\nreporting = true\n", ""),
        ("title = 'one small guest'", "title = "),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        fs::write(dir.path().join("bad.toml"), text).unwrap();
        said += &format!("## {to}\n{}\n", bifold_in(dir.path(), "reclaim run bad.toml").refused());
    }
    said += &format!("## no file\n{}\n", bifold_in(dir.path(), "reclaim run none.toml").refused());
    insta::assert_snapshot!(said);
}

fn start(dir: &Path, name: &str, length: u32) -> Child {
    fs::write(dir.join("small.toml"), experiment(name, length)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_bifold"))
        .args(["reclaim", "run", "small.toml", "--format", "json", "-o", "out.json"])
        .args(["--report", "out.html", "--markdown", "out.md"])
        .current_dir(dir)
        .env("XDG_RUNTIME_DIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The process of the guest with this name, once its load runs.
fn running(name: &str) -> Option<u32> {
    let named = format!("\0-name\0{name}-1,").into_bytes();
    let of = |e: fs::DirEntry| {
        let command = fs::read(e.path().join("cmdline")).ok()?;
        command
            .windows(named.len())
            .any(|w| w == named)
            .then(|| e.file_name().to_str()?.parse().ok())
            .flatten()
    };
    fs::read_dir("/proc").unwrap().flatten().find_map(of)
}

#[test]
fn a_small_guest_gives_memory_and_gets_it_back_and_ctrl_c_keeps_the_samples() {
    if bifold_guest::qemu::find().is_err()
        || bifold_guest::kernel::for_guest(Some("6.1"), &mut |_| {}).is_err()
    {
        eprintln!("skipped: no emulator or no kernel");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = format!("small-{}", std::process::id());
    let output = start(dir.path(), &name, 20).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let document =
        || -> Value { serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap() };
    let whole = document();
    let run = &whole["runs"][0];
    let guest = &run["guests"][0];
    assert_eq!((&whole["schema"], &run["ending"]), (&"bifold.reclaim-run/1".into(), &"whole".into()));
    assert!(whole["partial"].is_null(), "{}", whole["partial"]);
    assert!(guest["operations"].as_u64().unwrap() > 20, "{guest}");
    assert!(
        guest["cpu_s"].as_f64().unwrap() > 0.0 && guest["mean_used_bytes"].as_f64().unwrap() > 2e7,
        "{guest}"
    );
    let samples = run["samples"].as_array().unwrap();
    let last = &samples.last().unwrap()["guests"][0];
    assert_eq!(last["target_bytes"], 200 << 20);
    // The order reached the size, or was given back because a busy machine made the guest's statistics late.
    let orders = &guest["orders"];
    let reached = last["size_bytes"].as_u64().unwrap() <= 201 << 20;
    assert!(
        reached || orders["given_back"].as_u64().unwrap() + orders["refused"].as_u64().unwrap() > 0,
        "{run}"
    );
    assert!(!run["notes"].to_string().contains("not all back"), "{}", run["notes"]);
    for (file, part) in [("out.html", "<svg"), ("out.md", "### Orders about sizes")] {
        let text = fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(text.contains(part), "{file}");
    }
    assert_eq!(running(&name), None);

    let mut child = start(dir.path(), &name, 3600);
    let begun = Instant::now();
    while running(&name).is_none() {
        assert!(begun.elapsed() < LONG && child.try_wait().unwrap().is_none(), "the guest does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(document()["runs"][0]["ending"], "interrupted");
    assert_eq!(running(&name), None);
}
