// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check as JSON: what was seen, and the findings.

use super::case::Finding;
use super::seen::{Block, GuestFacts, PlacementFacts};
use super::verdict::Verdict;
use serde_json::{Map, Value, json};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "bifold.place-check/1";

/// The document.
pub fn document(seen: &PlacementFacts, pids: &[u32], findings: &[Finding]) -> Value {
    let chosen = seen.guests.iter().filter(|g| pids.contains(&g.pid));
    let guests: Vec<Value> = chosen.map(|g| guest(g, findings)).collect();
    json!({
        "schema": SCHEMA,
        "bifold": bifold_base::version(),
        "guests": guests,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn guest(guest: &GuestFacts, findings: &[Finding]) -> Value {
    let vcpus = guest.vcpus().into_iter().map(|(vcpu, t)| {
        json!({
            "vcpu": vcpu,
            "thread": t.id,
            "node": guest.node_of(vcpu),
            "cpus": t.cpus.to_string(),
            "last_cpu": t.last_cpu,
        })
    });
    let unknown = guest.unknown.iter().map(|u| json!({ "what": u.what, "needs_root": u.privilege }));
    json!({
        "name": guest.name,
        "pid": guest.pid,
        "kvm": guest.kvm,
        "vcpus": vcpus.collect::<Vec<_>>(),
        "memory": guest.blocks.iter().map(block).collect::<Vec<_>>(),
        "verdict": Verdict::of(guest, findings).word(),
        "findings": findings.iter().filter(|f| f.pid == Some(guest.pid)).count(),
        "unknown": unknown.collect::<Vec<_>>(),
    })
}

fn block(block: &Block) -> Value {
    let nodes: Map<String, Value> =
        block.pages.nodes.iter().map(|(node, pages)| (node.to_string(), (*pages).into())).collect();
    json!({
        "node": block.node,
        "bytes": block.memory.bytes,
        "page_kib": block.memory.page >> 10,
        "resident_bytes": block.memory.resident,
        "huge_bytes": block.memory.huge,
        "policies": block.memory.policies,
        "pages": block.pages.all,
        "pages_looked_at": block.pages.looked,
        "pages_by_node": nodes,
    })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "name": finding.kind.name(),
        "severity": finding.kind.severity().word(),
        "vm": finding.vm,
        "pid": finding.pid,
        "evidence": finding.evidence,
        "mend": finding.mend,
    })
}
