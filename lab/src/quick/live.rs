// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests what is seen of inner guests with phases, and what the daemon does to them.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Shared;
use crate::lab::Output;
use crate::live::guests::{Guest, checksum, run, text};
use crate::live::{self, COMMON, Live};
use crate::modelled::{PROFILE, Settings, make};

/// The rows of a VM that `stat` wrote.
fn rows(output: &Output, vm: &str) -> Result<Vec<Value>> {
    let all: Vec<Value> =
        text(output, "vms.jsonl")?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|r| r["name"] == vm).collect())
}

/// The progress of all rows together, by phase.
fn progress(rows: &[Value]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for words in rows.iter().filter_map(|r| r["reported_progress_by_name"].as_str()) {
        for (name, n) in words.split(' ').filter_map(|w| w.split_once('=')) {
            *sums.entry(name.to_owned()).or_default() += n.parse::<u64>().unwrap_or(0);
        }
    }
    sums
}

const WATCHED: [Guest; 2] =
    [("a", "--phases tables:60,chase:600 --cycles 1"), ("b", "--phases chase:600,tables:60 --cycles 1")];

/// Both guests' checksums, progress and page faults are seen, one guest in each mode.
pub fn watched(shared: &Shared) -> Result<()> {
    let [(a, of_a), (b, of_b)] = WATCHED;
    let output = run(
        shared.lab,
        &format!(
            r#"
start {a} "{of_a}"; va=$vm
start {b} "{of_b}"; vb=$vm
until_true "$BIFOLD mode {b} shadow >/dev/null 2>&1"
$BIFOLD stat -q -i 0.5 --format jsonl -o $OUT/vms.jsonl & stat=$!
wait $va && wait $vb || exit 7
kill -INT $stat; wait $stat"#
        ),
        Vec::new(),
    )?;
    for ((name, arguments), mode) in WATCHED.into_iter().zip(["nested", "shadow"]) {
        checksum(&output, (name, arguments))?;
        let rows = rows(&output, name)?;
        ensure!(rows.iter().all(|r| r["mode"] == mode), "{name} was not in {mode} paging all the time");
        let seen = progress(&rows);
        let all = [("tables", 120), ("chase", 1200)];
        // What the guest did before it was watched is not seen.
        ensure!(
            all.iter().all(|(phase, n)| seen.get(*phase).is_some_and(|s| n / 2 < *s && s <= n)),
            "of {all:?} steps of {name}, {seen:?} were seen"
        );
        let faults: u64 = rows.iter().filter_map(|r| r["reported_page_faults"].as_u64()).sum();
        ensure!(faults > 1000, "{faults} page faults of {name} were seen");
    }
    Ok(())
}

/// The daemon follows the phases of the guests, and all that [`Live::wrong`] says holds.
pub fn daemon(shared: &Shared) -> Result<()> {
    let settings =
        Settings { profile: PROFILE.into(), set: Vec::new(), arguments: COMMON.map(String::from).to_vec() };
    let pmu = make(shared.lab, &settings, &|_| ())?.pmu;
    let live: Live = live::experiment(shared.lab, &pmu)?;
    let wrong = live.wrong();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}
