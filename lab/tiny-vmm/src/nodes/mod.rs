// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the nodes on which tables and data lie with the model's ([`bifold_model::placement`]), in each
//! placement.
//!
//! The vCPUs run on different nodes. They touch pages for the first time in an order that leaves hypervisor's
//! tables of either, and then each accesses all pages with empty TLBs, one in a phase. For each phase,
//! [`Entries`] over the tables of the machine lists the references of its walks with their physical
//! addresses, and so their nodes; the model counts references as local and remote. At the end, the node of
//! each nested table is held against the model's.
//!
//! KVM takes tables of a cache that it fills from the kernel's page allocator, and under interleaving all
//! allocations of a thread take turns (`interleave_nodes`), those of slabs and of other page tables too. The
//! model knows the hypervisor's tables only, and not which of a thread's tables is the first of the first
//! node. So there the share of remote references to tables is compared ([`SHARE`]), and not each table.
//!
//! [`Entries`]: crate::refs::Entries

mod guest;

use crate::guest::Guest;
use crate::kcore::Kcore;
use crate::memory::HostPages;
use crate::numa::{Nodes, Policy, pin, set_policy};
use crate::predict::{Walked, placed, walks};
use crate::trace::Trace;
use crate::vm::{TinyVm, Unavailable, Whereabouts, host_kernel, host_mode};
use crate::walks::{Tables, root};
use anyhow::{Context, Result, ensure};
use bifold_mmu::format::X86_64_4_LEVEL as FORMAT;
use bifold_model::{Config, Paging, Placement, PlacementOptions, Split};
use bifold_trace::{Frames, GuestNode};
use guest::{GUEST_NODES, NODE, first_touches, guest, is_access, pages};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far the share of remote references to interleaved tables may be from the model's.
const SHARE: f64 = 0.1;
/// Differences that a line of output names.
const NAMED: usize = 6;

const PLACEMENTS: [Placement; 5] =
    [Placement::GuestNuma, Placement::Smp, Placement::Interleaved, Placement::Crossed, Placement::OneNode];

/// A line of output: a configuration in a placement.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodesFact {
    /// The word `nodes`.
    pub fact: String,
    /// The kernel's release.
    pub kernel: String,
    /// The configuration.
    pub config: String,
    /// The host's pages.
    pub backing: HostPages,
    /// The placement.
    pub case: String,
    /// Whether all is as predicted.
    pub agree: bool,
    /// Why only the share of remote references to the hypervisor's tables is as predicted, if so.
    pub known: Option<String>,
    /// Accesses that were compared, one by one.
    pub accesses: usize,
    /// Those that differ.
    pub different: usize,
    /// References by the model.
    pub predicted: Counts,
    /// References that were found.
    pub counted: Counts,
    /// Nested tables on the model's node, and all.
    pub tables: [usize; 2],
    /// Some of the accesses and tables that differ.
    pub differ: Vec<String>,
}

/// Local and remote references.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// To the guest's tables.
    pub guest_tables: [u64; 2],
    /// To the hypervisor's tables.
    pub host_tables: [u64; 2],
    /// To data.
    pub data: [u64; 2],
}

impl Counts {
    fn each(self, other: Counts, f: impl Fn(u64, u64) -> u64) -> Counts {
        let each = |a: [u64; 2], b: [u64; 2]| [f(a[0], b[0]), f(a[1], b[1])];
        Counts {
            guest_tables: each(self.guest_tables, other.guest_tables),
            host_tables: each(self.host_tables, other.host_tables),
            data: each(self.data, other.data),
        }
    }

    /// Without what cannot be predicted for one access.
    fn certain(self, placement: Placement) -> Counts {
        let host_tables = if placement == Placement::Interleaved { [0; 2] } else { self.host_tables };
        Counts { host_tables, ..self }
    }
}

/// The placements' options: as many host nodes as guest nodes, and a vCPU on each.
fn options() -> PlacementOptions {
    let node = |n: u64| GuestNode {
        frames: vec![Frames { first: (n * NODE) >> 12, count: NODE >> 12 }],
        vcpus: vec![n as u32],
    };
    PlacementOptions {
        placements: PLACEMENTS.into(),
        host_nodes: GUEST_NODES as u8,
        guest_nodes: (0..GUEST_NODES).map(node).collect(),
    }
}

