// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plan for people: each guest with its nodes and why, then the host's steps, notes, and the cost.

use crate::full::place::words::{counted, folded, size};
use bifold_host::printable;
use bifold_host::topology::NumberSet;
use bifold_place::plan::{Caches, GuestPlan, Plan};
use bifold_report::{grouped, text_table, wrapped};

pub fn table(plan: &Plan) -> String {
    let mut parts: Vec<String> = plan.guests.iter().map(guest).collect();
    parts.push(steps(plan));
    if !plan.notes.is_empty() {
        parts.push(plan.notes.iter().map(|n| wrapped(&format!("note      {n}"), 10)).collect());
    }
    parts.push(cost(plan));
    parts.join("\n")
}

fn guest(guest: &GuestPlan) -> String {
    let memory = size(guest.nodes.iter().map(|n| n.memory).sum());
    let mut out = wrapped(&format!("guest     {}", printable(&guest.name)), 10);
    out += &folded(0, "memory", &[memory, format!("pages of {}", size(guest.page_kib << 10))]);
    let smp = guest.smp;
    out += &folded(
        0,
        "vCPUs",
        &[
            guest.vcpus.len().to_string(),
            counted(smp.sockets as usize, "socket", "sockets"),
            counted(smp.dies as usize, "die each", "dies each"),
            counted(smp.cores as usize, "core each", "cores each"),
            counted(smp.threads as usize, "thread each", "threads each"),
        ],
    );
    out += &folded(0, "caches", &[caches(guest).into()]);
    out += &folded(0, "VMM", &[format!("CPU {}", guest.emulator)]);
    for (i, cpus) in guest.io_threads.iter().enumerate() {
        out += &folded(0, &format!("I/O {i}"), &[format!("CPU {cpus}")]);
    }
    for reason in &guest.reasons {
        out += &wrapped(&format!("why       {reason}"), 10);
    }
    out += &format!("\n{}", nodes(guest));
    let pins: Vec<String> = guest.vcpus.iter().map(|v| format!("{}:{}", v.vcpu, v.cpu)).collect();
    out + &format!("\n{}", folded(0, "vCPU:CPU", &pins))
}

fn caches(guest: &GuestPlan) -> &'static str {
    match guest.caches {
        Caches::Host => "sizes as the host's",
        Caches::Emulated => "sizes as QEMU's, one L3 per die",
    }
}

fn nodes(guest: &GuestPlan) -> String {
    let mut head: Vec<String> =
        ["guest\nnode", "host\nnode", "\nvCPUs", "\nCPUs", "\nmemory"].map(String::from).into();
    head.extend(guest.nodes.iter().map(|n| format!("distance\nto {}", n.node)));
    let rows = guest.nodes.iter().map(|node| {
        let own = || guest.vcpus.iter().filter(|v| v.node == node.node);
        let vcpus: NumberSet = own().map(|v| v.vcpu).collect();
        let cpus: NumberSet = own().map(|v| v.cpu).collect();
        let mut row = vec![
            node.node.to_string(),
            node.host_node.to_string(),
            vcpus.to_string(),
            cpus.to_string(),
            size(node.memory),
        ];
        row.extend(node.distances.iter().map(u32::to_string));
        row
    });
    text_table(head, rows.collect())
}

fn steps(plan: &Plan) -> String {
    if plan.steps.is_empty() {
        return "host      needs no change\n".into();
    }
    let mut out = String::new();
    // A device often has many interrupts, all of which go to the same CPUs.
    for alike in plan.steps.chunk_by(|a, b| (&a.value, &a.why) == (&b.value, &b.why)) {
        let step = &alike[0];
        let wish = if step.needed { "set" } else { "wish" };
        let more = match alike.len() {
            1 => String::new(),
            n => format!(", and {} more of the device", n - 1),
        };
        out += &wrapped(&format!("{wish:<10}{} = {}{more}", step.path, step.value), 10);
        out += &wrapped(&format!("{:<10}{}", "  why", step.why), 10);
    }
    out
}

fn cost(plan: &Plan) -> String {
    let proven = if plan.proven { "no placement costs less" } else { "the best of those tried" };
    let rows = plan.cost.figures().map(|(what, n)| vec![what.into(), grouped(n)]);
    text_table(vec![format!("cost, in order of weight: {proven}"), String::new()], rows.into())
}
