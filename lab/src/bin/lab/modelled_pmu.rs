// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab modelled-pmu`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bifold_lab::lab::default_series;
use bifold_lab::modelled::{Modelled, PROFILE, Settings, make};
use bifold_mmu::Mode;

/// Largest error of a prediction in percent.
const TOLERANCE: f64 = 3.0;

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of the guest: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Hardware profile: a built-in name or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = PROFILE)]
    profile: String,
    /// Change one value of the profile; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write the modelled PMU to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Further arguments of the program (phases/README.md), such as --hops 1000
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// The counts of a step, for people.
fn table(modelled: &Modelled) -> String {
    let mut text = String::from(
        "modelled PMU, counts of a step\n\
         phase   mode    instructions  guest cycles  host cycles  walk cycles  TLB misses  extra cycles       switch  error\n",
    );
    for (name, mode, errors) in &modelled.errors {
        let phase = &modelled.pmu.phases[name];
        let s = phase.of(*mode);
        let misses = s.tlb_misses_4k + s.tlb_misses_2m + s.tlb_misses_1g;
        text += &format!(
            "{name:<7} {:<7} {:>12.0} {:>13.0} {:>12.0} {:>12.0} {misses:>11.0} {:>13.0} {:>12.0} {:>4.1} %\n",
            mode.name(),
            s.instructions,
            s.guest_cycles,
            s.host_cycles,
            s.walk_cycles,
            s.extra_cycles,
            s.switch_cycles,
            errors.iter().copied().fold(0.0, f64::max)
        );
    }
    for (name, phase) in &modelled.pmu.phases {
        let [cheap, dear] = match phase.nested.extra_cycles < phase.shadow.extra_cycles {
            true => [Mode::Nested, Mode::Shadow],
            false => [Mode::Shadow, Mode::Nested],
        };
        let saved = phase.of(dear).extra_cycles - phase.of(cheap).extra_cycles;
        text += &format!("{name}: {} paging saves {saved:.0} cycles of a step\n", cheap.name());
    }
    text
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let lab = super::lab(processor, Some(&args.kernel))?;
    let settings =
        Settings { profile: args.profile.clone(), set: args.set.clone(), arguments: args.arguments.clone() };
    let modelled = make(&lab, &settings, &super::say)?;
    let text = modelled.pmu.to_toml().context("the counts")?;
    eprint!("{}", table(&modelled));
    super::deliver(args.output.as_deref(), &text)?;
    let far = modelled.errors.iter().filter(|(.., e)| e.iter().any(|e| *e > TOLERANCE)).count();
    if far > 0 {
        eprintln!("lab: {far} predictions are off by more than {TOLERANCE} %");
        return Ok(ExitCode::from(3));
    }
    Ok(ExitCode::SUCCESS)
}
