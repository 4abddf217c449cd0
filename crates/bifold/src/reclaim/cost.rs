// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim cost`: what a host that pages out costs a guest, in each paging mode.

use super::whole::{self, FRAME, RunArgs};
use crate::console::{Delivery, create_for_data, distinct, named, stop_on_signals};
use crate::run::{self, Limited, carry_out};
use crate::status::{self, Status};
use crate::words;
use bifold_model::{Config, Paging, Sample};
use bifold_reclaim::MemoryUse;
use bifold_report::{Comparison, Format, grouped, text_table_with_keys, wrapped};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.reclaim-cost/1";
/// The most sizes: each has a model of its own.
const MOST: usize = 8;

const EXAMPLES: &str = "\
Examples:
  bifold reclaim cost --sizes 32M,64M -- gcc -O2 -c mid_size.c
  bifold reclaim cost --sizes 48M --format json run.bifold";

/// Show what a host that pages out costs a guest: refaults, exits, walks and split pages, in each paging mode
///
/// The host holds no more of the guest than each of the sizes. Above that, the model's host looks at accessed bits and swaps out the pages
/// that were not used for longest, a sixteenth of the size at a time. What the guest uses then comes back by an exit: a
/// violation under nested paging, a hidden fault under shadow paging, whose entries of the page are gone. A host page of
/// 2 MB splits when it is paged out, and comes back in pages of 4 KB, which cost more walk references.
///
/// All figures are beside a host with room for all. `bifold reclaim show` has the refaults at every size.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold reclaim cost [OPTIONS] --sizes LIST -- CMD...\n       \
                      bifold reclaim cost [OPTIONS] --sizes LIST FILE\n       \
                      bifold reclaim cost [OPTIONS] --sizes LIST --generate NAME[:N]",
    after_help = EXAMPLES,
    after_long_help = status::below(EXAMPLES)
)]
pub struct CostArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,

    /// What the host holds of the guest at most, separated by commas, as in 32M,48M; up to 8 sizes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::size, required = true)]
    pub sizes: Vec<u64>,

    /// Microseconds that the guest waits for a refault
    ///
    /// The default is a random read from an NVMe disk for data centres, by its data sheet (Intel P4500, 1 TB). The
    /// exits' own cost comes on top.
    #[arg(long, value_name = "US", value_parser = words::microseconds, default_value = "85")]
    pub refault_us: f64,

    /// Output format; `json` is one document (schema bifold.reclaim-cost/1)
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
}

/// One size in one configuration. Counts are beside a host with room for all, and can be negative.
#[derive(Serialize)]
struct Row {
    bytes: u64,
    config: String,
    /// Pages that came back from swap.
    refaults: u64,
    wait_seconds: f64,
    /// Refaults of a memory with LRU replacement, and the fewest possible.
    lru_refaults: u64,
    fewest_refaults: Option<u64>,
    violations: i64,
    hidden_faults: i64,
    walk_refs: i64,
    split_pages: u64,
    /// In percent of the ideal run, waits left out.
    overhead_points: f64,
}

/// Carries out the verb.
pub fn run(args: CostArgs) -> anyhow::Result<Status> {
    let mut sizes = args.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > MOST {
        let problem = format!("{} sizes: name {MOST} at most", sizes.len());
        return Err(crate::usage::UsageError::value("--sizes", problem).into());
    }
    distinct(&args.run.inputs(), &named([("--output", args.output.as_deref())]))?;
    let mut plan = args.run.plan("reclaim cost")?;
    plan.configs = Config::ALL.into();
    plan.memory = Some(run::Memory { sizes: sizes.clone(), ..run::Memory::default() });
    plan.limits = sizes.clone();
    plan.source.prepare()?;
    let output = create_for_data(args.output.as_deref())?;
    let stop = stop_on_signals()?;
    let mut carried = carry_out(&mut plan, "", &stop)?;
    let failure = carried.failure.take();
    let uses = carried.uses.take().expect("the plan asks for the use of memory");
    let limited = std::mem::take(&mut carried.limited);
    let comparison = carried.plain();
    let rows = rows(&comparison, &uses, &sizes, &limited, args.refault_us / 1e6);
    let text = match args.format {
        Format::Json => json(&comparison, &rows)?,
        _ => comparison.render_head() + "\n" + &table(&rows),
    };
    let mut delivery = Delivery::new(plan.notes.notes);
    delivery.data(&text, output);
    if let Some(e) = failure {
        return Err(e);
    }
    delivery.done()?;
    Ok(run::status(plan.source.live(), &comparison))
}

