// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare --runs N`: one command in fresh guests, one after the other.
//!
//! Ctrl-C or a failure ends the current run and all runs after it; the complete runs are shown. If the first
//! run is cut short, it is shown like a single run.

use super::deliver::tell_hints;
use super::plan::Plan;
use crate::console::{Delivery, OutputFile, note};
use crate::run::{Carried, carry_out, policies, status};
use crate::status::Status;
use bifold_guest::GuestError;
use bifold_report::{Comparison, Format, Partial, Runs};
use bifold_trace::CommandExit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the plan's command `plan.runs` times and shows all runs.
pub fn run(
    mut plan: Plan,
    output: Option<OutputFile>,
    report: Option<OutputFile>,
    stop: &AtomicBool,
) -> anyhow::Result<Status> {
    let notes = plan.run.notes.notes;
    let (mut runs, mut failure) = (Runs { asked: plan.runs, runs: Vec::new() }, None);
    let mut interrupted = false;
    while runs.runs.len() < runs.asked && !(interrupted || failure.is_some()) {
        let number = runs.runs.len() + 1;
        note(notes, format_args!("run {number} of {}", runs.asked));
        let part = format!("run {number} of {}: ", runs.asked);
        let mut carried = match carry_out(&mut plan.run, &part, stop) {
            Ok(carried) => carried,
            Err(e) if number > 1 && interrupted_early(&e) => {
                interrupted = true;
                break;
            }
            // The first run's error stands alone; a later run's says which run failed.
            Err(e) if number == 1 => return Err(e),
            Err(e) => {
                failure = Some(e.context(format!("run {number} of {}", runs.asked)));
                break;
            }
        };
        failure = carried.failure.take();
        let short = carried.short_of_memory.take();
        let comparison = comparison(carried, &plan);
        tell_hints(notes && number == 1, &comparison, short.as_deref());
        let cut = comparison.meta.partial;
        interrupted = cut == Some(Partial::Interrupted);
        if number == 1 || !matches!(cut, Some(Partial::Interrupted | Partial::Failed)) {
            runs.runs.push(comparison);
        }
        if cut == Some(Partial::Failed) {
            failure = failure.or(Some(anyhow::anyhow!("run {number} of {} ended by an error", runs.asked)));
        }
        interrupted |= stop.load(Ordering::Relaxed) && runs.runs.len() < runs.asked;
    }
    let mut delivery = Delivery::new(notes);
    let text = match plan.format {
        Format::Table => runs.render_table(plan.show),
        format => runs.render(format)?,
    };
    delivery.data(&text, output);
    delivery.file("report", report, || Ok(runs.render_html()?.into_bytes()));
    if let Some(text) = runs.ended_differently() {
        note(notes, text);
    }
    if let Some(e) = failure {
        return Err(e);
    }
    delivery.done()?;
    if interrupted {
        return Ok(Status::OfCommand(CommandExit::Interrupted));
    }
    Ok(worst(&runs, plan.run.source.live()))
}

fn interrupted_early(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(GuestError::InterruptedEarly))
}

/// The status of the first run that did not end well.
fn worst(runs: &Runs, live: bool) -> Status {
    let all = runs.runs.iter().map(|c| status(live, c));
    let of_command = |s: &Status| matches!(s, Status::OfCommand(_));
    let worst = all.clone().find(of_command).or_else(|| all.clone().find(|s| *s != Status::Done));
    worst.unwrap_or(Status::Done)
}

/// One run's comparison, with policies if they are shown.
fn comparison(carried: Carried, plan: &Plan) -> Comparison {
    let policies =
        plan.needs_policies().then(|| policies::over(&carried, carried.timeline(&plan.run), &plan.run));
    Comparison { policies, ..carried.plain() }
}
