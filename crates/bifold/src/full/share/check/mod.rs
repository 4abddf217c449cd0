// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share check`: compares the model of ksmd with this kernel's ksmd, in one or several runs.
//!
//! [`bifold_trial::ksm_check`] makes the check; [`show`] prints its results as tables, JSON and Markdown.

mod show;

pub use show::schema;

use crate::console::{Delivery, OutputFile, create, note, stop_on_signals};
use crate::full::guardian;
use crate::full::share::out::OutArgs;
use crate::full::share::settings::settings;
use crate::status::Status;
use crate::words;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{KsmGuard, Others, Settings};
use bifold_report::{Format, grouped, shell_words};
use bifold_share::ksm::synthetic::Synthetic;
use bifold_trace::CommandExit;
use bifold_trial::ksm_check::{Check, CheckError, KsmCase, Watch};
use clap::Args;
use show::{Checked, Run};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  bifold share check
  bifold share check --runs 5 --markdown check.md
  bifold share check --content slowly-changing --passes 12
  bifold share check --set max_page_sharing=2 --set use_zero_pages=1
  bifold share check --processes  # guests that are stopped, as by QEMU's `stop`";

/// Compare the model of ksmd with this kernel's ksmd, pass by pass
///
/// Makes memory with known contents, lets the kernel's KSM scan it one pass at a time, and prints the model's
/// prediction beside the counts of these pages. The counts come from page tables, so that other processes'
/// memory is not in them. The exit status is 3 if pages_shared, pages_sharing or ksm_zero_pages differ by
/// more than --tolerance. Unmerges everything that KSM has merged on this host. Restores KSM's settings at
/// the end, even if the command is killed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Check this content only (repeatable) [default: all contents]
    #[arg(long, value_name = "NAME", value_parser = content)]
    pub content: Vec<Synthetic>,

    /// Check the mergeable memory of all processes instead of memory made by this verb
    #[arg(long, conflicts_with = "content")]
    pub processes: bool,

    /// Setting of KSM (repeatable) [default: three sets of settings, one after another]
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Number of 4 KB pages of each content
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(16..=16_777_216))]
    pub pages: u32,

    /// Number of passes over the memory
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub passes: u64,

    /// Number of runs of the whole check
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Largest difference between prediction and count, as a share of the count
    #[arg(long, value_name = "RATIO", default_value_t = 0.02, value_parser = tolerance)]
    pub tolerance: f64,

    /// End with an error after SECS seconds [default: by the number of pages]
    ///
    /// In each pass ksmd scans all mergeable memory of the host, other programs' too. The default allows for
    /// the check's own pages on a slow machine, at least two minutes, and adds up to ten minutes per run if
    /// other programs have mergeable memory.
    #[arg(long, value_name = "SECS", value_parser = words::seconds)]
    pub limit: Option<f64>,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Also write the tables as Markdown, with command, kernel and duration
    #[arg(long, value_name = "FILE.md", help_heading = "Output")]
    pub markdown: Option<PathBuf>,

    /// Options of the output.
    #[command(flatten)]
    pub out: OutArgs,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("not a ratio from 0 to 1, such as 0.02".into()),
    }
}

fn content(name: &str) -> Result<Synthetic, String> {
    let names = || Synthetic::ALL.map(Synthetic::name).join(", ");
    Synthetic::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| format!("one of {}", names()))
}

