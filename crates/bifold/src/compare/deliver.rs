// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries out a plan: creates its files, makes the run, and delivers the results.

use super::baseline::Against;
use super::output::{Beside, Output};
use super::plan::Plan;
use super::{keep, runs};
use crate::console::{Delivery, OutputFile, create, create_for_data, note, stop_on_signals};
use crate::run::{carry_out, policies, status};
use crate::status::Status;
use anyhow::anyhow;
use bifold_guest::Written;
use bifold_policy::Timeline;
use bifold_report::{Comparison, Format, NotComparable};
use bifold_trace::CommandExit;
use std::path::{Path, PathBuf};

/// Carries out a plan and returns the exit status.
pub fn run(mut plan: Plan) -> anyhow::Result<Status> {
    if let Some(dir) = &plan.keep {
        keep::prepare(dir)?;
    }
    plan.run.source.prepare()?;
    let output = create_for_data(plan.output.as_deref())?;
    let mut files = Vec::new();
    for (one, path) in &plan.outputs {
        files.push((*one, path.clone(), create(Some(path))?));
    }
    let stop = stop_on_signals()?;
    if plan.runs > 1 {
        let report = files.into_iter().find(|(one, ..)| *one == Output::Report).and_then(|(.., file)| file);
        return runs::run(plan, output, report, &stop);
    }
    let mut carried = carry_out(&mut plan.run, "", &stop)?;
    let failure = carried.failure.take();
    let (written, archive, short) = (carried.written, carried.kept.take(), carried.short_of_memory.take());
    let own = plan.needs_timeline().then(|| carried.timeline(&plan.run));
    // As bytes first: the policies take the timeline itself.
    let bytes = own.as_ref().filter(|_| plan.writes(Output::Timeline)).map(Timeline::to_bytes);
    let policies = own.filter(|_| plan.needs_policies()).map(|own| policies::over(&carried, own, &plan.run));
    let no_timeline = carried.no_timeline();
    let mut comparison = Comparison { policies, ..carried.plain() };
    // A run that failed or was stopped is shown, and judged no more than saved as a baseline.
    let whole = failure.is_none() && comparison.meta.partial.is_none();
    let not_comparable = if whole { judge(&plan, &mut comparison) } else { None };
    let text = match plan.format {
        Format::Table => comparison.render_table(plan.show),
        format => comparison.render(format)?,
    };
    let notes = plan.run.notes.notes;
    let mut delivery = Delivery::new(notes);
    delivery.data(&text, output);
    let (timeline, no_timeline) = (bytes.unwrap_or_default(), no_timeline.as_deref());
    let mut beside = Beside { timeline, no_timeline, whole };
    deliver_files(files, &mut delivery, &comparison, &mut beside, &plan);
    let kept = match (archive, &plan.keep) {
        (Some(archive), Some(dir)) => keep::unpack(archive, dir),
        _ => Ok(()),
    };
    tell_written(notes, written, plan.keep.as_deref());
    tell_hints(notes, &comparison, short.as_deref());
    // The first failure is the verb's error.
    if let Some(e) = failure {
        return Err(e);
    }
    delivery.done()?;
    kept?;
    if let Some(e) = not_comparable {
        return Err(e.into());
    }
    if let (Some(why), false) = (no_timeline, plan.run.on_line.is_empty()) {
        return Err(anyhow!("--check needs a timeline, and {why}"));
    }
    Ok(status(plan.run.source.live(), &comparison))
}

/// Delivers the files beside the data, but for one that stays as it is.
fn deliver_files(
    files: Vec<(Output, PathBuf, Option<OutputFile>)>,
    delivery: &mut Delivery,
    comparison: &Comparison,
    beside: &mut Beside,
    plan: &Plan,
) {
    for (one, path, file) in files {
        if one.stays(&path, comparison) {
            let path = path.display();
            note(
                plan.run.notes.notes,
                format_args!("the command failed, so the baseline {path} stays as it is"),
            );
            continue;
        }
        delivery.file(one.names().1, file, || one.content(comparison, beside, plan));
    }
}

