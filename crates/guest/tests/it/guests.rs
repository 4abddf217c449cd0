// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands in guests of every kind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bifold_guest::{Root, Thp, Timing, capture, guest_frames};
use bifold_trace::CommandExit;
use bifold_trace::event::marker;
use xxhash_rust::xxh3::Xxh3;

use crate::replay::assert_sound;
use crate::support::{children, compile, qemu_missing, run, spec};

/// Does to its address space what programs do.
const MAPPER: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    size_t n = 10 << 20;
    for (int round = 0; round < 4; round++) {
        char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, n, round & 1 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        for (size_t i = 0; i < n; i += 4096) p[i] = (char)i;
        if (fork() == 0) {
            for (size_t i = 0; i < n; i += 8192) p[i]++;
            mprotect(p, n / 2, PROT_READ);
            exit(0);
        }
        mprotect(p + 4096, n / 2, PROT_READ);
        p = mremap(p, n, n * 2, MREMAP_MAYMOVE);
        madvise(p, 1 << 20, MADV_DONTNEED);
        wait(0);
        munmap(p, n * 2);
    }
    for (int i = 0; i < 20; i++) { if (fork() == 0) _exit(0); wait(0); }
    puts("mapped");
    return 0;
}
"#;

/// Between what the mapper makes with huge pages and without.
const FAULTS_WITH_HUGE_PAGES: u64 = 13_500;

#[test]
fn a_command_s_output_and_exit_status_come_back() {
    if qemu_missing() {
        return;
    }
    let mut s = spec(&["sh", "-c", "cat /bin/busybox; echo err >&2; cd /tmp && touch x && exit 3"]);
    s.root = Root::Host;
    let (r, words) = run(&s).unwrap();
    assert_eq!(r.exit, CommandExit::Code(3));
    assert!(r.stdout == std::fs::read("/bin/busybox").unwrap(), "{} bytes", r.stdout.len());
    assert_eq!(r.stderr, b"err\n");
    assert!(r.complete && r.clock.vcpu_seconds > 0.0 && r.boot_seconds > 0.0);
    assert_eq!(r.guest_frames, guest_frames(&s));
    assert_sound(&words);
}

#[test]
fn tables_of_a_program_that_maps_and_forks_replay_without_a_mismatch() {
    if qemu_missing() {
        return;
    }
    let program = compile("mapper", MAPPER);
    for (vcpus, kpti, thp) in
        [(1, false, Thp::Never), (2, true, Thp::Always), (1, true, Thp::Madvise), (2, false, Thp::Madvise)]
    {
        let mut s = spec(&[program.to_str().unwrap()]);
        (s.vcpus, s.kpti, s.thp, s.check_every) = (vcpus, kpti, thp, 512);
        let (r, words) = run(&s).unwrap();
        assert_eq!((r.exit, &r.stdout[..]), (CommandExit::Code(0), &b"mapped\n"[..]));
        let summary = assert_sound(&words);
        println!("{vcpus} vCPUs, kpti {kpti}, {thp:?}: {summary:?}");
        assert!(summary.faults > 1000 && summary.pt_stores > 10_000 && summary.retired > 100);
        // Half of the rounds ask for huge pages: those fault 512 times less often.
        assert_eq!(summary.faults < FAULTS_WITH_HUGE_PAGES, thp != Thp::Never, "{thp:?}");
        assert_eq!(summary.vcpus.len(), vcpus as usize);
    }
}

