// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim cost` of a guest that runs, and of recordings with and without looks at its memory.

use crate::command::{bifold_in, command, ran};
use crate::guest::no_guest_here;
use serde_json::Value;

/// Two processes that use 128 MiB each, and between them some 300 million instructions, so that there are
/// looks.
const TWICE: &str = "dd if=/dev/zero of=/dev/null bs=128M count=1; i=0; \
    while [ $i -lt 30000 ]; do i=$((i+1)); done; dd if=/dev/zero of=/dev/null bs=128M count=1";

#[test]
fn a_guest_that_reports_what_it_has_freed_gives_memory_and_pays_by_exits() {
    if no_guest_here() {
        return;
    }
    let ran = ran(command([
        "reclaim", "cost", "--quiet", "--format", "json", "-m", "512", "--", "sh", "-c", TWICE,
    ]));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in rows {
        assert_eq!(row["way"], "reporting");
        assert!(row["dropped_bytes"].as_u64().is_some_and(|bytes| bytes >= 2 << 20), "{row}");
        assert!(row["gives_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{row}");
        let exits = ["violations", "hidden_faults"].map(|key| row[key].as_i64().unwrap_or(0));
        assert!(exits.iter().sum::<i64>() > 0, "{row}");
    }
    let others = &document["others"];
    assert!(others["free_bytes"].as_f64().is_some_and(|bytes| bytes > 1e8), "{others}");
    assert!(others["compressed_part"].as_f64().is_some_and(|part| part < 1.0), "{others}");
}

#[test]
fn a_recording_has_looks_if_it_was_asked_for_them() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(bifold_in(dir.path(), "record --quiet -o t.bifold --generate t:1000").status, 0);
    let refused = bifold_in(dir.path(), "reclaim cost t.bifold");
    assert!(refused.stderr.contains("no looks at the guest's memory"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--memory-use") && refused.status == 1, "{}", refused.stderr);
    if no_guest_here() {
        return;
    }
    assert_eq!(bifold_in(dir.path(), "record --quiet --memory-use -o true.bifold -- true").status, 0);
    let ran = bifold_in(dir.path(), "reclaim cost true.bifold");
    let table = ran.quietly();
    assert!(table.contains("reporting") && table.contains("balloon"), "{table}");
}
