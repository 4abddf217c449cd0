// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon on a real KVM: inner guests with phases run under several policies, and what the daemon did is
//! priced by the model and replayed off line.
//!
//! The laboratory has no PMU. TLB misses, cycles and walk cycles are of a modelled PMU ([`crate::modelled`]):
//! the model's counts of a step of the guests' program, times the steps that the guests report. Exits, modes,
//! switches and page faults are KVM's and the guests' own.

mod cost;
mod document;
pub mod guests;
mod picture;
mod replayed;
mod script;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bifold_mmu::Mode;
use serde_json::Value;

use crate::lab::Lab;
use crate::modelled::ModelledPmu;
pub use cost::Cost;
pub use document::document;
pub use picture::picture;
pub use script::COMMON;
use script::GUESTS;

/// A guest of the experiment.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The guest's name, which chooses its rule.
    pub name: &'static str,
    /// The rule's policy.
    pub policy: &'static str,
    /// Arguments of the guest's program.
    pub arguments: &'static str,
    /// Whether the program changes its phase.
    pub phased: bool,
}

/// A part of a guest's life between two readings.
#[derive(Debug, Clone)]
pub struct Span {
    /// Seconds since the first reading of any guest, of the span's end.
    pub end: f64,
    /// Length in seconds.
    pub seconds: f64,
    /// The mode; `None` if the guest was switched in the span.
    pub mode: Option<Mode>,
    /// Steps of each phase in the span; empty if the guest did not report.
    pub steps: BTreeMap<String, u64>,
    /// Switches in the span.
    pub switches: u64,
}

/// A guest's life under the daemon.
#[derive(Debug, Clone)]
pub struct Life {
    /// The guest.
    pub kind: Kind,
    /// What the recording has of the guest.
    pub spans: Vec<Span>,
    /// What its modes cost, by the model.
    pub cost: Cost,
    /// The daemon's decisions over the guest.
    pub decisions: usize,
}

/// The experiment's outcome.
#[derive(Debug)]
pub struct Live {
    /// Release of the kernel.
    pub release: String,
    /// The page's line about the modules.
    pub modules: String,
    /// The guests with policies, in the order of their starts.
    pub lives: Vec<Life>,
    /// Seconds since the first reading at which the daemon was killed and started again.
    pub killed: f64,
    /// Differences between the daemon's decisions and those of a replay of its recording.
    pub differences: Vec<String>,
    /// Decisions that were compared.
    pub compared: usize,
    /// Mode, after the daemon's end, of the guest that was not in its own mode when the daemon ended.
    pub given_back: String,
    /// The daemon's recording.
    pub recording: String,
    /// What the daemon logged.
    pub log: String,
}

/// Largest cost of a guest without phases above that of its better mode, in percent of all cycles.
const UNPHASED: f64 = 2.0;
/// Least share of steps that a guest with phases does in the mode that is better for them.
const FOLLOWED: f64 = 0.5;

/// Runs the experiment. Checksums of guests that are wrong end it with an error.
///
/// # Errors
/// If the laboratory does not boot, its script fails, or a guest's memory was wrong.
pub fn experiment(lab: &Lab, pmu: &ModelledPmu) -> Result<Live> {
    let has = |word: &str| pmu.made.command.iter().any(|w| w == word);
    ensure!(
        COMMON.iter().all(|w| has(w)),
        "the modelled PMU is of another program than `phases {}`",
        COMMON.join(" ")
    );
    let output = script::run(lab, pmu)?;
    let recording = guests::text(&output, "vms.jsonl")?;
    let rows: Vec<Value> = recording
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("a line of the recording: {line}")))
        .collect::<Result<_>>()?;
    let start = rows
        .iter()
        .filter(|r| r.get("seconds").is_some())
        .find_map(|r| r["time"].as_f64())
        .context("no row")?;
    let life = |kind: Kind| -> Result<Life> {
        let spans = spans(&rows, kind.name, start);
        let decisions = rows.iter().filter(|r| r["name"] == kind.name && r.get("wants").is_some()).count();
        let cost = Cost::of(&spans, pmu).with_context(|| format!("the cost of guest {}", kind.name))?;
        Ok(Life { kind, spans, cost, decisions })
    };
    let lives = GUESTS.into_iter().map(life).collect::<Result<_>>()?;
    let (differences, compared) = replayed::differences(&recording, &rows)?;
    let killed: f64 =
        guests::text(&output, "killed")?.trim().parse().context("when the daemon was killed")?;
    Ok(Live {
        release: lab.kernel().version.clone(),
        modules: lab
            .built_modules()
            .map_or_else(String::new, |dir| lab.clone().with_modules(dir).modules_line()),
        lives,
        killed: killed - start,
        differences,
        compared,
        given_back: guests::text(&output, "given-back")?.trim().into(),
        recording,
        log: guests::text(&output, "daemon.log")?,
    })
}

/// The spans of a guest.
fn spans(rows: &[Value], name: &str, start: f64) -> Vec<Span> {
    let of_guest = rows.iter().filter(|r| r["name"] == name && r.get("seconds").is_some());
    let span = |row: &Value| Span {
        end: row["time"].as_f64().unwrap_or(start) - start,
        seconds: row["seconds"].as_f64().unwrap_or(0.0),
        mode: Mode::BOTH.into_iter().find(|m| row["mode"] == m.name()),
        steps: row["reported_progress_by_name"].as_str().map(steps).unwrap_or_default(),
        switches: row["mode_switches"].as_u64().unwrap_or(0),
    };
    of_guest.map(span).collect()
}

/// Steps by phase, from `chase=55 tables=120`.
fn steps(words: &str) -> BTreeMap<String, u64> {
    let pairs = words.split(' ').filter_map(|w| w.split_once('='));
    pairs.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect()
}

impl Live {
    /// What is not as it must be.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong: Vec<String> = self.lives.iter().flat_map(Life::wrong).collect();
        wrong.extend(self.differences.iter().take(5).map(|d| format!("the replay differs: {d}")));
        if self.compared == 0 {
            wrong.push("no decision was compared with the replay".into());
        }
        if self.given_back != Mode::Nested.name() {
            wrong.push(format!(
                "the guest that was not in its own mode when the daemon ended is in {} mode",
                self.given_back
            ));
        }
        wrong
    }
}

impl Life {
    fn wrong(&self) -> Vec<String> {
        let (name, cost) = (self.kind.name, &self.cost);
        let mut wrong = Vec::new();
        if self.kind.phased {
            for mode in Mode::BOTH {
                if cost.extra >= cost.alone[mode as usize] {
                    wrong.push(format!(
                        "{name} cost {:.0} cycles, {} mode alone {:.0}",
                        cost.extra,
                        mode.name(),
                        cost.alone[mode as usize]
                    ));
                }
            }
            for (phase, share) in &cost.followed {
                if *share < FOLLOWED {
                    wrong.push(format!("{name} did {:.0} % of {phase} in the better mode", 100.0 * share));
                }
            }
        } else if cost.above_better_percent() > UNPHASED {
            wrong.push(format!("{name} cost {:.2} % more than its better mode", cost.above_better_percent()));
        }
        wrong
    }
}
