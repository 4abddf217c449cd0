// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests for tests: small, and skipped where there is no QEMU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};

use bifold_guest::{CaptureProgress, CaptureReport, GuestError, GuestSpec, Root, Timing, capture};

/// A spec for a command of the host's, in the cheapest guest.
pub fn spec(command: &[&str]) -> GuestSpec {
    GuestSpec {
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        timing: Timing::Fast,
        memory_mib: 512,
        check_every: 4096,
        ..GuestSpec::new(command.iter().map(OsString::from).collect())
    }
}

/// A spec with exact timing over the host's root. A boot takes longer than most commands, so such guests
/// begin from a kept one.
pub fn exact(command: &[&str]) -> GuestSpec {
    GuestSpec {
        root: Root::Host,
        timing: Timing::Exact,
        memory_mib: 256,
        kept_boots: Some(kept_boots()),
        ..spec(command)
    }
}

/// Where tests keep boots, none of which is of another build.
fn kept_boots() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let empty = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boots");
        _ = std::fs::remove_dir_all(&folder);
        folder
    };
    FOLDER.get_or_init(empty).clone()
}

pub fn qemu_missing() -> bool {
    let missing = Command::new("qemu-system-x86_64").arg("--version").output().is_err();
    if missing {
        eprintln!("skipped: qemu-system-x86_64 is not installed");
    }
    missing
}

/// Runs it and returns the whole stream. A note fails the test, but where several tests keep boots in one
/// folder at a time.
pub fn run(spec: &GuestSpec) -> Result<(CaptureReport, Vec<u64>), GuestError> {
    let mut words = Vec::new();
    let shared = spec.kept_boots.as_ref().is_some_and(|folder| *folder == kept_boots());
    let mut progress = |p: CaptureProgress| {
        if let CaptureProgress::Note(text) = p {
            assert!(shared, "{text}");
            eprintln!("note: {text}");
        }
    };
    let report = capture(spec, &AtomicBool::new(false), &mut progress, &mut |chunk| {
        words.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok((report, words))
}

/// Compiles a C program for the guest.
pub fn compile(name: &str, source: &str) -> PathBuf {
    compile_as(name, source, "-static")
}

/// The same, compiled as the flags say. Tests that run at once may share a name: none of them sees what
/// another has half written.
pub fn compile_as(name: &str, source: &str, flags: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (c, out) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&c, source).unwrap();
    let new = dir.join(format!("{name}.new"));
    let status =
        Command::new("cc").arg("-O2").args(flags.split(" ")).arg("-o").arg(&new).arg(&c).status().unwrap();
    assert!(status.success());
    std::fs::rename(&new, &out).unwrap();
    out
}

/// Processes that this test's thread has started and that are still there.
pub fn children() -> String {
    std::fs::read_to_string("/proc/thread-self/children").unwrap()
}
