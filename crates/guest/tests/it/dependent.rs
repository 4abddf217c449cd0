// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dependent loads: the plugin's analysis of blocks, and what it finds in programs.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use bifold_trace::{CommandExit, Event, decode};

use crate::replay::assert_sound;
use crate::support::{compile, qemu_missing, run, spec};

/// Programs, one instruction a line; `\n\n` begins another block, and `0` is the label of the first. `!`
/// marks the loads that must be found dependent, `^` those before a chain that restarts.
const PROGRAMS: &[&str] = &[
    // A chase, and the same with the pointer moved about and advanced.
    "! mov (%rax),%rax\n dec %rcx\n jnz 0b",
    "! mov 8(%rax),%rdx\n lea 16(%rdx),%rbx\n mov %rbx,%rax\n dec %rcx\n jnz 0b",
    "! movslq (%rsi,%rax,4),%rax\n inc %rcx\n jnz 0b",
    // Independent: a[i], a[idx[i]], a hash of loaded bytes as an index, random addresses from arithmetic.
    " add (%rdi,%rcx,8),%rax\n inc %rcx\n jnz 0b",
    " mov (%rsi,%rcx,4),%eax\n add (%rdi,%rax,8),%rbx\n inc %rcx\n jnz 0b",
    " movzbl (%rsi),%edx\n imul $31,%rax,%rax\n add %rdx,%rax\n mov (%rdi,%rax,8),%rbx\n inc %rsi\n jnz 0b",
    " mov %rax,%rdx\n shl $13,%rdx\n xor %rdx,%rax\n mov %rax,%rdx\n and %r8,%rdx\n xor %rax,(%rdi,%rdx,8)\n jnz 0b",
    // Nor is the third of a[b[c[i]]], or a field of it: the next iteration needs none of them.
    " mov (%rsi,%rcx,4),%eax\n mov (%rdi,%rax,4),%eax\n mov (%r8,%rax,8),%r9\n mov (%r9),%r10\n inc %rcx\n jnz 0b",
    // Of a bucket's chain the first entry, whose load is in the outer loop's block, and those of the inner
    // loop.
    " mov (%rsi,%rcx,8),%rdx\n mov (%rdi,%rdx,8),%rax\n^ mov (%rax),%rbx\n\n5:! mov 8(%rax),%rax\n test %rax,%rax\n jnz 5b\n\n inc %rcx\n jnz 0b",
    // A state machine: the next state is loaded from a place that the state gives.
    " movzbl (%rsi),%eax\n shl $8,%rdx\n add %rdx,%rax\n! movzbl (%rdi,%rax),%edx\n inc %rsi\n jnz 0b",
    // Through the flags: a binary search without branches, and an index that each comparison moves on.
    "! cmp (%rbp,%rdi,8),%rdx\n cmovae %rdi,%rsi\n lea (%rax,%rsi),%rdi\n shr %rax\n jnz 0b",
    "! cmp (%rdi,%rcx,8),%rdx\n adc $0,%rcx\n dec %rsi\n jnz 0b",
    "! cmp (%rdi,%rcx,8),%rdx\n sbb %rax,%rax\n and $8,%eax\n lea 1(%rcx,%rax),%rcx\n jnz 0b",
    " xor %eax,%eax\n cmp (%rdi,%rcx,8),%rdx\n setb %al\n add %rax,%rbx\n inc %rcx\n jnz 0b",
    " mov (%rdi,%rcx,8),%rax\n ucomisd %xmm1,%xmm0\n cmova %rax,%rbx\n inc %rcx\n jnz 0b",
    // Not through the stack pointer, whose place in the flow is the flags'.
    " cmp (%rsp,%rcx,8),%rdx\n mov %rsp,%rax\n mov 8(%rax,%rcx,8),%rbx\n inc %rcx\n jnz 0b",
    // A list that goes on where the last search ended does not restart; one behind a block without loads
    // does.
    " mov (%rsi,%rcx,8),%rdx\n\n5:! cmp (%rax),%rdx\n! mov 8(%rax),%rax\n jnz 5b\n\n inc %rcx\n jnz 0b",
    "^ mov (%rsi,%rcx,8),%rax\n test %rax,%rax\n jz 6f\n\n mov %rax,%rdx\n shr %rdx\n\n5:! mov 8(%rax),%rax\n test %rax,%rax\n jnz 5b\n\n6: inc %rcx\n jnz 0b",
    // The same where each iteration computes the address from what the loop carries: a binary search for each
    // key.
    "^ mov (%rsi,%rcx,8),%rdx\n xor %ebx,%ebx\n\n5: lea (%rax,%rbx),%r9\n! cmp (%rdi,%r9,8),%rdx\n cmovae %r9,%rbx\n shr %rax\n jnz 5b\n\n inc %rcx\n jnz 0b",
    // Zeroing, constants and instructions without inputs end a chain; so does a slot of the stack.
    "! mov (%rax),%rdx\n! mov (%rdx),%rax\n xor %edx,%edx\n mov (%rdx),%r8\n mov (%r8),%r9\n jnz 0b",
    " mov (%rax),%rdx\n mov (%rdx),%rbx\n xor %edx,%edx\n mov (%rdx),%r8\n mov (%rdi),%rax\n mov (%rax),%rax\n jnz 0b",
    " mov -8(%rbp),%rax\n mov (%rax),%rax\n mov %rax,-8(%rbp)\n dec %ecx\n jnz 0b",
    " mov 16(%rsp),%rax\n mov (%rax),%rax\n mov %rax,16(%rsp)\n dec %ecx\n jnz 0b",
    " mov 0(%rip),%rax\n mov (%rax),%rax\n mov %rax,0(%rip)\n dec %ecx\n jnz 0b",
    " mov %gs:64,%rax\n mov 8(%rax),%rbx\n mov (%rbx),%rdx\n rdtsc\n mov (%rdx),%rcx\n jnz 0b",
    // Through vector registers it is lost. A vector load has an address like any other.
    " movq (%rax),%xmm0\n movq %xmm0,%rax\n dec %ecx\n jnz 0b",
    "! movdqu (%rax),%xmm0\n! mov 16(%rax),%rax\n jnz 0b",
    // Conditional moves and exchanges keep the deepest; bytes are merged.
    "! mov (%rax),%rdx\n! mov 8(%rax),%rbx\n cmp %rsi,%rcx\n cmovl %rbx,%rdx\n xchg %rdx,%rax\n jnz 0b",
    "! movb (%rax),%al\n dec %ecx\n jnz 0b",
    // BMI instructions.
    "! mov (%rax),%rdx\n andn %rdx,%r15,%rax\n dec %ecx\n jnz 0b",
    "! mov (%rax),%rdx\n rorx $3,%rdx,%rax\n shlx %rcx,(%rdi),%rdx\n mov (%rdx),%r9\n jnz 0b",
    // No loop, but four loads one after the other.
    " mov (%rax),%rax\n mov (%rax),%rax\n! mov (%rax),%rax\n! mov (%rax),%rax\n ret",
    // A loop through a call: only some registers survive it.
    " mov (%rdi),%rdi\n call 9f\n\n dec %ecx\n jnz 0b\n\n9: ret",
    "! mov (%rbx),%rbx\n mov %rbx,%rdi\n call 9f\n\n dec %ecx\n jnz 0b\n\n9: ret",
    // Recursion.
    " push %rbx\n mov %rdi,%rbx\n! mov (%rbx),%rdi\n call 0b\n\n! mov 8(%rbx),%rdi\n pop %rbx\n jmp 0b",
    // A search in a tree: the chain goes through two blocks, or one of two.
    "! mov (%rax),%rdx\n test %rdx,%rdx\n jz 1f\n\n! cmp (%rdx),%rcx\n lea 8(%rdx),%rax\n jmp 0b\n\n1: ret",
    "! cmp (%rax),%rcx\n jl 1f\n\n! mov 8(%rax),%rax\n jmp 0b\n\n1:! mov 16(%rax),%rax\n jmp 0b",
    // What a loop does not change is no chain of its own, however it was loaded.
    " mov (%rdi),%rax\n mov (%rax),%rax\n! mov (%rax),%rsi\n\n5: add (%rsi,%rcx,8),%rdx\n inc %rcx\n jnz 5b",
    // Rows of a matrix: the inner loop has no chain, the outer one is found later.
    " mov 8(%rdi),%rbx\n mov (%rbx,%rcx,8),%rsi\n xor %eax,%eax\n\n5: add (%rsi,%rax,8),%rdx\n inc %rax\n jnz 5b\n\n inc %rcx\n jnz 0b",
    // The implicit operands of string instructions.
    "! lodsq\n mov %rax,%rsi\n jnz 0b",
    " rep movsb\n jnz 0b",
];

