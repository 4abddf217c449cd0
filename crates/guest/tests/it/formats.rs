// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests with tables of every format, on real kernels: a second walker finds what the emulator used, and the
//! stream has the format's tables alone.

use bifold_guest::{GuestError, GuestSpec, Kind, Root, TableFormat, Timing, kernel};
use bifold_trace::CommandExit;

use crate::replay::{Replay, Summary, sound};
use crate::support::{compile, compile_as, qemu_missing, run, spec};

/// Maps, forks and unmaps, so that tables of all levels come and go. Prints the size of a pointer.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    size_t n = 6 << 20;
    for (int round = 0; round < 8; round++) {
        char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; i < n; i += 4096) p[i] = (char)i;
        if (fork() == 0) {
            for (size_t i = 0; i < n; i += 8192) p[i]++;
            _exit(0);
        }
        wait(0);
        munmap(p, n);
    }
    printf("%zu\n", sizeof(void *));
    return 0;
}
"#;

/// A guest with these tables that runs the program; `None`, with a word of why, where this machine cannot
/// have it. `test` is part of the program's name, because tests run at once.
fn guest(format: TableFormat, test: &str) -> Option<GuestSpec> {
    let name = format!("formats-{test}");
    let mut program = compile(&name, PROGRAM);
    if !format.is_long() {
        let long = program;
        let probe = GuestSpec { tables: format, ..spec(&[long.to_str().unwrap()]) };
        match run(&probe) {
            Err(e @ GuestError::NoNarrowInit) => {
                eprintln!("skipped: {e}");
                return None;
            }
            Err(e) => assert!(matches!(e, GuestError::LongProgram { .. }), "{e}"),
            Ok(_) => panic!("a 64-bit program ran in a 32-bit guest"),
        }
        // Where init could be built, so can this.
        let flags = "-m32 -static -idirafter/usr/include/x86_64-linux-gnu";
        program = compile_as(&format!("{name}-narrow"), PROGRAM, flags);
    }
    Some(GuestSpec { tables: format, check_every: 997, ..spec(&[program.to_str().unwrap()]) })
}

/// Runs the guest and replays its stream.
fn summary(spec: &GuestSpec) -> Option<Summary> {
    let (r, words) = match run(spec) {
        Err(e) if e.kind() == Kind::CannotWorkHere => {
            eprintln!("skipped: {e}");
            return None;
        }
        other => other.unwrap(),
    };
    assert_eq!(r.exit, CommandExit::Code(0), "{}", String::from_utf8_lossy(&r.stderr));
    let pointer = if spec.tables.is_long() { "8\n" } else { "4\n" };
    assert_eq!(String::from_utf8_lossy(&r.stdout), pointer);
    let mut replay = Replay::of(spec.tables);
    replay.feed(&words);
    Some(sound(replay.summary))
}

fn every_level_is_recorded_and_every_check_holds(format: TableFormat) {
    if qemu_missing() {
        return;
    }
    let Some(spec) = guest(format, format.name()) else { return };
    let Some(s) = summary(&spec) else { return };
    assert_eq!(s.levels, (1..=format.levels()).collect());
    assert!(s.checks > 1000 && s.faults > 12_000 && s.retired > 20, "{s:?}");
    assert!(s.pt_stores > s.faults, "{} stores to tables, {} faults", s.pt_stores, s.faults);
}

#[test]
fn a_guest_with_5_levels() {
    every_level_is_recorded_and_every_check_holds(TableFormat::FiveLevel);
}

#[test]
fn a_guest_in_32_bit_mode_with_pae() {
    every_level_is_recorded_and_every_check_holds(TableFormat::Pae);
}

#[test]
fn a_guest_in_32_bit_mode_without_pae() {
    every_level_is_recorded_and_every_check_holds(TableFormat::TwoLevel);
}

#[test]
fn a_32_bit_guest_on_the_host_s_root_with_exact_timing_repeats_to_the_word() {
    if qemu_missing() {
        return;
    }
    let Some(spec) = guest(TableFormat::Pae, "exact") else { return };
    let spec = GuestSpec { root: Root::Host, timing: Timing::Exact, ..spec };
    let (Some(a), Some(b)) = (summary(&spec), summary(&spec)) else { return };
    assert_eq!((a.stats, a.faults, a.pt_stores), (b.stats, b.faults, b.pt_stores));
}

#[test]
fn what_a_32_bit_guest_cannot_have_is_refused_before_anything_runs() {
    let Some(spec) = guest(TableFormat::TwoLevel, "refused") else { return };
    let refused = |spec: GuestSpec| run(&spec).unwrap_err().to_string();
    let e = refused(GuestSpec { memory_mib: 4096, ..spec.clone() });
    assert_eq!(e, "4096 MiB of guest memory, and a guest with --guest-tables 32-bit has 2048 at most");
    let e = refused(GuestSpec { kpti: true, ..spec.clone() });
    assert_eq!(e, "--kpti on is for 64-bit guests, and --guest-tables 32-bit is of 32-bit mode");
    for (attribute, looks, what) in
        [(true, false, "costs are attributed"), (false, true, "what memory is used for is recorded")]
    {
        let e = refused(GuestSpec { attribute, looks, ..spec.clone() });
        assert_eq!(e, format!("{what} in 64-bit guests, and --guest-tables 32-bit is of 32-bit mode"));
    }
}

#[test]
fn a_kernel_whose_tables_are_others_than_those_asked_for_is_named() {
    if qemu_missing() {
        return;
    }
    let Some(spec) = guest(TableFormat::TwoLevel, "kernel") else { return };
    let kernel = match kernel::default_of(TableFormat::Pae, &mut |_| ()) {
        Ok(kernel) => kernel,
        Err(e) => {
            eprintln!("skipped: {e}");
            return;
        }
    };
    let e = run(&GuestSpec { kernel: Some(kernel.image), modules: kernel.modules, ..spec })
        .unwrap_err()
        .to_string();
    let said = "the guest's kernel uses PAE tables, and 2-level 32-bit tables were asked for";
    assert!(e.contains(said), "{e}");
}
