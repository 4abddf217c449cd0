// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a whole [`Topology`].
//!
//! Every fact is its own file, and CPUs, nodes and devices can come and go while they are read: if the lists
//! of online CPUs and nodes change meanwhile, all is read again. What is missing stays empty; what is there
//! and makes no sense is left out, with a note.

use super::tree::Tree;
use super::{Cache, Cpu, NumberSet, Topology, cpus, devices, nodes};
use crate::{Host, HostError};
use std::collections::BTreeMap;

/// How often a topology is read if CPUs or nodes come and go meanwhile.
const MOST_TRIES: usize = 3;

impl Host {
    /// The CPUs, caches, nodes and devices of this machine, and what the calling process may use of them.
    ///
    /// # Errors
    /// If sysfs has no CPUs: it is not mounted, or a copied tree has no `sys`.
    pub fn topology(&self) -> Result<Topology, HostError> {
        let sys = Tree::new(&self.sys);
        let lists = || ["cpu", "node"].map(|kind| sys.text(&format!("devices/system/{kind}/online")));
        let mut before = lists();
        for _ in 0..MOST_TRIES {
            let found = self.topology_at_once()?;
            let after = lists();
            if before == after {
                return Ok(found);
            }
            before = after;
        }
        let mut found = self.topology_at_once()?;
        found.notes.push("CPUs or nodes came and went all the time while they were read".into());
        Ok(found)
    }

    fn topology_at_once(&self) -> Result<Topology, HostError> {
        let sys = Tree::new(&self.sys);
        let mut found = cpus::cpus(&sys);
        if found.is_empty() {
            return Err(HostError::NoCpus { path: self.sys.join("devices/system/cpu") });
        }
        let online: NumberSet = found.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
        let mut nodes = nodes::nodes(&sys);
        let numa = !nodes.is_empty();
        if !numa {
            nodes.insert(0, nodes::only_node(&sys, self, online.clone()));
        }
        let mut free = online.clone();
        for (&number, node) in &mut nodes {
            // A CPU may have gone offline since its file was read.
            let claimed = node.cpus.intersection(&online);
            node.cpus = claimed.intersection(&free);
            if node.cpus != claimed {
                let twice = claimed.difference(&free);
                sys.note(format!(
                    "node {number} claims CPU {twice} of an earlier node: the firmware's tables are wrong"
                ));
            }
            free = free.difference(&node.cpus);
            for cpu in node.cpus.iter() {
                found.entry(cpu).and_modify(|c| c.node = Some(number));
            }
        }
        let caches = cpus::caches(&sys, &found);
        note_gaps(&sys, &found, &caches);
        let set = |name: &str| sys.list(&format!("devices/system/cpu/{name}")).unwrap_or_default();
        Ok(Topology {
            caches,
            isolated: set("isolated"),
            tickless: set("nohz_full"),
            devices: devices::devices(&sys),
            numa,
            allowed: self.allowed(None),
            cpus: found,
            nodes,
            notes: sys.into_notes(),
        })
    }
}

/// Notes facts of online CPUs that a plan needs and sysfs lacks.
fn note_gaps(sys: &Tree, cpus: &BTreeMap<u32, Cpu>, caches: &[Cache]) {
    let without = |lacks: &dyn Fn(&Cpu) -> bool| -> NumberSet {
        cpus.iter().filter(|(_, c)| c.online && lacks(c)).map(|(n, _)| *n).collect()
    };
    let (cores, nodes) = (without(&|c| c.core.is_none()), without(&|c| c.node.is_none()));
    for (set, what) in [(cores, "core"), (nodes, "node")] {
        if !set.is_empty() {
            sys.note(format!("the {what} of CPU {set} is not known: sysfs does not tell"));
        }
    }
    if caches.is_empty() {
        sys.note("the caches are not known: sysfs does not tell".into());
    }
}
