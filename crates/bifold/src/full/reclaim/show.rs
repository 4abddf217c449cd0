// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim show`: how much memory a guest needs.

use super::whole::{self, RunArgs};
use crate::console::{Delivery, create, create_for_data, distinct, named, stop_on_signals};
use crate::run::{self, carry_out};
use crate::status::{self, Status};
use crate::words;
use bifold_model::Config;
use bifold_reclaim::{About, MemoryTimeline, MemoryUse, ReferenceKind};
use bifold_report::{Comparison, Format};
use clap::Args;
use std::fmt::Write as _;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold reclaim show -- gcc -O2 -c mid_size.c
  bifold reclaim show --timeline gcc.memory -- gcc -O2 -c mid_size.c
  bifold reclaim show --sizes 32M,48M,64M --format json run.bifold";

/// Show how much memory a guest needs: misses at every size, and the working set over time
///
/// Runs CMD in a Linux guest as `compare` does, or reads a recording, or takes events from a built-in
/// generator. Each use of a page of the guest's memory counts: by data, by code, and by walks of the guest's
/// page tables. A page that is used after it was taken away is a refault: the host has to bring it back, and
/// the guest waits.
///
/// The table has the refaults at each size of memory, if the host takes the page that was used least recently
/// (LRU), and the fewest that any choice can have, which knows the future (Belady). First uses are no
/// refaults: no amount of memory avoids them. Counts are exact, from 1 MB of memory on, and from 3 MB for the
/// fewest.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold reclaim show [OPTIONS] -- CMD...\n       \
                      bifold reclaim show [OPTIONS] FILE\n       \
                      bifold reclaim show [OPTIONS] --generate NAME[:N]",
    after_help = EXAMPLES,
    after_long_help = status::below(EXAMPLES)
)]
pub struct ShowArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,

    /// Sizes of memory in the table, separated by commas, as in 32M,48M [default: two for each doubling]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::size)]
    pub sizes: Vec<u64>,

    /// Microseconds that the guest waits for a refault
    ///
    /// The default is a random read from an NVMe disk for data centres, by its data sheet (Intel P4500, 1
    /// TB). The host's own work for the fault comes on top.
    #[arg(long, value_name = "US", value_parser = words::microseconds, default_value = "85")]
    pub refault_us: f64,

    /// Length of the intervals of the working set, in seconds of the ideal run [default: 0.1]
    #[arg(short, long, value_name = "SECS", value_parser = words::timeline_interval)]
    pub interval: Option<f64>,

    /// Output format
    ///
    /// `table` is for reading. `json` is one document (schema bifold.memory-use/1) with the curve at four
    /// sizes for each doubling and all intervals. `csv` has the misses at every size.
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|json|csv", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Also write the guest's need over time, for `bifold reclaim plan`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub timeline: Option<PathBuf>,
}

const FORMATS: &[Format] = &[Format::Table, Format::Json, Format::Csv];

/// Carries out the verb.
pub fn run(args: ShowArgs) -> anyhow::Result<Status> {
    let outputs = [("--output", args.output.as_deref()), ("--timeline", args.timeline.as_deref())];
    distinct(&args.run.inputs(), &named(outputs))?;
    let mut plan = plan(&args)?;
    plan.source.prepare()?;
    let output = create_for_data(args.output.as_deref())?;
    let timeline = create(args.timeline.as_deref())?;
    let stop = stop_on_signals()?;
    let mut carried = carry_out(&mut plan, "", &stop)?;
    let failure = carried.failure.take();
    let uses = carried.uses.take().expect("the plan asks for the use of memory");
    let comparison = carried.plain();
    let needs = comparison.memory.as_ref().expect("the plan asks for the use of memory");
    let text = match args.format {
        Format::Json => needs.json(&comparison)?,
        Format::Csv => csv(&uses),
        _ => comparison.render_head() + "\n" + &needs.table(),
    };
    let mut delivery = Delivery::new(plan.notes.notes);
    delivery.data(&text, output);
    delivery.file("timeline", timeline, || Ok(over_time(&comparison, &uses).to_json().into_bytes()));
    if let Some(e) = failure {
        return Err(e);
    }
    delivery.done()?;
    Ok(run::status(plan.source.live(), &comparison))
}

/// The run: native alone, whose walks read the guest's tables.
fn plan(args: &ShowArgs) -> anyhow::Result<run::Plan> {
    let mut plan = args.run.plan("reclaim show")?;
    plan.configs = vec![Config::ALL[0]];
    plan.source.look();
    plan.memory = Some(run::Memory {
        sizes: args.sizes.clone(),
        interval_seconds: args.interval.unwrap_or(run::Memory::default().interval_seconds),
        refault_s: args.refault_us / 1e6,
    });
    Ok(plan)
}

/// The guest's need over time.
fn over_time(run: &Comparison, uses: &MemoryUse) -> MemoryTimeline {
    let about = About {
        program: run.meta.what(),
        guest: run.meta.guest.as_ref().map(|g| g.describe()).unwrap_or_default(),
        bifold: run.meta.bifold.clone(),
        input_hash: run.outcome.input_hash.clone(),
        guest_frames: run.outcome.guest_frames,
    };
    MemoryTimeline::of(about, uses, run.outcome.base_cpi / run.outcome.frequency_hz as f64)
}

/// Misses at every size up to the one that is enough, first uses included.
fn csv(uses: &MemoryUse) -> String {
    let curves = ReferenceKind::ALL.map(|kind| uses.curve_of(kind));
    let mut text = String::from("frames");
    ReferenceKind::ALL.iter().for_each(|kind| _ = write!(text, ",{}_misses", kind.name()));
    text.push('\n');
    for frames in whole::LEAST..=uses.curve().enough() {
        let _ = write!(text, "{frames}");
        curves.iter().for_each(|curve| _ = write!(text, ",{}", curve.misses(frames)));
        text.push('\n');
    }
    text
}
