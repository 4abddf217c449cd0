// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold noise simulate`: what noise costs a bulk-synchronous program.

mod data;
mod text;

pub use data::schema;

use super::values;
use crate::console::{Progress, note, print};
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words;
use anyhow::Context as _;
use bifold_host::printable;
use bifold_noise::Trace;
use bifold_noise::sim::{Cell, Collective, Gain, LogGp, Noise, NoiseCase, enough_steps, gains, sweep};
use bifold_report::Format;
use clap::Args;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use text::{short, table};

const EXAMPLES: &str = "\
Examples:
  bifold noise simulate cpu0.noise cpu1.noise --ranks 2^4..2^20 --grain 100us,1ms
  bifold noise simulate --sources *.noise --ranks 4096 --grain 1ms
  bifold noise simulate --noise periodic:10Hz:2.5ms --noise periodic:10kHz:2.5us --grain 100us
  bifold noise simulate --interrupts 11000 --ranks 64,4096 --grain 1ms";

/// Simulate what noise costs a parallel program of up to 1,048,576 ranks
///
/// In each step, every rank computes for the grain, and then all take part in a collective operation, whose
/// messages cost what the LogGP model says. An interruption stops its rank; the others wait for it in the
/// operation. The slowdown is the time of a step divided by that without noise; the efficiency is the grain
/// divided by the time of a step.
///
/// NOISE-FILEs are those of `bifold noise record`, Netgauge's selfish benchmark or LogGOPSim: the start and
/// the length of an interruption in nanoseconds on each line. Rank r has file r modulo their number, from a
/// random moment on, over and over. Without files and other noise, the table has the noiseless times.
///
/// Without --steps, a case runs until its ranks together have gone 10 times through the recordings, or
/// through 100 periods of generated noise; co-scheduled ranks count as one, and go through the recording
/// once. A case has at least 100 steps, and beyond these at most 67,108,864 (2^26) of all ranks together.
/// Notes name the cases that saw less.
///
/// Times take the units ns, us, ms and s; a number alone counts nanoseconds.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct SimulateArgs {
    /// Recorded noise, one file for each CPU
    #[arg(value_name = "NOISE-FILE")]
    pub files: Vec<PathBuf>,

    /// Generated noise, with a row of its own; can be repeated
    ///
    /// `periodic:PERIOD:LENGTH`: every PERIOD (a time, or a rate such as 10Hz or 10kHz) an interruption of
    /// LENGTH. `poisson:PERIOD:LENGTH`: the same at random intervals, PERIOD on average.
    /// `bernoulli:CHANCE:LENGTH`: in each step, each rank computes LENGTH longer with this chance.
    /// `exponential:MEAN`: in each step, each rank computes longer by an exponential time. `none`: the
    /// noiseless times.
    #[arg(long, value_name = "SPEC", value_parser = |t: &str| values::noise(t).map(|n| (t.to_string(), n)))]
    pub noise: Vec<(String, Noise)>,

    /// Interrupts of a device, so many a second on each rank, with exits and without
    ///
    /// At random intervals. Gives two rows: each interrupt costs --with-exits in one and --without-exits in
    /// the other.
    #[arg(long, value_name = "HZ", value_parser = values::rate)]
    pub interrupts: Option<f64>,

    /// Cost of a device interrupt where the guest exits to its hypervisor
    ///
    /// The default is what the authors of ELI published for 40,000 to 60,000 interrupts a second: 40 % of the
    /// time.
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "8us", requires = "interrupts")]
    pub with_exits: f64,

    /// Cost of a device interrupt that reaches the guest without an exit: posted interrupts, ELI
    ///
    /// The default is what the authors of ELI published: 1 to 2 % of the time.
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "300ns", requires = "interrupts")]
    pub without_exits: f64,

    /// Numbers of ranks: 4096, 2^12, or all powers of two in 2^4..2^20
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::ranks, default_value = "16,256,4096,65536")]
    pub ranks: Vec<Vec<usize>>,

    /// What each rank computes in a step
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::time, default_value = "100us,1ms,10ms")]
    pub grain: Vec<f64>,

    /// Operations at the end of a step: dissemination, recursive-doubling, reduce, broadcast, tree, ring,
    /// linear, ideal
    ///
    /// dissemination: barrier of log2(N) rounds. recursive-doubling: allreduce; if N is no power of two,
    /// ranks beyond the last one hand their part to a neighbour, as in MPICH. reduce, broadcast: binomial
    /// tree. tree: reduce and then broadcast. ring: each rank passes on to the next. linear: all send to rank
    /// 0, which sends to all. ideal: all wait for the last one at no cost.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::collective, default_value = "dissemination")]
    pub collective: Vec<Collective>,

    /// Latency of a message
    #[arg(long = "L", value_name = "TIME", value_parser = values::time, default_value = "2500ns")]
    pub latency: f64,

    /// Overhead of the CPU for each message sent or received
    #[arg(long = "o", value_name = "TIME", value_parser = values::time, default_value = "1500ns")]
    pub overhead: f64,

    /// Least time between two messages that a rank sends, or receives
    #[arg(long = "g", value_name = "TIME", value_parser = values::time, default_value = "1000ns")]
    pub gap: f64,

    /// Time for each byte after the first
    #[arg(long = "G", value_name = "TIME", value_parser = values::time, default_value = "6ns")]
    pub gap_per_byte: f64,

    /// Size of a message
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub bytes: u32,

    /// Interrupt all ranks at the same time
    ///
    /// All ranks share one recording. Each of several files is therefore noise of its own, with its own rows.
    #[arg(long)]
    pub coscheduled: bool,

    /// Also simulate without each recorded source: which one to remove first
    ///
    /// A source is `not sampled` if fewer than five of its interruptions were simulated, and the files have
    /// more.
    #[arg(long, requires = "files")]
    pub sources: bool,

    /// Steps of a program [default: as many as see enough of the noise]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub steps: Option<u32>,

    /// End after so many seconds, with the steps simulated by then
    ///
    /// Each case simulates at least one step. Figures then depend on this machine's speed, and a note names
    /// cases that saw too little of the noise.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub limit: Option<u64>,

    /// Start of the random numbers; the same seed gives the same figures
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,

    /// Output format
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|json|csv")]
    pub format: Format,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

