// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program whose every access to certain pages is known, counted in the stream.

use std::collections::HashMap;

use bifold_guest::Root;
use bifold_trace::{CommandExit, Event, decode};

use crate::replay::assert_sound;
use crate::support::{compile, compile_as, exact, qemu_missing, run, spec};

/// Prints the address of its pages, then accesses each in one way only.
const WAYS: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define WAY(page, insn) do { char *p = base + 4096 * (page); \
    for (int i = 0; i < 1000; i++) __asm__ volatile(insn : "+a"(a) : "r"(p), "d"(0L), "x"(x) : "rcx", "memory", "cc"); } while (0)
typedef float v4 __attribute__((vector_size(16)));
int main(void) {
    v4 x = {0};
    long a = 0;
    char *base = mmap((void *)0x100000000, 4096 * 16, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0);
    WAY(0, "movq %%rax, (%1)");
    WAY(1, "xchgq %%rax, (%1)");
    WAY(2, "lock btrq $3, (%1)");
    WAY(3, "lock btsq $3, (%1)");
    WAY(4, "movnti %%rax, (%1)");
    WAY(5, "movups %3, (%1)");
    WAY(6, "movb $1, (%1)");
    WAY(7, "andl $1, (%1)");
    WAY(8, "addl $1, (%1)");
    WAY(9, "lock cmpxchgq %%rdx, (%1)");
    WAY(10, "movq (%1), %%rcx");
    char *p = base + 4096 * 12;
    __asm__ volatile("rep stosb" : "+D"(p) : "a"(0), "c"(1000) : "memory");
    /* crosses from page 13 into page 14 */
    p = base + 4096 * 14 - 4;
    for (int i = 0; i < 1000; i++) __asm__ volatile("movq (%0), %%rcx" :: "r"(p) : "rcx", "memory");
    for (int i = 0; i < 1000; i++) __asm__ volatile("movq %%rax, (%0)" :: "r"(p) : "memory");
    return 0;
}
"#;

#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    loads: u64,
    stores: u64,
    others: u64,
}

fn page(pages: &mut HashMap<u64, Count>, gva: u64) -> &mut Count {
    pages.entry((gva >> 12).wrapping_sub(0x100000)).or_default()
}

fn count(loads: u64, stores: u64, others: u64) -> Count {
    Count { loads, stores, others }
}

#[test]
fn every_access_is_seen_once_and_stores_are_classed_as_kvm_classes_them() {
    if qemu_missing() {
        return;
    }
    let program = compile("ways", WAYS);
    let (r, words) = run(&spec(&[program.to_str().unwrap()])).unwrap();
    assert_eq!(r.exit, CommandExit::Code(0));
    assert_sound(&words);
    let mut pages: HashMap<u64, Count> = HashMap::new();
    let mut at = 0;
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        match event {
            Event::Load(gva) | Event::LoadDependent(gva) | Event::LoadBeforeChain(gva) => {
                page(&mut pages, gva).loads += 1
            }
            Event::Store(gva) => page(&mut pages, gva).stores += 1,
            Event::StoreOther(gva) => page(&mut pages, gva).others += 1,
            _ => {}
        }
        at += n;
    }
    let expected = [
        (0, "mov", count(0, 1000, 0)),
        (1, "xchg", count(1000, 1000, 0)),
        (2, "btr", count(1000, 0, 1000)),
        (3, "bts", count(1000, 1000, 0)),
        (4, "movnti", count(0, 0, 1000)),
        (5, "movups", count(0, 0, 1000)),
        (6, "mov imm8", count(0, 1000, 0)),
        (7, "and", count(1000, 1000, 0)),
        (8, "add", count(1000, 0, 1000)),
        (9, "cmpxchg", count(1000, 1000, 0)),
        (10, "load", count(1000, 0, 0)),
        (11, "nothing", count(0, 0, 0)),
        (12, "rep stosb", count(0, 0, 1000)),
        (13, "crossing", count(1000, 1000, 0)),
        (14, "crossing", count(1000, 1000, 0)),
    ];
    for (page, what, expected) in expected {
        assert_eq!(pages.get(&page).copied().unwrap_or_default(), expected, "{what}");
    }
}

