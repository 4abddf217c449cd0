// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share check`: the model of ksmd against this kernel's.

use crate::cli::policy::ShortFormat;
use crate::guardian;
use crate::run::{print, stop_on_signals};
use crate::status::Status;
use anyhow::Context as _;
use bifold_host::Host;
use bifold_host::ksm::{Guardian, KsmGuard, Places, Settings};
use bifold_report::{grouped, text_table};
use bifold_share::ksm::check::{Case, Check, CheckError, Row};
use bifold_share::ksm::synthetic::Synthetic;
use clap::Args;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// For `--help`.
pub const EXAMPLES: &str = "\
Examples:
  bifold share check
  bifold share check --content slowly-changing --passes 12
  bifold share check --set max_page_sharing=2 --set use_zero_pages=1
  bifold share check --processes        # guests that are stopped, as by QEMU's `stop`";

/// Arguments of `share check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check this content only; may be given several times [default: all seven]
    #[arg(long, value_name = "NAME", value_parser = content)]
    pub content: Vec<Synthetic>,

    /// Check all processes' mergeable memory as it is, instead of memory made here
    #[arg(long, conflicts_with = "content")]
    pub processes: bool,

    /// Use this setting of KSM, instead of three sets of them; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Pages of the memory that is made, of 4 KB
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(16..=16_777_216))]
    pub pages: u32,

    /// Passes over it
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub passes: u64,

    /// How far off a prediction may be, as a share of what is counted
    #[arg(long, value_name = "RATIO", default_value_t = 0.02)]
    pub tolerance: f64,

    /// Form of the data
    #[arg(long, value_enum, default_value_t = ShortFormat::Table, hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: ShortFormat,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

fn content(name: &str) -> Result<Synthetic, String> {
    let names = || Synthetic::ALL.map(Synthetic::name).join(", ");
    Synthetic::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| format!("one of {}", names()))
}

/// Settings written as NAME=VALUE.
pub fn settings(words: &[String]) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    for word in words {
        let (name, value) =
            word.split_once('=').with_context(|| format!("--set {word}: it takes NAME=VALUE"))?;
        settings.put_text(name.strip_prefix("ksm.").unwrap_or(name), value)?;
    }
    Ok(settings)
}

/// Carries out the verb on this machine.
pub fn run(args: &CheckArgs) -> anyhow::Result<Status> {
    let cases = match settings(&args.set)? {
        none if none.is_empty() => Case::built_in(),
        one => vec![Case { name: one.to_string().replace(", ", " "), settings: one }],
    };
    let stop = stop_on_signals()?;
    let guardian = Guardian::this_program(guardian::VERB)?;
    let guard = KsmGuard::take(&Host::live(), &Places::live(), &guardian, &Settings::default())?;
    if let (Some(pid), false) = (guard.recovered(), args.quiet) {
        eprintln!("bifold: KSM's settings, left changed by process {pid}, were restored first");
    }
    let stopped = || stop.load(Ordering::Relaxed);
    let mut rows = Vec::new();
    let checked = (|| {
        let check = Check::new(&guard, args.passes, &stopped)?;
        for case in &cases {
            if args.processes {
                rows.extend(check.processes(case)?);
                continue;
            }
            let others = check.others(case)?;
            let contents = if args.content.is_empty() { &Synthetic::ALL[..] } else { &args.content };
            for content in contents {
                rows.extend(check.synthetic(*content, args.pages as usize, case, &others)?);
            }
        }
        Ok::<(), CheckError>(())
    })();
    guard.restore()?;
    let text = match args.format {
        ShortFormat::Table => table(&rows, args.tolerance),
        ShortFormat::Json => json(&rows, args.tolerance)?,
    };
    print(&text)?;
    if matches!(checked, Err(CheckError::Stopped)) {
        return Ok(Status::OfCommand(bifold_report::Exit::Interrupted));
    }
    checked.map_err(|e| match e {
        CheckError::Ksm(e) => anyhow::Error::new(e),
        e => e.into(),
    })?;
    let off = rows.iter().filter(|r| r.difference() > args.tolerance).count();
    if !args.quiet {
        let percent = args.tolerance * 100.0;
        eprintln!("bifold: {off} of {} passes are off by more than {percent} %", rows.len());
    }
    Ok(if off == 0 { Status::Done } else { Status::CheckFailed })
}

fn table(rows: &[Row], tolerance: f64) -> String {
    let head = [
        "\ncontent",
        "\nsettings",
        "\npass",
        "pages_shared\npredicted",
        "\ncounted",
        "pages_sharing\npredicted",
        "\ncounted",
        "zero pages\npredicted",
        "\ncounted",
        "off by\n%",
        "ksmd ms\npredicted",
        "\ntaken",
        "\n",
    ];
    let ms = |d: Duration| format!("{:.1}", d.as_secs_f64() * 1e3);
    let lines = rows.iter().map(|r| {
        let mut cells = vec![r.content.clone(), r.case.clone(), r.pass.to_string()];
        cells.extend(r.figures().into_iter().flat_map(|(_, p, c)| [grouped(p), grouped(c)]));
        cells.push(format!("{:.2}", r.difference() * 100.0));
        cells.push(ms(r.predicted_cpu));
        cells.push(r.counted_cpu.map_or("-".into(), ms));
        cells.push(if r.difference() > tolerance { "OFF".into() } else { String::new() });
        cells
    });
    text_table(head.map(String::from).into(), lines.collect())
}

fn json(rows: &[Row], tolerance: f64) -> anyhow::Result<String> {
    let rows: Vec<_> = rows
        .iter()
        .map(|r| {
            let mut row = serde_json::json!({ "content": r.content, "settings": r.case, "pass": r.pass });
            for (name, p, c) in r.figures() {
                row[name] = serde_json::json!({ "predicted": p, "counted": c });
            }
            for (name, p, c) in [
                ("pages_unshared", r.predicted.pages_unshared, r.counted.pages_unshared),
                ("pages_volatile", r.predicted.pages_volatile, r.counted.pages_volatile),
                ("stable_node_chains", r.predicted.stable_node_chains, r.counted.stable_node_chains),
                ("stable_node_dups", r.predicted.stable_node_dups, r.counted.stable_node_dups),
            ] {
                row[name] = serde_json::json!({ "predicted": p, "counted": c });
            }
            row["difference"] = r.difference().into();
            let work = r.work.kinds().into_iter().map(|(n, v)| (n.to_string(), serde_json::Value::from(v)));
            row["work"] = serde_json::Value::Object(work.collect());
            row["cpu_s"] = serde_json::json!({
                "predicted": r.predicted_cpu.as_secs_f64(), "counted": r.counted_cpu.map(|d| d.as_secs_f64()),
            });
            row
        })
        .collect();
    let all = serde_json::json!({ "schema": "bifold.share.check/1", "tolerance": tolerance, "passes": rows });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}
