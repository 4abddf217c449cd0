// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy compare` and `bifold policy intervals`: policies side by side.

use super::setting::{Setting, distinct_files, policies, timelines, with};
use crate::cli::FormatArg;
use crate::compare::plan::format_of;
use crate::console::files::{Writing, named};
use crate::policy::args::{CompareArgs, IntervalsArgs, ShowArgs, VmArgs};
use crate::status::Status;
use bifold_policy::Named;
use bifold_policy::check;
use bifold_policy::evaluate::{Input, evaluate};
use bifold_report::{OutputFile, PolicyComparison, checks_table};

/// `bifold policy compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Status> {
    let verb = "policy compare";
    distinct_files(verb, &args.timelines, &args.which.policy, &args.vm, &outputs(&args.show));
    let policies = policies(verb, &args.which)?;
    show(verb, &args.timelines, &policies, &args.show, &args.vm, args.check)
}

/// `bifold policy intervals`: one policy, as many times as there are lengths.
pub fn intervals(args: IntervalsArgs) -> anyhow::Result<Status> {
    let verb = "policy intervals";
    let policy = std::slice::from_ref(&args.policy);
    distinct_files(verb, &args.timelines, policy, &args.vm, &outputs(&args.show));
    let named = Named::load(&args.policy)?;
    let named = with(&named, &args.set)?;
    let each = |s: &f64| {
        let one = with(&named, &[format!("interval_s={s}")])?;
        Ok(Named { name: format!("{} {s} s", named.name), ..one })
    };
    let policies: Vec<Named> = args.intervals.iter().map(each).collect::<anyhow::Result<_>>()?;
    show(verb, &args.timelines, &policies, &args.show, &args.vm, false)
}

/// The files that these verbs write.
fn outputs(show: &ShowArgs) -> Vec<crate::console::files::Named<'_>> {
    named([("--output", show.output.as_deref()), ("--report", show.report.as_deref())])
}

fn show(
    verb: &str,
    paths: &[std::path::PathBuf],
    policies: &[Named],
    show: &ShowArgs,
    vm: &VmArgs,
    check: bool,
) -> anyhow::Result<Status> {
    let setting = Setting::new(verb, vm)?;
    let inputs = timelines(verb, paths)?;
    let report = show.report.as_deref().map(OutputFile::create).transpose()?;
    let output = show.output.as_deref().map(OutputFile::create).transpose()?;
    let checked = |i: &Input| (i.name.clone(), check::checks(&i.timeline));
    let comparison = PolicyComparison {
        bifold: env!("CARGO_PKG_VERSION").into(),
        evaluation: evaluate(&inputs, policies, &setting.options())?,
        checks: check.then(|| inputs.iter().map(checked).collect()),
    };
    let mut writing = Writing::new(!show.quiet);
    writing.data(&comparison.render(format_of(show.format))?, output, show.output.as_deref());
    writing.file("report", report, show.report.as_deref(), || Ok(comparison.render_html()?.into_bytes()));
    // Rows of CSV have no place for them, and a bare status says nothing.
    if let (FormatArg::Csv, Some(checks)) = (show.format, &comparison.checks) {
        eprint!("{}", checks_table(checks));
    }
    writing.done()?;
    let passed = comparison.checks.iter().flatten().flat_map(|(_, c)| c).all(|c| c.passed());
    Ok(if passed { Status::Done } else { Status::CheckFailed })
}
