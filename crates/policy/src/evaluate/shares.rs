// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares of a run's intervals by mode.

use crate::{Mode, PerMode, Track};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;

/// Share of intervals in each mode, 0 to 1. Outputs have `shadow_share` and so on, and not nested mode's: the
/// rest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shares(PerMode<f64>);

impl Shares {
    /// The shares of a run, by the mode of every interval.
    pub fn of(track: &Track, modes: &[Mode]) -> Shares {
        let share = |mode| modes.iter().filter(|m| **m == mode).count() as f64 / modes.len().max(1) as f64;
        Shares(track.samples.map(|mode, _| share(mode)))
    }

    /// The share of a mode; 0 for a mode that the VM cannot be in.
    pub fn of_mode(&self, mode: Mode) -> f64 {
        self.0.get(mode).copied().unwrap_or(0.0)
    }

    /// The modes with a column of their own: all but nested mode, which has the rest.
    pub fn named(&self) -> impl Iterator<Item = (Mode, f64)> + '_ {
        self.0.iter().filter(|(mode, _)| *mode != Mode::Nested).map(|(mode, share)| (mode, *share))
    }

    /// The mean of the shares of `n` runs.
    pub(super) fn mean<'a>(all: impl Iterator<Item = &'a Shares>, n: f64) -> Shares {
        let mut sum: PerMode<f64> =
            bifold_mmu::Mode::BOTH.map(|mode| (mode.into(), 0.0)).into_iter().collect();
        for (mode, share) in all.flat_map(|shares| shares.0.iter()) {
            *sum.or_insert(mode, 0.0) += share;
        }
        Shares(sum.map(|_, sum| sum / n))
    }
}

impl JsonSchema for Shares {
    fn schema_name() -> Cow<'static, str> {
        "Shares".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let share = |of| json!({ "type": "number", "description": format!("Share of intervals in {of} mode, 0 to 1.") });
        json_schema!({
            "type": "object",
            "properties": { "shadow_share": share("shadow") },
            "required": ["shadow_share"],
            "patternProperties": { "_share$": share("this") },
        })
    }
}

impl Serialize for Shares {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.named().map(|(mode, share)| (format!("{}_share", mode.name()), share)))
    }
}
