// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the model says: runs `bifold compare` and reads its JSON. Published programs and those timed here ran
//! before they were measured, so the VM is long-lived.
//!
//! Cycles of a configuration are those of its instructions at the base CPI, its waits for data, its walks and
//! its exits. The core hides a part of waits and walks; the band goes from nothing hidden to every wait
//! divided by the profile's overlaps. Without data caches there are no waits, and the band is a point.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bifold_model::VmState;
use serde::Deserialize;

use crate::process;

/// Counts and cycles of one configuration. Those that a run without data caches lacks are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `bifold compare --format json` documents each under `counters`.
pub struct Total {
    pub instructions: u64,
    pub cr3_load_cycles: u64,
    pub walks: u64,
    pub walk_cycles: u64,
    pub walk_hidden_cycles: u64,
    pub data_stall_cycles: u64,
    pub data_hidden_cycles: u64,
    pub ideal_stall_cycles: u64,
    pub ideal_hidden_cycles: u64,
    pub vmm_cycles: u64,
    pub guest_page_faults: u64,
    pub exits_violation: u64,
    pub exits_guest_fault: u64,
    pub exits_hidden_fault: u64,
    pub exits_permission: u64,
    pub exits_unsync: u64,
    pub exits_emulated_write: u64,
    pub exits_unprotect: u64,
    pub exits_cr3_write: u64,
    pub exits_cr3_read: u64,
    pub exits_invlpg: u64,
    pub exits_cr4_write: u64,
}

#[derive(Debug, Deserialize)]
struct Config {
    name: String,
    total: Total,
    #[serde(default)]
    placed: Vec<Placed>,
}

#[derive(Debug, Deserialize)]
struct Placed {
    placement: String,
    cycles: Option<PlacedCycles>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct PlacedCycles {
    walk: u64,
    data: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Overlaps {
    data_overlap: f64,
    walk_overlap: f64,
}

#[derive(Debug, Deserialize)]
struct PlacedFacts {
    local_cycles: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    profile: String,
    config_hash: String,
    frequency_hz: u64,
    base_cpi: f64,
    #[serde(default = "VmState::of_older")]
    vm: VmState,
    caches: Option<Overlaps>,
    placed: Option<PlacedFacts>,
    configs: Vec<Config>,
}

#[derive(Debug, Deserialize)]
struct Document {
    outcome: Outcome,
    #[serde(default)]
    warnings: Vec<String>,
    partial: Option<String>,
}

/// The state of the VM of every prediction.
const VM: VmState = VmState::LongLived;

/// How much of waits and walks the core hides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    /// Nothing.
    Nothing,
    /// What the profile states for independent accesses.
    Stated,
    /// Everything is divided by the overlaps, dependent accesses too.
    All,
}

/// What one run of the model yielded.
#[derive(Debug)]
pub struct Prediction {
    outcome: Outcome,
    /// Reasons to doubt the figures.
    pub warnings: Vec<String>,
}

impl Prediction {
    /// Reads the document that `bifold compare --format json` wrote.
    pub fn parse(json: &str) -> Result<Prediction> {
        let Document { outcome, warnings, partial } =
            serde_json::from_str(json).context("the output of bifold compare is not as expected")?;
        if let Some(why) = partial {
            bail!("the capture is partial: {why}");
        }
        if outcome.frequency_hz == 0 || outcome.base_cpi <= 0.0 {
            bail!("the output of bifold compare states no frequency or CPI");
        }
        if outcome.vm != VM {
            bail!(
                "the result is of a VM in the state {}, and a prediction needs one in the state {}: capture it again, without --reuse",
                outcome.vm.name(),
                VM.name()
            );
        }
        Ok(Prediction { outcome, warnings })
    }

    /// Reads a file of such a document.
    pub fn read(path: &Path) -> Result<Prediction> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Prediction::parse(&text).with_context(|| path.display().to_string())
    }

    /// The totals of a configuration.
    pub fn total(&self, config: &str) -> Result<&Total> {
        let found = self.outcome.configs.iter().find(|c| c.name == config);
        found.map(|c| &c.total).with_context(|| format!("the output of bifold compare lacks {config}"))
    }

