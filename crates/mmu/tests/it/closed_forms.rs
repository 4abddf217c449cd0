// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A walk whose every read walks makes m*n + m + n references (`docs/design/model.md#walks`).

use crate::tables::{Memory, end_of};
use bifold_mmu::format::{PAE, X86_64_4_LEVEL, X86_64_5_LEVEL};
use bifold_mmu::{Format, Start, Walk, walk};
use std::cell::Cell;

const GUEST_ROOT: u64 = 0x10_0000;
const HOST_ROOT: u64 = 0x20_0000;
const VA: u64 = 0x7fc0_4567;
const DATA: u64 = 0x4000_0000;

/// References of one walk of `VA`, mapped by leaves of these levels.
fn references(format: &Format, guest_leaf: u8, host_leaf: u8) -> u64 {
    let mut guest = Memory::new(GUEST_ROOT + 0x1000);
    guest.map(format, GUEST_ROOT, VA, guest_leaf, DATA);
    let mut host = Memory::new(HOST_ROOT + 0x1000);
    let offset = VA & ((1 << format.level(guest_leaf).shift) - 1);
    let mask = !((1u64 << format.level(host_leaf).shift) - 1);
    for gpa in guest.words.keys().copied().chain([DATA + offset]) {
        host.map(format, HOST_ROOT, gpa, host_leaf, gpa & mask);
    }
    let count = Cell::new(0);
    let nested = |gpa: u64| {
        let start = Start { level: format.depth(), table: HOST_ROOT };
        let end = walk::<()>(format, start, gpa, |_, at| {
            count.set(count.get() + 1);
            Ok(host.read(at))
        });
        let Ok(Walk::Leaf(step)) = end else { panic!("{gpa:#x} is not mapped: {end:?}") };
        format.target(step.level, step.entry) | (gpa & !mask)
    };
    let start = Start { level: format.depth(), table: GUEST_ROOT };
    let end = walk::<()>(format, start, VA, |_, at| {
        assert_eq!(nested(at), at, "the host maps every frame to itself");
        count.set(count.get() + 1);
        Ok(guest.read(at))
    });
    let Ok(Walk::Leaf(step)) = end else { panic!("{end:?}") };
    assert_eq!(nested(format.target(step.level, step.entry) | offset), DATA + offset);
    assert_eq!(end_of(format, &guest, GUEST_ROOT, VA).entry, step.entry);
    count.get()
}

#[test]
fn nested_4x4_walk_makes_24_references() {
    assert_eq!(references(&X86_64_4_LEVEL, 1, 1), 24);
}

#[test]
fn nested_5x5_walk_makes_35_references() {
    assert_eq!(references(&X86_64_5_LEVEL, 1, 1), 35);
}

#[test]
fn nested_3x3_walk_makes_15_references() {
    assert_eq!(references(&PAE, 1, 1), 15);
}

#[test]
fn nested_4x4_walk_makes_19_references_with_2_mb_on_either_side_and_15_on_both() {
    assert_eq!(references(&X86_64_4_LEVEL, 1, 2), 19);
    assert_eq!(references(&X86_64_4_LEVEL, 2, 1), 19);
    assert_eq!(references(&X86_64_4_LEVEL, 2, 2), 15);
}

#[test]
fn every_pair_of_leaf_levels_makes_m_n_plus_m_plus_n_references() {
    for format in [&X86_64_4_LEVEL, &X86_64_5_LEVEL, &PAE] {
        let leaves = if format.depth() == 3 { 1..=2 } else { 1..=3 };
        for guest in leaves.clone() {
            for host in leaves.clone() {
                let m = u64::from(format.depth() - guest + 1);
                let n = u64::from(format.depth() - host + 1);
                assert_eq!(references(format, guest, host), m * n + m + n, "{} {guest} {host}", format.name);
            }
        }
    }
}