/// Assembles the programs, and writes the addresses and bytes of their instructions as the driver reads them.
fn assemble(dir: &Path) -> String {
    let mut text = String::new();
    for (i, program) in PROGRAMS.iter().enumerate() {
        for (k, block) in program.split("\n\n").enumerate() {
            let zero = if k == 0 { "0:" } else { "" };
            text += &format!("program{i}_{k}:{zero}\n{}\n", block.replace(['!', '^'], ""));
        }
    }
    let (s, o) = (dir.join("blocks.s"), dir.join("blocks.o"));
    std::fs::write(&s, text).unwrap();
    assert!(Command::new("cc").arg("-c").arg("-o").arg(&o).arg(&s).status().unwrap().success());
    let out = Command::new("objdump").args(["-d", "-w"]).arg(&o).output().unwrap();
    let (mut input, mut blocks) = (String::new(), 0);
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        if line.ends_with(">:") {
            let end = if line.ends_with("_0>:") { "\n-\n" } else { "\n" };
            input += if blocks > 0 { end } else { "" };
            blocks += 1;
        } else if let Some((address, rest)) = line.split_once(":\t") {
            // Address 0 means no block.
            let address = 0x1000 + u64::from_str_radix(address.trim(), 16).unwrap();
            let bytes = rest.split('\t').next().unwrap().replace(' ', "");
            input += &format!("{address:x} {bytes}\n");
        }
    }
    input + "\n-\n"
}

