// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy train`: coefficients and parameters learnt from timelines.

use super::setting::{Setting, distinct_files};
use crate::compare::plan::usage;
use crate::console::files::{self, Writing, named};
use crate::policy::args::VmArgs;
use crate::status::Status;
use anyhow::Context as _;
use bifold_policy::sweep::Axis;
use bifold_policy::{Named, Spec};
use bifold_report::OutputFile;
use bifold_trace::bounded;
use bifold_train::search::{self, Options};
use bifold_train::{Program, Trained, estimator, kuang, published};
use clap::Args;
use clap::error::ErrorKind;
use std::io::Write as _;
use std::path::{Path, PathBuf};

const VERB: &str = "policy train";

/// Arguments of `policy train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// What is learnt: `estimator`, or a policy (`dsp`, `kuang`, any other with --set)
    #[arg(value_name = "estimator|POLICY")]
    pub what: String,

    /// Timelines to learn from, two or more; a program that is to test what was learnt must not be there
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// Values of a parameter: KEY=FROM:TO:STEPS, with `:log` by even factors, or KEY=A,B,C (repeatable)
    #[arg(long, value_name = "KEY=VALUES")]
    pub set: Vec<String>,

    /// For dsp: take thresholds from published samples in FILE instead of timelines
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["timelines", "set"])]
    pub samples: Option<PathBuf>,

    /// Write what was learnt to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// No table, notes and progress on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Which VM; the estimator is always learnt from a long-lived one on 4 KB host pages.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Learns, and writes the table to stderr and the file to stdout or where it is to be.
pub fn run(args: TrainArgs) -> anyhow::Result<Status> {
    let outputs = named([("--output", args.output.as_deref())]);
    if let Some(samples) = &args.samples {
        files::distinct(VERB, &[("the samples", samples)], &outputs);
    }
    distinct_files(VERB, &args.timelines, std::slice::from_ref(&args.what), &args.vm, &outputs);
    let output = args.output.as_deref().map(OutputFile::create).transpose()?;
    let trained = match (&args.samples, args.what.as_str()) {
        (Some(path), "dsp") => samples(path)?,
        (Some(_), _) => usage(VERB, ErrorKind::ArgumentConflict, "--samples is for dsp"),
        (None, _) => learn(&args)?,
    };
    if !args.quiet {
        eprint!("{}", trained.table);
    }
    let mut writing = Writing::new(!args.quiet);
    writing.data(&trained.toml, output, args.output.as_deref());
    writing.done()?;
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
    let live = !args.quiet && crate::console::terminal::redraws(&std::io::stderr());
    let progress = |what: &str| {
        if live {
            // Over the line before: it is of interest for a moment only.
            let _ = write!(std::io::stderr(), "\r\x1b[Klearning: {what}");
        }
    };
    let axis = |text: &String| {
        Axis::parse(text).unwrap_or_else(|e| usage(VERB, ErrorKind::InvalidValue, &format!("--set {e}")))
    };
    let axes: Vec<Axis> = args.set.iter().map(axis).collect();
    let setting = Setting::new(VERB, &args.vm)?;
    let options = Options { vm: setting.vm, scale: setting.scale, estimator: setting.estimator.as_ref() };
    let trained = if args.what == "estimator" {
        if !axes.is_empty() {
            usage(
                VERB,
                ErrorKind::ArgumentConflict,
                "--set is for policies: the estimator has no parameters",
            );
        }
        estimator::train(&Program::read(&args.timelines)?, &progress)
    } else {
        let base = Named::load(&args.what)?;
        let command = command(args);
        match (&base.spec, axes.is_empty()) {
            (Spec::Kuang(_), true) => {
                kuang::train(&Program::read(&args.timelines)?, &base, &options, &progress)
            }
            (Spec::Dsp(_), true) => {
                let grid = search::dsp_grid(&base);
                search::train(&Program::read(&args.timelines)?, &base, &grid, &command, &options, &progress)
            }
            (_, true) => usage(
                VERB,
                ErrorKind::MissingRequiredArgument,
                &format!("{} is learnt by trying its parameters: give --set KEY=FROM:TO:STEPS", base.name),
            ),
            (_, false) => {
                let (grid, left_out) = search::grid(&base, &axes)?;
                if let (Some(left_out), false) = (left_out, args.quiet) {
                    eprintln!("bifold: {left_out}");
                }
                search::train(&Program::read(&args.timelines)?, &base, &grid, &command, &options, &progress)
            }
        }
    };
    if live {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    Ok(trained?)
}

/// The command as a file names it.
fn command(args: &TrainArgs) -> String {
    let set: String = args.set.iter().map(|s| format!("--set {s} ")).collect();
    format!("{} {set}TIMELINE...", args.what)
}