/// Judges a run by the plan's baseline; why the two cannot be compared.
fn judge(plan: &Plan, comparison: &mut Comparison) -> Option<NotComparable> {
    let Against { baseline, worse_than } = plan.against.as_ref()?;
    baseline.judge(comparison, *worse_than).map(|judged| comparison.baseline = Some(judged)).err()
}

/// Prints notes on the files that the command wrote.
fn tell_written(notes: bool, written: Option<Written>, keep: Option<&Path>) {
    if let Some(line) = written.and_then(|w| keep::describe(w, keep)) {
        note(notes, line);
    }
}

/// Prints advice on how the command ended. `short` is what the command said of a lack of memory.
pub fn tell_hints(notes: bool, comparison: &Comparison, short: Option<&str>) {
    let mib = comparison.meta.guest.as_ref().and_then(|g| g.memory_mib);
    if let Some(line) = comparison.meta.exit.and_then(|exit| hint(exit, mib, short)) {
        note(notes, line);
    }
}

/// Advice if the guest may be the reason why the command ended. The guest has `mib` MiB of memory.
fn hint(exit: CommandExit, mib: Option<u64>, short: Option<&str>) -> Option<String> {
    const SIGILL: i32 = 4;
    const SIGKILL: i32 = 9;
    let has = mib.map_or(String::new(), |mib| format!("the guest has {mib} MiB; "));
    let more = format!("{has}give it more with -m (--memory)");
    match (exit, short) {
        (CommandExit::Signal(SIGILL) | CommandExit::Code(132), _) => Some(
            "an illegal instruction ended the command: the guest's processor has AVX2 but neither AVX-512 nor \
             AMX; build the program for x86-64-v3, or let its library choose the instructions at run time"
                .into(),
        ),
        (CommandExit::OutOfMemory, _) => Some(format!("the guest's memory was too small for the command: {more}")),
        (CommandExit::Code(0) | CommandExit::AfterRegion | CommandExit::AccurateEnough | CommandExit::TimedOut | CommandExit::Interrupted, _) => None,
        (_, Some(words)) => Some(format!("the command lacked memory (`{words}`): {more}")),
        // A shell gives the status 128 plus the signal of its child.
        (CommandExit::Signal(SIGKILL) | CommandExit::Code(137), None) => Some(format!(
            "SIGKILL ended the command, or a process of it. If it was short of memory: {more}"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_lacked_memory_is_told_of_the_option() {
        let of = |exit, short| hint(exit, Some(2048), short);
        let more = "the guest has 2048 MiB; give it more with -m (--memory)";
        for (exit, short, begins) in [
            (CommandExit::OutOfMemory, None, "the guest's memory was too small for the command: "),
            (CommandExit::Signal(9), None, "SIGKILL ended the command"),
            (CommandExit::Code(137), None, "SIGKILL ended the command"),
            (
                CommandExit::Code(2),
                Some("sort: memory exhausted"),
                "the command lacked memory (`sort: memory exhausted`): ",
            ),
            (
                CommandExit::Signal(6),
                Some("std::bad_alloc"),
                "the command lacked memory (`std::bad_alloc`): ",
            ),
        ] {
            let text = of(exit, short).unwrap();
            assert!(text.starts_with(begins) && text.ends_with(more), "{text}");
        }
        // A program that goes on without the memory has no hint, nor has one that was stopped.
        assert_eq!(of(CommandExit::Code(0), Some("out of memory")), None);
        assert_eq!(of(CommandExit::TimedOut, Some("out of memory")), None);
        assert_eq!(of(CommandExit::Code(1), None), None);
        assert!(of(CommandExit::Signal(4), None).unwrap().starts_with("an illegal instruction"));
    }
}
