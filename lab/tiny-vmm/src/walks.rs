// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the exact entries that a walk reads by the A bits that it sets.
//!
//! A guest first touches everything that it will access. For each access, the test then clears the A and D
//! bits of all guest tables (in our memory) and of all nested or shadow tables (in the host kernel's memory,
//! [`crate::poke`]). The guest makes the access with empty TLBs, because every VMRUN of the emulated CPU
//! flushes them. The bits that are set afterwards are compared with [`Entries`]: [`bifold_mmu::walk`] over
//! the same tables, which makes as many references as the model counts for the access.
//!
//! The instruction is fetched too, so both sides include its walk. Under shadow paging the hardware reads no
//! guest table, and no guest table may have a bit set.

use crate::guest::Guest;
use crate::kcore::Kcore;
use crate::memory::HostPages;
use crate::predict::{Walked, walks};
use crate::refs::{Entries, Tree, all_entries};
use crate::tables::{ACCESSED, DATA, DIRTY, LARGE, PRESENT, TABLE, index};
use crate::trace::Trace;
use crate::vm::{TinyVm, host_kernel, host_mode};
use anyhow::{Context, Result, ensure};
use bifold_mmu::format::{Format, X86_64_4_LEVEL as FORMAT};
use bifold_model::{Config, Paging};
use serde::Serialize;
use std::collections::BTreeSet;

/// Above 4 GB, so that host tables of every level can differ.
const MEMORY: u64 = 5 << 30;
const GB: u64 = 1 << 30;

/// A line of output.
#[derive(Debug, Serialize)]
pub struct WalkFact {
    pub fact: &'static str,
    pub kernel: String,
    pub config: String,
    /// The access: layout, size of the guest's page, kind.
    pub case: String,
    pub va: u64,
    pub agree: bool,
    /// References of the data access by the walker, and by the model.
    pub refs: u64,
    pub model_refs: u64,
    /// Distinct entries of guest and host, predicted and accessed.
    pub predicted: [usize; 2],
    pub counted: [usize; 2],
    /// Distinct entries with a D bit, predicted and set.
    pub predicted_dirty: [usize; 2],
    pub counted_dirty: [usize; 2],
    /// Entries that were read but not predicted, or predicted but not read: `guest L1 0x...`.
    pub extra: Vec<String>,
    pub missing: Vec<String>,
    /// Faults during the access; 0 is expected.
    pub faults: u64,
}

struct Place {
    name: &'static str,
    va: u64,
    level: u8,
    /// Frames of the tables of levels 3, 2 and 1.
    tables: [u64; 3],
    gpa: u64,
}

/// Places of the pages: tables and data close together, or each in a gigabyte of its own.
const PLACES: [Place; 6] = [
    Place { name: "close 4k", va: 0x40_0000_0008, level: 1, tables: [0x800, 0x801, 0x802], gpa: 32 << 20 },
    Place {
        name: "spread 4k",
        va: 0x7f12_3456_7ff0,
        level: 1,
        tables: [0x4_1601, 0x8_2a02, 0xc_3e03],
        gpa: 4 * GB + 0x123_4000,
    },
    Place {
        name: "one table 4k",
        va: 0x1234_5678_9abc & !7,
        level: 1,
        tables: [0x4_1605, 0x4_1606, 0x4_1607],
        gpa: 3 * GB + 0x76_5000,
    },
    Place { name: "close 2m", va: 0x80_0000_0010, level: 2, tables: [0x804, 0x805, 0], gpa: 34 << 20 },
    Place {
        name: "spread 2m",
        va: 0x5555_5575_8ff8,
        level: 2,
        tables: [0x4_1a01, 0x8_2e02, 0],
        gpa: 4 * GB + (64 << 20),
    },
    Place {
        name: "its end 2m",
        va: 0x2aaa_aabf_fff8,
        level: 2,
        tables: [0x8_3201, 0xc_4202, 0],
        gpa: 4 * GB - (2 << 20),
    },
];

const KINDS: [&str; 3] = ["load", "store", "fetch"];

fn access(g: &mut Guest, kind: &str, va: u64) {
    match kind {
        "load" => g.load(va),
        "store" => g.store(va & !0xff | 0x80), // beside the code of `fetch`
        _ => g.fetch(va),
    }
}

/// The guest: a phase that does everything once, then for each case a flush and the access.
fn guest() -> Guest {
    let mut g = Guest::new("walks", MEMORY, 1);
    for p in &PLACES {
        let mut above = (g.root, 4u8);
        for level in (p.level..=3).rev() {
            let gfn = p.tables[3 - usize::from(level)];
            g.tables.place(level, gfn);
            g.tables.set(above.0, index(p.va, above.1), gfn << 12 | TABLE);
            above = (gfn, level);
        }
        let offset = p.va & ((1 << FORMAT.level(p.level).shift) - 1);
        let large = if p.level > 1 { LARGE } else { 0 };
        g.tables.set(above.0, index(p.va, above.1), p.gpa | DATA | large);
        g.returning_page(p.gpa + offset);
    }
    g.phase("warm");
    for p in &PLACES {
        // A store first, so that the host maps the page writable at once.
        ["store", "load", "fetch"].iter().for_each(|k| access(&mut g, k, p.va));
    }
    for p in &PLACES {
        for kind in KINDS {
            g.phase("flush");
            g.load_cr3(g.root);
            g.phase(format!("{}, {kind}", p.name));
            access(&mut g, kind, p.va);
        }
    }
    g.finish()
}

