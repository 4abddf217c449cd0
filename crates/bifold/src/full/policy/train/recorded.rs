// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Training on recordings of real VMs, with tries of the other mode as the truth.

use super::{TrainArgs, command, grid, without_set};
use crate::console::Progress;
use crate::full::policy::setting::{HostPage, OtherArg, Setting, axes, load, refuse_for_recordings};
use crate::usage::UsageError;
use bifold_live::pairs::{LeftOut, pairs};
use bifold_live::recording;
use bifold_policy::{Counters, PerMode};
use bifold_train::recorded::{self, Lessons, Pair, Vm};
use bifold_train::{TrainError, Trained};
use std::path::PathBuf;

/// Most characters of a VM's name in tables and files.
const MOST_NAME: usize = 40;

/// Refuses options that say nothing about a recording.
fn refuse(args: &TrainArgs) -> Result<(), UsageError> {
    refuse_for_recordings(&[
        ("--other known", args.vm.other != OtherArg::Estimated),
        ("--dropped", args.vm.dropped),
        ("--time-scale", args.vm.time_scale != 100.0),
        ("--host-page", args.vm.host_page != HostPage::Small),
    ])
}

/// Learns from recordings.
pub fn learn(args: &TrainArgs) -> anyhow::Result<Trained> {
    refuse(args)?;
    let axes = axes(&args.set)?;
    let setting = Setting::new(&args.vm)?;
    let estimator = setting.estimator.expect("`--other known` is refused");
    let line = Progress::start(!args.quiet, "learning");
    let progress = |what: &str| line.say(&format!("learning: {what}"));
    let trained = if args.what == "estimator" {
        without_set(&axes)?;
        let (lessons, found) = lessons(&args.timelines, &recorded::estimator_needs())?;
        with(found, recorded::estimator(&lessons, &estimator, &progress)?)
    } else {
        let base = load("POLICY", &args.what)?;
        let grid = grid(args, &base, &axes, &line)?;
        let (lessons, found) = lessons(&args.timelines, &recorded::needs(&base.spec, &estimator))?;
        let command = command(args, "RECORDING");
        with(found, recorded::policy(&lessons, &base, &grid, &command, &estimator, &progress)?)
    };
    line.end();
    Ok(trained)
}

/// What was learnt, with what was found before the table.
fn with(found: String, mut trained: Trained) -> Trained {
    trained.table.insert_str(0, &found);
    trained
}

/// The pairs of recordings, and a line about them.
fn lessons(paths: &[PathBuf], needs: &PerMode<Counters>) -> anyhow::Result<(Lessons, String)> {
    let (vms, left_out) = read(paths)?;
    let all: usize = vms.iter().map(|vm| vm.pairs.len()).sum();
    let found = format!("Found {all} pairs of both modes' costs; tries left out: {left_out}.\n");
    let lessons = Lessons::of(vms, needs).map_err(|e| match e {
        e @ TrainError::TooFewPairs(_) => {
            anyhow::anyhow!("{e}. Tries of the other mode that are no pairs: {left_out}")
        }
        e => e.into(),
    })?;
    Ok((lessons, found))
}

/// The pairs of all VMs. A VM that was restarted has another identifier and its old name: pairs of a name
/// belong together, so that leaving it out leaves all of it out.
fn read(paths: &[PathBuf]) -> anyhow::Result<(Vec<Vm>, LeftOut)> {
    let (mut vms, mut left_out) = (Vec::<Vm>::new(), LeftOut::default());
    for path in paths {
        for vm in recording::read(path)? {
            let found = pairs(&vm);
            left_out.add(&found.left_out);
            // Names are VMMs' own, and go into a comment of the file.
            let name: String = vm.name.chars().flat_map(char::escape_debug).take(MOST_NAME).collect();
            let place = vms.iter().position(|v| v.name == name).unwrap_or_else(|| {
                vms.push(Vm { name, pairs: Vec::new() });
                vms.len() - 1
            });
            let pairs = found.pairs.into_iter().map(|p| Pair {
                time: p.time,
                samples: p.samples,
                known: p.known,
                cycles: p.cycles,
            });
            vms[place].pairs.extend(pairs);
        }
    }
    for vm in &mut vms {
        vm.pairs.sort_by(|a, b| a.time.total_cmp(&b.time));
    }
    vms.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((vms, left_out))
}

#[cfg(test)]
mod tests;