/// The model's counts of all words before `end`, by placement.
fn counts(guest: &Guest, config: Config, end: usize) -> Result<Vec<Counts>> {
    let outcome = placed(guest, &guest.words()[..end], config, options())?.finish();
    ensure!(outcome.untranslated == 0, "{} accesses have no translation", outcome.untranslated);
    let split = |s: Split| [s.local, s.remote];
    let placed = &outcome.configs.first().context("one configuration")?.placed;
    let of = |p: &bifold_model::Placed| Counts {
        guest_tables: split(p.guest_tables),
        host_tables: split(p.host_tables),
        data: split(p.data),
    };
    Ok(placed.iter().map(of).collect())
}

/// The model's counts of each access: by phase and placement.
fn predict(guest: &Guest, config: Config) -> Result<BTreeMap<usize, Vec<Counts>>> {
    let mut out = BTreeMap::new();
    for (n, phase) in guest.phases.iter().enumerate().filter(|(_, p)| is_access(&p.name)) {
        let (before, after) =
            (counts(guest, config, phase.words.start)?, counts(guest, config, phase.words.end)?);
        out.insert(n, after.iter().zip(&before).map(|(a, b)| a.each(*b, |a, b| a - b)).collect());
    }
    Ok(out)
}

/// Level and first guest-physical address of each nested table, and what is known of the table.
type ByTable<T> = BTreeMap<(u8, u64), T>;

/// The host-physical addresses of the machine's nested tables.
fn nested_tables(tables: &Tables<'_>) -> ByTable<u64> {
    fn go(tables: &Tables<'_>, level: u8, pa: u64, gpa: u64, out: &mut ByTable<u64>) {
        out.insert((level, gpa), pa);
        for (i, entry) in (0..).zip(tables.host_table(pa)) {
            let format = tables.format;
            if entry & format.present != 0 && !format.is_leaf(level, entry) {
                go(tables, level - 1, format.target(level, entry), gpa | i << format.level(level).shift, out);
            }
        }
    }
    let mut out = BTreeMap::new();
    go(tables, tables.format.depth(), tables.root, 0, &mut out);
    out
}

/// The machine's nodes, and where the VM is to be.
struct Host {
    nodes: Nodes,
    kernel: String,
}

impl Host {
    fn read() -> Result<Host> {
        let nodes = Nodes::read()?;
        let found = nodes.nodes.len() as u64;
        ensure!(found == GUEST_NODES, Unavailable(format!("{found} nodes with CPUs, not {GUEST_NODES}")));
        Ok(Host { nodes, kernel: host_kernel()? })
    }

    fn number(&self, node: u64) -> u32 {
        self.nodes.nodes[node as usize].number
    }

    /// Prepares this thread, from which the VM's threads inherit.
    fn prepare(&self, placement: Placement) -> Result<()> {
        pin(self.nodes.nodes[0].cpu)?;
        set_policy(match placement {
            Placement::Interleaved => {
                Policy::Interleave(self.nodes.nodes.iter().map(|n| 1 << n.number).sum())
            }
            Placement::OneNode => Policy::Bind(self.number(0)),
            _ => Policy::Local,
        })
    }

    fn whereabouts(&self, placement: Placement) -> Whereabouts {
        let other = match placement {
            Placement::GuestNuma => Some(0),
            Placement::Crossed => Some(1),
            _ => None,
        };
        let bound = |by: u64| {
            let of = |n: u64| (n * NODE..(n + 1) * NODE, self.number((n + by) % GUEST_NODES));
            (0..GUEST_NODES).map(of).collect()
        };
        Whereabouts {
            cpus: self.nodes.nodes.iter().map(|n| n.cpu).collect(),
            bound: other.map(bound).unwrap_or_default(),
        }
    }

    /// The references of a phase's walks, and of its data, by `vcpu`.
    fn references(
        &self,
        tables: &Tables<'_>,
        mode: Paging,
        vcpu: usize,
        walked: &[Walked],
    ) -> Result<Counts> {
        let here = self.number(vcpu as u64);
        let place = |pa: u64| -> Result<usize> {
            let node = self.nodes.of(pa).with_context(|| format!("no node has memory at {pa:#x}"))?;
            Ok(usize::from(node != here))
        };
        let mut out = Counts::default();
        for w in walked.iter().filter(|w| w.refs.is_some()) {
            let entries = tables.entries(mode, w)?;
            for reference in &entries.order {
                let to = if reference.host { &mut out.host_tables } else { &mut out.guest_tables };
                to[place(reference.pa)?] += 1;
            }
            // Code is no data.
            if w.access.va >> 63 == 0 {
                out.data[place(entries.data)?] += 1;
            }
        }
        Ok(out)
    }
}

