// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event numbers in C against those in Rust.

use std::collections::BTreeMap;

use bifold_trace::event::{self, gap, ipi, kind, marker};

fn header() -> BTreeMap<String, u64> {
    let text = include_str!("../../../../qemu-plugin/events.h");
    text.lines()
        .filter_map(|l| {
            let mut words = l.strip_prefix("#define BF_")?.split_whitespace();
            let (name, value) = (words.next()?, words.next()?);
            let number = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok()?,
                None => value.parse().ok()?,
            };
            Some((name.to_owned(), number))
        })
        .collect()
}

#[test]
fn the_c_header_has_the_numbers_of_the_rust_definition() {
    let expected = [
        ("KIND_SHIFT", u64::from(event::KIND_SHIFT)),
        ("MAX_WORDS", event::MAX_WORDS as u64),
        ("STATS_WORDS", event::STATS_WORDS as u64),
        ("MOST_VCPUS", bifold_trace::MOST_VCPUS.into()),
        ("KIND_LOAD", kind::LOAD),
        ("KIND_STORE", kind::STORE),
        ("KIND_STORE_OTHER", kind::STORE_OTHER),
        ("KIND_FETCH", kind::FETCH),
        ("KIND_LOAD_DEPENDENT", kind::LOAD_DEPENDENT),
        ("KIND_LOAD_BEFORE_CHAIN", kind::LOAD_BEFORE_CHAIN),
        ("KIND_CALL", kind::CALL),
        ("KIND_RETURN", kind::RETURN),
        ("KIND_TRANSFER", kind::TRANSFER),
        ("KIND_FREE", kind::FREE),
        ("KIND_LOOK", kind::LOOK),
        ("KIND_IPI", kind::IPI),
        ("IPI_SENT", ipi::SENT),
        ("IPI_CALL_SINGLE", ipi::CALL_SINGLE),
        ("IPI_CALL", ipi::CALL),
        ("IPI_RESCHEDULE", ipi::RESCHEDULE),
        ("LOOK_WORDS", event::LOOK_WORDS as u64),
        ("KIND_INSNS", kind::INSNS),
        ("KIND_VCPU", kind::VCPU),
        ("KIND_CR3", kind::CR3),
        ("KIND_CR3_READ", kind::CR3_READ),
        ("KIND_INVLPG", kind::INVLPG),
        ("KIND_CR4", kind::CR4),
        ("KIND_FAULT", kind::FAULT),
        ("KIND_PT_STORE", kind::PT_STORE),
        ("KIND_TABLE", kind::TABLE),
        ("KIND_RETIRE", kind::RETIRE),
        ("KIND_CHECK", kind::CHECK),
        ("KIND_MARKER", kind::MARKER),
        ("KIND_STATS", kind::STATS),
        ("KIND_RESIDENT", kind::RESIDENT),
        ("KIND_TICKS", kind::TICKS),
        ("KIND_LOG", kind::LOG),
        ("KIND_BLOCK", kind::BLOCK),
        ("LOG_WORDS", event::LOG_WORDS as u64),
        ("LOG_PERF", event::log::PERF),
        ("KIND_GAP", kind::GAP),
        ("MARKER_START", marker::START),
        ("MARKER_STOP", marker::STOP),
        ("MARKER_BOOT", marker::BOOT),
        ("MARKER_REGION_END", marker::REGION_END),
        ("MARKER_REGION_MISSED", marker::REGION_MISSED),
        ("MARKER_PROGRAM", marker::PROGRAM),
        ("MARKER_OWN", marker::OWN),
        ("MARKER_WINDOW_BEGIN", marker::WINDOW_BEGIN),
        ("MARKER_WINDOW_END", marker::WINDOW_END),
        ("CPUID_LEAF", marker::CPUID_LEAF),
        ("CPUID_PERF", marker::CPUID_PERF),
        ("GAP_BEGIN", gap::BEGIN),
        ("GAP_WARM_UP", gap::WARM_UP),
        ("GAP_MEASURE", gap::MEASURE),
        ("GAP_HEAD", gap::HEAD),
        ("GAP_REGION", gap::REGION),
        ("GAP_REGION_END", gap::REGION_END),
    ];
    let mut header = header();
    for (name, number) in expected {
        assert_eq!(header.remove(name), Some(number), "{name}");
    }
    header.remove("MARKER_MAGIC");
    let rest: Vec<_> = header
        .keys()
        .filter(|k| {
            ["KIND_", "MARKER_", "LOG_", "LOOK_", "CPUID_", "GAP_", "IPI_"].iter().any(|p| k.starts_with(p))
        })
        .collect();
    assert!(rest.is_empty(), "numbers that only C has: {rest:?}");
}

#[test]
fn the_init_s_marker_is_the_one_the_plugin_looks_for() {
    let magic = header()["MARKER_MAGIC"] as u32;
    let [_, b, c, d] = magic.to_le_bytes();
    let bytes = format!("{b:#04x},{c:#04x},{d:#04x}");
    let init = include_str!("../../guest/init.c");
    assert!(init.contains(&bytes), "init.c lacks {bytes}");
    let leaf = format!("{:#x}", marker::CPUID_LEAF);
    assert!(init.contains(&leaf), "init.c lacks {leaf}");
    let perf = include_str!("../../guest/where.h");
    let code = format!("c_ = {:#x}", marker::CPUID_PERF);
    assert!(perf.contains(&leaf) && perf.contains(&code), "where.h lacks {leaf} or {code}");
}
