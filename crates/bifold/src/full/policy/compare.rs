// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy compare` and `bifold policy intervals`: compare policies, and lengths of their interval.

use super::setting::{
    Setting, VmArgs, WhichArgs, distinct_files, load, policies, timelines, unusable, with, with_interval,
};
use crate::console::{Delivery, Named as NamedFile, create, create_for_data, named};
use crate::status::Status;
use crate::words;
use bifold_policy::Named;
use bifold_policy::evaluate::{Input, evaluate};
use bifold_policy::replay_check;
use bifold_report::{Format, PolicyComparison, checks_table};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold compare --timeline gcc.timeline -- gcc -O2 -c mid_size.c
  bifold policy compare gcc.timeline
  bifold policy compare --policy dsp --policy mine.toml --report policies.html";

/// Compare policies with each other, with static modes and with the oracle
///
/// Every policy runs over every timeline from both starting modes; the table shows the worse of the two. The
/// oracle knows the future and pays for its switches. Without TIMELINE, the timelines in
/// evidence/timelines of Bifold's repository are taken.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Timelines written by `bifold compare --timeline` [default: evidence/timelines]
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// Options that choose policies.
    #[command(flatten)]
    pub which: WhichArgs,

    /// Also compare the replay with VMs that switched during the capture; exit status 3 above 2 % error
    ///
    /// These VMs are those of `bifold compare --check`. Decisions depend on the time scale, so this check
    /// uses the scale of the capture, whatever --time-scale says.
    #[arg(long)]
    pub check: bool,

    /// Options of the output.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Options of the VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Compare lengths of a policy's interval
///
/// DSP's authors compared 2, 5 and 10 s. This is `policy compare` with one policy under several
/// values of interval_s.
#[derive(Debug, Args)]
pub struct IntervalsArgs {
    /// Timelines written by `bifold compare --timeline` [default: evidence/timelines]
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// The policy: a built-in name or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "dsp")]
    pub policy: String,

    /// Change one parameter of the policy (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Lengths of the policy's interval, in seconds of the policy
    #[arg(short, long, alias = "intervals", value_name = "SECS,...", value_delimiter = ',',
          value_parser = words::seconds, default_value = "2,5,10")]
    pub interval: Vec<f64>,

    /// Options of the output.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Options of the VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Options of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct ShowArgs {
    /// Output format
    ///
    /// `table` is for reading. `json` is one document (schema bifold.policy-compare/2). `csv` has one
    /// row per program, policy and starting mode; `jsonl` has the same rows as objects, after those of
    /// the programs and the policies' summaries.
    #[arg(long, value_parser = words::formats(&Format::ALL), default_value = "table", hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Also write an HTML report with charts: one file that needs no network
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

/// `bifold policy compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Status> {
    distinct_files(&args.timelines, &args.which.policy, &args.vm, &outputs(&args.show))?;
    let policies = policies(&args.which)?;
    show(&args.timelines, &policies, &args.show, &args.vm, args.check)
}

/// `bifold policy intervals`: one policy, as many times as there are lengths.
pub fn intervals(args: IntervalsArgs) -> anyhow::Result<Status> {
    let policy = std::slice::from_ref(&args.policy);
    distinct_files(&args.timelines, policy, &args.vm, &outputs(&args.show))?;
    let named = with(&load("--policy", &args.policy)?, &args.set)?;
    let each = |s: &f64| with_interval(&named, *s);
    let policies: Vec<Named> = args.interval.iter().map(each).collect::<anyhow::Result<_>>()?;
    show(&args.timelines, &policies, &args.show, &args.vm, false)
}

/// The files that these verbs write.
fn outputs(show: &ShowArgs) -> Vec<NamedFile<'_>> {
    named([("--output", show.output.as_deref()), ("--report", show.report.as_deref())])
}

fn show(
    paths: &[PathBuf],
    policies: &[Named],
    show: &ShowArgs,
    vm: &VmArgs,
    check: bool,
) -> anyhow::Result<Status> {
    let setting = Setting::new(vm)?;
    let inputs = timelines(paths)?;
    let report = create(show.report.as_deref())?;
    let output = create_for_data(show.output.as_deref())?;
    let checked = |i: &Input| (i.name.clone(), replay_check::checks(&i.timeline));
    let comparison = PolicyComparison {
        bifold: bifold_base::version().into(),
        evaluation: evaluate(&inputs, policies, &setting.options()).map_err(unusable)?,
        checks: check.then(|| inputs.iter().map(checked).collect()),
    };
    let mut delivery = Delivery::new(!show.quiet);
    delivery.data(&comparison.render(show.format)?, output);
    delivery.file("report", report, || Ok(comparison.render_html()?.into_bytes()));
    // CSV rows have no columns for checks, and the exit status alone does not say which check failed.
    if let (Format::Csv, Some(checks)) = (show.format, &comparison.checks) {
        eprint!("{}", checks_table(checks));
    }
    delivery.done()?;
    let passed = comparison.checks.iter().flatten().flat_map(|(_, c)| c).all(|c| c.passed());
    Ok(if passed { Status::Done } else { Status::CheckFailed })
}
