// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs tests in the KVM laboratory, and holds the model against the real KVM there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};
use bifold_capture::{CaptureError, Kind, Progress};
use bifold_vmtest::lab::{Lab, LabError};
use bifold_vmtest::tests;
use bifold_vmtest::validate::count::{self, Run};
use bifold_vmtest::validate::{CONFIGS, Workload, predict, table};
use clap::{Parser, Subcommand};

/// Runs tests in a laboratory: a kernel with KVM inside an emulated machine.
///
/// Exit status: 0 all well, 1 failed, 2 usage, 3 the comparison found rows beyond its
/// tolerances, 77 this machine cannot (no QEMU, no kernel package with kvm-amd).
#[derive(Parser)]
#[command(name = "vmtest")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Predicts the exits of a guest's programs and counts them under the real KVM
    Validate(Validate),
    /// Runs quick tests: a line each, `ok NAME (seconds)` or `FAILED NAME: why`
    Test(Test),
}

#[derive(clap::Args)]
struct Test {
    /// Tests (all if none is named)
    #[arg(value_name = "NAME", value_parser = tests::ALL.each_ref().map(|t| t.name))]
    names: Vec<String>,
    /// Kernel of laboratory and guests: a series whose newest package is taken, or a package
    /// (6.1, or 6.12 where apt has no 6.1)
    #[arg(long)]
    kernel: Option<String>,
    /// Boots at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Say what tests there are
    #[arg(long)]
    list: bool,
}

