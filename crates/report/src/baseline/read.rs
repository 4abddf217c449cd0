// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes baselines.

use super::{Baseline, Host, LEAST_SHARE, Place, PlaceNames, Places, is_judged};
use crate::diff::{MOST, ReadError, Side, form_error};
use crate::{Comparison, RenderError, json};
use bifold_attribute::View;
use bifold_model::{CacheFacts, Costs, Frames};
use serde::Deserialize;

#[derive(Deserialize)]
struct Document {
    outcome: Outcome,
    #[serde(rename = "where")]
    places: Option<Where>,
}

#[derive(Deserialize)]
struct Outcome {
    caches: Option<CacheFacts>,
    #[serde(default)]
    host_frames: Frames,
    nested_levels: Option<u8>,
}

#[derive(Deserialize)]
struct Where {
    configs: Vec<String>,
    rows: Vec<PlaceCosts>,
    cause_rows: Vec<PlaceCosts>,
    totals: Vec<Costs>,
    /// In baselines alone.
    least_share_percent: Option<f64>,
}

#[derive(Deserialize)]
struct PlaceCosts {
    #[serde(flatten)]
    names: PlaceNames,
    costs: Vec<Costs>,
}

impl Baseline {
    /// The baseline in a file's bytes; `path` is for messages.
    ///
    /// # Errors
    /// If the bytes are no result of one run, or a value is impossible.
    pub fn from_json(path: &str, bytes: &[u8]) -> Result<Baseline, ReadError> {
        let side = Side::from_json(path, bytes)?;
        let value = |field: &str, why: &str| ReadError::Value {
            path: path.into(),
            field: field.into(),
            why: why.into(),
        };
        if !json::SCHEMAS.contains(&side.schema.as_str()) {
            return Err(value("runs", "are of `compare --runs`, and a baseline is of one run"));
        }
        let document = serde_json::from_slice(bytes);
        let Document { outcome, places } = document.map_err(|e| form_error(path, json::SCHEMA, &e))?;
        let host = Host {
            caches: outcome.caches,
            frames: outcome.host_frames,
            nested_levels: outcome.nested_levels.unwrap_or(4),
        };
        let places = places.map(|w| {
            w.checked()
                .ok_or_else(|| value("where", "has costs that are impossible, or of other configurations"))
        });
        Ok(Baseline { side, host, places: places.transpose()? })
    }
}

impl Where {
    /// The costs by place; none if a list is shorter or longer than the configurations' list, or a cost is
    /// impossible.
    fn checked(self) -> Option<Places> {
        let n = self.configs.len();
        let possible = |c: &Costs| {
            let most =
                [c.tlb_misses, c.walk_cycles, c.exits, c.vmm_cycles, c.data_wait_cycles.unsigned_abs()];
            most.iter().all(|v| *v <= MOST) && c.walk_hidden_cycles <= c.walk_cycles
        };
        let costs = |costs: &[Costs]| costs.len() == n && costs.iter().all(possible);
        let whole = |rows: &[PlaceCosts]| rows.iter().all(|r| costs(&r.costs));
        let places = |rows: Vec<PlaceCosts>| {
            rows.into_iter().map(|r| Place { names: r.names, costs: r.costs }).collect()
        };
        let fits = costs(&self.totals) && whole(&self.rows) && whole(&self.cause_rows);
        fits.then(|| Places {
            configs: self.configs,
            code: places(self.rows),
            cause: places(self.cause_rows),
            totals: self.totals,
            whole: self.least_share_percent.is_some_and(|p| p <= LEAST_SHARE),
        })
    }
}

impl Comparison {
    /// The run as a baseline: the document of [`Format::Json`](crate::Format::Json) on one line, without
    /// intervals, and with the places that a later run is judged by.
    ///
    /// # Errors
    /// If JSON cannot be made.
    pub fn render_baseline(&self) -> Result<String, RenderError> {
        let mut short = Comparison { policies: None, memory: None, baseline: None, ..self.clone() };
        short.outcome.interval_starts.clear();
        short.outcome.configs.iter_mut().for_each(|c| c.intervals.clear());
        let mut document = serde_json::to_value(json::document(&short)?)?;
        if let Some(places) = &short.places {
            let whole = |view: View| {
                let totals = places.places.totals(view);
                places.places.rows(view).iter().filter(|r| is_judged(r, &totals)).collect::<Vec<_>>()
            };
            let listed = places.listing(View::ALL.map(whole));
            document["where"] = serde_json::to_value(listed)?;
            document["where"]["least_share_percent"] = LEAST_SHARE.into();
        }
        Ok(document.to_string() + "\n")
    }
}