/// The root that the vCPU runs on, from the probe's line in the trace.
pub fn root(text: &str) -> Option<u64> {
    let line = text.lines().rev().find(|l| l.contains(" root=0x"))?;
    let (_, hex) = line.split_once(" root=0x")?;
    let pa = u64::from_str_radix(hex.split_whitespace().next()?, 16).ok()?;
    Some(pa & FORMAT.address)
}

/// A machine whose tables can be read.
#[derive(Debug)]
pub struct Tables<'a> {
    pub vm: &'a TinyVm,
    pub guest: &'a Guest,
    pub kcore: &'a Kcore,
    pub root: u64,
    /// Format of the host's tables.
    pub format: &'static Format,
}

impl Tables<'_> {
    pub fn host_table(&self, pa: u64) -> Vec<u64> {
        // What is no memory holds no entries: the comparison will show it.
        self.kcore.read(pa, 512).unwrap_or_else(|_| vec![0; 512])
    }

    fn host(&self) -> Vec<(u64, u8, u64)> {
        all_entries(self.format, self.root, &|pa| self.host_table(pa))
    }

    /// Present entries of the guest: address and value.
    fn guest(&self) -> Result<Vec<(u64, u64)>> {
        let mut out = Vec::new();
        for (gfn, _) in self.guest.tables.iter() {
            for at in (gfn << 12..(gfn + 1) << 12).step_by(8) {
                let entry = self.vm.memory.read(at)?;
                if entry & PRESENT != 0 {
                    out.push((at, entry));
                }
            }
        }
        Ok(out)
    }

    /// The entries that the walk of an access reads.
    pub fn entries(&self, mode: Paging, walked: &Walked) -> Result<Entries> {
        let host = |at: u64| self.kcore.read(at, 1).map_or(0, |w| w[0]);
        let guest = |at: u64| self.vm.memory.read(at).unwrap_or(0);
        let guest = Tree { format: &FORMAT, root: self.guest.first_cr3(0), read: guest };
        let host = Tree { format: self.format, root: self.root, read: host };
        Ok(match mode {
            Paging::Nested => Entries::nested(guest, host, walked.access)?,
            _ => Entries::shadow(host, walked.access)?,
        })
    }
}

fn with(bit: u64, entries: &[(u64, u64)]) -> BTreeSet<u64> {
    entries.iter().filter(|e| e.1 & bit != 0).map(|e| e.0).collect()
}

/// Lets the trace tell the roots that vCPUs are given.
pub fn probe_roots(trace: &Trace) -> Result<()> {
    let (function, root) = trace.vendor.load_root;
    trace.probe("root", function, root)
}

/// Checks every case, with memory of kind `backing`. After [`probe_roots`].
pub fn check(
    backing: HostPages,
    trace: &Trace,
    mut tell: impl FnMut(&WalkFact) -> Result<()>,
) -> Result<bool> {
    let config = Config::new(host_mode(trace.vendor)?, backing.size());
    let kernel = host_kernel()?;
    // Shadow tables are the processor's own kind.
    let format = if config.mode == Paging::Nested { trace.vendor.nested_format } else { &FORMAT };
    let kcore = Kcore::open()?;
    let guest = guest();
    let predicted = walks(&guest, config)?;
    let vm = TinyVm::new(&guest, backing)?;
    trace.clear()?;
    let mut root_pa = 0;
    let mut all = true;
    for (n, phase) in guest.phases.iter().enumerate() {
        if phase.name == "warm" || phase.name == "flush" {
            vm.run(0)?;
            root_pa = root(&trace.text()?).unwrap_or(root_pa);
            continue;
        }
        ensure!(root_pa != 0, "no root was loaded");
        let tables = Tables { vm: &vm, guest: &guest, kcore: &kcore, root: root_pa, format };
        for (at, entry) in tables.guest()? {
            vm.memory.write(at, &(entry & !(ACCESSED | DIRTY)).to_le_bytes())?;
        }
        let bits = |e: &(u64, u8, u64)| {
            if format.is_leaf(e.1, e.2) { format.accessed | format.dirty } else { format.accessed }
        };
        let set = |e: &&(u64, u8, u64)| e.2 & bits(e) != 0;
        let clear = |e: &(u64, u8, u64)| (e.0, e.2 & !bits(e));
        let words: Vec<(u64, u64)> = tables.host().iter().filter(set).map(clear).collect();
        crate::poke::poke(&mut std::io::stdout().lock(), &mut std::io::stdin().lock(), &words)?;
        let left = tables.host().iter().filter(set).count();
        ensure!(left == 0, "{left} of {} entries have their bits still: were they poked?", words.len());
        trace.clear()?;
        vm.run(0)?;
        let events = trace.read()?;
        let fact = compare(&tables, config, &predicted[n], phase.name.clone())
            .with_context(|| phase.name.clone())?;
        let faults = events.count(|e| e.fault().is_some());
        let fact = WalkFact { kernel: kernel.clone(), faults, agree: fact.agree && faults == 0, ..fact };
        all &= fact.agree;
        tell(&fact)?;
    }
    Ok(all)
}

