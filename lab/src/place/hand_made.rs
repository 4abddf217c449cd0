// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tiny VMM's guests on a laboratory with two nodes: where KVM has its tables, and which references are
//! remote, beside the model (`tiny-vmm nodes`).

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use bifold_base::markdown::table;
use bifold_model::Placement;
use bifold_tiny_vmm::NodesFact;

use crate::lab::job::{Job, Jobs};
use crate::lab::{Lab, Output, Plan, beside};
use crate::{BUSYBOX, TINY_VMM};

/// Memory of the laboratory: the guests touch few of their pages.
const MIB: u64 = 2048;
/// 2 MB pages, half of them on each node: one node must have those of a whole guest.
const HUGE_PAGES: u64 = 80;
const SECONDS: u64 = 600;
/// Whether KVM uses nested paging, and what backs the guests.
const RUNS: [(bool, &str); 3] = [(true, "4k"), (true, "2m"), (false, "4k")];

/// Boots the laboratory and runs the guests. An output for each of [`RUNS`].
///
/// # Errors
/// If something to run is missing, or the boot fails.
pub fn hand_made(lab: &Lab) -> Result<Vec<Output>> {
    let program = beside(TINY_VMM)?;
    let name = program.to_string_lossy().into_owned();
    // A page that the host moves is no longer where it was put.
    let stay = Job::sh("echo 0 > /proc/sys/kernel/numa_balancing");
    let run = |(nested, backing): (bool, &str)| {
        let command = [&name, "nodes", "--backing", backing].map(String::from).to_vec();
        [Job::Kvm { nested }, Job::Run { command }]
    };
    let jobs = [stay].into_iter().chain(RUNS.into_iter().flat_map(run)).collect();
    let plan = Plan {
        jobs: Jobs { jobs, huge_pages: HUGE_PAGES },
        programs: vec![BUSYBOX.into(), program],
        memory_mib: MIB,
        cpus: 2,
        nodes: 2,
        exact: false,
        seconds: SECONDS,
        ..Plan::default()
    };
    let outputs = lab.boot(&plan, &mut |_, _| String::new())?;
    let wanted = 1 + 2 * RUNS.len();
    ensure!(outputs.len() == wanted, "{} outputs of {wanted} jobs", outputs.len());
    let balancing = outputs[0].done.status;
    ensure!(balancing == 0, "cannot set kernel.numa_balancing: exit status {balancing}");
    Ok(outputs.into_iter().skip(2).step_by(2).collect())
}

/// The facts of [`hand_made`].
///
/// # Errors
/// As [`hand_made`], and if the program failed.
pub fn facts(lab: &Lab) -> Result<Vec<NodesFact>> {
    let mut facts = Vec::new();
    for output in hand_made(lab)? {
        let done = &output.done;
        ensure!([0, 3].contains(&done.status), "{TINY_VMM}: exit status {}: {}", done.status, done.stderr);
        for line in done.stdout.lines() {
            facts.push(serde_json::from_str(line).with_context(|| format!("{TINY_VMM} said {line:?}"))?);
        }
    }
    Ok(facts)
}

/// The facts as a page of the results.
pub fn document(lab: &Lab, facts: &[NodesFact]) -> String {
    let release = facts.first().map_or("", |f| f.kernel.as_str());
    let columns = table::<NodesFact>()
        .left("paging", |f| f.config.clone())
        .left("placement", |f| f.case.clone())
        .right("accesses", |f| f.accesses.to_string())
        .right("other than modelled", |f| f.different.to_string())
        .right("guest tables", |f| cell(f.predicted.guest_tables, f.counted.guest_tables))
        .right("host tables", |f| cell(f.predicted.host_tables, f.counted.host_tables))
        .right("data", |f| cell(f.predicted.data, f.counted.data))
        .right("nested tables on the model's node", |f| match f.tables {
            [_, 0] => String::new(),
            [right, all] => format!("{right} of {all}"),
        });
    let mut page = format!(
        "# Nodes of page tables, Linux {release}\n\n\
         Made by `make lab-place`, {}. The tiny VMM's guest has two nodes, and a vCPU on each node of the host. Its pages, \
         their tables and the vCPU that touches them first are of either node. Each vCPU then accesses each page with empty \
         TLBs. The physical addresses of all entries that the walk reads, and of the data, tell their nodes. The model \
         counts the same accesses, and both are compared access by access.\n\n\
         References are local / remote, in sum. Where the sums of model and machine differ, the machine's stands in brackets.\n\n\
         {}",
        lab.emulator(),
        columns.of(facts)
    );
    let sum = |which: &dyn Fn(&&NodesFact) -> bool| {
        let [right, all] = [0, 1].map(|n| facts.iter().filter(which).map(|f| f.tables[n]).sum::<usize>());
        format!("{right} of {all} ({:.1} %)", 100.0 * right as f64 / all.max(1) as f64)
    };
    let interleaved = |f: &&NodesFact| f.case == Placement::Interleaved.name();
    let _ = writeln!(
        page,
        "\nNested tables on the model's node: {} without the interleaved placement, {} in the interleaved one.",
        sum(&|f| !interleaved(f)),
        sum(&|f| interleaved(f))
    );
    let mut known: Vec<&str> = facts.iter().filter_map(|f| f.known.as_deref()).collect();
    known.dedup();
    for why in known {
        let _ = writeln!(
            page,
            "\nWhere only the hypervisor's tables differ, their share of remote references is as modelled, and not each table: {why}."
        );
    }
    page
}

/// The model's count, and the machine's if it is another.
fn cell(predicted: [u64; 2], counted: [u64; 2]) -> String {
    let text = |[local, remote]: [u64; 2]| format!("{local} / {remote}");
    if predicted == counted { text(predicted) } else { format!("{} [{}]", text(predicted), text(counted)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_both_counts_only_if_they_differ() {
        assert_eq!(cell([3, 1], [3, 1]), "3 / 1");
        assert_eq!(cell([3, 1], [2, 2]), "3 / 1 [2 / 2]");
    }
}
