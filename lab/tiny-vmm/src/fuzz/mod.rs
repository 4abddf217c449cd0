// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fuzzes KVM's interface, on a KVM with a paging mode per VM (`kernel/`).
//!
//! A run has rounds of two kinds. In a *deterministic* round ([`deterministic`]) the same sequence of calls
//! and of guest code is played on a VM that stays in nested paging and on one that is switched at random;
//! both have to behave alike. In a *concurrent* round ([`concurrent`]) several threads make random calls on
//! one VM while others switch it; nothing may hang, and the kernel may log no warning. Each round has a seed
//! of its own: `tiny-vmm fuzz --seed SEED --rounds 1` repeats it.

mod calls;
mod chaos;
mod concurrent;
mod deterministic;
mod gen_ops;
mod kvm;
mod layout;
mod messages;
mod ops;
mod play;
mod registers;
mod side;
mod state;
mod steps;
mod tally;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

pub use chaos::child;
use deterministic::{Bench, Difference};
use gen_ops::Offered;
use messages::Messages;
use tally::Tally;

use crate::guests::Rng;
use crate::vm::Unavailable;

/// Arguments of `tiny-vmm fuzz`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Seed of the first round; each further round's seed comes from the one before.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Time after which no further round begins.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Largest number of rounds.
    #[arg(long)]
    pub rounds: Option<u64>,
    /// Rounds of this kind only.
    #[arg(long, value_parser = ["deterministic", "concurrent"])]
    pub kind: Option<String>,
    /// Compare with a VM that stays in shadow paging, which tells errors of shadow paging from errors of
    /// switches.
    #[arg(long)]
    pub still: bool,
    /// Seconds in which the threads of a concurrent round have to stop.
    #[arg(long, default_value_t = 30)]
    pub limit: u64,
    /// End after this number of findings.
    #[arg(long, default_value_t = 10)]
    pub differences: u64,
}

/// The last line of output.
#[derive(Debug, Serialize)]
struct FuzzFact {
    fact: &'static str,
    kernel: String,
    vendor: &'static str,
    seed: u64,
    seconds: f64,
    agree: bool,
    differences: u64,
    #[serde(flatten)]
    tally: Tally,
}

/// A line of output for each finding.
#[derive(Debug, Serialize)]
struct Finding {
    fact: &'static str,
    #[serde(flatten)]
    difference: Difference,
}

/// A line of output for each message of the kernel.
#[derive(Debug, Serialize)]
struct Message {
    fact: &'static str,
    /// Seed of the round in which it came.
    seed: u64,
    /// The record of `/dev/kmsg`.
    record: String,
}

/// Runs rounds, and prints findings and counts. True if nothing was wrong.
pub fn run(args: &Args, mut tell: impl FnMut(&serde_json::Value) -> Result<()>) -> Result<bool> {
    watch::handle_signal()?;
    let kvm = kvm::Kvm::new()?;
    let vendor = crate::vm::vendor()?;
    let keys = kvm.leaf(7, 0).is_some_and(|l| l[2] & 1 << 3 != 0);
    let offered = Offered { amd: vendor.option == "amd", keys };
    {
        let vm = kvm.create_vm()?;
        let file = vm.debugfs.join("paging_mode");
        if !file.exists() {
            return Err(Unavailable(format!("{}: this KVM has no paging mode per VM", file.display())).into());
        }
    }
    // A round that is repeated shows all its steps.
    let kept = if args.rounds == Some(1) { 1000 } else { deterministic::KEPT };
    // Single steps with the stack in a device's memory are emulated one by one, which takes a debug kernel
    // more than 5 s.
    let limit = Duration::from_secs(if crate::vm::has_checks()? { 30 } else { 5 });
    let bench = Bench { kvm, offered, watchdog: watch::Watchdog::new(limit), kept, still: args.still };
    let begun = Instant::now();
    let mut told = Instant::now();
    let mut tally = Tally::default();
    let mut differences = 0;
    let mut seed = args.seed;
    let mut messages = Messages::new()?;
    let mut rounds = 0;
    while args.rounds.is_none_or(|n| rounds < n)
        && begun.elapsed() < Duration::from_secs(args.seconds)
        && differences < args.differences
    {
        // The kind is a part of what the seed says.
        let deterministic = match args.kind.as_deref() {
            Some(kind) => kind == "deterministic",
            None => Rng(seed ^ 0x6b69_6e64).below(10) < 7,
        };
        Messages::mark(seed, if deterministic { "deterministic" } else { "concurrent" });
        let difference = if deterministic {
            deterministic::round(&bench, seed, &mut tally)
        } else {
            concurrent::round(seed, args.limit, &mut tally)
        };
        let difference = difference.with_context(|| format!("seed {seed}"))?;
        let records = messages.drain()?;
        if let Some(mut difference) = difference {
            differences += 1;
            difference.log.clone_from(&records);
            tell(&serde_json::to_value(Finding { fact: "fuzz-difference", difference })?)?;
        }
        for record in records {
            tell(&serde_json::to_value(Message { fact: "fuzz-message", seed, record })?)?;
        }
        rounds += 1;
        seed = Rng(seed).next();
        if told.elapsed() > Duration::from_secs(20) {
            told = Instant::now();
            eprintln!(
                "tiny-vmm: {} s: {rounds} rounds, {} calls, {} switches, {differences} findings",
                begun.elapsed().as_secs(),
                tally.all_calls(),
                tally.switched()
            );
        }
    }
    tell(&serde_json::to_value(FuzzFact {
        fact: "fuzz",
        kernel: crate::vm::host_kernel()?,
        vendor: vendor.option,
        seed: args.seed,
        seconds: begun.elapsed().as_secs_f64(),
        agree: differences == 0,
        differences,
        tally,
    })?)?;
    Ok(differences == 0)
}
