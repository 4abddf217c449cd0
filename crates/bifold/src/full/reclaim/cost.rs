// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim cost`: what each way of taking memory gives and costs, in each paging mode.

mod data;

pub use data::schema;

use super::whole::{self, FRAME, RunArgs};
use crate::console::{Delivery, create_for_data, distinct, named, stop_on_signals};
use crate::run::{self, Host, Limited, carry_out};
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words;
use bifold_model::Looked;
use bifold_model::{Config, Paging, Sample};
use bifold_reclaim::MemoryUse;
use bifold_report::{Comparison, Format, MemoryLooks, grouped, text_table_with_keys, wrapped};
use clap::Args;
use data::{CostRow, Costs, Others, Size, Zram};
use std::path::PathBuf;

/// The most sizes: each has a model of its own.
const MOST: usize = 8;

const EXAMPLES: &str = "\
Examples:
  bifold reclaim cost -- gcc -O2 -c mid_size.c
  bifold reclaim cost --sizes 32M,64M -- gcc -O2 -c mid_size.c
  bifold reclaim cost --sizes 48M --format json run.bifold";

/// Show what each way of taking a guest's memory gives and costs, in each paging mode
///
/// Reporting: the guest names its free blocks of 2 MB and more at each look (every 100 million instructions
/// at first), and the host drops them. What the guest allocates there later comes back by an exit.
///
/// Paging, with --sizes: the host holds no more of the guest than each of the sizes. Above that, the model's
/// host looks at accessed bits and swaps out the pages that were not used for longest, a sixteenth of the
/// size at a time. What the guest uses then comes back by an exit: a violation under nested paging, a hidden
/// fault under shadow paging, whose entries of the page are gone. A host page of 2 MB splits when a part is
/// taken, and comes back in pages of 4 KB, which cost more walk references.
///
/// Of the pages that are swapped, some need not be. A silent write: the guest's disk has the page too. A
/// stale read, a false read: a device or the guest's processor overwrites all of it before any of it is read.
/// Double paging: a device reads the page.
///
/// All figures are beside a host that takes nothing. Below the table stands what a balloon, zero pages,
/// sharing and compression would give, by what the guest's kernel used its memory for. `bifold reclaim show`
/// has the refaults at every size.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold reclaim cost [OPTIONS] -- CMD...\n       \
                      bifold reclaim cost [OPTIONS] FILE\n       \
                      bifold reclaim cost [OPTIONS] --sizes LIST --generate NAME[:N]",
    after_help = EXAMPLES,
    after_long_help = status::below(EXAMPLES)
)]
pub struct CostArgs {
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,

    /// What the host holds of the guest at most, separated by commas, as in 32M,48M; up to 8 sizes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::size)]
    pub sizes: Vec<u64>,

    /// Microseconds that the guest waits for a refault
    ///
    /// The default is a random read from an NVMe disk for data centres, by its data sheet (Intel P4500, 1
    /// TB). The exits' own cost comes on top.
    #[arg(long, value_name = "US", value_parser = words::microseconds, default_value = "85")]
    pub refault_us: f64,

    /// Microseconds that the guest waits for a page that was compressed in memory (zram, zswap)
    ///
    /// The default is 8 us for a page under zstd (`zstd -b3 -B4KB` of a program on an EPYC, by hand, 2026-11)
    /// and the fault. Name what your compressor takes.
    #[arg(long, value_name = "US", value_parser = words::microseconds, default_value = "10")]
    pub zram_us: f64,

    /// Output format; `json` is one document (schema bifold.reclaim-cost/1)
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
}