/// What all placements have in common.
struct Runs<'a> {
    host: Host,
    guest: Guest,
    config: Config,
    backing: HostPages,
    /// The accesses of each phase.
    walked: Vec<Vec<Walked>>,
    kcore: Kcore,
    trace: &'a Trace,
}

/// Checks every placement, with memory of kind `backing`. After [`crate::walks::probe_roots`].
pub fn check(
    backing: HostPages,
    trace: &Trace,
    mut tell: impl FnMut(&NodesFact) -> Result<()>,
) -> Result<bool> {
    let config = Config::new(host_mode(trace.vendor)?, backing.size());
    let guest = guest(&pages(backing.size()));
    let predicted = predict(&guest, config)?;
    let walked = walks(&guest, config)?;
    let runs = Runs { host: Host::read()?, guest, config, backing, walked, kcore: Kcore::open()?, trace };
    let mut all = true;
    for (n, placement) in PLACEMENTS.into_iter().enumerate() {
        let of: BTreeMap<usize, Counts> = predicted.iter().map(|(phase, c)| (*phase, c[n])).collect();
        runs.host.prepare(placement)?;
        let fact = runs.compare(placement, &of);
        set_policy(Policy::Local)?;
        let fact = fact.with_context(|| placement.name())?;
        all &= fact.right();
        tell(&fact)?;
    }
    Ok(all)
}

impl Runs<'_> {
    fn compare(&self, placement: Placement, predicted: &BTreeMap<usize, Counts>) -> Result<NodesFact> {
        let Runs { host, guest, config, backing, trace, .. } = self;
        let nested = config.mode == Paging::Nested;
        let format = if nested { trace.vendor.nested_format } else { &FORMAT };
        trace.clear()?;
        let vm = TinyVm::placed(guest, *backing, &host.whereabouts(placement))?;
        let mut root_pa = None;
        let mut fact = NodesFact::of(host, *config, *backing, placement);
        for (n, phase) in guest.phases.iter().enumerate() {
            vm.run(phase.vcpu)?;
            if first_touches(&phase.name) {
                // Both vCPUs load their root here, and keep it.
                root_pa = root(&trace.text()?).or(root_pa);
                trace.clear()?;
            }
            let Some(predicted) = predicted.get(&n) else { continue };
            let root = root_pa.context("no root was loaded")?;
            let tables = Tables { vm: &vm, guest, kcore: &self.kcore, root, format };
            let counted = host
                .references(&tables, config.mode, phase.vcpu, &self.walked[n])
                .with_context(|| phase.name.clone())?;
            fact.access(&phase.name, placement, *predicted, counted);
        }
        if nested {
            let root = root_pa.context("no root was loaded")?;
            let tables = Tables { vm: &vm, guest, kcore: &self.kcore, root, format };
            let model = placed(guest, guest.words(), *config, options())?;
            let of_model = model.nested_tables(0, placement).into_iter();
            let of_model: ByTable<u64> = of_model.map(|t| ((t.level, t.gpa.0), t.node)).collect();
            fact.tables = hold_tables(host, &of_model, &nested_tables(&tables), &mut fact.differ);
        }
        fact.settle(placement);
        Ok(fact)
    }
}

impl NodesFact {
    /// Whether all is as the model says, as far as the model can say.
    pub fn right(&self) -> bool {
        self.agree || self.known.is_some()
    }

    fn of(host: &Host, config: Config, backing: HostPages, placement: Placement) -> NodesFact {
        NodesFact {
            fact: "nodes".into(),
            kernel: host.kernel.clone(),
            config: config.name(),
            backing,
            case: placement.name().into(),
            agree: true,
            known: None,
            accesses: 0,
            different: 0,
            predicted: Counts::default(),
            counted: Counts::default(),
            tables: [0; 2],
            differ: Vec::new(),
        }
    }

