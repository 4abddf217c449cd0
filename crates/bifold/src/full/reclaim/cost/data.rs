// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each way of taking memory gives and costs, for programs.

use bifold_model::Swaps;
use bifold_report::{Comparison, Partial, profile_words};
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.reclaim-cost/1";

/// What `bifold reclaim cost --format json` writes: what each way of taking a guest's memory gives and costs.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'a str,
    /// The command, its recording, or the generator.
    program: String,
    /// Why the events end before the command did; null if they do not.
    partial: Option<Partial>,
    /// The hardware profile, the rules of KVM and what was changed, in words.
    profile: String,
    /// XXH3-64 of the events consumed.
    input_hash: &'a str,
    #[serde(flatten)]
    costs: &'a Costs,
}

/// All that is shown.
#[derive(Serialize, JsonSchema)]
pub struct Costs {
    /// A row for each way of taking memory and each configuration with a hypervisor.
    pub rows: Vec<CostRow>,
    /// The sizes of `--sizes`, ascending, by the uses of pages alone.
    pub sizes: Vec<Size>,
    /// What the looks at the guest's memory say of other ways; null without looks.
    pub others: Option<Others>,
}

/// One way of taking memory in one configuration. Counts are beside a host that takes nothing, and can be
/// negative.
#[derive(Serialize, JsonSchema)]
pub struct CostRow {
    /// `reporting`: the host drops what the guest reports as free. `paging`: the host swaps out above a size.
    pub way: &'static str,
    /// What the host holds of the guest at most; null for reporting. Unit: bytes.
    pub bytes: Option<u64>,
    /// Name of the configuration: nested-4k, ...
    pub config: String,
    /// What the host holds less, on average over the looks; null without looks. Unit: bytes.
    pub gives_bytes: Option<f64>,
    /// What the host has dropped, all in all; 0 for paging. Unit: bytes.
    pub dropped_bytes: u64,
    /// Pages that came back from swap, whatever their size.
    pub refaults: u64,
    /// Swap operations, in pages of 4 KB; null for reporting.
    pub swap: Option<Swaps>,
    /// Time that the guest waits for refaults. Unit: s.
    pub wait_seconds: f64,
    /// Exits for violations, beyond those with a host that takes nothing.
    pub violations: i64,
    /// Exits for hidden faults, beyond those with a host that takes nothing.
    pub hidden_faults: i64,
    /// Memory references of walks, beyond those with a host that takes nothing.
    pub walk_refs: i64,
    /// Large host pages that are split at the end.
    pub split_pages: u64,
    /// Extra cycles beyond those with a host that takes nothing, waits for the disk left out. Unit: % of the
    /// ideal run.
    pub overhead_points: f64,
}

/// One size by the uses of pages alone.
#[derive(Serialize, JsonSchema)]
pub struct Size {
    /// The size. Unit: bytes.
    pub bytes: u64,
    /// Exact refaults of a memory of this size with LRU replacement of 4 KB pages.
    pub lru_refaults: u64,
    /// The fewest refaults that any replacement can have; null below 3 MiB, and if there were more references
    /// than are kept.
    pub fewest_refaults: Option<u64>,
    /// The same size where a part holds compressed pages; null without looks, or if too little is left for
    /// plain pages.
    pub zram: Option<Zram>,
}

/// A memory of which a part holds compressed pages.
#[derive(Serialize, JsonSchema)]
pub struct Zram {
    /// The part for pages as they are. Unit: bytes.
    pub plain_bytes: u64,
    /// Refaults of an LRU memory of that part.
    pub refaults: u64,
    /// Time that the guest waits for these refaults. Unit: s.
    pub wait_seconds: f64,
}

/// What the looks say of other ways: means over the run.
#[derive(Serialize, JsonSchema)]
pub struct Others {
    /// Memory that is free in the guest. Unit: bytes.
    pub free_bytes: f64,
    /// Pages of files that are as on the disk. Unit: bytes.
    pub cache_clean_bytes: f64,
    /// All that is neither of both, at the look with the most: below that size, a balloon takes what the
    /// guest can only swap. Unit: bytes.
    pub balloon_least_bytes: u64,
    /// Pages in use that hold zeros only. Unit: bytes.
    pub zero_bytes: f64,
    /// Pages in use that are the same as another, without the first of each content. Unit: bytes.
    pub same_bytes: f64,
    /// Part of its size to which a page of programs shrinks under zstd; null if none was tried.
    pub compressed_part: Option<f64>,
}

pub fn json(whole: &Comparison, costs: &Costs) -> anyhow::Result<String> {
    let document = Document {
        schema: SCHEMA,
        bifold: &whole.meta.bifold,
        program: whole.meta.what(),
        partial: whole.meta.partial,
        profile: profile_words(&whole.meta.hardware),
        input_hash: &whole.outcome.input_hash,
        costs,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}
