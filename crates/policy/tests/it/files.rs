// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file: what was written is read, and anything else is refused in words.

use crate::made::{Interval, any_timeline, timeline};
use bifold_model::VmState;
use bifold_policy::Timeline;
use proptest::prelude::*;
use std::path::Path;

fn read(bytes: &[u8]) -> Result<Timeline, String> {
    Timeline::from_bytes(bytes, Path::new("x.timeline")).map_err(|e| e.to_string())
}

fn json(t: &Timeline) -> serde_json::Value {
    serde_json::from_slice(&zstd::decode_all(&t.to_bytes()[..]).unwrap()).unwrap()
}

/// The complaint about a good timeline in which something was changed.
fn changed(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut value = json(&timeline(&vec![Interval { shadow: [1, 2], ..Interval::default() }; 3]));
    change(&mut value);
    read(&zstd::encode_all(&serde_json::to_vec(&value).unwrap()[..], 1).unwrap()).unwrap_err()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(t in any_timeline()) {
        prop_assert_eq!(read(&t.to_bytes()).unwrap(), t);
    }

    #[test]
    fn a_damaged_file_is_refused_or_another_timeline(t in any_timeline(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = t.to_bytes();
        prop_assert!(read(&bytes[..at.index(bytes.len())]).is_err());
        let i = at.index(bytes.len());
        bytes[i] ^= 1 << bit;
        let _ = read(&bytes);
    }
}

#[test]
fn a_file_without_a_state_is_of_a_vm_that_had_just_started() {
    let written = timeline(&[Interval { shadow: [1, 2], ..Interval::default() }]);
    assert_eq!(read(&written.to_bytes()).unwrap().about.vm, VmState::LongLived);
    let mut value = json(&written);
    assert_eq!(value["about"].as_object_mut().unwrap().remove("vm"), Some("long-lived".into()));
    let old = zstd::encode_all(&serde_json::to_vec(&value).unwrap()[..], 1).unwrap();
    assert_eq!(read(&old).unwrap().about.vm, VmState::Started);
    assert!(changed(|v| v["about"]["vm"] = "ancient".into()).contains("no state of a VM"));
}

#[test]
fn another_version_is_named() {
    let e = changed(|v| v["schema"] = "bifold.timeline/2".into());
    assert_eq!(
        e,
        "x.timeline is of version bifold.timeline/2, this Bifold reads bifold.timeline/1: capture it again"
    );
}

#[test]
fn what_is_no_timeline_is_told_with_what_writes_one() {
    let tip = "(`bifold compare --timeline FILE` writes one)";
    assert_eq!(read(b"").unwrap_err(), format!("x.timeline is no timeline: it is empty {tip}"));
    let e = read(b"#!/bin/sh\n").unwrap_err();
    assert_eq!(e, format!("x.timeline is no timeline: it is not compressed as one is, or cut short {tip}"));
    let e = read(&zstd::encode_all(&b"{\"schema\": 1}"[..], 1).unwrap()).unwrap_err();
    assert!(e.starts_with("x.timeline is no timeline: invalid type") && e.ends_with(tip), "{e}");
    let e = Timeline::read(Path::new("/no/such/file")).unwrap_err().to_string();
    assert_eq!(e, "cannot read timeline /no/such/file");
}

#[test]
fn what_cannot_be_is_told() {
    let counters = |v: &mut serde_json::Value| v["pairs"][0]["shadow"]["counters"].take();
    assert_eq!(
        changed(|v| v["pairs"] = serde_json::json!([])),
        "timeline x.timeline: it has no interval with both modes: capture with nested and shadow"
    );
    let e = changed(|v| {
        let mut c = counters(v);
        c["values"]["walk_cycles"] = serde_json::json!([1, 2]);
        v["pairs"][0]["shadow"]["counters"] = c;
    });
    assert_eq!(e, "timeline x.timeline: walk_cycles has 2 values for 3 intervals");
    let e = changed(|v| {
        let mut c = counters(v);
        c["values"]["walk_cycels"] = serde_json::json!([1, 2, 3]);
        v["pairs"][0]["shadow"]["counters"] = c;
    });
    assert_eq!(e, "timeline x.timeline: unknown counter walk_cycels");
    let e = changed(|v| {
        let mut c = counters(v);
        c["values"]["walk_cycles"] = serde_json::json!([1, u64::MAX, 3]);
        v["pairs"][0]["shadow"]["counters"] = c;
    });
    assert_eq!(e, "timeline x.timeline: walk_cycles = 18446744073709551615 in an interval");
    let e = changed(|v| {
        let mut c = counters(v);
        c["values"]["walk_cycles"] = serde_json::json!([1, 1u64 << 53, 3]);
        v["pairs"][0]["shadow"]["counters"] = c;
    });
    assert_eq!(e, "timeline x.timeline: walk_cycles is above 9007199254740992 over all intervals");
    let e = changed(|v| v["pairs"][0]["native"] = v["pairs"][0]["nested"].clone());
    assert_eq!(e, "timeline x.timeline: native is no mode of a VM");
    let renamed = |name: &'static str| {
        changed(|v| {
            let modes = v["pairs"][0].as_object_mut().unwrap();
            let nested = modes.remove("nested").unwrap();
            modes.insert(name.into(), nested);
        })
    };
    assert!(renamed("nestled").contains("unknown variant `nestled`"));
    assert_eq!(
        renamed("offset"),
        "timeline x.timeline: it has no interval with both modes: capture with nested and shadow"
    );
    let e = changed(|v| v["costs"]["make_page"] = u64::MAX.into());
    assert_eq!(e, "timeline x.timeline: a cost of 18446744073709551615 cycles");
    let e = changed(|v| v["about"]["frequency_hz"] = 0.into());
    assert_eq!(e, "timeline x.timeline: frequency, interval and CPI must be above 0");
    let e = changed(|v| v["pairs"][0]["nested"]["reuse"][1] = serde_json::json!([[200, 0, 1, 1]]));
    assert_eq!(e, "timeline x.timeline: an age of bucket 200 or 0");
    let e = changed(|v| v["pairs"][0]["nested"]["reuse"] = serde_json::json!([[]]));
    assert_eq!(e, "timeline x.timeline: ages of 1 intervals, counts of 3");
}

#[test]
fn the_time_scale_is_of_the_capture_if_any_and_a_number_above_0() {
    let t = timeline(&vec![Interval { shadow: [1, 2], ..Interval::default() }; 3]);
    assert_eq!((t.about.time_scale, json(&t)["about"].get("time_scale")), (None, None));
    let e = changed(|v| v["about"]["time_scale"] = 0.into());
    assert_eq!(e, "timeline x.timeline: time_scale = 0 is not above 0 and finite");
    let e = changed(|v| v["about"]["time_scale"] = (-1.5).into());
    assert_eq!(e, "timeline x.timeline: time_scale = -1.5 is not above 0 and finite");
    // JSON has no infinity: what is too large for a number is refused before.
    let huge = String::from_utf8(zstd::decode_all(&t.to_bytes()[..]).unwrap()).unwrap();
    let huge = huge.replace("\"interval_cycles\":", "\"time_scale\":1e999,\"interval_cycles\":");
    let e = read(&zstd::encode_all(huge.as_bytes(), 1).unwrap()).unwrap_err();
    assert!(e.starts_with("x.timeline is no timeline: number out of range"), "{e}");
}