#[test]
fn two_exact_runs_of_two_vcpus_are_the_same_to_the_last_word() {
    if qemu_missing() {
        return;
    }
    let program = compile("mapper-exact", MAPPER);
    let hash = || {
        let mut s = spec(&[program.to_str().unwrap()]);
        (s.timing, s.vcpus) = (Timing::Exact, 2);
        let (mut hash, mut words) = (Xxh3::new(), 0);
        let r = capture(&s, &AtomicBool::new(false), &mut |_| {}, &mut |chunk| {
            words += chunk.len();
            for w in chunk {
                hash.update(&w.to_le_bytes());
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(r.exit, CommandExit::Code(0));
        (words, hash.digest(), r.stats)
    };
    assert_eq!(hash(), hash());
}

#[test]
fn a_signal_is_reported_as_one() {
    if qemu_missing() {
        return;
    }
    let program = compile("crash", "int main(void) { *(volatile int *)8 = 1; return 0; }");
    let (r, words) = run(&spec(&[program.to_str().unwrap()])).unwrap();
    assert_eq!(r.exit, CommandExit::Signal(11));
    assert_sound(&words);
}

#[test]
fn a_timeout_ends_a_command_that_sleeps_or_spins_and_leaves_nothing() {
    if qemu_missing() {
        return;
    }
    for script in ["sleep 1000", "while :; do :; done"] {
        let mut s = spec(&["busybox", "sh", "-c", script]);
        s.timeout = Some(Duration::from_secs(2));
        let begun = Instant::now();
        let (r, words) = run(&s).unwrap();
        assert_eq!(r.exit, CommandExit::TimedOut, "{script}");
        assert!(r.complete && begun.elapsed() < Duration::from_secs(60));
        assert_sound(&words);
        assert_eq!(children(), "");
    }
}

#[test]
fn an_interrupt_ends_the_command_and_keeps_what_was_recorded() {
    if qemu_missing() {
        return;
    }
    let (stop, mut words) = (AtomicBool::new(false), 0);
    let s = spec(&["busybox", "sh", "-c", "while :; do :; done"]);
    let r = capture(&s, &stop, &mut |_| {}, &mut |chunk| {
        words += chunk.len();
        stop.store(words > 1_000_000, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    assert_eq!(r.exit, CommandExit::Interrupted);
    assert!(r.complete && words > 1_000_000);
}

#[test]
fn a_command_that_eats_all_memory_is_reported_as_out_of_memory() {
    if qemu_missing() {
        return;
    }
    let program = compile(
        "eater",
        "#include <stdlib.h>\n#include <string.h>\nint main(void) { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }",
    );
    let mut s = spec(&[program.to_str().unwrap()]);
    s.memory_mib = 256;
    let (r, words) = run(&s).unwrap();
    assert_eq!(r.exit, CommandExit::OutOfMemory);
    assert_sound(&words);
}

#[test]
fn memory_above_4_gb_has_its_frames_where_the_stream_says() {
    if qemu_missing() {
        return;
    }
    let program = compile("mapper-big", MAPPER);
    let mut s = spec(&[program.to_str().unwrap()]);
    s.memory_mib = 3072;
    let (r, words) = run(&s).unwrap();
    assert_eq!(r.exit, CommandExit::Code(0));
    let summary = assert_sound(&words);
    assert!(summary.highest_gpa > 4 << 30, "{:#x}", summary.highest_gpa);
    assert!(summary.highest_gpa >> 12 < guest_frames(&s));
}

/// Marks windows 3 and 255, and executes CPUIDs that mark none.
pub const WINDOWS: &str = r#"
#include <stdio.h>
static void id(unsigned leaf, unsigned code) {
    unsigned b, d;
    __asm__ volatile("cpuid" : "+a"(leaf), "=b"(b), "+c"(code), "=d"(d) :: "memory");
}
static volatile char pages[64 << 12];
int main(void) {
    id(0, 0x103);
    id(0x4249464f, 1);
    id(0x4249464f, 2);
    id(0x4249464f, 0x103);
    for (int i = 0; i < 32; i++) pages[i << 12] = 1;
    id(0x4249464f, 0x203);
    id(0x4249464f, 0x1ff);
    for (int i = 32; i < 64; i++) pages[i << 12] = 1;
    id(0x4249464f, 0x2ff);
    puts("marked");
    return 0;
}
"#;

#[test]
fn a_program_marks_windows_of_its_own_with_cpuid() {
    if qemu_missing() {
        return;
    }
    let program = compile("windows", WINDOWS);
    let (r, words) = run(&spec(&[program.to_str().unwrap()])).unwrap();
    assert_eq!((r.exit, &r.stdout[..]), (CommandExit::Code(0), &b"marked\n"[..]));
    let summary = assert_sound(&words);
    let windows = [0x103, 0x203, 0x1ff, 0x2ff];
    assert_eq!(summary.markers, [&[marker::START, marker::PROGRAM][..], &windows, &[marker::STOP]].concat());
}
