// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small virtual machine monitor for tests that control every vCPU. It runs hand-made guests under the
//! laboratory's KVM and compares KVM's exits with the model's.
//!
//! A guest needs no separate prediction: `guest::Guest` writes machine code and the code's events for the
//! model in the same call. The crate boots no Linux and emulates no devices. [`main`] is the program;
//! [`vendor`] has the differences between processor vendors.
//!
//! | verb | does | line of output |
//! |---|---|---|
//! | `count [GUEST]...` | counts the exits of each phase by reason and error code, beside the model's | `count::PhaseFact` |
//! | `random` | counts the exits of random guests, each until KVM and model differ | `count::PhaseFact` |
//! | `walks` | compares the entries that one access reads, by their A and D bits, with the walker's | `walks::WalkFact` |
//! | `nodes` | compares the nodes of tables and data with the model's, placement by placement | `nodes::NodesFact` |
//! | `switch [CASE]...` | switches paging modes on a KVM with a mode per VM, and checks the guest | `switch::SwitchFact` |
//! | `fuzz` | random calls, guest code and switches, from several threads | `fuzz::FuzzFact`, `fuzz::Finding` |
//! | `predict [GUEST]...` | prints the model's counts alone; needs no KVM | `Prediction` |
//!
//! Standard output has one line of JSON per fact (`"fact"` names its kind). Errors are text on standard
//! error. Exit status: 0 all facts agree, 3 some do not, 1 an error, 77 the machine lacks KVM, its trace, a
//! kind of memory or a privilege. The KVM module's parameter chooses nested or shadow paging; `--backing`
//! chooses the host's pages behind guest memory.
//!
//! `nodes` needs two nodes with CPUs, and `kernel.numa_balancing` 0, because a page that moves is another's.
//!
//! `walks` changes words of the host's memory, which works only in the laboratory (`poke.rs`).
//!
//! The program needs root, debugfs at /sys/kernel/debug and tracefs at /sys/kernel/tracing; for 2 MB pages
//! /proc/sys/vm/nr_hugepages of at least 48; and for `walks` and `nodes` /proc/kcore and kprobes. For shadow
//! paging QEMU 9.1 and later need a KVM that keeps CR0 reads intercepted; otherwise a guest's MOV from CR3
//! reads the shadow root. The guest `cr3-read` detects that.
//!
//! ```
//! use bifold_tiny_vmm::vendor::{AMD, ExitCause, RawExit};
//!
//! let raw = RawExit { exit_reason: 0x400, info1: 6, info2: 0x5000, ..RawExit::default() };
//! let exit = (AMD.decode)(&raw).expect("a nested page fault concerns paging");
//! assert_eq!((exit.cause, exit.error, exit.address), (ExitCause::NestedFault, 6, 0x5000));
//! ```

mod asm;
mod count;
mod fuzz;
mod guest;
mod guests;
mod kcore;
mod known;
mod memory;
mod nodes;
mod numa;
mod poke;
mod predict;
mod refs;
pub mod switch;
mod tables;
mod trace;
pub mod vendor;
mod vm;
mod walks;

pub use nodes::{Counts, NodesFact};