/// Carries out the verb.
pub fn run(args: CostArgs) -> anyhow::Result<Status> {
    let mut sizes = args.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > MOST {
        let problem = format!("{} sizes: name {MOST} at most", sizes.len());
        return Err(UsageError::value("--sizes", problem).into());
    }
    distinct(&args.run.inputs(), &named([("--output", args.output.as_deref())]))?;
    let mut plan = args.run.plan("reclaim cost")?;
    plan.configs = Config::ALL.into();
    plan.memory = Some(run::Memory { sizes: sizes.clone(), ..run::Memory::default() });
    if plan.source.look() {
        plan.hosts.push(Host::Reported);
    } else if sizes.is_empty() {
        return Err(UsageError::missing(
            "--sizes",
            "a generator's guest reports nothing: name what the host holds",
        )
        .into());
    }
    plan.hosts.extend(sizes.iter().copied().map(Host::Limited));
    let hosts = plan.hosts.clone();
    plan.source.prepare()?;
    let output = create_for_data(args.output.as_deref())?;
    let stop = stop_on_signals()?;
    let mut carried = carry_out(&mut plan, "", &stop)?;
    let failure = carried.failure.take();
    let uses = carried.uses.take().expect("the plan asks for the use of memory");
    let (limited, looked) = (std::mem::take(&mut carried.limited), std::mem::take(&mut carried.looked));
    let comparison = carried.plain();
    let looks = comparison.memory.as_ref().and_then(|m| m.looks());
    if looks.is_none() && sizes.is_empty() {
        return Err(failure.unwrap_or_else(|| {
            anyhow::anyhow!(
                "the run has no looks at the guest's memory, so nothing is known of reporting: record with --memory-use, or name --sizes"
            )
        }));
    }
    let ways = hosts.iter().zip(&limited).filter(|(host, _)| **host != Host::Reported || looks.is_some());
    let rows =
        ways.flat_map(|(host, now)| rows(&comparison, *host, now, &looked, args.refault_us / 1e6)).collect();
    let costs = Costs {
        rows,
        sizes: by_uses(&uses, &sizes, looks.and_then(MemoryLooks::compressed), args.zram_us / 1e6),
        others: looks.map(others),
    };
    let text = match args.format {
        Format::Json => data::json(&comparison, &costs)?,
        _ => comparison.render_head() + "\n" + &costs.table(),
    };
    let mut delivery = Delivery::new(plan.notes.notes);
    delivery.data(&text, output);
    if let Some(e) = failure {
        return Err(e);
    }
    delivery.done()?;
    Ok(run::status(plan.source.live(), &comparison))
}

/// The rows of one way of taking memory.
fn rows(whole: &Comparison, host: Host, now: &Limited, before: &[Looked], refault_s: f64) -> Vec<CostRow> {
    let o = &whole.outcome;
    let (way, bytes) = match host {
        Host::Reported => ("reporting", None),
        Host::Limited(frames) => ("paging", Some(frames * FRAME)),
    };
    let row = |i: usize| {
        let (old, new) = (&o.configs[i], &now.outcome.configs[i]);
        let more = |of: fn(&Sample) -> u64| of(&new.total) as i64 - of(&old.total) as i64;
        let (swap, split_pages) = now.swaps[i];
        let refaults = swap.reads;
        let extra = new.total.extra_cycles() as f64 - old.total.extra_cycles() as f64;
        let held = |looked: &[Looked]| MemoryLooks::mean_of(looked, |l| l.held[i]);
        CostRow {
            way,
            bytes,
            config: new.config.name(),
            gives_bytes: held(before).zip(held(&now.looked)).map(|(a, b)| (a - b) * FRAME as f64),
            dropped_bytes: now.dropped[i] * FRAME,
            refaults,
            swap: bytes.map(|_| swap),
            wait_seconds: refaults as f64 * refault_s,
            violations: more(|s| s.exits_violation),
            hidden_faults: more(|s| s.exits_hidden_fault),
            walk_refs: more(|s| s.guest_refs + s.host_refs),
            split_pages,
            overhead_points: 100.0 * extra / o.ideal_cycles().max(1.0),
        }
    };
    let hosts = (0..o.configs.len()).filter(|i| o.configs[*i].config.mode != Paging::Native);
    hosts.map(row).collect()
}

/// Refaults at each size by the uses of pages, and with a part of the size for compressed pages.
fn by_uses(uses: &MemoryUse, sizes: &[u64], compressed: Option<f64>, zram_s: f64) -> Vec<Size> {
    let curve = uses.curve();
    let refaults = |frames: u64| curve.misses(frames) - curve.first();
    let all = curve.enough().max(uses.held()) as f64;
    let zram = |size: u64| {
        let part = compressed.filter(|part| *part < 1.0)?;
        // Plain pages p and the others compressed fill the size: p + (all - p) * part = size.
        let plain = ((size as f64 - all * part) / (1.0 - part)).min(size as f64);
        let plain = (plain >= whole::LEAST as f64).then_some(plain as u64)?;
        let refaults = refaults(plain);
        Some(Zram { plain_bytes: plain * FRAME, refaults, wait_seconds: refaults as f64 * zram_s })
    };
    let fewest = uses.optima(sizes);
    let size = |(&size, fewest): (&u64, Option<u64>)| Size {
        bytes: size * FRAME,
        lru_refaults: refaults(size),
        fewest_refaults: fewest.map(|misses| misses - curve.first()),
        zram: zram(size),
    };
    sizes.iter().zip(fewest).map(size).collect()
}

