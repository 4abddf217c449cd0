// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's nodes: their CPUs and physical memory, and where this process gets memory. No library of ours
//! has set_mempolicy(2) and mbind(2).

use crate::vm::Unavailable;
use anyhow::{Context, Result, ensure};
use bifold_host::topology::NumberSet;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::path::Path;

const NODES: &str = "/sys/devices/system/node";
const BLOCK: &str = "/sys/devices/system/memory/block_size_bytes";
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// Nodes that a mask has bits for.
const MASK_BITS: usize = 64;

/// Where a thread gets memory that nothing else binds. Threads that it makes inherit the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// On the node on which the thread runs.
    Local,
    /// On one node.
    Bind(u32),
    /// On these nodes, a bit for each, in turn.
    Interleave(u64),
}

/// Sets the policy of this thread.
pub fn set_policy(policy: Policy) -> Result<()> {
    let (mode, mask) = match policy {
        Policy::Local => (libc::MPOL_DEFAULT, 0),
        Policy::Bind(node) => (libc::MPOL_BIND, 1_u64 << node),
        Policy::Interleave(nodes) => (libc::MPOL_INTERLEAVE, nodes),
    };
    // The kernel takes one bit less than the length says (`get_nodes`). The default takes no mask.
    let (at, bits) = if mask == 0 { (std::ptr::null(), 0) } else { (&raw const mask, MASK_BITS + 1) };
    // SAFETY: the kernel reads the mask, which lives until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, at, bits) };
    ensure!(done == 0, "set_mempolicy: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Binds memory to a node.
///
/// # Safety
/// The range must be mapped, and its contents not the compiler's: pages are not moved.
pub unsafe fn bind(at: *mut u8, len: usize, node: u32) -> Result<()> {
    let mask = 1_u64 << node;
    // SAFETY: the kernel reads the mask, and changes the policy of a range that the caller vouches for.
    let done = unsafe {
        libc::syscall(libc::SYS_mbind, at, len, libc::MPOL_BIND, &raw const mask, MASK_BITS + 1, 0)
    };
    ensure!(done == 0, "mbind: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Pins this thread to a CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// A node of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub number: u32,
    /// Its first CPU.
    pub cpu: usize,
    /// The numbers of its blocks of memory.
    blocks: Vec<u64>,
}

/// The host's nodes with CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    pub nodes: Vec<Node>,
    /// Bytes of a block.
    block: u64,
}

fn text(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|e| Unavailable(format!("{}: {e}", path.display())))?;
    Ok(text.trim().to_owned())
}

impl Nodes {
    /// Reads the nodes of this machine, whose pages must stay where they are.
    pub fn read() -> Result<Nodes> {
        let balanced = text(BALANCING).is_ok_and(|t| t != "0");
        ensure!(!balanced, Unavailable(format!("{BALANCING} is not 0, so pages move between nodes")));
        let block = u64::from_str_radix(&text(BLOCK)?, 16).context(BLOCK)?;
        let online: NumberSet = text(format!("{NODES}/has_cpu"))?.parse().context("nodes with CPUs")?;
        let nodes = online.iter().map(Node::read).collect::<Result<_>>()?;
        Ok(Nodes { nodes, block })
    }

    /// The node that has the memory at a physical address.
    pub fn of(&self, pa: u64) -> Option<u32> {
        let number = pa / self.block;
        self.nodes.iter().find(|n| n.blocks.contains(&number)).map(|n| n.number)
    }
}

impl Node {
    fn read(number: u32) -> Result<Node> {
        let folder = format!("{NODES}/node{number}");
        let cpus: NumberSet = text(format!("{folder}/cpulist"))?.parse().context("CPUs of a node")?;
        let names = std::fs::read_dir(&folder).with_context(|| folder.clone())?;
        let block = |name: String| name.strip_prefix("memory")?.parse().ok();
        let blocks = names.flatten().filter_map(|e| block(e.file_name().into_string().ok()?)).collect();
        let cpu = cpus.iter().next().context("a node without CPUs")? as usize;
        Ok(Node { number, cpu, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_on_the_node_of_its_block() {
        let node = |number, blocks: &[u64]| Node { number, cpu: number as usize, blocks: blocks.into() };
        let nodes = Nodes { nodes: vec![node(0, &[0, 1, 32]), node(2, &[2])], block: 128 << 20 };
        let at = [0, (256 << 20) - 1, 256 << 20, 4 << 30, 8 << 30].map(|pa| nodes.of(pa));
        assert_eq!(at, [Some(0), Some(0), Some(2), Some(0), None]);
    }

    #[test]
    fn policies_are_set_and_taken_back() {
        // This thread's alone. Machines without NUMA have node 0.
        if let Err(e) = set_policy(Policy::Local) {
            return eprintln!("skipped: {e}"); // a container may forbid the call
        }
        for policy in [Policy::Bind(0), Policy::Interleave(1), Policy::Local] {
            set_policy(policy).unwrap();
        }
    }
}
