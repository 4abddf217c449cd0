// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of cost: the faults that a switch causes, and the kernel's work for it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bifold_host::Host;
use bifold_model::Profile;

use super::Notes;
use super::machine::{DATA, Machine, MachineSpec, SPARSE};
use crate::vm::Unavailable;

/// The experiment's memory: 512 MB of 4 KB pages.
const PAGES: u64 = (512 << 20) >> 12;
/// The experiment's processor.
const HZ: f64 = 2.8e9;

/// Cost of two mode changes per second by the model's costs, in 1/1000 of a percent. Counts come from the
/// laboratory; its times say nothing about a processor's.
fn overhead(faults: u64, pages: u64) -> Result<u64> {
    let exit = Profile::load("i5-7600", &[])?.exit;
    let per_page = exit.make_page.cycles + exit.zap_page.cycles;
    let cycles = faults * exit.hidden_fault.cycles + pages * per_page + 2 * exit.switch.cycles;
    Ok((cycles as f64 / HZ * 100_000.0).round() as u64)
}

pub fn hidden_faults(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { pages: PAGES, ..MachineSpec::default() })?;
    m.fill(0, DATA, 4096, PAGES, 1)?;
    m.switch("shadow")?;
    let before = m.faults()?;
    m.fill(0, DATA, 4096, PAGES, 2)?;
    n.number("faults_first_stay", m.faults()? - before);
    m.switch("nested")?;
    m.fill(0, DATA, 4096, PAGES, 3)?;
    m.switch("shadow")?;
    let before = m.faults()?;
    m.fill(0, DATA, 4096, PAGES, 4)?;
    let hidden = m.faults()? - before;
    let tables = PAGES / 512 + 3;
    let limit = (PAGES / 8 + tables) * 11 / 10;
    n.number("hidden_faults", hidden);
    n.number("limit", limit);
    let pages = m.stats()?["shadow_pages"];
    n.number("shadow_pages", pages);
    n.number("once_a_second_thousandths_of_a_percent", overhead(hidden, pages)?);
    n.expect(hidden <= limit, || format!("{hidden} hidden faults, at most {limit} expected"));
    n.same("pages wrong", m.wrong(0, DATA, 4096, PAGES, 4)?, 0);
    Ok(())
}

pub fn once_a_second(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { pages: PAGES, ..MachineSpec::default() })?;
    m.fill(0, DATA, 4096, PAGES, 0)?;
    let mut violations = 0;
    let rounds = 5;
    for round in 0..rounds {
        m.switch("shadow")?;
        m.fill(0, DATA, 4096, PAGES / 8, round)?;
        m.switch("nested")?;
        let (before, until) = (m.faults()?, Instant::now() + Duration::from_secs(1));
        while Instant::now() < until {
            m.fill(0, DATA, 4096, PAGES, round)?;
        }
        violations += m.faults()? - before;
    }
    n.number("round_trips", rounds);
    n.same("violations", violations, 0);
    n.number("once_a_second_thousandths_of_a_percent", overhead(violations, 0)?);
    Ok(())
}

pub fn cost(n: &mut Notes) -> Result<()> {
    const SPARSE_TABLES: [u64; 3] = [1000, 2000, 4000];
    /// What the machine needs beside its guest's memory: tables of both kinds.
    const BESIDE_MIB: u64 = 512;
    let available = Host::live().memory()?.available.context("no MemAvailable in /proc/meminfo")? >> 20;
    let sizes = [256, 1024, 4096, 16384].into_iter().filter(|mib| mib + BESIDE_MIB <= available);
    let sizes: Vec<u64> = sizes.collect();
    n.number("sizes", sizes.len() as u64);
    ensure!(
        sizes.len() > 1,
        Unavailable(format!("{available} MiB of memory are too few: one size compares with nothing"))
    );
    // Of the guest, at a switch back. Its time depends neither on the memory nor on the shadow pages.
    let mut standstill = Vec::new();
    for mib in sizes {
        let pages = (mib << 20 >> 12) - (32 << 20 >> 12);
        let large = mib > 4096;
        let m =
            Machine::new(MachineSpec { pages, large, sparse: SPARSE_TABLES[2], ..MachineSpec::default() })?;
        // All of the guest's memory is mapped in the nested tables.
        m.fill(0, DATA, 4096, pages, 0)?;
        n.number(format!("{mib}_mib_nested_tables"), m.stats()?["tables_kept"]);
        for sparse in SPARSE_TABLES {
            // To shadow, back to nested, and the dropping behind.
            let mut best = [u64::MAX; 3];
            let mut dropped = 0;
            for round in 0..3 {
                m.switch("shadow")?;
                best[0] = best[0].min(m.stats()?["switch_ns_last"]);
                m.fill(0, SPARSE, 2 << 20, sparse, round)?;
                m.switch("nested")?;
                let s = m.stats()?;
                best[1] = best[1].min(s["switch_ns_last"]);
                best[2] = best[2].min(s["drop_ns_last"]);
                dropped = s["shadow_pages_dropped"];
            }
            let name = format!("{mib}_mib_{sparse}_tables");
            n.number(format!("{name}_to_shadow_ns"), best[0]);
            n.number(format!("{name}_to_nested_ns"), best[1]);
            n.number(format!("{name}_shadow_pages"), dropped);
            n.number(format!("{name}_drop_ns"), best[2]);
            n.number(format!("{name}_drop_ns_per_1000_shadow_pages"), best[2] * 1000 / dropped.max(1));
            standstill.push(best[1]);
            // KVM has at most 20 shadow pages for 1000 pages of memory (KVM_PERMILLE_MMU_PAGES).
            let most = sparse.min(m.memory.len() / 4096 * 20 / 1000 - 32);
            n.expect(dropped >= most, || format!("{name}: only {dropped} shadow pages"));
        }
    }
    let (least, most) = (standstill.iter().min().copied(), standstill.iter().max().copied());
    let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
    n.number("standstill_to_nested_ns_least", least);
    n.number("standstill_to_nested_ns_most", most);
    // Emulated time counts instructions. 1 us more is an interrupt.
    n.expect(most <= 2 * least + 1000, || format!("the guest stood still from {least} to {most} ns"));
    Ok(())
}