use anyhow::Result;
use bifold_model::Config;
use clap::{Parser, Subcommand};
use memory::HostPages;
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
    /// Run guests and compare the exits of each phase with the model's.
    Count {
        /// Guests (all, if none is named).
        #[arg(value_parser = guests::names())]
        guests: Vec<String>,
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m,2m-shared")]
        backing: Vec<HostPages>,
        /// Profile values for the model, as `bifold compare` takes them.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Run random guests and compare their exits with the model's, each until the two differ.
    Random {
        /// Seed of the first guest.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Number of guests.
        #[arg(long, default_value_t = 20)]
        guests: u64,
        /// Guest memory in MB; below 16, shadow pages become scarce.
        #[arg(long, default_value_t = guests::MEMORY >> 20)]
        memory: u64,
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m-shared")]
        backing: Vec<HostPages>,
        /// Profile values for the model, as `bifold compare` takes them.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Compare the entries that one access reads, by their A and D bits, with the walker's. The program
    /// prints `{"poke":[[PA,VALUE],...]}` to have words of physical memory written, and waits for `poked`.
    Walks {
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m")]
        backing: Vec<HostPages>,
    },
    /// Compare the nodes on which tables and data lie with the model's, in each placement.
    Nodes {
        /// What backs guest memory.
        #[arg(long, value_delimiter = ',', default_value = "4k,2m")]
        backing: Vec<HostPages>,
    },
    /// Switch paging modes of running guests. Needs a KVM that can switch (`make kernel`).
    Switch {
        /// Cases (default: all except those that take minutes).
        #[arg(value_parser = switch::names())]
        cases: Vec<String>,
        /// List the cases and exit.
        #[arg(long)]
        list: bool,
    },
    /// Random calls, guest code and switches. Needs a KVM that can switch (`make kernel`).
    Fuzz(fuzz::Args),
    /// The process of a concurrent round of `fuzz`.
    #[command(hide = true)]
    FuzzRound {
        seed: u64,
        millis: u64,
        limit: u64,
        #[arg(long)]
        close: bool,
    },
    /// The VM that a case of `switch` kills.
    #[command(hide = true)]
    SwitchVictim {
        /// 4 KB pages of the guest's data.
        #[arg(default_value_t = 1024)]
        pages: u64,
    },
    /// The VM of a case of `switch` whose cgroup has little room.
    #[command(hide = true)]
    SwitchLimited,
    /// Another user's attempt, for a case of `switch`.
    #[command(hide = true)]
    SwitchAs { user: u32, file: std::path::PathBuf },
    /// Print the model's counts, without KVM.
    Predict {
        /// Guests (all, if none is named).
        #[arg(value_parser = guests::names())]
        guests: Vec<String>,
        /// Configurations, as `bifold compare` takes them (those with exits that it shows by itself, if none
        /// is named).
        #[arg(long, value_delimiter = ',', value_parser = config)]
        configs: Vec<Config>,
        /// Profile values for the model, as `bifold compare` takes them.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
}

fn config(name: &str) -> Result<Config, String> {
    Config::from_name(name).ok_or_else(|| format!("no configuration is called {name}"))
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
            backing.into_iter().try_fold(true, |all, b| Ok(walks::check(b, &trace, tell)? && all))
        }
        Verb::Nodes { backing } => {
            let trace = trace::Trace::new()?;
            walks::probe_roots(&trace)?;
            backing.into_iter().try_fold(true, |all, b| Ok(nodes::check(b, &trace, tell)? && all))
        }
        Verb::Switch { cases, list } => {
            if list {
                for c in switch::ALL {
                    let long = if c.runs == switch::Runs::Named { " (minutes)" } else { "" };
                    writeln!(std::io::stdout(), "{:<14} {}{long}", c.name, c.about)?;
                }
                return Ok(true);
            }
            switch::run(&cases, tell)
        }
        Verb::Fuzz(args) => fuzz::run(&args, tell),
        Verb::FuzzRound { seed, millis, limit, close } => {
            fuzz::child(seed, millis, close, limit).map(|()| true)
        }
        Verb::SwitchVictim { pages } => switch::victim(pages).map(|()| true),
        Verb::SwitchLimited => switch::limited_vm().map(|()| true),
        Verb::SwitchAs { user, file } => switch::as_other_user(user, &file).map(|()| true),
        Verb::Predict { guests, configs, set } => print_predictions(&guests, configs, &set).map(|()| true),
    }
}

/// The program `tiny-vmm`, which is built with the laboratory (`lab/src/bin/tiny-vmm.rs`).
pub fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(e) => {
            eprintln!("tiny-vmm: {e:#}");
            ExitCode::from(if e.downcast_ref::<vm::Unavailable>().is_some() { 77 } else { 1 })
        }
    }
}

fn print_predictions(guests: &[String], configs: Vec<Config>, set: &[String]) -> Result<()> {
    let configs = if configs.is_empty() { Config::ALL[1..].to_vec() } else { configs };
    for guest in guests::named(guests) {
        for &config in &configs {
            for (phase, predicted) in guest.phases.iter().zip(predict::predict(&guest, config, set)?) {
                let (guest, phase) = (guest.name, phase.name.clone());
                tell(&Prediction { fact: "prediction", guest, phase, config: config.name(), predicted })?;
            }
        }
    }
    Ok(())
}
