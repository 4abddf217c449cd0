// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy compare` and `bifold policy intervals`: policies side by side.

use super::setting::{Setting, policies, timelines, with};
use crate::cli::FormatArg;
use crate::cli::policy::{CompareArgs, IntervalsArgs, ShowArgs, VmArgs};
use crate::resolve::{format_of, same_file};
use crate::run::{note_file, print};
use crate::status::Status;
use bifold_policy::Named;
use bifold_policy::check;
use bifold_policy::evaluate::{Input, evaluate};
use bifold_report::{OutputFile, PolicyComparison, checks_table};

/// `bifold policy compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Status> {
    let verb = "policy compare";
    let policies = policies(verb, &args.which)?;
    show(verb, &args.timelines, &policies, &args.show, &args.vm, args.check)
}

/// `bifold policy intervals`: one policy, as many times as there are lengths.
pub fn intervals(args: IntervalsArgs) -> anyhow::Result<Status> {
    let named = Named::load(&args.policy)?;
    let named = with(&named, &args.set)?;
    let each = |s: &f64| {
        let one = with(&named, &[format!("interval_s={s}")])?;
        Ok(Named { name: format!("{} {s} s", named.name), ..one })
    };
    let policies: Vec<Named> = args.intervals.iter().map(each).collect::<anyhow::Result<_>>()?;
    show("policy intervals", &args.timelines, &policies, &args.show, &args.vm, false)
}

fn show(
    verb: &str,
    paths: &[std::path::PathBuf],
    policies: &[Named],
    show: &ShowArgs,
    vm: &VmArgs,
    check: bool,
) -> anyhow::Result<Status> {
    same_file(verb, show.output.as_ref(), show.report.as_ref());
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
    if let (Some(file), Some(path)) = (report, &show.report) {
        file.finish(comparison.render_html()?.as_bytes())?;
        note_file(!show.quiet, "report", path);
    }
    let text = comparison.render(format_of(show.format))?;
    match (output, &show.output) {
        (Some(file), Some(path)) => {
            file.finish(text.as_bytes())?;
            note_file(!show.quiet, "data", path);
        }
        _ => print(&text)?,
    }
    // Rows of CSV have no place for them, and a bare status says nothing.
    if let (FormatArg::Csv, Some(checks)) = (show.format, &comparison.checks) {
        eprint!("{}", checks_table(checks));
    }
    let passed = comparison.checks.iter().flatten().flat_map(|(_, c)| c).all(|c| c.passed());
    Ok(if passed { Status::Done } else { Status::CheckFailed })
}