/// Carries out the verb on this machine.
pub fn run(args: &CheckArgs) -> anyhow::Result<Status> {
    let cases = match settings(&args.set)? {
        none if none.is_empty() => KsmCase::built_in(),
        one => vec![KsmCase { name: one.to_string().replace(", ", " "), settings: one }],
    };
    let output = args.out.create()?;
    let markdown = create(args.markdown.as_deref())?;
    let host = Host::live();
    let stop = stop_on_signals()?;
    let guardian = Guardian::this_program(guardian::VERB)?;
    let guard = KsmGuard::take(&host, &Places::of_ksm(), &guardian, &Settings::default())?;
    let notes = !args.out.quiet;
    if let Some(pid) = guard.recovered() {
        note(notes, format_args!("KSM's settings, left changed by process {pid}, were restored first"));
    }
    let others = guard.ksm().others(&[std::process::id()])?;
    let limit = args.limit.map_or_else(|| limit(args, cases.len(), &others), Duration::from_secs_f64);
    if let Some(text) = foreign(args, cases.len(), &others, limit) {
        note(notes, text);
    }
    let begun = Instant::now();
    let stopped = || stop.load(Ordering::Relaxed);
    let waits = |what: &str| note(notes, what);
    let watch = || Watch {
        stop: &stopped,
        waits: &waits,
        until: (begun + limit, limit),
        again_until: begun + limit / 2,
    };
    let mut runs = Vec::new();
    let mut ending = Ok(());
    for _ in 0..args.runs {
        let (run, ended) = one(args, &cases, &guard, watch());
        runs.push(run);
        ending = ended;
        if ending.is_err() {
            break;
        }
    }
    guard.restore()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let checked = Checked {
        command: format!("bifold {}", shell_words(&words)),
        kernel: host.kernel_release(),
        pages: (!args.processes).then_some(args.pages),
        tolerance: args.tolerance,
        partial: ending.as_ref().err().map(ToString::to_string),
        runs,
    };
    deliver(args, &checked, [output, markdown])?;
    match ending {
        Err(CheckError::Stopped) => return Ok(Status::OfCommand(CommandExit::Interrupted)),
        // Taken out of `CheckError`, because the exit status depends on KSM's error.
        Err(CheckError::Ksm(e)) => return Err(e.into()),
        Err(e) => return Err(e.into()),
        Ok(()) => {}
    }
    note(notes, checked.verdict());
    Ok(if checked.off() == 0 { Status::Done } else { Status::CheckFailed })
}

/// Writes data and tables.
fn deliver(args: &CheckArgs, checked: &Checked, files: [Option<OutputFile>; 2]) -> anyhow::Result<()> {
    let [output, markdown] = files;
    let data = match args.format {
        Format::Json => checked.json()?,
        _ => checked.text(),
    };
    let mut delivery = Delivery::new(!args.out.quiet);
    delivery.data(&data, output);
    delivery.file("tables", markdown, || Ok(checked.markdown().into_bytes()));
    delivery.done()
}

/// Time of ksmd per visit to a page: on an idle machine (`evidence/pages/notes/2026-11-sharing.md`), and at
/// most.
const VISIT: Duration = Duration::from_micros(4);
const SLOW_VISIT: Duration = Duration::from_micros(50);
/// Least time limit of a check, and most time for other programs' pages in each run.
const LEAST: Duration = Duration::from_secs(120);
const FOR_OTHERS: Duration = Duration::from_secs(600);

/// Number of passes in all runs.
fn passes(args: &CheckArgs, cases: usize) -> u64 {
    let contents = match (args.processes, args.content.len()) {
        (true, _) => 1,
        (false, 0) => Synthetic::ALL.len(),
        (false, n) => n,
    };
    args.passes * (contents * cases) as u64 * u64::from(args.runs)
}

fn times(one: Duration, n: u64) -> Duration {
    Duration::from_secs_f64(one.as_secs_f64() * n as f64)
}

/// Default time limit of the check.
fn limit(args: &CheckArgs, cases: usize, others: &Others) -> Duration {
    let passes = passes(args, cases);
    let own = times(SLOW_VISIT, passes * u64::from(args.pages)).max(LEAST);
    own + times(SLOW_VISIT, passes * others.pages()).min(FOR_OTHERS * args.runs)
}

/// A note on other programs' mergeable memory and the time that ksmd takes for it; none without such memory.
fn foreign(args: &CheckArgs, cases: usize, others: &Others, limit: Duration) -> Option<String> {
    let pages = others.pages();
    let takes = times(VISIT, passes(args, cases) * pages).as_secs();
    (pages > 0 && !args.processes).then(|| {
        format!(
            "in every pass ksmd also goes over {} mergeable pages of other programs ({others}), which takes {takes} s \
             in all on an idle machine; the check ends after {} s at the latest (--limit)",
            grouped(pages),
            limit.as_secs()
        )
    })
}

/// One run over all settings and contents: its rows until it ended, and how it ended.
fn one(args: &CheckArgs, cases: &[KsmCase], guard: &KsmGuard, watch: Watch) -> (Run, Result<(), CheckError>) {
    let began = Instant::now();
    let mut rows = Vec::new();
    let ended = (|| {
        let check = Check::new(guard, args.passes, watch)?;
        let contents = if args.content.is_empty() { &Synthetic::ALL[..] } else { &args.content };
        for case in cases {
            if args.processes {
                rows.extend(check.processes(case)?);
                continue;
            }
            for content in contents {
                rows.extend(check.synthetic(*content, args.pages as usize, case)?);
            }
        }
        Ok(())
    })();
    (Run { rows, took: began.elapsed() }, ended)
}
