// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that a guest is where its placement or its plan puts it, on a laboratory with two nodes.

use anyhow::{Context, Result, bail, ensure};

use super::Shared;
use crate::place::guests::PLACEMENTS;
use crate::place::hand_made;
use crate::place::placed as run;
use crate::place::planned::{Extent, cases};
use crate::place::world::Program;

/// A program that passes 16 MB through the guest's memory.
const PROGRAM: Program = Program { name: "touch", passed: "16777216" };
const COMMAND: &str = "sh -c '/bin/busybox dd if=/dev/zero bs=1M count=16 2>/dev/null | /bin/busybox wc -c'";

/// A guest from its plan is sound and sees the plan's nodes, mistakes are named, and all is taken back.
pub fn planned(shared: &Shared) -> Result<()> {
    emulates_nodes(shared)?;
    let failed = cases(shared.lab, Extent::Quick)?.into_iter();
    let failed: Vec<String> = failed.filter_map(|c| Some(format!("{}: {}", c.name, c.failed?))).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Tables and data of hand-made guests lie on the nodes that the model says, in each placement.
pub fn nodes(shared: &Shared) -> Result<()> {
    emulates_nodes(shared)?;
    hand_made(shared.lab)?
        .iter()
        .try_for_each(|output| super::hand_made::check(shared, std::slice::from_ref(output)))
}

fn emulates_nodes(shared: &Shared) -> Result<()> {
    Ok(shared.lab.needs_qemu("Bochs emulates no nodes")?)
}

/// A guest with nodes has its threads, huge pages and nodes as planned.
pub fn placed(shared: &Shared) -> Result<()> {
    emulates_nodes(shared)?;
    let placement = PLACEMENTS.iter().find(|p| p.name == "numa").context("no placement is called numa")?;
    let run = run(shared.lab, placement, PROGRAM, COMMAND)?;
    if let Some(wrong) = run.misplaced(placement) {
        bail!("{wrong}");
    }
    let told = ["node0/cpulist:0", "node1/cpulist:1", "node0/distance:10 21", "node1/distance:21 10"];
    let told = told.iter().all(|line| run.nodes.iter().any(|n| n == line));
    ensure!(told, "the guest sees other nodes than planned: {}", run.nodes.join(", "));
    for m in &run.programs {
        ensure!(m.passed, "{} failed: {}", m.program.name, m.said);
        ensure!(m.migrations == 0, "pinned vCPUs moved {} times", m.migrations);
        ensure!(m.kvm.get("exits").is_some_and(|n| *n > 0), "KVM counted no exits");
    }
    Ok(())
}