fn rows(
    whole: &Comparison,
    uses: &MemoryUse,
    sizes: &[u64],
    limited: &[Limited],
    refault_s: f64,
) -> Vec<Row> {
    let (curve, o) = (uses.curve(), &whole.outcome);
    let fewest = uses.optima(sizes);
    let mut rows = Vec::new();
    for ((&size, fewest), limited) in sizes.iter().zip(fewest).zip(limited) {
        let configs = o.configs.iter().zip(&limited.outcome.configs).zip(&limited.swaps);
        for ((before, now), &(refaults, split_pages)) in
            configs.filter(|((c, _), _)| c.config.mode != Paging::Native)
        {
            let more = |of: fn(&Sample) -> u64| of(&now.total) as i64 - of(&before.total) as i64;
            let extra = now.total.extra_cycles() as f64 - before.total.extra_cycles() as f64;
            rows.push(Row {
                bytes: size * FRAME,
                config: now.config.name(),
                refaults,
                wait_seconds: refaults as f64 * refault_s,
                lru_refaults: curve.misses(size) - curve.first(),
                fewest_refaults: fewest.map(|misses| misses - curve.first()),
                violations: more(|s| s.exits_violation),
                hidden_faults: more(|s| s.exits_hidden_fault),
                walk_refs: more(|s| s.guest_refs + s.host_refs),
                split_pages,
                overhead_points: 100.0 * extra / o.ideal_cycles().max(1.0),
            });
        }
    }
    rows
}

fn signed(n: i64) -> String {
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{}", grouped(n.unsigned_abs()))
}

fn table(rows: &[Row]) -> String {
    let head = [
        "\nmemory",
        "\nconfig",
        "\nrefaults",
        "waits\ns",
        "\nviolations",
        "hidden\nfaults",
        "walk\nrefs",
        "split\npages",
        "overhead\n% points",
    ];
    let cells = |row: &Row| {
        vec![
            format!("{:.1} MiB", row.bytes as f64 / f64::from(1 << 20)),
            row.config.clone(),
            grouped(row.refaults),
            format!("{:.2}", row.wait_seconds),
            signed(row.violations),
            signed(row.hidden_faults),
            signed(row.walk_refs),
            grouped(row.split_pages),
            format!("{:.2}", row.overhead_points),
        ]
    };
    let mut text = text_table_with_keys(2, head.map(String::from).into(), rows.iter().map(cells).collect());
    text.push('\n');
    let mut seen = None;
    for row in rows.iter().filter(|row| seen.replace(row.bytes) != Some(row.bytes)) {
        let fewest = row.fewest_refaults.map_or("unknown".into(), grouped);
        let line = format!(
            "{:<8} in {:.1} MiB: {} refaults with LRU replacement of 4 KB pages, {fewest} at the fewest",
            "exact",
            row.bytes as f64 / f64::from(1 << 20),
            grouped(row.lru_refaults)
        );
        text += &wrapped(&line, 9);
    }
    text
}

fn json(whole: &Comparison, rows: &[Row]) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: &'static str,
        bifold: &'a str,
        program: String,
        partial: Option<bifold_report::Partial>,
        profile: String,
        input_hash: &'a str,
        rows: &'a [Row],
    }
    let document = Document {
        schema: SCHEMA,
        bifold: &whole.meta.bifold,
        program: whole.meta.what(),
        partial: whole.meta.partial,
        profile: whole.meta.profile_words(),
        input_hash: &whole.outcome.input_hash,
        rows,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
