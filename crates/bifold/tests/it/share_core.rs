// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share potential` on a dump that QEMU itself made, beside the memory it is a dump of.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MIB: u64 = 64;
const PAGE: usize = 4096;
const FIRST: u64 = 256;

/// A machine that never runs, with this file for its memory; ended when dropped.
struct Machine {
    child: Child,
    from: BufReader<std::process::ChildStdout>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    fn start(memory: &Path, firmware: &Path) -> Option<Machine> {
        let qemu = bifold_guest::qemu::find().ok()?;
        let machine = ["-machine", "q35,memory-backend=ram", "-accel", "tcg", "-S", "-nodefaults"];
        let ram = format!("memory-backend-file,id=ram,size={MIB}M,share=on,mem-path={}", memory.display());
        let mut child = Command::new(qemu.path)
            .args(machine)
            .arg("-bios")
            .arg(firmware)
            .args(["-display", "none", "-m", &format!("{MIB}M"), "-object", &ram, "-qmp", "stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let from = BufReader::new(child.stdout.take()?);
        let mut machine = Machine { child, from };
        machine.ask(r#"{"execute": "qmp_capabilities"}"#);
        Some(machine)
    }

    fn ask(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "QEMU ended at {command}");
            assert!(!line.contains("\"error\""), "{command}: {line}");
            if line.contains("\"return\"") {
                return;
            }
        }
    }
}

/// Pages of 4 KB that are not zero, distinct ones, and repeats.
fn counts(image: &Path) -> [u64; 3] {
    let out = Command::new(env!("CARGO_BIN_EXE_bifold"))
        .args(["share", "potential", "-q", "--format", "json"])
        .arg(format!("g={}", image.display()))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let all: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let count = |name| all["pages_4k"][name].as_u64().unwrap();
    [count("pages") - count("zero"), count("minimum"), count("intra")]
}

#[test]
fn a_dump_of_qemus_holds_what_its_memory_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, core) = (dir.path().join("ram"), dir.path().join("core"));
    let file = File::create(&memory).unwrap();
    file.set_len(MIB << 20).unwrap();
    // The dump has the firmware's memory, too: zeros, as nothing runs.
    let firmware = dir.path().join("firmware");
    std::fs::write(&firmware, vec![0; 64 << 10]).unwrap();
    let Some(mut machine) = Machine::start(&memory, &firmware) else {
        return eprintln!("skipped: no emulator");
    };
    // A quarter zero, a quarter each content four times, the rest each its own. In the first MB, part of
    // which the firmware hides, all are zero.
    let mut page = [0; PAGE];
    let pages = (MIB << 20) / PAGE as u64;
    for n in FIRST..pages {
        let content = match n % 4 {
            0 => continue,
            1 => 1 + n / 16,
            _ => pages + n,
        };
        page[8..16].copy_from_slice(&content.to_le_bytes());
        file.write_all_at(&page, n * PAGE as u64).unwrap();
    }
    machine.ask(&format!(
        r#"{{"execute": "dump-guest-memory", "arguments": {{"paging": false, "protocol": "file:{}"}}}}"#,
        core.display()
    ));
    let sixteenth = (pages - FIRST) / 16;
    let known = [12 * sixteenth, 9 * sixteenth, 3 * sixteenth];
    assert_eq!(counts(&memory), known);
    assert_eq!(counts(&core), known);
}
