// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries that are there but do not allow a write, and pages held in pieces.

use crate::reference::{DIRTY, LARGE, WRITE};
use crate::stream::{FRAMES, NATIVE, NESTED_2M, NESTED_4K, Stream, profile};
use bifold_model::Config;
use bifold_trace::Event::{self, Cr3, Fetch, Invlpg, Load, PtStore, Store};

const VA: u64 = 0x40_4060_0000;
const PAGE: u64 = 0x1000;

/// One page mapped at VA by an entry of `level`, whose address is returned too.
fn mapped(level: u8, bits: u64) -> (Stream, u64, u64) {
    let mut stream = Stream::new();
    let root = stream.table(4);
    let at = stream.map(root, VA, level, bits | WRITE | if level == 1 { 0x1_2345 << 12 } else { LARGE });
    (stream.start(root), root, at)
}

#[test]
fn a_store_to_a_page_that_only_the_second_level_holds_clean_is_a_first_level_miss() {
    let (stream, ..) = mapped(1, 0);
    let got = stream.and(&[Fetch(VA), Store(VA)]).run(&profile("i5-7600", &[]), NATIVE).total;
    assert_eq!((got.l1_misses, got.tlb_misses_4k, got.walks), (2, 1, 2));
}

#[test]
fn the_first_write_through_each_clean_entry_walks_though_the_page_is_dirty_already() {
    // Two pieces of a 2 MB page, both read before the first write (SDM vol. 3A 4.8: the
    // dirty bit is cached with the entry).
    let (stream, ..) = mapped(2, 0);
    let events = [Load(VA), Load(VA + PAGE), Store(VA), Store(VA + PAGE), Store(VA), Store(VA + PAGE)];
    let got = stream.and(&events).run(&profile("geometry-g", &[]), NATIVE).total;
    assert_eq!((got.tlb_misses(), got.walks), (2, 4));
}

#[test]
fn a_write_through_a_clean_entry_walks_though_software_has_set_the_dirty_bit() {
    let (stream, _, at) = mapped(1, 0);
    let new = (0x1_2345 << 12) | WRITE | DIRTY | 1;
    let stream = stream.and(&[Load(VA), PtStore { gpa: at, old: 0, new }, Store(VA), Store(VA)]);
    for config in [NATIVE, NESTED_2M] {
        let got = stream.run(&profile("geometry-g", &[]), config).total;
        assert_eq!((got.tlb_misses(), got.walks - got.exits_violation), (1, 2), "{}", config.name());
    }
}

#[test]
fn invlpg_drops_every_piece_of_a_large_page() {
    // SDM vol. 3A 4.10.4.1: all entries for the page, if it is held in several.
    let (stream, ..) = mapped(2, 0);
    let events = [Load(VA), Load(VA + PAGE), Invlpg(VA), Load(VA + PAGE)];
    let got = stream.and(&events).run(&profile("i5-7600", &[]), NESTED_4K).total;
    assert_eq!(got.tlb_misses_4k, 3);
}

#[test]
fn a_page_fault_drops_every_piece_of_a_large_page() {
    let (stream, ..) = mapped(2, 0);
    let events = [Load(VA), Load(VA + PAGE), Event::Fault { gva: VA, error: 3 }, Load(VA + PAGE)];
    let got = stream.and(&events).run(&profile("i5-7600", &[]), NESTED_4K).total;
    assert_eq!(got.tlb_misses_4k, 3);
}

#[test]
fn a_store_that_only_nested_paging_walks_for_leaves_native_as_it_is_alone() {
    // The page is dirty in the guest, the zero page on the host. It stays in the first level
    // while others push it out of the second.
    let mut stream = Stream::new();
    let root = stream.table(4);
    let page = |i: u64| VA + (i << 19);
    for i in 0..16 {
        stream.map(root, page(i), 1, (0x1_0000 + i) << 12 | WRITE | DIRTY);
    }
    let mut events = vec![Load(page(0))];
    events.extend((1..=12).flat_map(|i| [Load(page(i)), Load(page(0))]));
    events.push(Store(page(0)));
    events.extend((1..=12).map(|i| Load(page(i))));
    let stream = stream.start(root).and(&events);
    let profile = profile("geometry-g", &[]);
    let configs = [NATIVE, NESTED_4K];
    let company = stream.run_all(&profile, &configs, 1.0);
    for (config, got) in configs.into_iter().zip(&company.configs) {
        assert_eq!(got, &stream.run(&profile, config), "{}", config.name());
    }
}

#[test]
fn a_unified_first_level_sees_loads_and_fetches_in_one_order() {
    let overrides = ["tlb.l1d-4k.sides=[\"data\", \"code\"]", "tlb.l1d-4k.entries=2", "tlb.l1d-4k.ways=2"];
    let mut stream = Stream::new();
    let root = stream.table(4);
    for i in 0..3 {
        stream.map(root, VA + i * PAGE, 1, (0x1_0000 + i) << 12);
    }
    // The second load of page 0 makes page 1 the one to go.
    let events = [Load(VA), Fetch(VA + PAGE), Load(VA), Fetch(VA + 2 * PAGE), Fetch(VA + PAGE)];
    let got = stream.start(root).and(&events).run(&profile("geometry-g", &overrides), NATIVE).total;
    assert_eq!(got.l1_misses, 4);
}

#[test]
fn a_cr3_load_drops_what_is_not_global() {
    let (stream, root, _) = mapped(1, 0);
    let got = stream
        .and(&[Load(VA), Load(VA), Cr3(root << 12), Load(VA)])
        .run(&profile("i5-7600", &[]), NATIVE)
        .total;
    assert_eq!((got.tlb_misses_4k, got.tlb_flushes), (2, 1));
}

#[test]
fn a_device_s_access_is_a_first_level_miss_of_every_configuration_alone_and_together() {
    let (mut stream, device) = (Stream::new(), VA + (1 << 30));
    let root = stream.table(4);
    stream.map(root, VA, 2, WRITE | LARGE);
    stream.map(root, device, 1, FRAMES.max(1 << 20) << 12 | WRITE);
    // The first load splits the configurations: they hold the large page at different sizes.
    let stream = stream.start(root).and(&[Load(VA), Load(device), Load(device), Load(VA)]);
    let together = stream.run_all(&profile("i5-7600", &[]), &Config::ALL, 1.0);
    for c in together.configs {
        assert_eq!(c.total.l1_misses, 3, "{}", c.config.name());
        assert_eq!(stream.run(&profile("i5-7600", &[]), c.config).total.l1_misses, 3, "{}", c.config.name());
    }
}
