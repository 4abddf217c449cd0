// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy train`: learns coefficients and parameters from timelines. [`recorded`] learns from
//! recordings of real VMs.

mod recorded;

use super::setting::{Setting, VmArgs, are_recordings, axes, distinct_files, load, no_grid};
use crate::console::{Delivery, Progress, create_for_data, distinct, named, note};
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::Context as _;
use bifold_base::bounded;
use bifold_policy::sweep::Axis;
use bifold_policy::{Named, Spec};
use bifold_train::search::{self, Options};
use bifold_train::{Program, TrainError, Trained, estimator, published};
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  bifold policy train estimator -o estimator.toml *.timeline
  bifold policy train dsp -o mine.toml *.timeline
  bifold policy train rpms-shipped --set t_low=1:4:7 --set t_high=5:20:16 *.timeline
  bifold policy train estimator -o here.toml /var/lib/bifold/vms.jsonl
  bifold policy train dsp --samples evidence/published/dsp-vee2011.toml";

/// Learn a policy's parameters, or the estimate of the other mode's cost, from timelines
///
/// Writes the TOML that the other verbs read. Prints on stderr how well the result does, with each program
/// judged by what was learnt from all others. The result holds for one hardware profile.
///
/// Recordings of the daemon, or of `bifold stat --format jsonl`, teach what holds for this host. The truth is
/// the work of VMs that were switched to the other mode and back, as the daemon's probes do, and whose guests
/// report progress: at least 10 such tries, of two VMs or more with at least 3 each. Switching costs cannot
/// be learnt this way and are those of --estimator.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TrainArgs {
    /// What to learn: `estimator`, or the parameters of a policy (`dsp`, any other with --set)
    #[arg(value_name = "estimator|POLICY")]
    pub what: String,

    /// Timelines to learn from, two or more, or recordings; leave out programs that are to test the result
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// Values of a parameter: KEY=A,B,C, or KEY=FROM:TO:STEPS, or the latter with `:log` for even factors
    /// (repeatable)
    #[arg(long, value_name = "KEY=VALUES")]
    pub set: Vec<String>,

    /// For dsp: take thresholds from published samples in FILE instead of timelines
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["timelines", "set"])]
    pub samples: Option<PathBuf>,

    /// Write the result to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// No table, notes and progress on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Options of the VM. The estimator always learns from a VM on 4 KB host pages.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Learns; writes the table to stderr, and the TOML to stdout or --output.
pub fn run(args: TrainArgs) -> anyhow::Result<Status> {
    let outputs = named([("--output", args.output.as_deref())]);
    if let Some(samples) = &args.samples {
        distinct(&[("the samples", samples)], &outputs)?;
    }
    distinct_files(&args.timelines, std::slice::from_ref(&args.what), &args.vm, &outputs)?;
    let recordings = are_recordings(&args.timelines)?;
    let output = create_for_data(args.output.as_deref())?;
    let trained = match (&args.samples, args.what.as_str()) {
        (Some(path), "dsp") => samples(path)?,
        (Some(_), _) => return Err(UsageError::conflict("--samples", "is for the policy dsp only").into()),
        (None, _) if recordings => recorded::learn(&args)?,
        (None, _) => learn(&args)?,
    };
    if !args.quiet {
        eprint!("{}", trained.table);
    }
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&trained.toml, output);
    delivery.done()?;
    Ok(Status::Done)
}

fn samples(path: &Path) -> anyhow::Result<Trained> {
    let text = bounded::read_to_string(path, bounded::TEXT)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let learnt = published::Published::parse(&text)
        .and_then(|p| published::train(&p, &Named::load("dsp").expect("it is built in")));
    learnt.map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))
}

fn learn(args: &TrainArgs) -> anyhow::Result<Trained> {
    let line = Progress::start(!args.quiet, "learning");
    let progress = |what: &str| line.say(&format!("learning: {what}"));
    let axes = axes(&args.set)?;
    let setting = Setting::new(&args.vm)?;
    let options = Options {
        vm: setting.vm,
        scale: setting.scale,
        estimator: setting.estimator.as_ref(),
        ..Options::default()
    };
    let trained = if args.what == "estimator" {
        without_set(&axes)?;
        estimator::train(&programs(args)?, &progress)
    } else {
        let base = load("POLICY", &args.what)?;
        let command = command(args, "TIMELINE");
        let grid = grid(args, &base, &axes, &line)?;
        search::train(&programs(args)?, &base, &grid, &command, &options, &progress)
    };
    line.end();
    Ok(trained?)
}

/// Refuses --set for the estimator.
fn without_set(axes: &[Axis]) -> Result<(), UsageError> {
    match axes {
        [] => Ok(()),
        _ => Err(UsageError::conflict("--set", "is for policies: the estimator has no parameters")),
    }
}

/// The settings of a policy to choose from: those of --set, or the thresholds of DSP.
fn grid(args: &TrainArgs, base: &Named, axes: &[Axis], line: &Progress) -> anyhow::Result<Vec<Named>> {
    match (&base.spec, axes) {
        (Spec::Dsp(_), []) => Ok(search::dsp_grid(base)),
        (_, []) => {
            let name = &base.name;
            let problem =
                format!("{name} is trained by trying values of its parameters: give --set KEY=FROM:TO:STEPS");
            Err(UsageError::missing("--set", problem).into())
        }
        _ => {
            let (grid, left_out) = search::grid(base, axes).map_err(|e| no_grid(base, axes, &args.set, e))?;
            if let Some(left_out) = left_out {
                line.suspend(|| note(!args.quiet, left_out));
            }
            Ok(grid)
        }
    }
}

/// The timelines to learn from.
fn programs(args: &TrainArgs) -> anyhow::Result<Vec<Program>> {
    Program::read(&args.timelines).map_err(|e| match e {
        TrainError::TooFew(_) | TrainError::Twice(_) | TrainError::States(_) => {
            UsageError::value("TIMELINE", e).failing().into()
        }
        other => other.into(),
    })
}

/// The command, as the comment in the TOML names it.
fn command(args: &TrainArgs, files: &str) -> String {
    let set: String = args.set.iter().map(|s| format!("--set {s} ")).collect();
    format!("{} {set}{files}...", args.what)
}
