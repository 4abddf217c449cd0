// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests short storms of switches with the modules of `kernel/build`. `lab storm` runs long storms.

use anyhow::{Result, ensure};
use bifold_mmu::Mode;

use super::Shared;
use crate::storm::drive::{Machine, drive};
use crate::storm::{Noise, Pages, Storm};
use crate::vendor::Emulator;

const SWITCHES: u64 = 100;

fn storm() -> Storm {
    Storm {
        vcpus: 4,
        memory_mib: 256,
        load: "memory,protect".into(),
        seed: 1,
        kpti: false,
        pages: Pages::Small,
        noise: Vec::new(),
        switches: SWITCHES,
        stay_us: 10_000,
        seconds: 120,
        migrations: 0,
    }
}

fn check(shared: &Shared, storm: &Storm, first: Mode) -> Result<()> {
    let lab = shared.lab.switching()?;
    let machine = Machine { more_seconds: 300, first, ..Machine::default() };
    // Bochs executes all CPUs in one thread.
    let outcome = match lab.vendor().emulator {
        Emulator::Qemu { .. } => drive(&lab, storm, machine),
        Emulator::Bochs { .. } => {
            drive(&lab, &Storm { vcpus: 2, ..storm.clone() }, Machine { cpus: 2, ..machine })
        }
    }?;
    ensure!(outcome.wrong.is_empty(), "{}", outcome.wrong.join("; "));
    Ok(())
}

/// Plain memory, and translations that must be flushed at once.
pub fn plain(shared: &Shared) -> Result<()> {
    check(shared, &storm(), Mode::Nested)
}

/// Processes and huge pages, with KPTI, while the host's huge pages are split and dirty logs are turned on
/// and off.
pub fn noisy(shared: &Shared) -> Result<()> {
    let noise = vec![Noise::Dirty, Noise::Split];
    let load = "fork,huge,tables".into();
    check(shared, &Storm { load, kpti: true, pages: Pages::Huge, noise, seed: 2, ..storm() }, Mode::Nested)
}

/// Two migrations to another QEMU during switches.
pub fn migrated(shared: &Shared) -> Result<()> {
    let load = "memory,protect,fork".into();
    check(shared, &Storm { load, migrations: 2, stay_us: 80_000, seed: 3, ..storm() }, Mode::Nested)
}

/// A guest with protection keys that is born in shadow paging.
pub fn keys(shared: &Shared) -> Result<()> {
    shared.lab.needs_qemu("Bochs's model of CPU has no protection keys")?;
    check(shared, &Storm { load: "keys,memory,fork".into(), seed: 4, ..storm() }, Mode::Shadow)
}
