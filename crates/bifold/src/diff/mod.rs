// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `diff`: two recordings or results beside each other.
//!
//! Both files are checked before a recording is modelled, which can take minutes.

mod args;

pub use args::DiffArgs;

use crate::console::{Delivery, create, create_for_data, distinct, named, stop_on_signals};
use crate::run::source::{Recording, what_else};
use crate::run::{self, Notes, carry_out};
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::{Context as _, bail};
use bifold_model::{ChosenBy, Profile};
use bifold_report::Partial;
use bifold_report::diff::{Diff, MOST_BYTES, Side};
use bifold_trace::{CommandExit, file};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// An input file of the verb.
enum Input {
    /// A recording, which is modelled.
    Recording(Box<file::Reader>, PathBuf),
    /// A result, which is read.
    Result(Box<Side>),
}

/// Shows the differences of two files.
pub fn run(args: DiffArgs) -> anyhow::Result<Status> {
    let inputs = named([
        ("A", Some(args.a.as_path())),
        ("B", Some(&args.b)),
        ("the profile", args.model.named.file()),
    ]);
    let outputs = named([("--output", args.output.as_deref()), ("--report", args.report.as_deref())]);
    distinct(&inputs, &outputs)?;
    let inputs = [open(&args.a)?, open(&args.b)?];
    if inputs.iter().all(|i| matches!(i, Input::Result(_))) {
        if let Some(option) = args.model.first_given() {
            let problem = "is about modelling a recording, and both files are results, modelled before";
            return Err(UsageError::conflict(option, problem).into());
        }
    }
    // A recording beside a result has the result's profile: another's figures are not comparable.
    let of_result = inputs.iter().find_map(|input| match input {
        Input::Result(side) => side.profile().cloned(),
        Input::Recording(..) => None,
    });
    let report = create(args.report.as_deref())?;
    let output = create_for_data(args.output.as_deref())?;
    let stop = stop_on_signals()?;
    let mut sides = Vec::new();
    for input in inputs {
        match input {
            Input::Result(side) => sides.push(*side),
            Input::Recording(reader, path) => {
                let Some(side) = modelled(*reader, path, of_result.as_ref(), &args, &stop)? else {
                    return Ok(Status::OfCommand(CommandExit::Interrupted));
                };
                sides.push(side);
            }
        }
    }
    let b = sides.pop().context("there are two files")?;
    let a = sides.pop().context("there are two files")?;
    let diff = Diff::new(a, b)?;
    let text = diff.render(args.format)?;
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&text, output);
    delivery.file("report", report, || Ok(diff.render_html()?.into_bytes()));
    delivery.done()?;
    Ok(if diff.checks_failed() { Status::CheckFailed } else { Status::Done })
}

/// The figures of a recording; none if modelling was interrupted.
fn modelled(
    reader: file::Reader,
    path: PathBuf,
    of_result: Option<&Profile>,
    args: &DiffArgs,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Side>> {
    let name = path.to_string_lossy().into_owned();
    let profile = match of_result {
        Some(own) => args.model.profile_or(|set| own.chosen_by(ChosenBy::Baseline, "of the result", set))?,
        None => args.model.profile()?,
    };
    let source = Recording { reader: Box::new(reader), path };
    let mut plan = run::Plan::new(Box::new(source), profile, &args.model, Notes::new(args.quiet, false))?;
    let mut carried = carry_out(&mut plan, &format!("{name}: "), stop)?;
    if let Some(e) = carried.failure.take() {
        return Err(e);
    }
    let comparison = carried.plain();
    let interrupted = comparison.meta.partial == Some(Partial::Interrupted);
    Ok((!interrupted).then(|| Side::of(&name, &comparison)))
}

/// Opens a recording or reads a result.
fn open(path: &Path) -> anyhow::Result<Input> {
    let cannot = || format!("cannot read {}", path.display());
    if path.metadata().with_context(cannot)?.is_file() {
        let mut first = Vec::new();
        let mut head = File::open(path).with_context(cannot)?.take(file::MAGIC.len() as u64);
        head.read_to_end(&mut first).with_context(cannot)?;
        if first == file::MAGIC {
            return Ok(Input::Recording(Box::new(file::Reader::open(path)?), path.into()));
        }
    }
    if let Some(other) = bifold_import::kind_of(path).and_then(|_| what_else(path)) {
        bail!(other);
    }
    let bytes = bifold_base::bounded::read(path, MOST_BYTES).with_context(cannot)?;
    Ok(Input::Result(Box::new(Side::from_json(&path.to_string_lossy(), &bytes)?)))
}
