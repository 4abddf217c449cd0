// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries out a plan: creates its files, makes the run, and delivers the results.

use super::plan::Plan;
use super::{keep, runs};
use crate::console::{Delivery, create, create_for_data, note, stop_on_signals};
use crate::run::{carry_out, policies, status};
use crate::status::Status;
use bifold_guest::Written;
use bifold_policy::Timeline;
use bifold_report::{Comparison, Format};
use bifold_trace::CommandExit;
use std::path::Path;

/// Carries out a plan and returns the exit status.
pub fn run(mut plan: Plan) -> anyhow::Result<Status> {
    if let Some(dir) = &plan.keep {
        keep::prepare(dir)?;
    }
    plan.run.source.prepare()?;
    let report = create(plan.report.as_deref())?;
    let output = create_for_data(plan.output.as_deref())?;
    let timeline = create(plan.timeline.as_deref())?;
    let folded = create(plan.folded.as_deref())?;
    let stop = stop_on_signals()?;
    if plan.runs > 1 {
        return runs::run(plan, output, report, &stop);
    }
    let mut carried = carry_out(&mut plan.run, "", &stop)?;
    let failure = carried.failure.take();
    let (written, archive) = (carried.written, carried.kept.take());
    let own = plan.needs_timeline().then(|| carried.timeline(&plan.run));
    // As bytes first: the policies take the timeline itself.
    let bytes = own.as_ref().filter(|_| plan.timeline.is_some()).map(Timeline::to_bytes);
    let policies = own.filter(|_| plan.needs_policies()).map(|own| policies::over(own, &plan.run));
    let comparison = Comparison { policies, ..carried.plain() };
    let text = match plan.format {
        Format::Table => comparison.render_table(plan.show),
        format => comparison.render(format)?,
    };
    let stacks = comparison.places.as_ref().map(|p| p.places.folded(p.config, plan.count));
    let notes = plan.run.notes.notes;
    let mut delivery = Delivery::new(notes);
    delivery.data(&text, output);
    delivery.file("timeline", timeline, || Ok(bytes.unwrap_or_default()));
    delivery.file("stacks", folded, || Ok(stacks.unwrap_or_default().into_bytes()));
    delivery.file("report", report, || Ok(comparison.render_html()?.into_bytes()));
    let kept = match (archive, &plan.keep) {
        (Some(archive), Some(dir)) => keep::unpack(archive, dir),
        _ => Ok(()),
    };
    tell(notes, written, comparison.meta.exit, plan.keep.as_deref());
    // The first failure is the verb's error.
    if let Some(e) = failure {
        return Err(e);
    }
    delivery.done()?;
    kept?;
    Ok(status(plan.run.source.live(), &comparison))
}

/// Prints notes on the files that the command wrote, and advice on how the command ended.
fn tell(notes: bool, written: Option<Written>, exit: Option<CommandExit>, keep: Option<&Path>) {
    let files = written.and_then(|w| keep::describe(w, keep));
    for line in files.into_iter().chain(exit.and_then(hint).map(String::from)) {
        note(notes, line);
    }
}

/// Advice if the guest may be the reason why the command ended.
fn hint(exit: CommandExit) -> Option<&'static str> {
    const SIGILL: i32 = 4;
    match exit {
        CommandExit::Signal(SIGILL) | CommandExit::Code(132) => Some(
            "an illegal instruction ended the command: the guest's processor has AVX2 but neither AVX-512 nor \
             AMX; build the program for x86-64-v3, or let its library choose the instructions at run time",
        ),
        CommandExit::OutOfMemory => {
            Some("the guest's memory was too small for the command: give it more with --memory")
        }
        _ => None,
    }
}
