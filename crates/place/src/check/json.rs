// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check as JSON: what was seen, and the findings.

use super::case::Finding;
use super::kinds::Severity;
use super::seen::{Block, GuestFacts, PlacementFacts, Unknown};
use super::verdict::Verdict;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The name and version of the JSON form.
pub const SCHEMA: &str = "bifold.place-check/1";

/// What `bifold place check --format json` writes: what was seen of guests that run, and what is wrong. Sets
/// of CPUs are in the kernel's list format, such as `0-3,8`; what is not known is null.
#[derive(Serialize, JsonSchema)]
pub struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The guests that were checked.
    guests: Vec<Guest<'a>>,
    /// The findings.
    findings: Vec<FindingRow<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct Guest<'a> {
    /// The VM's name.
    name: &'a str,
    /// The VM's process.
    pid: u32,
    /// Whether KVM runs the guest.
    kvm: bool,
    /// The vCPUs whose threads are known.
    vcpus: Vec<Vcpu>,
    /// Pieces of the guest's memory.
    memory: Vec<Piece<'a>>,
    /// The check's result.
    verdict: Verdict,
    /// Number of findings about this guest.
    findings: usize,
    /// What could not be looked at.
    unknown: &'a [Unknown],
}

#[derive(Serialize, JsonSchema)]
struct Vcpu {
    /// Number of the vCPU.
    vcpu: u32,
    /// The vCPU's thread.
    thread: u32,
    /// The vCPU's node within the guest.
    node: u32,
    /// The CPUs that the thread may run on.
    cpus: String,
    /// The CPU that the thread last ran on; null if not known.
    last_cpu: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct Piece<'a> {
    /// The guest node that the piece belongs to; null if not known.
    node: Option<u32>,
    /// Size of the piece. Unit: bytes.
    bytes: u64,
    /// Page size of the mapping: above 4 in hugetlbfs. Unit: KiB.
    page_kib: u64,
    /// How much of the piece the host has backed. Unit: bytes.
    resident_bytes: u64,
    /// How much of that is in huge pages, transparent ones included. Unit: bytes.
    huge_bytes: u64,
    /// Memory policies of the piece's mappings, as `numa_maps` has them.
    policies: &'a [String],
    /// Pages of the mapping's size.
    pages: u64,
    /// How many of them were asked for.
    pages_looked_at: u64,
    /// How many of those are on each host node, by number.
    pages_by_node: &'a BTreeMap<u32, u64>,
}

#[derive(Serialize, JsonSchema)]
struct FindingRow<'a> {
    /// Name of the finding, such as `vcpu-unpinned`.
    name: &'static str,
    /// How bad the finding is.
    severity: Severity,
    /// The VM's name; null for the host.
    vm: Option<&'a str>,
    /// The VM's process; null if the VM does not run, and for the host.
    pid: Option<u32>,
    /// Figures, for people.
    evidence: &'a str,
    /// The command that mends the finding, or what to do first.
    mend: &'a str,
}

/// The document.
pub fn document<'a>(seen: &'a PlacementFacts, pids: &[u32], findings: &'a [Finding]) -> Document<'a> {
    let chosen = seen.guests.iter().filter(|g| pids.contains(&g.pid));
    Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        guests: chosen.map(|g| guest(g, findings)).collect(),
        findings: findings.iter().map(finding).collect(),
    }
}

fn guest<'a>(guest: &'a GuestFacts, findings: &[Finding]) -> Guest<'a> {
    let vcpus = guest.vcpus().into_iter().map(|(vcpu, t)| Vcpu {
        vcpu,
        thread: t.id,
        node: guest.node_of(vcpu),
        cpus: t.cpus.to_string(),
        last_cpu: t.last_cpu,
    });
    Guest {
        name: &guest.name,
        pid: guest.pid,
        kvm: guest.kvm,
        vcpus: vcpus.collect(),
        memory: guest.blocks.iter().map(piece).collect(),
        verdict: Verdict::of(guest, findings),
        findings: findings.iter().filter(|f| f.pid == Some(guest.pid)).count(),
        unknown: &guest.unknown,
    }
}

fn piece(block: &Block) -> Piece<'_> {
    Piece {
        node: block.node,
        bytes: block.memory.bytes,
        page_kib: block.memory.page >> 10,
        resident_bytes: block.memory.resident,
        huge_bytes: block.memory.huge,
        policies: &block.memory.policies,
        pages: block.pages.all,
        pages_looked_at: block.pages.looked,
        pages_by_node: &block.pages.nodes,
    }
}

fn finding(finding: &Finding) -> FindingRow<'_> {
    FindingRow {
        name: finding.kind.name(),
        severity: finding.kind.severity(),
        vm: finding.vm.as_deref(),
        pid: finding.pid,
        evidence: &finding.evidence,
        mend: &finding.mend,
    }
}
