// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine monitor of a few hundred lines, for tests that control every vCPU.
//!
//! `tiny-vmm count` runs hand-made guests ([`guests`]) under the KVM of the machine it
//! is on and holds each phase's exits against the model's prediction. Standard output has one
//! line of JSON per fact. Exit status: 0 all agree, 1 an error (text on stderr), 3 a fact
//! that does not agree, 77 KVM or something it needs is not there.

mod asm;
mod count;
mod guest;
mod guests;
mod kcore;
mod memory;
mod poke;
mod predict;
mod refs;
mod tables;
mod trace;
mod vm;
mod walks;

use anyhow::Result;
use bifold_model::Config;
use clap::{Parser, Subcommand};
use memory::Backing;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about, version, after_help = "Guests:\n".to_owned() + &guests::help())]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run guests and count exits by phase, beside what the model says.
    Count {
        /// Guests (all, if none is named).
        #[arg(value_parser = guests::names())]
        guests: Vec<String>,
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m")]
        backing: Vec<Backing>,
        /// Profile values for the model, as `bifold compare` takes them.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// The same with guests made up at random, each until model and KVM differ.
    Random {
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many guests.
        #[arg(long, default_value_t = 20)]
        guests: u64,
        /// Megabytes of memory; under 16, shadow pages become scarce.
        #[arg(long, default_value_t = guests::MEMORY >> 20)]
        memory: u64,
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m")]
        backing: Vec<Backing>,
        /// Profile values for the model, as `bifold compare` takes them.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Compare the entries that one access reads, by their A and D bits, with the walker's.
    /// Asks for words to be poked: `{"poke":[[PA,VALUE],...]}`, then waits for `poked`.
    Walks {
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m")]
        backing: Vec<Backing>,
    },
    /// What the model says, without KVM.
    Predict {
        /// Guests (all, if none is named).
        #[arg(value_parser = guests::names())]
        guests: Vec<String>,
    },
}

#[derive(Debug, Serialize)]
struct Prediction {
    fact: &'static str,
    guest: &'static str,
    phase: String,
    config: String,
    predicted: predict::Counts,
}

fn tell(fact: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, fact)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn run(args: Args) -> Result<bool> {
    match args.verb {
        Verb::Count { guests, backing, set } => {
            let trace = trace::Trace::new()?;
            let mut all = true;
            for guest in guests::named(&guests) {
                for &b in &backing {
                    all &= count::count(&guest, b, &set, false, &trace, tell)?;
                }
            }
            Ok(all)
        }
        Verb::Random { seed, guests, memory, backing, set } => {
            let trace = trace::Trace::new()?;
            let mut all = true;
            for seed in seed..seed + guests {
                let guest = guests::random(seed, memory << 20);
                for &b in &backing {
                    all &= count::count(&guest, b, &set, true, &trace, tell)?;
                }
            }
            Ok(all)
        }
        Verb::Walks { backing } => {
            let trace = trace::Trace::new()?;
            walks::probe_roots(&trace)?;
            let mut all = true;
            for b in backing {
                all &= walks::check(b, &trace, tell)?;
            }
            Ok(all)
        }
        Verb::Predict { guests } => {
            for guest in guests::named(&guests) {
                for config in Config::ALL.into_iter().skip(1) {
                    for (phase, predicted) in guest.phases.iter().zip(predict::predict(&guest, config, &[])?)
                    {
                        let (guest, phase) = (guest.name, phase.name.clone());
                        tell(&Prediction {
                            fact: "prediction",
                            guest,
                            phase,
                            config: config.name(),
                            predicted,
                        })?;
                    }
                }
            }
            Ok(true)
        }
    }
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(e) => {
            eprintln!("tiny-vmm: {e:#}");
            ExitCode::from(if e.downcast_ref::<vm::Unavailable>().is_some() { 77 } else { 1 })
        }
    }
}
