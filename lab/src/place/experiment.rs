// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiment: every placement several times, each in a laboratory that has just booted, and the model's
//! references.

use anyhow::{Context, Result};

use super::guests::{Memory, PLACEMENTS, Placement};
use super::measured::{Measured, Run};
use super::planned::{Extent, PlannedOutcome, cases};
use super::references::{PARTS, Part, ReferenceRow, references};
use super::script::boot;
use super::world::Program;
use crate::lab::{Lab, LabError};

/// Configuration of the model whose references are shown.
pub(super) const CONFIG: &str = "nested-2m";
/// The parts that remote references slow down most, by the paper.
const SENSITIVE: [&str; 3] = ["mg", "is", "MPIRandomAccess"];
/// How much less remote references have to cost EP, and these parts with guest nodes, than these parts in an
/// SMP guest.
const MUCH: f64 = 10.0;

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The placements.
    pub placements: Vec<&'static Placement>,
    /// The programs.
    pub programs: Vec<Program>,
    /// Class of the kernels' problems.
    pub class: String,
    /// Runs of each placement.
    pub runs: u32,
    /// Whether the model counts references, too.
    pub references: bool,
    /// Whether guests are started from plans, too.
    pub plans: bool,
}

/// A placement's runs.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The placement.
    pub placement: &'static Placement,
    /// Its runs.
    pub runs: Vec<Run>,
}

/// The outcome.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Release of the kernel.
    pub release: String,
    /// Emulator of the laboratory, and version of the guests' QEMU.
    pub emulator: String,
    #[allow(missing_docs)] // see above
    pub qemu: String,
    /// The settings.
    pub settings: Settings,
    /// What was counted in the laboratory.
    pub placed: Vec<Placed>,
    /// Runs that were made twice, because the laboratory ended during the first.
    pub repeated: u32,
    /// The model's references, by part.
    pub references: Vec<(Part, Vec<ReferenceRow>)>,
    /// Guests that were started from plans, and planted mistakes.
    pub plans: Vec<PlannedOutcome>,
}

/// Runs all of it.
///
/// # Errors
/// If something to run is missing, or a boot or a capture fails. A wrong result of a program is no error: see
/// [`Outcome::wrong`].
pub fn experiment(lab: &Lab, settings: &Settings, progress: &dyn Fn(&str)) -> Result<Outcome> {
    let plans = if settings.plans {
        progress("guests from plans, and planted mistakes");
        cases(lab, Extent::All)?
    } else {
        Vec::new()
    };
    let mut placed: Vec<Placed> =
        settings.placements.iter().map(|p| Placed { placement: p, runs: Vec::new() }).collect();
    let mut repeated = 0;
    // Round by round, so that what changes on this machine meanwhile meets all placements.
    for round in 1..=settings.runs {
        for at in &mut placed {
            let name = at.placement.name;
            progress(&format!("{name}, run {round} of {}", settings.runs));
            let once = || boot(lab, at.placement, &settings.programs, &settings.class);
            let run = once().or_else(|e| {
                // The emulated machine ends now and then (evidence/pages/notes/2026-11-qemu.md). The page
                // says how often.
                if !matches!(e.downcast_ref(), Some(LabError::Died { .. })) {
                    return Err(e);
                }
                progress(&format!("{name}, run {round} again: {e:#}"));
                repeated += 1;
                once()
            });
            at.runs.push(run.with_context(|| format!("placement {name}, run {round}"))?);
        }
    }
    let mut counted = Vec::new();
    let has = |part: &&Part| settings.programs.iter().any(|p| p.name == part.program);
    for part in PARTS.iter().filter(has).filter(|_| settings.references) {
        progress(&format!("references of {}", part.name()));
        counted.push((*part, references(part)?));
    }
    Ok(Outcome {
        release: lab.kernel().version.clone(),
        emulator: lab.emulator(),
        qemu: lab.qemu_version().to_owned(),
        settings: settings.clone(),
        placed,
        repeated,
        references: counted,
        plans,
    })
}

