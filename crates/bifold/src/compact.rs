// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold compact`: a recording without what no TLB can tell.

use crate::console::{Progress, distinct, named, not_stdout, note_file, stop_on_signals};
use crate::run::Notes;
use crate::status::{self, Status};
use crate::usage::UsageError;
use bifold_trace::file::{Header, Reader, Writer};
use bifold_trace::{CommandExit, Granularity};
use clap::Args;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

const EXAMPLES: &str = "\
Examples:
  bifold compact gcc.bifold -o gcc.compact.bifold
  bifold compare --caches off --profile zen4 gcc.compact.bifold";

/// Make a recording smaller: loads and fetches keep their pages alone
///
/// TLBs, walk caches and page tables know nothing of an address below its page, so
/// `bifold compare --caches off` gives the same figures from both recordings to the last digit, for every
/// profile, paging mode and page size. Data caches need lines: a compact recording is refused without
/// --caches off. `bifold record --compact` writes such a recording at once.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct CompactArgs {
    /// A recording made by `bifold record` or `bifold import`
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write the compact recording to FILE
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Suppress notes and progress
    #[arg(short, long)]
    quiet: bool,
}

/// Carries out the verb.
pub fn run(args: CompactArgs) -> anyhow::Result<Status> {
    if not_stdout(Some(&args.output)).is_none() {
        return Err(UsageError::value("--output -", "a recording needs a file").into());
    }
    distinct(
        &named([("the recording", Some(args.file.as_path()))]),
        &named([("--output", Some(args.output.as_path()))]),
    )?;
    let stop = stop_on_signals()?;
    let mut reader = Reader::open(&args.file)?;
    let header = Header { granularity: Granularity::Page, ..reader.header().clone() };
    let mut writer = Writer::create(&args.output, &header)?;
    let notes = Notes::new(args.quiet, false);
    let mut progress = Progress::start(notes.progress, "compacting");
    let (mut words, mut done) = (Vec::new(), 0);
    while reader.next_block(&mut words)? {
        if stop.load(Ordering::Relaxed) {
            // The writer removes its unfinished file.
            return Ok(Status::OfCommand(CommandExit::Interrupted));
        }
        writer.write(&words)?;
        done += words.len();
        progress.say_again(|| format!("compacting: {} million events", done / 1_000_000));
    }
    progress.end();
    writer.finish(&reader.trailer().cloned().unwrap_or_default())?;
    note_file(notes.notes, "compact events", &args.output);
    Ok(Status::Done)
}
