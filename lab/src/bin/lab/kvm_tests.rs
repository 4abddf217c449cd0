// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab kvm-tests`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, bail, ensure};
use bifold_lab::kvm_tests::drive::{Defaults, Settings, drive};
use bifold_lab::kvm_tests::{KVMS, KvmTest, document, known, selftests, unit_tests};
use bifold_lab::lab::{Lab, default_series};

#[derive(clap::Args)]
pub struct Args {
    /// Tests to run (default: all that their suites run by default)
    #[arg(value_name = "TEST")]
    names: Vec<String>,
    /// A checkout of kvm-unit-tests in which ./configure and make were run
    #[arg(long, value_name = "DIR")]
    unit_tests: Option<PathBuf>,
    /// The kernel's KVM selftests (default: target/selftests/RELEASE, if kernel/selftests has built them)
    #[arg(long, value_name = "DIR")]
    selftests: Option<PathBuf>,
    /// Kernel of the laboratory: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Directory with our KVM's modules (default: the modules of `make kernel`)
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// KVMs to run the tests under (default: all)
    #[arg(long = "under", value_name = "KVM", value_parser = KVMS.each_ref().map(|k| k.name))]
    under: Vec<String>,
    /// Time limit of a test, in seconds of the laboratory's time (default: 10 under QEMU, 40 under Bochs)
    #[arg(long)]
    seconds: Option<u64>,
    /// Time between two switches of a VM, in milliseconds of the laboratory's time (default: 20 under QEMU,
    /// 100 under Bochs)
    #[arg(long)]
    switch_every: Option<u64>,
    /// How often a result that is worse than under the kernel's own KVM is tried again
    #[arg(long, default_value_t = 3)]
    again: u64,
    /// Memory of the laboratory in MiB (default: 3072 under QEMU, 2048 under Bochs)
    #[arg(long)]
    memory: Option<u64>,
    /// Number of boots that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Write the tests' outputs to files in this directory
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Write the page to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The checkout's commit.
fn revision(checkout: &Path) -> String {
    let git = Command::new("git").arg("-C").arg(checkout).args(["log", "-1", "--format=%H of %cs"]).output();
    match git {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        _ => "unknown (no git checkout)".into(),
    }
}

fn tests(args: &Args, lab: &Lab) -> Result<(Vec<KvmTest>, Vec<String>)> {
    let (mut all, mut about) = (Vec::new(), Vec::new());
    if let Some(dir) = &args.unit_tests {
        all.extend(unit_tests::list(dir)?);
        about.push(format!("kvm-unit-tests: commit {}", revision(dir)));
    }
    if let Some(dir) = args.selftests.clone().or_else(|| lab.built_selftests()) {
        all.extend(selftests::list(&dir)?);
        let built = std::fs::read_to_string(dir.join("build.txt")).unwrap_or_default();
        about.push(format!("selftests: {}", built.trim().trim_start_matches("package: ")));
    }
    if all.is_empty() {
        bail!("no tests: run kernel/selftests, or name a checkout of kvm-unit-tests with --unit-tests");
    }
    for name in &args.names {
        ensure!(all.iter().any(|t| t.name == *name), "no test is called {name}");
    }
    if !args.names.is_empty() {
        all.retain(|t| args.names.contains(&t.name));
        // Who names a test wants it run, also one that its suite leaves out by default.
        let by_default = |t: &&mut KvmTest| t.not_here.as_deref() == Some("not run by default");
        all.iter_mut().filter(by_default).for_each(|t| t.not_here = None);
    }
    Ok((all, about))
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let ours = super::switch::lab(processor, &args.kernel, None, args.modules.as_ref(), false)?;
    let plain = super::lab(processor, Some(&args.kernel))?;
    super::introduce(&ours);
    let (tests, about) = tests(args, &ours)?;
    let known = known::all().map_err(anyhow::Error::msg)?;
    let usual = Defaults::of(&ours);
    let settings = Settings {
        kvms: KVMS
            .iter()
            .filter(|k| args.under.is_empty() || args.under.iter().any(|u| u == k.name))
            .collect(),
        seconds: args.seconds.unwrap_or(usual.seconds),
        switch_every_ms: args.switch_every.unwrap_or(usual.switch_every_ms),
        jobs: args.jobs,
        memory_mib: args.memory.unwrap_or(usual.memory_mib),
        logs: args.logs.clone(),
    };
    let results = drive((&plain, &ours), &tests, &settings, &super::say)?;
    let here = (ours.vendor(), &ours.kernel().version[..]);
    let mut worse = document::all_worse(&tests, &settings.kvms, &results, &known, here);
    let say = |what: &str| eprintln!("lab: again: {what}");
    document::again(&mut worse, (&ours, &results), &tests, (&settings, args.again), &say)?;
    let page = document::page(&ours, &tests, &settings, &results, &worse, &about);
    super::deliver(args.output.as_deref(), &page)?;
    let unknown = worse.iter().filter(|w| w.unexplained()).count();
    eprintln!(
        "lab: {} results are worse than under the kernel's own KVM, {unknown} without a known reason",
        worse.len()
    );
    Ok(if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::from(3) })
}
