// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cpu.tlb_tagged = false`: without VPID or ASID an exit empties the TLB.

use crate::reference::WRITE;
use crate::stream::{NATIVE, NESTED_2M, NESTED_4K, Stream, profile};
use bifold_model::{Config, Sample};
use bifold_trace::Event::{self, Cr4, Load};

const VA: u64 = 0x40_4060_0000;
const PAGE: u64 = 0x1000;
const CR4: u64 = 0x20;

fn run(name: &str, tagged: bool, config: Config, events: &[Event<'_>]) -> Sample {
    let overrides =
        [if tagged { "cpu.tlb_tagged=true" } else { "cpu.tlb_tagged=false" }, "walk_cache.variant=none"];
    let mut stream = Stream::new();
    let root = stream.table(4);
    for i in 0..4 {
        stream.map(root, VA + i * PAGE, 1, (0x1_0000 + i) << 12 | WRITE);
    }
    stream.start(root).and(events).run(&profile(name, &overrides), config).total
}

#[test]
fn a_violation_empties_an_untagged_tlb_and_the_access_is_held_after_it() {
    // Page 1's violation drops page 0, not page 1 itself.
    let events = [Load(VA), Load(VA + PAGE), Load(VA + PAGE), Load(VA), Load(VA + PAGE)];
    let got = run("geometry-g", false, NESTED_4K, &events);
    assert_eq!((got.tlb_misses(), got.tlb_flushes), (3, 2));
    assert_eq!(run("geometry-g", true, NESTED_4K, &events).tlb_misses(), 2);
}

#[test]
fn native_paging_has_no_exits_to_flush_for() {
    let events = [Load(VA), Load(VA + PAGE), Load(VA)];
    let got = run("geometry-g", false, NATIVE, &events);
    assert_eq!((got.tlb_misses(), got.tlb_flushes), (2, 0));
}

#[test]
fn a_region_of_2_mb_exits_and_flushes_once() {
    let events = [Load(VA), Load(VA + PAGE), Load(VA), Load(VA + 2 * PAGE)];
    let got = run("geometry-g", false, NESTED_2M, &events);
    assert_eq!((got.tlb_misses(), got.tlb_flushes, got.exits_violation), (3, 1, 2));
}

#[test]
fn a_cr4_write_that_exits_flushes_an_untagged_tlb_though_the_guest_flushes_nothing() {
    let events = [Cr4(CR4), Load(VA), Cr4(CR4 | 0x400), Load(VA)];
    for (tagged, misses) in [(true, 1), (false, 2)] {
        let got = run("phenom2-x3-720", tagged, NESTED_4K, &events);
        assert_eq!((got.tlb_misses(), got.exits_cr4_write), (misses, 1));
    }
}

#[test]
fn one_cpus_exit_leaves_the_others_tlb_alone() {
    use crate::random::model;
    let mut stream = Stream::new();
    let root = stream.table(4);
    for i in 0..2 {
        stream.map(root, VA + i * PAGE, 1, (0x1_0000 + i) << 12);
    }
    let events = [
        Event::Vcpu(1),
        Event::Cr3(root << 12),
        Load(VA),
        Event::Vcpu(0),
        Load(VA + PAGE),
        Event::Vcpu(1),
        Load(VA),
    ];
    let words = stream.start(root).and(&events).words;
    let got = model(&profile("geometry-g", &["cpu.tlb_tagged=false"]), &[NESTED_4K], 2, &words);
    assert_eq!(got.configs[0].total.tlb_misses(), 2);
}