/// Holds the bits that are set now against the walks of the phase's accesses.
fn compare(tables: &Tables<'_>, config: Config, walked: &[Walked], case: String) -> Result<WalkFact> {
    let mode = config.mode;
    let host = tables.host();
    let guest = tables.guest()?;
    let mut all = Entries::default();
    let mut same_refs = true;
    let (mut refs, mut model_refs, mut va) = (0, 0, 0);
    for w in walked {
        let e = tables.entries(mode, w)?;
        if let Some((g, h)) = w.refs {
            let ours: u64 = e.refs.iter().map(|row| row[0]).sum();
            same_refs &= (g, h) == (ours, e.count() - ours);
            (refs, model_refs, va) = (e.count(), g + h, w.access.va);
        }
        all.add(e);
    }
    let host_pairs: Vec<(u64, u64)> = host.iter().map(|e| (e.0, e.2)).collect();
    let leaves: Vec<(u64, u64)> =
        host.iter().filter(|e| tables.format.is_leaf(e.1, e.2)).map(|e| (e.0, e.2)).collect();
    let found = [with(ACCESSED, &guest), with(tables.format.accessed, &host_pairs)];
    let dirty = [with(DIRTY, &guest), with(tables.format.dirty, &leaves)];
    let level = |at: u64| host.iter().find(|e| e.0 == at).map_or(0, |e| e.1);
    let mut extra = Vec::new();
    let mut missing = Vec::new();
    let mut sets = |bit: &str, guest: [&BTreeSet<u64>; 2], host: [&BTreeSet<u64>; 2]| {
        let [p, f] = guest;
        extra.extend(f.difference(p).map(|a| format!("guest {bit} {a:#x}")));
        missing.extend(p.difference(f).map(|a| format!("guest {bit} {a:#x}")));
        let [p, f] = host;
        extra.extend(f.difference(p).map(|&a| format!("host {bit} L{} {a:#x}", level(a))));
        missing.extend(p.difference(f).map(|&a| format!("host {bit} L{} {a:#x}", level(a))));
    };
    sets("A", [&all.guest, &found[0]], [&all.host, &found[1]]);
    sets("D", [&all.guest_dirty, &dirty[0]], [&all.host_dirty, &dirty[1]]);
    Ok(WalkFact {
        fact: "walk",
        kernel: String::new(),
        config: config.name(),
        case,
        va,
        agree: same_refs && extra.is_empty() && missing.is_empty(),
        refs,
        model_refs,
        predicted: [all.guest.len(), all.host.len()],
        counted: [found[0].len(), found[1].len()],
        predicted_dirty: [all.guest_dirty.len(), all.host_dirty.len()],
        counted_dirty: [dirty[0].len(), dirty[1].len()],
        extra,
        missing,
        faults: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_mmu::PageSize;

    #[test]
    fn the_models_references_are_the_closed_forms() {
        let guest = guest();
        let forms = [
            (Paging::Nested, PageSize::Size4K, [24, 19]),
            (Paging::Nested, PageSize::Size2M, [19, 15]),
            (Paging::Shadow, PageSize::Size4K, [4, 4]),
            (Paging::Shadow, PageSize::Size2M, [4, 3]),
        ];
        for (mode, host_page, [small, large]) in forms {
            let walks = walks(&guest, Config::new(mode, host_page)).unwrap();
            for (p, w) in guest.phases.iter().zip(walks).filter(|(p, _)| p.name.contains(',')) {
                let want = if p.name.contains("4k") { small } else { large };
                let data = w.iter().find(|w| w.access.va >> 63 == 0).unwrap();
                let (g, h) = data.refs.unwrap();
                assert_eq!(g + h, want, "{mode:?} {host_page:?} {}", p.name);
            }
        }
    }

    #[test]
    fn the_root_is_in_the_probes_line() {
        let text = "t-9 [000] ..... 1.5: root: (svm_load_mmu_pgd+0x0/0xb0) root=0x10000000123a000\n";
        assert_eq!(root(text), Some(0x123_a000));
        assert_eq!(root("nothing"), None);
    }
}
