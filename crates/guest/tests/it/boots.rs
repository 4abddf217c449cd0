// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs that begin from a kept boot, and runs that boot.

use std::process::Command;

use bifold_guest::{BootKind, CaptureReport, GuestSpec, Root, Timing};
use bifold_trace::CommandExit;

use crate::support::{compile, qemu_missing, run, spec};

/// Memory that no other test's guest has, so that their boots are others.
fn guest(script: &str, memory_mib: u64) -> GuestSpec {
    GuestSpec { root: Root::Host, timing: Timing::Exact, memory_mib, ..spec(&["sh", "-c", script]) }
}

/// Whether another test's run was keeping a boot at the same moment, so that this one's was not kept.
fn was_busy(r: &CaptureReport) -> bool {
    r.boot_notes.iter().any(|n| n.contains("another run is keeping a boot"))
}

#[test]
fn a_run_from_a_kept_boot_gives_the_stream_of_a_run_that_boots() {
    if qemu_missing() {
        return;
    }
    let several = GuestSpec { vcpus: 2, nodes: 2, ..guest("date; exit 3", 261) };
    for s in [GuestSpec { stdin: b"text".to_vec(), ..guest("cat; date", 260) }, several] {
        let (fresh, words) = run(&GuestSpec { fresh_boot: true, ..s.clone() }).unwrap();
        assert_eq!((fresh.boot, &fresh.boot_notes[..]), (BootKind::Saved, &[][..]));
        let (first, also) = run(&s).unwrap();
        assert!(words == also, "{} and {} words", words.len(), also.len());
        let (kept, again) = run(&s).unwrap();
        assert!(words == again, "{} and {} words", words.len(), again.len());
        assert!(kept.boot == BootKind::Kept || was_busy(&first), "{:?} {:?}", kept.boot, first.boot_notes);
        assert_eq!(fresh.stdout, kept.stdout);
        assert_eq!((fresh.exit, fresh.clock.guest_ns), (kept.exit, kept.clock.guest_ns));
    }
}

#[test]
fn a_kept_boot_has_nothing_of_the_command() {
    if qemu_missing() {
        return;
    }
    let secret = format!("secret-{}-{:x}", std::process::id(), 0x5eed_u64 << 20);
    let mut s = guest("cat", 262);
    s.env.push(("BIFOLD_SECRET".into(), secret.clone().into()));
    s.stdin = secret.clone().into_bytes();
    let (r, _) = run(&s).unwrap();
    assert_eq!((r.exit, r.stdout), (CommandExit::Code(0), secret.clone().into_bytes()));
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(std::path::PathBuf::from);
    let cache =
        cache.unwrap_or_else(|| std::path::Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
    let found =
        Command::new("grep").args(["-rlF", &secret]).arg(cache.join("bifold/boots")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn the_command_has_neither_inits_ports_nor_its_files() {
    if qemu_missing() {
        return;
    }
    let reader = compile("port", "#include <sys/io.h>\nint main(void) { return inb(0x511); }");
    let s = guest(&format!("ls /proc/self/fd | wc -w; {}", reader.display()), 262);
    let (r, _) = run(&s).unwrap();
    // 0 to 2, and the folder that ls reads. The shell says so if a signal ends its child.
    assert_eq!((r.exit, r.stdout), (CommandExit::Code(128 + 11), b"4\n".to_vec()));
}

#[test]
fn the_guests_date_is_the_hosts_also_in_a_kept_boot() {
    if qemu_missing() {
        return;
    }
    let seconds = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    for timing in [Timing::Fast, Timing::Exact] {
        let s = GuestSpec { timing, ..guest("date +%s", 263) };
        for _ in 0..2 {
            let before = seconds();
            let (r, _) = run(&s).unwrap();
            let guest: u64 = String::from_utf8(r.stdout).unwrap().trim().parse().unwrap();
            match timing {
                Timing::Fast => {
                    assert!((before..=seconds() + 1).contains(&guest), "{guest}, begun at {before}")
                }
                Timing::Exact => assert!(guest % 86_400 < 60 && guest > before, "{guest}, begun at {before}"),
            }
        }
    }
}