impl Placed {
    /// The runs of a program.
    pub fn of<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = &'a Measured> {
        self.runs.iter().flat_map(|r| &r.programs).filter(|m| m.program == *program)
    }

    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let placement = self.placement;
        let all = self.runs.iter().flat_map(|r| &r.programs);
        for m in all.clone().filter(|m| !m.passed) {
            wrong.push(format!("{} failed in {}: {}", m.program.name, placement.name, m.said));
        }
        for m in all.filter(|m| placement.pinned && m.migrations != 0) {
            let what = format!("{} migrations of pinned vCPUs during {}", m.migrations, m.program.name);
            wrong.push(format!("{}: {what}", placement.name));
        }
        for run in &self.runs {
            wrong.extend(run.misplaced(placement).map(|why| format!("{}: {why}", placement.name)));
        }
        wrong
    }
}

impl Run {
    /// What of the guest's nodes or memory is not as the placement says.
    pub fn misplaced(&self, placement: &Placement) -> Option<String> {
        let sees = self.nodes.iter().filter(|line| line.contains("/cpulist:")).count();
        let wanted = if let Memory::Nodes(on) = placement.memory { on.len() } else { 1 };
        if sees != wanted {
            return Some(format!("the guest sees {sees} nodes, not {wanted}: {}", self.nodes.join(", ")));
        }
        if let Some(m) = self.programs.iter().find(|m| m.strays > 0) {
            return Some(format!("{} MiB of bound memory are on another node", m.strays));
        }
        let expected = placement.expected_mib()?;
        let other = self.programs.iter().find(|m| m.memory != expected)?;
        Some(format!("MiB of guest memory by host node are {:?}, not {expected:?}", other.memory))
    }
}

impl Outcome {
    /// What is not as it must be: results of programs, threads and memory that are not where they were put,
    /// mistakes that are not named.
    pub fn wrong(&self) -> Vec<String> {
        let failed = self.plans.iter().filter_map(|c| Some(format!("{}: {}", c.name, c.failed.as_ref()?)));
        self.placed.iter().flat_map(Placed::wrong).chain(failed).chain(self.out_of_order()).collect()
    }

    /// The model's cost of remote references beside the paper's order: EP is indifferent in an SMP guest,
    /// others are not, and guest nodes help them. Each comparison, and whether it holds.
    fn order(&self) -> Vec<(String, bool)> {
        let cost = |name: &str, placement: &str| {
            let (_, rows) = self.references.iter().find(|(part, _)| part.name() == name)?;
            rows.iter().find(|r| r.config == CONFIG && r.placement == placement)?.longer()
        };
        let mut compared = Vec::new();
        for name in SENSITIVE {
            let Some(large) = cost(name, "smp") else { continue };
            for (small, what) in
                [(cost("ep", "smp"), "ep"), (cost(name, "guest-numa"), "it with guest nodes")]
            {
                let Some(small) = small else { continue };
                let text = format!(
                    "in an SMP guest, remote references cost {name} {large:.2} %, and {what} {small:.2} %"
                );
                compared.push((text, MUCH * small <= large));
            }
        }
        compared
    }

    /// Comparisons of the paper's order that do not hold.
    fn out_of_order(&self) -> Vec<String> {
        self.order().into_iter().filter(|(_, holds)| !holds).map(|(text, _)| text).collect()
    }

    /// Whether all comparisons of the paper's order could be made, and hold.
    pub(super) fn in_order(&self) -> bool {
        let order = self.order();
        order.len() == 2 * SENSITIVE.len() && order.iter().all(|(_, holds)| *holds)
    }
}

/// The placements with these names; all if there are none.
pub fn named(names: &[String]) -> Vec<&'static Placement> {
    PLACEMENTS.iter().filter(|p| names.is_empty() || names.iter().any(|n| n == p.name)).collect()
}
