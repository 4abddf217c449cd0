// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests with several vCPUs and NUMA nodes: the guest's kernel has the nodes that the recording tells of,
//! and the plugin finds the guest's memory in every one of them.

use bifold_guest::guest_nodes;
use bifold_trace::GuestNode;

use crate::replay::assert_sound;
use crate::support::{compile, qemu_missing, run, spec};

/// Touches 32 pages on each of 4 CPUs, and prints each page's CPU, the node that the kernel names, and its
/// frame.
const TOUCH: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    for (int cpu = 0; cpu < 4; cpu++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set))
            return 1;
        char *p = mmap(0, 32 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < 32; i++) {
            void *page = p + (i << 12);
            int node = -1;
            uint64_t entry = 0;
            *(volatile char *)page = 1;
            if (syscall(SYS_move_pages, 0, 1L, &page, 0, &node, 0))
                return 2;
            if (pread(pagemap, &entry, 8, (uintptr_t)page >> 12 << 3) != 8)
                return 3;
            printf("%d %d %llu\n", cpu, node, (unsigned long long)(entry & ((1ULL << 55) - 1)));
        }
    }
    return 0;
}
"#;

/// The number of the node that has the frame.
fn node_of(nodes: &[GuestNode], frame: u64) -> Option<usize> {
    let has = |n: &GuestNode| n.frames.iter().any(|f| (f.first..f.first + f.count).contains(&frame));
    nodes.iter().position(has)
}

#[test]
fn each_vcpus_pages_lie_on_its_node_and_the_recording_knows_their_frames() {
    if qemu_missing() {
        return;
    }
    let program = compile("touch-nodes", TOUCH);
    let mut s = spec(&[program.to_str().unwrap()]);
    // The hole below 4 GB parts the second node.
    (s.vcpus, s.nodes, s.memory_mib) = (4, 2, 3072);
    let (report, words) = run(&s).unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.complete, "{:?} {}", report.exit, String::from_utf8_lossy(&report.stderr));
    let nodes = guest_nodes(&s);
    let mut pages = 0;
    for line in text.lines() {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let [cpu, node, frame] = numbers[..] else { panic!("{line}") };
        assert_eq!(node, cpu / 2, "{line}");
        assert!(nodes[node as usize].vcpus.contains(&(cpu as u32)), "{line}");
        assert_eq!(node_of(&nodes, frame), Some(node as usize), "{line}");
        pages += 1;
    }
    assert_eq!(pages, 4 * 32);

    // Frames of both nodes are in the stream, and the plugin translates as the emulator does.
    let summary = assert_sound(&words);
    assert!(summary.highest_gpa >> 12 < bifold_guest::guest_frames(&s), "{:#x}", summary.highest_gpa);
    assert!(summary.highest_gpa >= 1 << 32, "{:#x}", summary.highest_gpa);
    assert!((0..4).all(|v| summary.vcpus.contains(&v)), "{:?}", summary.vcpus);
    assert!(report.stats.translation_checks > 0);
}