#[derive(clap::Args)]
struct Validate {
    /// Kernel of laboratory and guests: a series whose newest package is taken, or a package
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Programs (all of them and a gcc run if none is named)
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// Configurations
    #[arg(long = "config", value_name = "NAME", value_parser = CONFIGS)]
    configs: Vec<String>,
    /// Guests with kernel page-table isolation
    #[arg(long, value_parser = ["on", "off", "both"], default_value = "both")]
    kpti: String,
    /// Runs under KVM per configuration
    #[arg(short = 'n', long, default_value_t = 3)]
    runs: u64,
    /// Guest memory in MiB
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// Boots at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where to keep what was counted under KVM; used again if it is there already
    #[arg(long, value_name = "FILE")]
    counted: Option<PathBuf>,
    /// Markdown file for the table
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What was counted in one run.
type Counted = BTreeMap<u64, bifold_vmtest::exits::Window>;

fn validate(args: &Validate) -> Result<ExitCode> {
    let lab = lab(Some(&args.kernel))?;
    let workload = Workload::new(&args.programs, args.memory)?;
    let configs: Vec<&'static str> = CONFIGS
        .into_iter()
        .filter(|c| args.configs.is_empty() || args.configs.iter().any(|a| a == c))
        .collect();
    let kpti: &[bool] = match args.kpti.as_str() {
        "on" => &[true],
        "off" => &[false],
        _ => &[false, true],
    };
    let name =
        |config: &str, kpti: bool, run: u64| format!("{config}{} run {run}", if kpti { " kpti" } else { "" });
    let mut counted: BTreeMap<String, Counted> = match &args.counted {
        Some(path) if path.exists() => {
            serde_json::from_slice(&std::fs::read(path)?).with_context(|| path.display().to_string())?
        }
        _ => BTreeMap::new(),
    };
    let mut todo = Vec::new();
    for &kpti in kpti {
        for &config in &configs {
            for number in 0..args.runs {
                if !counted.contains_key(&name(config, kpti, number)) {
                    todo.push(Run { config, kpti, number });
                }
            }
        }
    }
    todo.reverse();
    let predictions = Mutex::new(kpti.to_vec());
    let (queue, results) = (Mutex::new(todo), Mutex::new(Vec::new()));
    let predicted = Mutex::new(BTreeMap::new());
    let worker = || -> Result<()> {
        loop {
            let next = predictions.lock().ok().and_then(|mut q| q.pop());
            if let Some(kpti) = next {
                let begun = std::time::Instant::now();
                let p = predict::predict(&lab, &workload, &configs, kpti)?;
                eprintln!("vmtest: predicted{} in {:.0?}", if kpti { " kpti" } else { "" }, begun.elapsed());
                predicted.lock().map_err(|_| anyhow!("a worker died"))?.insert(kpti, p);
                continue;
            }
            let Some(run) = queue.lock().ok().and_then(|mut q| q.pop()) else { return Ok(()) };
            let begun = std::time::Instant::now();
            let name = name(run.config, run.kpti, run.number);
            let windows = count::count(&lab, &workload, run, false).with_context(|| name.clone())?;
            eprintln!("vmtest: counted {name} in {:.0?}", begun.elapsed());
            results.lock().map_err(|_| anyhow!("a worker died"))?.push((name, windows));
        }
    };
    std::thread::scope(|s| -> Result<()> {
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| s.spawn(worker)).collect();
        for w in workers {
            w.join().map_err(|_| anyhow!("a worker died"))??;
        }
        Ok(())
    })?;
    counted.extend(results.into_inner().map_err(|_| anyhow!("a worker died"))?);
    if let Some(path) = &args.counted {
        write(path, &serde_json::to_vec(&counted)?)?;
    }
    let predicted = predicted.into_inner().map_err(|_| anyhow!("a worker died"))?;
    let mut rows = Vec::new();
    for &kpti in kpti {
        for &config in &configs {
            let p = predicted[&kpti][config].iter().map(|(w, s)| (*w, predict::reasons(s))).collect();
            let runs: Vec<_> = (0..args.runs)
                .filter_map(|n| counted.get(&name(config, kpti, n)))
                .map(|c| c.iter().map(|(w, x)| (*w, count::reasons(x))).collect())
                .collect();
            rows.extend(table::rows(&workload.programs, kpti, config, &p, &runs));
        }
    }
    let text = table::markdown(&rows);
    match &args.output {
        Some(path) => write(path, text.as_bytes())?,
        None => print!("{text}"),
    }
    let tally = table::tally(&rows);
    eprintln!("vmtest: {} rows: {tally:?}", rows.len());
    let far = tally.contains_key(&table::Verdict::Far);
    Ok(if far { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

fn lab(kernel: Option<&str>) -> Result<Lab, LabError> {
    let mut progress = |p: Progress| {
        if let Progress::Stage(what) = p {
            eprintln!("vmtest: {what}");
        }
    };
    match kernel {
        Some(kernel) => Lab::new(kernel, &mut progress),
        None => Lab::any(&mut progress),
    }
}

fn test(args: &Test) -> Result<ExitCode> {
    let chosen = tests::named(&args.names)?;
    if args.list {
        for t in chosen {
            println!("{:<18} {}", t.name, t.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let lab = lab(args.kernel.as_deref())?;
    eprintln!("vmtest: Linux {} under QEMU {}", lab.kernel().version, lab.qemu_version());
    let mut failed = 0;
    tests::run(&lab, &chosen, args.jobs, &|what| eprintln!("vmtest: {what}"), &mut |o| match o.end {
        Ok(()) => println!("ok {} ({:.1})", o.test.name, o.seconds),
        Err(e) => {
            failed += 1;
            println!("FAILED {}: {}", o.test.name, format!("{e:#}").replace('\n', " | "));
        }
    })?;
    eprintln!("vmtest: {} of {} tests passed", chosen.len() - failed, chosen.len());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(path: &std::path::Path, data: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, data)
        .and_then(|()| std::fs::rename(&new, path))
        .with_context(|| path.display().to_string())
}

fn main() -> ExitCode {
    let end = match Cli::parse().verb {
        Verb::Validate(args) => validate(&args),
        Verb::Test(args) => test(&args),
    };
    end.unwrap_or_else(|e| {
        eprintln!("vmtest: error: {e:#}");
        let lab = e.downcast_ref::<LabError>().map(LabError::kind);
        let capture = e.downcast_ref::<CaptureError>().map(CaptureError::kind);
        match lab.or(capture) {
            Some(Kind::CannotWorkHere) => ExitCode::from(77),
            _ => ExitCode::FAILURE,
        }
    })
}