    /// The difference of two runs of one stream, of which `shorter` is a beginning: what the rest cost.
    pub fn since(&self, config: &str, shorter: &Prediction) -> Result<Total> {
        let (a, b) = (self.total(config)?, shorter.total(config)?);
        let less =
            |x: u64, y: u64| x.checked_sub(y).context("the shorter run costs more than the longer one");
        Ok(Total {
            instructions: less(a.instructions, b.instructions)?,
            cr3_load_cycles: less(a.cr3_load_cycles, b.cr3_load_cycles)?,
            walks: less(a.walks, b.walks)?,
            walk_cycles: less(a.walk_cycles, b.walk_cycles)?,
            walk_hidden_cycles: less(a.walk_hidden_cycles, b.walk_hidden_cycles)?,
            data_stall_cycles: less(a.data_stall_cycles, b.data_stall_cycles)?,
            data_hidden_cycles: less(a.data_hidden_cycles, b.data_hidden_cycles)?,
            ideal_stall_cycles: less(a.ideal_stall_cycles, b.ideal_stall_cycles)?,
            ideal_hidden_cycles: less(a.ideal_hidden_cycles, b.ideal_hidden_cycles)?,
            vmm_cycles: less(a.vmm_cycles, b.vmm_cycles)?,
            guest_page_faults: less(a.guest_page_faults, b.guest_page_faults)?,
            exits_violation: less(a.exits_violation, b.exits_violation)?,
            exits_guest_fault: less(a.exits_guest_fault, b.exits_guest_fault)?,
            exits_hidden_fault: less(a.exits_hidden_fault, b.exits_hidden_fault)?,
            exits_permission: less(a.exits_permission, b.exits_permission)?,
            exits_unsync: less(a.exits_unsync, b.exits_unsync)?,
            exits_emulated_write: less(a.exits_emulated_write, b.exits_emulated_write)?,
            exits_unprotect: less(a.exits_unprotect, b.exits_unprotect)?,
            exits_cr3_write: less(a.exits_cr3_write, b.exits_cr3_write)?,
            exits_cr3_read: less(a.exits_cr3_read, b.exits_cr3_read)?,
            exits_invlpg: less(a.exits_invlpg, b.exits_invlpg)?,
            exits_cr4_write: less(a.exits_cr4_write, b.exits_cr4_write)?,
        })
    }

    /// What remote memory costs in a placement, as the profile states what the core hides. Needs
    /// `--placement` and a profile with `memory.remote_cycles`.
    pub fn remote(&self, config: &str, placement: &str) -> Result<u64> {
        let of = self.outcome.configs.iter().find(|c| c.name == config);
        let placed = of.and_then(|c| c.placed.iter().find(|p| p.placement == placement)?.cycles);
        let PlacedCycles { walk, data } =
            placed.with_context(|| format!("the output of bifold compare lacks {config} in {placement}"))?;
        Ok(walk + data)
    }

    /// The latency of local memory. Needs `--placement` and data caches.
    pub fn local_cycles(&self) -> Result<f64> {
        let cycles = self.outcome.placed.as_ref().and_then(|p| p.local_cycles);
        Ok(cycles.context("the output of bifold compare lacks the latency of memory")? as f64)
    }

    /// Hz of the profile's core.
    pub fn frequency(&self) -> f64 {
        self.outcome.frequency_hz as f64
    }

    /// Name and hash of the profile.
    pub fn profile(&self) -> String {
        format!("{} ({})", self.outcome.profile, self.outcome.config_hash)
    }

    /// Were data caches simulated?
    pub fn has_caches(&self) -> bool {
        self.outcome.caches.is_some()
    }

    /// Cycles of walks that stay, in `total`.
    pub fn walks(&self, total: &Total, hidden: Hidden) -> f64 {
        let overlap = self.outcome.caches.map_or(1.0, |c| c.walk_overlap);
        part(total.walk_cycles, total.walk_hidden_cycles, overlap, hidden)
    }

    /// Cycles of the ideal run: no walks, no exits.
    pub fn ideal(&self, total: &Total, hidden: Hidden) -> f64 {
        self.instructions(total) + self.data(total.ideal_stall_cycles, total.ideal_hidden_cycles, hidden)
    }

    /// Cycles of the whole run.
    pub fn cycles(&self, total: &Total, hidden: Hidden) -> f64 {
        self.instructions(total)
            + self.data(total.data_stall_cycles, total.data_hidden_cycles, hidden)
            + self.walks(total, hidden)
            + total.vmm_cycles as f64
    }

    /// Overhead over the ideal run, percent.
    pub fn overhead_percent(&self, total: &Total, hidden: Hidden) -> f64 {
        100.0 * (self.cycles(total, hidden) / self.ideal(total, hidden) - 1.0)
    }

    fn instructions(&self, total: &Total) -> f64 {
        total.instructions as f64 * self.outcome.base_cpi + total.cr3_load_cycles as f64
    }

    fn data(&self, stalls: u64, stated: u64, hidden: Hidden) -> f64 {
        part(stalls, stated, self.outcome.caches.map_or(1.0, |c| c.data_overlap), hidden)
    }
}

fn part(all: u64, stated: u64, overlap: f64, hidden: Hidden) -> f64 {
    match hidden {
        Hidden::Nothing => all as f64,
        Hidden::Stated => (all - stated) as f64,
        Hidden::All => all as f64 / overlap,
    }
}

/// How `bifold compare` is run.
#[derive(Debug, Clone)]
pub struct Model {
    bifold: PathBuf,
    profile: String,
    caches: Option<String>,
    limit: Duration,
}

impl Model {
    /// A model with this profile. `caches` is passed on as `--caches`.
    pub fn new(bifold: &Path, profile: &str, caches: Option<String>, limit: Duration) -> Result<Model> {
        if !bifold.is_file() {
            bail!(
                "{} is not there: run `make build` first, or name another one with --bifold",
                bifold.display()
            );
        }
        Ok(Model { bifold: bifold.into(), profile: profile.into(), caches, limit })
    }