const FORMATS: &[Format] = &[Format::Table, Format::Json, Format::Csv];

/// A row: a case, its result, and what each source costs.
struct SimulatedRow {
    noise: String,
    case: NoiseCase,
    cell: Cell,
    gains: Vec<Gain>,
}

/// Simulates all cases, and prints a row for each.
pub fn run(args: &SimulateArgs) -> anyhow::Result<Status> {
    let noises = noises(args)?;
    let until = args.limit.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut cases = Vec::new();
    for (name, noise) in &noises {
        cases.extend(cases_of(args, noise).map(|case| (name.clone(), NoiseCase { until, ..case })));
    }
    let all = cases.len();
    let progress = Progress::start(!args.quiet, &format!("simulating {all} cases"));
    let done = AtomicUsize::new(0);
    let told = || {
        let n = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress.count("cases simulated", n, all);
    };
    let cells = sweep(&cases.iter().map(|(_, case)| case.clone()).collect::<Vec<_>>(), told);
    let mut rows = Vec::new();
    for (i, ((noise, case), cell)) in cases.into_iter().zip(cells).enumerate() {
        progress.say(&format!("case {} of {all}, {} ranks, without each source", i + 1, case.ranks));
        let gains = if args.sources { gains(&case) } else { Vec::new() };
        rows.push(SimulatedRow { noise, case, cell, gains });
    }
    progress.end();
    let cut = rows.iter().filter(|r| r.cell.steps < r.case.steps).count();
    if let Some(seconds) = args.limit.filter(|_| cut > 0) {
        let text = format!("the limit of {seconds} s ended {cut} of {all} cases before their last step");
        note(!args.quiet, text);
    }
    if args.sources && rows.iter().all(|r| r.gains.len() < 2) {
        note(
            !args.quiet,
            "the files name no sources: record as root, so that the kernel says what interrupts",
        );
    }
    print(&match args.format {
        Format::Json => data::json(args, &rows)?,
        Format::Csv => data::csv(&rows)?,
        _ => table(&rows),
    })?;
    for row in rows.iter().filter(|row| row.cell.is_short()) {
        note(!args.quiet, short(row));
    }
    Ok(Status::Done)
}

/// The noises by their names: files, generated ones, a device's interrupts.
fn noises(args: &SimulateArgs) -> anyhow::Result<Vec<(String, Noise)>> {
    let mut noises = Vec::new();
    if !args.files.is_empty() {
        noises.extend(recorded(&args.files, args.coscheduled)?);
    }
    noises.extend(args.noise.iter().cloned());
    if let Some(hertz) = args.interrupts {
        for (name, cost) in
            [("interrupts, exits", args.with_exits), ("interrupts, no exits", args.without_exits)]
        {
            let noise = Noise::Poisson { period: 1e9 / hertz, length: cost };
            noise.check().map_err(|why| UsageError::value("--interrupts", why))?;
            noises.push((name.into(), noise));
        }
    }
    if noises.is_empty() {
        noises.push(("none".into(), Noise::Silent));
    }
    Ok(noises)
}

/// The files as one noise, or as one each: co-scheduled ranks share a recording.
fn recorded(files: &[PathBuf], coscheduled: bool) -> anyhow::Result<Vec<(String, Noise)>> {
    let mut each = Vec::new();
    for path in files {
        let name = printable(&path.to_string_lossy());
        let failed = || format!("cannot use noise file {name}");
        let file = File::open(path).with_context(failed)?;
        let trace = Trace::read(BufReader::new(file)).with_context(failed)?;
        // Each file by itself, so that the error names the one to blame.
        let noise = Noise::Recorded(Arc::new(vec![trace]));
        noise.check().with_context(failed)?;
        each.push((name, noise));
    }
    if coscheduled && files.len() > 1 {
        return Ok(each);
    }
    let traces = each.into_iter().filter_map(|(_, noise)| match noise {
        Noise::Recorded(traces) => Arc::into_inner(traces),
        _ => None,
    });
    Ok(vec![("recorded".into(), Noise::Recorded(Arc::new(traces.flatten().collect())))])
}

fn cases_of<'a>(args: &'a SimulateArgs, noise: &'a Noise) -> impl Iterator<Item = NoiseCase> + 'a {
    let cost = LogGp {
        latency: args.latency,
        overhead: args.overhead,
        gap: args.gap,
        gap_per_byte: args.gap_per_byte,
        bytes: args.bytes,
    };
    let ranks = || args.ranks.iter().flatten().copied();
    let grains = move |collective| args.grain.iter().map(move |grain| (collective, *grain));
    let both = args.collective.iter().flat_map(move |c| grains(*c));
    both.flat_map(move |(collective, grain)| ranks().map(move |ranks| (collective, grain, ranks))).map(
        move |(collective, grain, ranks)| {
            let case = NoiseCase {
                ranks,
                grain,
                collective,
                cost,
                noise: noise.clone(),
                coscheduled: args.coscheduled,
                steps: 1,
                seed: args.seed,
                until: None,
            };
            let steps = args.steps.unwrap_or_else(|| enough_steps(&case));
            NoiseCase { steps, ..case }
        },
    )
}
