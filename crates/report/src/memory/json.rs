// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in JSON: a part of the document of a run, and a document of its own.

use super::looks::LookFields;
use super::{FRAME, KINDS, MemoryLooks, MemoryNeeds, SizeRefaults};
use crate::json::pretty;
use crate::meta::profile_words;
use crate::{Comparison, Guest, Input, Partial, RenderError};
use bifold_reclaim::IntervalUse;
use serde::Serialize;

/// Name and version of the document.
const SCHEMA: &str = "bifold.memory-use/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    bifold: &'a str,
    program: String,
    input: &'a Input,
    guest: &'a Option<Guest>,
    partial: Option<Partial>,
    profile: String,
    input_hash: &'a str,
    #[serde(flatten)]
    memory: Memory,
}

/// The fields of a run's memory.
#[derive(Serialize)]
pub(crate) struct Memory {
    guest_bytes: u64,
    in_use_bytes: u64,
    enough_bytes: u64,
    refault_seconds: f64,
    outside: u64,
    references: ByKind,
    first: ByKind,
    sizes: Vec<Size>,
    intervals: Vec<Interval>,
    looks: Vec<LookFields>,
}

#[derive(Serialize)]
struct ByKind {
    data: u64,
    code: u64,
    walk: u64,
    device: u64,
}

impl From<[u64; KINDS]> for ByKind {
    fn from([data, code, walk, device]: [u64; KINDS]) -> ByKind {
        ByKind { data, code, walk, device }
    }
}

#[derive(Serialize)]
struct Size {
    bytes: u64,
    refaults: u64,
    refaults_by_kind: ByKind,
    fewest_refaults: Option<u64>,
}

#[derive(Serialize)]
struct Interval {
    seconds: f64,
    instructions: u64,
    working_set_bytes: u64,
    written_bytes: u64,
    references: u64,
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