#[test]
fn loads_through_loaded_addresses_are_dependent_in_loops() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../qemu-plugin");
    let driver = dir.join("depend-blocks");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"])
        .arg(&driver);
    cc.args(["tests/blocks.c", "depend.c", "loops.c"].map(|f| plugin.join(f)));
    assert!(cc.status().unwrap().success());
    let mut child = Command::new(driver)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a driver");
    child.stdin.take().unwrap().write_all(assemble(dir).as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let out = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.lines().count(), PROGRAMS.len());
    for (text, found) in PROGRAMS.iter().zip(out.lines()) {
        let lines = text.lines().filter(|l| !l.is_empty()).enumerate();
        let marked = lines.filter(|(_, l)| l.contains(['!', '^']));
        let marked = marked.map(|(i, l)| format!("{i}{}", if l.contains('^') { "c" } else { "" }));
        let found: Vec<_> = found.split_whitespace().map(str::to_owned).collect();
        assert_eq!(found, marked.collect::<Vec<_>>(), "{text}");
    }
}

/// Kernels that each load from regions of their own. Region n lies at 0x100000000 + n MiB, beyond the
/// gigabyte in which Linux puts a static program's heap.
const KERNELS: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#define N 16384
#define REGION(n) ((void *)(0x100000000ul + ((unsigned long)(n) << 20)))
#define KERNEL __attribute__((noinline)) static long
struct node { long key; struct node *next, *other; long pad; };

KERNEL chase(void **p) { for (int i = 0; i < N; i++) p = *p; return (long)p; }
KERNEL gups(uint64_t *t, uint64_t x) {
    for (int i = 0; i < N; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; t[x % N] ^= x; }
    return (long)x;
}
KERNEL indexed(const long *a, const int *index) { long s = 0; for (int i = 0; i < N; i++) s += a[index[i]]; return s; }
KERNEL sum(const long *a) { long s = 0; for (int i = 0; i < N; i++) { s += a[i]; __asm__("" : "+r"(s)); } return s; }
KERNEL list(const struct node *p, long key) { while (p->key != key) p = p->next; return p->pad; }
KERNEL tree(const struct node *root, const long *keys) {
    long s = 0;
    for (int i = 0; i < N / 8; i++)
        for (const struct node *p = root; p; p = keys[i] < p->key ? p->next : p->other) s += p->pad;
    return s;
}
KERNEL join(struct node **buckets, const long *keys) {
    long s = 0;
    for (int i = 0; i < N; i++)
        for (const struct node *p = buckets[keys[i] * 0x9e3779b97f4a7c15ul >> 53]; p; p = p->next)
            if (p->key == keys[i]) s += p->pad;
    return s;
}
KERNEL spilled(void **p) { void **volatile q = p; for (int i = 0; i < N; i++) q = *q; return (long)q; }

