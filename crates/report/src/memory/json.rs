// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in JSON: a part of the document of a run, and a document of its own.

use super::looks::LookFields;
use super::{FRAME, KINDS, MemoryLooks, MemoryNeeds, SizeRefaults};
use crate::json::pretty;
use crate::meta::profile_words;
use crate::{Comparison, Guest, Input, Partial, RenderError};
use bifold_reclaim::IntervalUse;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the document.
pub(crate) const SCHEMA: &str = "bifold.memory-use/1";

/// What `bifold reclaim show --format json` writes: how much memory a program needs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'a str,
    /// The command, its recording, or the generator.
    program: String,
    /// Where the events came from.
    input: &'a Input,
    /// The guest that made the events; null for a generator.
    guest: &'a Option<Guest>,
    /// Why the events end before the command did; null if they do not.
    partial: Option<Partial>,
    /// The hardware profile with the user's changes.
    profile: String,
    /// XXH3-64 of the events consumed.
    input_hash: &'a str,
    #[serde(flatten)]
    memory: Memory,
}

/// The fields of a run's memory.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Memory {
    /// The guest's memory. Unit: bytes.
    guest_bytes: u64,
    /// Memory in use at the end: referenced, and not given back since. Unit: bytes.
    in_use_bytes: u64,
    /// The smallest memory with LRU replacement that has no refaults, 1 MiB or more. Unit: bytes.
    enough_bytes: u64,
    /// What a refault is taken to cost. Unit: s.
    refault_seconds: f64,
    /// References outside of the guest's memory, which no other field has.
    outside: u64,
    /// References to pages of 4 KB, by kind.
    references: ByKind,
    /// References to pages that held no memory, which miss at any size, by the kind of the reference.
    first: ByKind,
    /// Sizes of memory, ascending: four for each doubling up to `enough_bytes`, or those of --sizes.
    sizes: Vec<Size>,
    /// Intervals of the run, in order.
    intervals: Vec<Interval>,
    /// What the guest's kernel used its memory for, at each look of the stream: where `reclaim show`,
    /// `reclaim cost` or `record --memory-use` ran the guest; otherwise empty.
    looks: Vec<LookFields>,
}

#[derive(Serialize, JsonSchema)]
struct ByKind {
    /// By loads and stores.
    data: u64,
    /// By instruction fetches, where code of another page begins to run.
    code: u64,
    /// By the hardware's walks of the guest's page tables, under native paging.
    walk: u64,
    /// By devices' transfers, where the stream has looks and the timing is exact; otherwise 0.
    device: u64,
}

impl From<[u64; KINDS]> for ByKind {
    fn from([data, code, walk, device]: [u64; KINDS]) -> ByKind {
        ByKind { data, code, walk, device }
    }
}

#[derive(Serialize, JsonSchema)]
struct Size {
    /// The size. Unit: bytes.
    bytes: u64,
    /// Misses of a memory of this size with LRU replacement, without first references.
    refaults: u64,
    /// The same by kind.
    refaults_by_kind: ByKind,
    /// The fewest that any replacement can have (Belady); null below 3 MiB, between the sizes of the table,
    /// and if the run has more references than are kept.
    fewest_refaults: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct Interval {
    /// Length of the ideal run. Unit: s.
    seconds: f64,
    /// Instructions of all vCPUs.
    instructions: u64,
    /// Memory that was referenced, in whole pages. Unit: bytes.
    working_set_bytes: u64,
    /// Memory that was written. Unit: bytes.
    written_bytes: u64,
    /// References to pages.
    references: u64,
    /// Those of them to pages that held no memory.
    first: u64,
}

impl MemoryNeeds {
    /// The document `bifold.memory-use/1` of a run.
    ///
    /// # Errors
    /// If a value has no JSON.
    pub fn json(&self, run: &Comparison) -> Result<String, RenderError> {
        pretty(&Document {
            schema: SCHEMA,
            bifold: &run.meta.bifold,
            program: run.meta.what(),
            input: &run.meta.input,
            guest: &run.meta.guest,
            partial: run.meta.partial,
            profile: profile_words(&run.meta.hardware),
            input_hash: &run.outcome.input_hash,
            memory: self.fields(),
        })
    }

    pub(crate) fn fields(&self) -> Memory {
        let size = |row: &SizeRefaults| Size {
            bytes: row.frames * FRAME,
            refaults: row.all(),
            refaults_by_kind: row.refaults.into(),
            fewest_refaults: row.fewest,
        };
        let interval = |i: &IntervalUse| Interval {
            seconds: i.instructions as f64 * self.seconds_per_instruction,
            instructions: i.instructions,
            working_set_bytes: i.frames * FRAME,
            written_bytes: i.dirty * FRAME,
            references: i.references,
            first: i.first,
        };
        Memory {
            guest_bytes: self.guest * FRAME,
            in_use_bytes: self.held * FRAME,
            enough_bytes: self.enough * FRAME,
            refault_seconds: self.refault_s,
            outside: self.outside,
            references: self.references.into(),
            first: self.first.into(),
            sizes: self.rows.iter().map(size).collect(),
            intervals: self.intervals.iter().map(interval).collect(),
            looks: self.looks.as_ref().map(MemoryLooks::fields).unwrap_or_default(),
        }
    }
}