    /// Compares one access.
    fn access(&mut self, phase: &str, placement: Placement, predicted: Counts, counted: Counts) {
        self.accesses += 1;
        self.predicted = self.predicted.each(predicted, |a, b| a + b);
        self.counted = self.counted.each(counted, |a, b| a + b);
        self.different += usize::from(predicted != counted);
        if predicted.certain(placement) != counted.certain(placement) {
            self.differ.push(format!("{phase}: predicted {predicted:?}, counted {counted:?}"));
        }
    }

    /// Whether all is as predicted, or as far as can be.
    fn settle(&mut self, placement: Placement) {
        self.agree = self.differ.is_empty() && self.accesses > 0;
        let only_tables = self.differ.iter().all(|d| d.starts_with("table of"));
        let share = |c: Counts| c.host_tables[1] as f64 / c.host_tables.iter().sum::<u64>().max(1) as f64;
        let even = (share(self.predicted) - share(self.counted)).abs() <= SHARE;
        if placement == Placement::Interleaved && self.different + self.differ.len() > 0 {
            self.agree = false;
            if even && only_tables && self.accesses > 0 {
                let why = "other allocations of the vCPU's thread take turns with the hypervisor's tables";
                self.known = Some(why.into());
            }
        }
        self.differ.truncate(NAMED);
    }
}

/// Counts the tables that are on the model's node, and names the others.
fn hold_tables(
    host: &Host,
    model: &ByTable<u64>,
    found: &ByTable<u64>,
    differ: &mut Vec<String>,
) -> [usize; 2] {
    let mut right = 0;
    for (table @ (level, gpa), pa) in found {
        let (node, wanted) = (host.nodes.of(*pa), model.get(table).map(|n| host.number(*n)));
        if node == wanted && node.is_some() {
            right += 1;
        } else {
            differ.push(format!("table of level {level} for {gpa:#x}: on {node:?}, predicted {wanted:?}"));
        }
    }
    let missing = model.keys().filter(|t| !found.contains_key(t));
    differ.extend(missing.clone().map(|(level, gpa)| format!("no table of level {level} for {gpa:#x}")));
    [right, found.len() + missing.count()]
}

#[cfg(test)]
mod tests {
    use super::guest::Page;
    use super::*;
    use bifold_mmu::PageSize;

    /// Remote data accesses by reasoning: in each placement, the page's node is not the vCPU's.
    fn remote_data(pages: &[Page], placement: Placement, size: PageSize) -> u64 {
        let node = |p: &Page| match placement {
            Placement::GuestNuma => p.gpa / NODE,
            Placement::Crossed => 1 - p.gpa / NODE,
            Placement::Smp => p.first as u64,
            Placement::Interleaved => (p.gpa >> size.shift()) % 2,
            _ => 0,
        };
        let accesses = pages.iter().flat_map(|p| [0, 1].map(|vcpu| u64::from(node(p) != vcpu)));
        accesses.sum()
    }

    #[test]
    fn the_model_places_data_as_reasoning_does() {
        for size in [PageSize::Size4K, PageSize::Size2M] {
            let pages = pages(size);
            let guest = guest(&pages);
            let predicted = predict(&guest, Config::new(Paging::Nested, size)).unwrap();
            assert_eq!(predicted.len(), 2 * pages.len());
            for (n, placement) in PLACEMENTS.into_iter().enumerate() {
                let remote: u64 = predicted.values().map(|c| c[n].data[1]).sum();
                assert_eq!(remote, remote_data(&pages, placement, size), "{placement:?} {size:?}");
            }
        }
    }

    #[test]
    fn only_interleaved_tables_may_lie_elsewhere() {
        let host = Host { nodes: Nodes::default(), kernel: String::new() };
        let config = Config::new(Paging::Nested, PageSize::Size4K);
        let with = |remote: u64, differ: &str, placement| {
            let mut fact = NodesFact::of(&host, config, HostPages::Small, placement);
            (fact.accesses, fact.different, fact.differ) = (100, 1, vec![differ.into()]);
            fact.predicted.host_tables = [50, 50];
            fact.counted.host_tables = [100 - remote, remote];
            fact.settle(placement);
            fact.right()
        };
        let settled = |differ: &str, placement| with(45, differ, placement);
        assert!(!with(30, "table of level 1 for 0x0", Placement::Interleaved), "a third is not half");
        assert!(settled("table of level 1 for 0x0", Placement::Interleaved));
        assert!(!settled("vCPU 0, page 1, load: predicted", Placement::Interleaved));
        assert!(!settled("table of level 1 for 0x0", Placement::Smp));
    }
}