static void shuffle(long *order) {
    for (int i = 0; i < N; i++) order[i] = i;
    for (int i = N - 1; i > 0; i--) { int j = rand() % i; long t = order[i]; order[i] = order[j]; order[j] = t; }
}
static struct node *insert(struct node *root, struct node *n) {
    struct node **at = &root;
    while (*at) at = n->key < (*at)->key ? &(*at)->next : &(*at)->other;
    *at = n;
    return root;
}
int main(void) {
    static long order[N];
    mmap(REGION(0), 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0);
    shuffle(order);
    void **cycle = REGION(0), **cycle2 = REGION(8);
    for (int i = 0; i < N; i++) cycle[order[i]] = &cycle[order[(i + 1) % N]], cycle2[order[i]] = &cycle2[order[(i + 1) % N]];
    int *index = REGION(2);
    struct node *nodes = REGION(5), *leaves = REGION(6), **buckets = REGION(9), *entries = REGION(10);
    long *keys = REGION(11), *wanted = REGION(12);
    struct node *root = 0;
    for (int i = 0; i < N; i++) {
        index[i] = order[i];
        nodes[order[i]] = (struct node){i, &nodes[order[(i + 1) % N]], 0, 1};
        leaves[i] = (struct node){order[i], 0, 0, 1};
        root = insert(root, &leaves[i]);
        struct node **b = &buckets[order[i] * 0x9e3779b97f4a7c15ul >> 53];
        entries[i] = (struct node){order[i], *b, 0, 1};
        *b = &entries[i];
        keys[i] = wanted[i] = order[(i * 7) % N];
    }
    __asm__ volatile("cpuid" : : "a"(0x4249464f), "c"(0x100) : "rbx", "rdx");
    volatile long s = chase(cycle);
    s += gups(REGION(1), 88172645463325252ul);
    s += indexed(REGION(3), index);
    s += sum(REGION(4));
    s += list(&nodes[order[0]], N - 1);
    s += tree(root, keys);
    s += join(buckets, wanted);
    s += spilled(cycle2);
    __asm__ volatile("cpuid" : : "a"(0x4249464f), "c"(0x200) : "rbx", "rdx");
    return 0;
}
"#;

#[test]
fn chases_are_dependent_and_indexed_loads_are_not() {
    if qemu_missing() {
        return;
    }
    let program = compile("dependent", KERNELS);
    let (r, words) = run(&spec(&[program.to_str().unwrap()])).unwrap();
    assert_eq!(r.exit, CommandExit::Code(0));
    assert_sound(&words);
    // Loads and dependent loads of each region, between the marks.
    let (mut regions, mut inside, mut at) = (HashMap::<u64, [u64; 3]>::new(), false, 0);
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        let region = |gva: u64| (gva >> 20).wrapping_sub(0x1000);
        match event {
            Event::Marker(m) => inside = m == 0x100,
            Event::Load(gva) if inside => regions.entry(region(gva)).or_default()[0] += 1,
            Event::LoadBeforeChain(gva) if inside => {
                let counts = regions.entry(region(gva)).or_default();
                counts[0] += 1;
                counts[2] += 1;
            }
            Event::LoadDependent(gva) if inside => {
                let counts = regions.entry(region(gva)).or_default();
                counts[0] += 1;
                counts[1] += 1;
            }
            _ => {}
        }
        at += n;
    }
    for (region, what, loads, percent) in [
        (0, "chase", 16384, 99..=100),
        (1, "GUPS", 16384, 0..=0),
        (2, "index of a[index[i]]", 16384, 0..=0),
        (3, "a of a[index[i]]", 16384, 0..=0),
        (4, "sum", 16384, 0..=0),
        // A key's load and the next pointer's, in two blocks.
        (5, "list", 2 * 16384 - 1, 99..=100),
        // Keys, children and sums of nodes, in several blocks; about 14 steps per search.
        (6, "tree", 3 * 2048 * 10, 90..=100),
        (8, "chase through a slot of the stack", 16384, 0..=0),
        (9, "buckets", 16384, 0..=0),
        // But for each bucket's first, some 1 of 9, of which one of two loads is in the outer loop's block.
        (10, "entries of buckets", 2 * 16384, 90..=96),
        (11, "keys of searches", 2048, 0..=0),
    ] {
        let [all, dependent, before_chain] = regions.get(&region).copied().unwrap_or_default();
        println!("{what}: {dependent} of {all}, {before_chain} before a chain");
        assert!(all >= loads, "{what}: {all} loads");
        assert!(percent.contains(&(100 * dependent / all)), "{what}: {dependent} of {all}");
        // Each search in the tree and in the hash table begins a chain, behind a load of its root or first
        // entry.
        let searches = if region == 6 {
            2048
        } else if region == 10 {
            16384
        } else {
            0
        };
        assert!(before_chain.abs_diff(searches) <= 1, "{what}: {before_chain} chains");
    }
}