fn others(looks: &MemoryLooks) -> Others {
    let mean = |of: fn(&bifold_trace::MemoryLook) -> u64| looks.mean(|l| of(&l.look)) * FRAME as f64;
    Others {
        free_bytes: mean(|l| l.free),
        cache_clean_bytes: mean(|l| l.cache_clean),
        balloon_least_bytes: looks.least_balloon() * FRAME,
        zero_bytes: mean(|l| l.zero),
        same_bytes: mean(|l| l.same),
        compressed_part: looks.compressed(),
    }
}

fn signed(n: i64) -> String {
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{}", grouped(n.unsigned_abs()))
}

/// A line below the table.
fn line(label: &str, words: &str) -> String {
    wrapped(&format!("{label:<8} {words}"), 9)
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

impl Costs {
    fn table(&self) -> String {
        let head = [
            "\nhost",
            "\nconfig",
            "gives\nMiB",
            "\nrefaults",
            "waits\ns",
            "\nviolations",
            "hidden\nfaults",
            "walk\nrefs",
            "split\npages",
            "overhead\n% points",
        ];
        let cells = |row: &CostRow| {
            vec![
                row.bytes.map_or(row.way.into(), |bytes| mib(bytes as f64)),
                row.config.clone(),
                row.gives_bytes.map_or("-".into(), |bytes| format!("{:.1}", bytes / f64::from(1 << 20))),
                grouped(row.refaults),
                format!("{:.2}", row.wait_seconds),
                signed(row.violations),
                signed(row.hidden_faults),
                signed(row.walk_refs),
                grouped(row.split_pages),
                format!("{:.2}", row.overhead_points),
            ]
        };
        let mut text =
            text_table_with_keys(2, head.map(String::from).into(), self.rows.iter().map(cells).collect());
        text.push('\n');
        for size in &self.sizes {
            for row in self.rows.iter().filter(|row| row.bytes == Some(size.bytes)) {
                text += &row.swapped(size.bytes);
            }
            text += &size.exact();
        }
        if let Some(others) = &self.others {
            text += &others.lines();
        }
        text
    }
}

impl CostRow {
    /// What the host swapped with this memory. Where nothing was swapped, nothing was superfluous.
    fn swapped(&self, bytes: u64) -> String {
        let Some(s) = self.swap.filter(|s| s.writes + s.reads > 0) else { return String::new() };
        let [writes, silent, reads, stale, overwritten, double] =
            [s.writes, s.silent_writes, s.reads, s.stale_reads, s.false_reads, s.double_paged].map(grouped);
        let (at, config) = (mib(bytes as f64), &self.config);
        line(
            "swap",
            &format!(
                "in {at}, {config}: {writes} writes, {silent} silent; {reads} reads, {stale} stale, \
                 {overwritten} false, {double} double"
            ),
        )
    }
}

impl Size {
    /// What of this memory is exact, and what compressed memory in it would do.
    fn exact(&self) -> String {
        let fewest = self.fewest_refaults.map_or("unknown".into(), grouped);
        let (at, lru) = (mib(self.bytes as f64), grouped(self.lru_refaults));
        let words =
            format!("in {at}: {lru} refaults with LRU replacement of 4 KB pages, {fewest} at the fewest");
        let mut text = line("exact", &words);
        if let Some(zram) = &self.zram {
            let (plain, refaults) = (mib(zram.plain_bytes as f64), grouped(zram.refaults));
            let waits = format!("{:.2} s", zram.wait_seconds);
            let words =
                format!("in {at}, {plain} of that for plain pages: {refaults} refaults, waits {waits}");
            text += &line("zram", &words);
        }
        text
    }
}

impl Others {
    /// What other ways take.
    fn lines(&self) -> String {
        let (free, clean) = (mib(self.free_bytes), mib(self.cache_clean_bytes));
        let least = mib(self.balloon_least_bytes as f64);
        let balloon = format!(
            "takes free pages ({free} on average), then pages of files as on the disk ({clean}); below a guest of {least} \
             it takes what the guest can only swap"
        );
        let (zero, same) = (mib(self.zero_bytes), mib(self.same_bytes));
        let zero = format!("{zero} in use hold zeros only: trimming gives that until they are written");
        let same =
            format!("{same} in use are the same as another page: sharing gives that until they are written");
        line("balloon", &balloon) + &line("zero", &zero) + &line("same", &same)
    }
}