    /// Runs `bifold compare` with `options`; `command` is run in a guest if it is not empty. The JSON stays
    /// in `keep`, for a reader or a second look.
    pub fn compare(&self, options: &[String], command: &[String], keep: &Path) -> Result<Prediction> {
        // A capture that was ended early leaves its part there, and --reuse must not find it.
        let partial = keep.with_extension("part");
        let mut c = Command::new(&self.bifold);
        c.args(["compare", "--quiet", "--format", "json", "--profile", &self.profile, "--vm", VM.name()]);
        c.arg("-o").arg(&partial);
        if let Some(caches) = &self.caches {
            c.args(["--caches", caches]);
        }
        c.args(options);
        if !command.is_empty() {
            c.arg("--").args(command);
        }
        let ended = process::run(&mut c, self.limit)?;
        if !ended.status.success() {
            bail!(
                "bifold compare {} {}: {}\n{}",
                options.join(" "),
                command.join(" "),
                ended.status,
                ended.last_words()
            );
        }
        let read = Prediction::read(&partial)?;
        std::fs::rename(&partial, keep).with_context(|| keep.display().to_string())?;
        Ok(read)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A document with two configurations as `bifold compare` writes it.
    pub fn document(caches: &str, first: &str, second: &str) -> String {
        format!(
            r#"{{"schema": "bifold.compare/2", "partial": null, "warnings": ["w"],
                "outcome": {{"profile": "p", "config_hash": "h", "frequency_hz": 1000000000, "base_cpi": 0.5,
                "vm": "long-lived" {caches}, "configs": [
                {{"name": "nested-4k", "total": {{{first}}}, "intervals": []}},
                {{"name": "nested-2m", "total": {{{second}}}, "intervals": []}}]}}}}"#
        )
    }

    #[test]
    fn without_caches_cycles_are_instructions_walks_and_exits() {
        let p = Prediction::parse(&document(
            "",
            r#""instructions": 1000, "walk_cycles": 300, "vmm_cycles": 60"#,
            r#""instructions": 1000, "walk_cycles": 100"#,
        ))
        .unwrap();
        let t = p.total("nested-4k").unwrap();
        for hidden in [Hidden::Nothing, Hidden::Stated, Hidden::All] {
            assert_eq!(p.cycles(t, hidden), 860.0);
            assert_eq!(p.overhead_percent(t, hidden), 72.0);
        }
        assert!(!p.has_caches());
        assert_eq!(p.warnings, ["w"]);
        assert!(p.total("shadow-4k").unwrap_err().to_string().contains("shadow-4k"));
    }

    #[test]
    fn with_caches_the_band_goes_from_nothing_hidden_to_all_divided() {
        let p = Prediction::parse(&document(
            r#", "caches": {"simulated_classes": 4, "data_overlap": 8.0, "walk_overlap": 2.0}"#,
            r#""instructions": 1000, "walk_cycles": 400, "walk_hidden_cycles": 150, "data_stall_cycles": 800,
               "data_hidden_cycles": 350, "ideal_stall_cycles": 640, "ideal_hidden_cycles": 280"#,
            "",
        ))
        .unwrap();
        let t = p.total("nested-4k").unwrap();
        assert_eq!(p.cycles(t, Hidden::Nothing), 500.0 + 800.0 + 400.0);
        assert_eq!(p.cycles(t, Hidden::Stated), 500.0 + 450.0 + 250.0);
        assert_eq!(p.cycles(t, Hidden::All), 500.0 + 100.0 + 200.0);
        assert_eq!(p.ideal(t, Hidden::Stated), 500.0 + 360.0);
        assert_eq!(p.walks(t, Hidden::Stated), 250.0);
    }

    #[test]
    fn the_rest_of_a_longer_run_is_a_difference() {
        let run = |n: u64| {
            Prediction::parse(&document("", &format!(r#""instructions": {n}, "walk_cycles": {}"#, 2 * n), ""))
                .unwrap()
        };
        let rest = run(500).since("nested-4k", &run(200)).unwrap();
        assert_eq!((rest.instructions, rest.walk_cycles), (300, 600));
        assert!(run(200).since("nested-4k", &run(500)).is_err());
    }

    #[test]
    fn a_result_of_a_vm_in_another_state_is_refused_and_both_are_named() {
        let text = document("", "", "");
        for (state, name) in
            [(r#""vm": "started","#, "started"), ("", "started"), (r#""vm": "restored","#, "restored")]
        {
            let other = text.replace(r#""vm": "long-lived" ,"#, state);
            assert_ne!(other, text);
            let e = Prediction::parse(&other).unwrap_err().to_string();
            assert!(
                e.contains(&format!(
                    "in the state {name}, and a prediction needs one in the state long-lived"
                )),
                "{e}"
            );
        }
    }

    #[test]
    fn a_partial_capture_and_other_text_are_refused() {
        let partial = document("", "", "").replace("\"partial\": null", "\"partial\": \"timed_out\"");
        assert!(Prediction::parse(&partial).unwrap_err().to_string().contains("timed_out"));
        assert!(Prediction::parse("{}").is_err());
    }
}
