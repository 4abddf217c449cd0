// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the guest's memory: what a host drops of reported blocks, and devices' transfers among the uses
//! of memory.

use bifold_model::host::Taking;
use bifold_model::{Model, Options, Profile, UseOptions};
use bifold_reclaim::ReferenceKind;
use bifold_trace::{DecodeError, Event, Generator, MemoryLook, decode};
use std::num::NonZeroU64;
use std::ops::Range;

/// A generator's stream in two halves, and the guest's frames.
fn halves(generator: &str) -> (Vec<u64>, Vec<u64>, u64) {
    let generator = Generator::parse(generator).expect("a generator");
    let mut words = Vec::new();
    let mut keep = |w: &[u64]| {
        words.extend_from_slice(w);
        Ok::<(), DecodeError>(())
    };
    generator.run(&mut keep).expect("well-formed events");
    let mut at = 0;
    while at < words.len() / 2 {
        at += decode(&words[at..], at).expect("well-formed events").1;
    }
    let second = words.split_off(at);
    (words, second, generator.guest_frames())
}

fn encoded(events: &[Event]) -> Vec<u64> {
    let mut words = Vec::new();
    events.iter().for_each(|event| event.encode(&mut words));
    words
}

#[test]
fn a_host_drops_reported_blocks_as_it_drops_what_a_balloon_takes() {
    let profile = Profile::load("i5-7600", &[]).expect("a profile");
    let (first, second, guest_frames) = halves("gups:30000@32m");
    let options = Options { guest_frames, ..Options::default() };
    // All but one block of 2 MB.
    let blocks: [Range<u64>; 2] = [0..2048, 2560..guest_frames / 512 * 512];
    let free = |gfns: &Range<u64>| Event::Free { gfn: gfns.start, frames: gfns.end - gfns.start };
    let look = MemoryLook { frames: guest_frames, free: 4608, ..MemoryLook::default() };
    let events = encoded(&[free(&blocks[0]), free(&blocks[1]), Event::Look(look)]);
    let new = || Model::new(&profile, options.clone());
    let (mut reported, mut by_hand, mut whole) = (new(), new(), new());
    reported.report_free();
    for model in [&mut reported, &mut by_hand, &mut whole] {
        model.consume(&first).expect("well-formed events");
    }
    for host in 0..5 {
        blocks.iter().for_each(|gfns| by_hand.take_back(host, gfns.clone(), Taking::Discard));
    }
    for model in [&mut reported, &mut whole] {
        model.consume(&events).expect("well-formed events");
    }
    for model in [&mut reported, &mut by_hand, &mut whole] {
        model.consume(&second).expect("well-formed events");
    }
    assert_eq!(reported.totals(), by_hand.totals());
    let violations = |model: &Model| model.totals()[1].1.exits_violation;
    assert!(violations(&reported) > violations(&whole), "what was dropped comes back by violations");
    let (plain, reporting) = (&whole.looked()[0], &reported.looked()[0]);
    assert_eq!((plain.look, plain.held[0], whole.dropped(1)), (look, 0, 0));
    for host in 1..5 {
        assert!(reported.dropped(host) > 0);
        assert_eq!(reported.dropped(host), plain.held[host] - reporting.held[host], "host {host}");
    }
    // Blocks of 2 MB, which the host's pages of 2 MB fill.
    assert_eq!(reported.split_pages(2), 0);
}

#[test]
fn a_device_s_transfers_are_uses_of_the_pages_that_they_touch() {
    let profile = Profile::load("i5-7600", &[]).expect("a profile");
    let (first, _, guest_frames) = halves("gups:30000@32m");
    let mut model = Model::new(&profile, Options { guest_frames, ..Options::default() });
    model
        .watch_uses(UseOptions { interval: NonZeroU64::new(1000).expect("not 0"), optimum: 1 << 20 })
        .expect("native among the configurations");
    model.consume(&first).expect("well-formed events");
    let transfers = [
        // The last byte of one page, two pages, and the first byte of a fourth.
        Event::Transfer { gpa: 0x5fff, bytes: 2 + 2 * 4096, write: true },
        Event::Transfer { gpa: 0x5fff, bytes: 1, write: false },
        Event::Transfer { gpa: 0x5fff, bytes: 0, write: false },
        // Beyond the guest's memory.
        Event::Transfer { gpa: guest_frames << 12, bytes: 1, write: false },
    ];
    model.consume(&encoded(&transfers)).expect("well-formed events");
    let uses = model.take_uses().expect("they were watched");
    assert_eq!((uses.curve_of(ReferenceKind::Device).references(), uses.outside()), (5, 1));
}
