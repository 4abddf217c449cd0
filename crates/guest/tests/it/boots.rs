// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs that begin from a kept boot, and runs that boot.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use bifold_guest::{BootKind, CaptureProgress, GuestError, GuestSpec, Root, Timing, boots, capture};
use bifold_trace::CommandExit;

use crate::support::{compile, exact, qemu_missing, run, spec};

/// A guest that keeps its boot in this folder, or boots and keeps nothing.
fn guest(script: &str, kept: Option<&Path>) -> GuestSpec {
    let kept_boots = kept.map(Path::to_owned);
    GuestSpec {
        root: Root::Host,
        timing: Timing::Exact,
        memory_mib: 256,
        kept_boots,
        ..spec(&["sh", "-c", script])
    }
}

#[test]
fn a_run_from_a_kept_boot_gives_the_stream_of_a_run_that_boots() {
    if qemu_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let s = GuestSpec { stdin: b"text".to_vec(), ..guest("cat; date", Some(dir.path())) };
    let isolated = GuestSpec { kpti: true, ..guest("date; exit 3", Some(dir.path())) };
    let fresh = GuestSpec { kept_boots: None, ..s.clone() };
    for runs in [&[fresh, s.clone(), s][..], &[isolated.clone(), isolated]] {
        let runs: Vec<_> = runs.iter().map(|s| run(s).unwrap()).collect();
        let (first, words) = &runs[0];
        for (i, (r, again)) in runs.iter().enumerate() {
            // Each boots but for the last.
            assert_eq!(r.boot, if i + 1 < runs.len() { BootKind::Saved } else { BootKind::Kept });
            assert!(words == again, "{} and {} words", words.len(), again.len());
            assert_eq!(
                (&first.stdout, first.exit, first.clock.guest_ns),
                (&r.stdout, r.exit, r.clock.guest_ns)
            );
        }
    }
    assert_eq!(boots::list(dir.path()).unwrap().len(), 2);
}

#[test]
fn a_kept_boot_has_nothing_of_the_command() {
    if qemu_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let secret = format!("secret-{}-of-this-test", std::process::id());
    let mut s = guest("cat", Some(dir.path()));
    s.env.push(("BIFOLD_SECRET".into(), secret.clone().into()));
    s.stdin = secret.clone().into_bytes();
    let (r, _) = run(&s).unwrap();
    assert_eq!((r.exit, r.stdout), (CommandExit::Code(0), secret.clone().into_bytes()));
    // The guest's memory is there, and init's words in it.
    for (word, expected) in [(secret.as_str(), 1), ("opt/bifold/config", 0)] {
        let found = Command::new("grep").args(["-rqF", word]).arg(dir.path()).status().unwrap();
        assert_eq!(found.code(), Some(expected), "{word}");
    }
}

#[test]
fn a_damaged_boot_is_replaced_with_a_note() {
    if qemu_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let s = guest("true", Some(dir.path()));
    let (_, words) = run(&s).unwrap();
    let boot =
        std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.path()).find(|p| p.is_dir()).unwrap();
    std::fs::write(boot.join("state"), "damaged").unwrap();
    let (mut notes, mut again) = (Vec::new(), Vec::new());
    let mut progress = |p: CaptureProgress| {
        if let CaptureProgress::Note(text) = p {
            notes.push(text.to_owned());
        }
    };
    let mut sink = |chunk: &[u64]| {
        again.extend_from_slice(chunk);
        Ok(())
    };
    let r = capture(&s, &AtomicBool::new(false), &mut progress, &mut sink).unwrap();
    assert_eq!(
        (r.boot, &notes[..]),
        (BootKind::Saved, &["the kept boot was removed: its files are damaged".to_owned()][..])
    );
    let differs = words.iter().zip(&again).position(|(a, b)| a != b);
    assert!(words == again, "{} and {} words, word {differs:?} differs", words.len(), again.len());
    assert_eq!(run(&s).unwrap().0.boot, BootKind::Kept);
}

#[test]
fn a_stop_while_the_guest_boots_ends_the_boot() {
    if qemu_missing() {
        return;
    }
    let stop = AtomicBool::new(false);
    let mut progress = |p: CaptureProgress| {
        if matches!(p, CaptureProgress::Stage("booting the guest")) {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let e = capture(&guest("true", None), &stop, &mut progress, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(e, GuestError::InterruptedEarly), "{e}");
    assert_eq!(crate::support::children(), "");
}

#[test]
fn the_command_has_neither_inits_ports_nor_its_files() {
    if qemu_missing() {
        return;
    }
    let reader = compile("port", "#include <sys/io.h>\nint main(void) { return inb(0x511); }");
    let s = exact(&["sh", "-c", &format!("ls /proc/self/fd | wc -w; {}", reader.display())]);
    let (r, _) = run(&s).unwrap();
    // 0 to 2, and the folder that ls reads. The shell says so if a signal ends its child.
    assert_eq!((r.exit, r.stdout), (CommandExit::Code(128 + 11), b"4\n".to_vec()));
}

#[test]
fn the_guests_date_is_the_next_midnight() {
    if qemu_missing() {
        return;
    }
    let before = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let (r, _) = run(&exact(&["date", "+%s"])).unwrap();
    let guest: u64 = String::from_utf8(r.stdout).unwrap().trim().parse().unwrap();
    assert!(guest % 86_400 < 60 && guest > before, "{guest}, begun at {before}");
}

#[test]
fn guests_with_fast_timing_or_several_vcpus_boot_with_their_command() {
    if qemu_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let s = guest("true", Some(dir.path()));
    for s in [GuestSpec { timing: Timing::Fast, ..s.clone() }, GuestSpec { vcpus: 2, ..s }] {
        assert_eq!(run(&s).unwrap().0.boot, BootKind::Whole);
    }
    assert_eq!(boots::list(dir.path()).unwrap().len(), 0);
}