/// Executes 2 instructions ten million times per argument, and a repeated one.
const LOOP: &str = r#"
#include <string.h>
static char buffer[1 << 16];
int main(int argc, char **argv) {
    (void)argv;
    for (long round = 1; round < argc; round++) {
        long n = 10000000;
        __asm__ volatile("1: dec %0; jnz 1b" : "+r"(n));
        for (int i = 0; i < 100; i++) {
            char *p = buffer; long c = sizeof buffer;
            __asm__ volatile("rep stosb" : "+D"(p), "+c"(c) : "a"(1) : "memory");
        }
    }
    return 0;
}
"#;

#[test]
fn instructions_are_counted_once_and_a_repeated_one_is_one() {
    if qemu_missing() {
        return;
    }
    let program = compile("loop", LOOP);
    let path = program.to_str().unwrap();
    let instructions = |command: &[&str]| {
        let (r, words) = run(&exact(command)).unwrap();
        assert_eq!(r.exit, CommandExit::Code(0));
        assert_sound(&words);
        r.stats.instructions
    };
    let (one, two) = (instructions(&[path, "1"]), instructions(&[path, "1", "2"]));
    // 20 million of the loop, and what the timer interrupts of its time cost.
    let more = two - one;
    assert!((20_000_000..21_500_000).contains(&more), "{more} instructions in one round");
}

/// Touches 100 pages at 0x100000000, then gives each back on its own.
const TOUCH: &str = r#"
#include <sys/mman.h>
int main(void) {
    char *base = mmap((void *)0x100000000, 4096 * 100, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (int i = 0; i < 100; i++) base[4096 * i + 8] = 1;
    for (int i = 0; i < 100; i++) madvise(base + 4096 * i, 4096, MADV_DONTNEED);
    return 0;
}
"#;

#[test]
fn each_first_touch_is_a_fault_and_each_page_given_back_an_invlpg() {
    if qemu_missing() {
        return;
    }
    let program = compile("touch", TOUCH);
    for kpti in [false, true] {
        let mut s = spec(&[program.to_str().unwrap()]);
        s.kpti = kpti;
        let (r, words) = run(&s).unwrap();
        assert_eq!(r.exit, CommandExit::Code(0));
        assert_sound(&words);
        let (mut faults, mut invlpgs, mut at) = (Vec::new(), Vec::new(), 0);
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).unwrap();
            match event {
                Event::Fault { gva, error } => faults.push((gva, error)),
                Event::Invlpg(gva) => invlpgs.push(gva),
                _ => {}
            }
            at += n;
        }
        for page in (0..100).map(|i| 0x1_0000_0000 + 4096 * i) {
            // Error code 6: a write by user mode to a page that is not there.
            let of_page = faults.iter().filter(|(gva, _)| gva >> 12 == page >> 12);
            assert_eq!(of_page.collect::<Vec<_>>(), [&(page + 8, 6)], "kpti {kpti}");
            assert!(invlpgs.contains(&page), "kpti {kpti}: no INVLPG of {page:#x}");
        }
    }
}

#[test]
fn code_is_fetched_where_it_runs_though_it_was_translated_elsewhere() {
    if qemu_missing() {
        return;
    }
    // QEMU keeps the blocks of the first run, at another address, for the second.
    let source = "#include <stdio.h>\nint main(void) { printf(\"%p\\n\", (void *)main); return 0; }";
    let program = compile_as("where", source, "-static-pie");
    let path = program.to_str().unwrap();
    let mut s = spec(&["busybox", "sh", "-c", &format!("{path}; {path}; {path}")]);
    s.root = Root::Initramfs { include: vec![program.clone()] };
    let (r, words) = run(&s).unwrap();
    let mains: Vec<u64> = String::from_utf8_lossy(&r.stdout)
        .lines()
        .map(|l| u64::from_str_radix(l.trim_start_matches("0x"), 16).unwrap())
        .collect();
    assert!(mains.len() == 3 && mains[0] != mains[1] && mains[1] != mains[2], "{mains:x?}");
    let (mut pages, mut at) = (Vec::new(), 0);
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        if let Event::Fetch(gva) = event {
            pages.push(gva >> 12);
        }
        at += n;
    }
    for main in mains {
        assert!(pages.contains(&(main >> 12)), "no fetch from {main:#x}");
    }
}
