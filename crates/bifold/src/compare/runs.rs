// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare --runs N`: one command in fresh guests, one after the other.
//!
//! Ctrl-C, or a failure, ends the run under way and all after it; the runs that are whole are shown. A
//! first run that is cut short is shown as a single one would be.

use crate::compare::plan::Plan;
use crate::console::files::Writing;
use crate::run::{carry_out, status};
use crate::status::Status;
use bifold_guest::GuestError;
use bifold_report::{Exit, Format, OutputFile, Partial, Runs};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the plan's command `plan.runs` times and shows what came of all runs.
pub fn run(
    mut plan: Plan,
    output: Option<OutputFile>,
    report: Option<OutputFile>,
    stop: &AtomicBool,
) -> anyhow::Result<Status> {
    let (mut runs, mut failure) = (Runs { asked: plan.runs, runs: Vec::new() }, None);
    let mut interrupted = false;
    while runs.runs.len() < runs.asked && !(interrupted || failure.is_some()) {
        let number = runs.runs.len() + 1;
        if plan.notes.notes {
            eprintln!("bifold: run {number} of {}", runs.asked);
        }
        let part = format!("run {number} of {}: ", runs.asked);
        let mut carried = match carry_out(&mut plan, &part, stop) {
            Ok(carried) => carried,
            Err(e) if number > 1 && interrupted_early(&e) => {
                interrupted = true;
                break;
            }
            // The first run's own words; a later run says which one failed.
            Err(e) if number == 1 => return Err(e),
            Err(e) => {
                failure = Some(e.context(format!("run {number} of {}", runs.asked)));
                break;
            }
        };
        failure = carried.failure.take();
        let comparison = carried.comparison(&plan);
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
    let mut writing = Writing::new(plan.notes.notes);
    let text = match plan.format {
        Format::Table => runs.render_table(plan.show),
        format => runs.render(format)?,
    };
    writing.data(&text, output, plan.output.as_deref());
    writing.file("report", report, plan.report.as_deref(), || Ok(runs.render_html()?.into_bytes()));
    if let (true, Some(text)) = (plan.notes.notes, runs.ended_differently()) {
        eprintln!("bifold: {text}");
    }
    if let Some(e) = failure {
        return Err(e);
    }
    writing.done()?;
    if interrupted {
        return Ok(Status::OfCommand(Exit::Interrupted));
    }
    // Of the first run that did not end as it should.
    let all = runs.runs.iter().map(|c| status(&plan.input, c));
    let of_command = |s: &Status| matches!(s, Status::OfCommand(_));
    let worst = all.clone().find(of_command).or_else(|| all.clone().find(|s| *s != Status::Done));
    Ok(worst.unwrap_or(Status::Done))
}

fn interrupted_early(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(GuestError::InterruptedEarly))
}
