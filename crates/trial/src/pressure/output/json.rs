// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An outcome as JSON.

use super::figures::{GuestFigures, HostFigures, of_guests, of_host};
use crate::pressure::outcome::{CaseOutcome, GuestSample, Orders, Outcome, Sample};
use crate::pressure::spec::{CaseSpec, Spec};
use crate::run::Ending;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the document.
pub const SCHEMA: &str = "bifold.reclaim-run/1";

/// What `bifold reclaim run --format json` writes: guests that run while their host takes memory back.
#[derive(Serialize, JsonSchema)]
pub struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'a str,
    /// The experiment's title.
    title: &'a str,
    /// What is missing, in words; null if the run is whole.
    partial: Option<String>,
    /// What all guests may have in the host's memory together. Unit: MiB.
    host_memory_mib: u64,
    /// Release of the host's kernel.
    host_kernel: &'a str,
    /// Version of QEMU.
    qemu: &'a str,
    /// Whether the guests ran under KVM.
    kvm: bool,
    /// Each run of the guests, in order.
    runs: Vec<Run<'a>>,
}

/// A run of the guests.
#[derive(Serialize, JsonSchema)]
struct Run<'a> {
    /// How memory is taken back.
    case: &'a CaseSpec,
    /// The repetition, from 1.
    repetition: u32,
    /// How the run ended: `whole`, `interrupted` or `failed`.
    ending: &'static str,
    /// Time of the last sample, from the begin of the loads. Unit: s.
    seconds: f64,
    /// Figures of all guests.
    all: HostFigures,
    /// Figures of each guest.
    guests: Vec<Guest<'a>>,
    /// What happened to orders and guests.
    notes: &'a [String],
    /// Figures over time.
    samples: Vec<SampleRow>,
}

/// A guest in a run.
#[derive(Serialize, JsonSchema)]
struct Guest<'a> {
    #[serde(flatten)]
    figures: GuestFigures,
    /// The guest's memory. Unit: MiB.
    memory_mib: u64,
    /// Release of the guest's kernel.
    kernel: &'a str,
    /// When and why the guest ended early, or its load gave up; null otherwise.
    ended: Option<Ended<'a>>,
    /// Counts of orders about the guest's size.
    orders: &'a Orders,
}

/// An early end.
#[derive(Serialize, JsonSchema)]
struct Ended<'a> {
    /// When, from the begin of the loads. Unit: s.
    at_s: f64,
    /// Why, in words.
    why: &'a str,
}

/// Figures of one moment.
#[derive(Serialize, JsonSchema)]
struct SampleRow {
    /// The moment, from the begin of the loads. Unit: s.
    at_s: f64,
    /// Each guest; null once a guest is gone.
    guests: Vec<Option<GuestRow>>,
}

/// A guest's figures of one moment. Counts begin with the load.
#[derive(Serialize, JsonSchema)]
struct GuestRow {
    /// Memory of the guest in the host's, where a page with n mappings counts 1/n. Unit: bytes.
    used_bytes: u64,
    /// Memory of the guest in the host's. Unit: bytes.
    resident_bytes: u64,
    /// Size outside of the balloon; null if unknown. Unit: bytes.
    size_bytes: Option<u64>,
    /// The size that the policy wants; null without one. Unit: bytes.
    target_bytes: Option<u64>,
    /// Free memory, by the guest's statistics; null if unknown. Unit: bytes.
    free_bytes: Option<u64>,
    /// What programs can take without swapping, by the guest's statistics; null if unknown. Unit: bytes.
    available_bytes: Option<u64>,
    /// CPU time of the emulator. Unit: s.
    cpu_s: f64,
    /// Phase of the load, from 0.
    phase: u64,
    /// Operations of the load.
    operations: u64,
    /// Time in operations. Unit: us.
    busy_us: u64,
    /// Times that the guest's kernel killed the load for lack of memory.
    kills: u64,
    /// Faults that read from a disk.
    major_faults: u64,
    /// Pages read from the guest's swap.
    swapped_in_pages: u64,
    /// Pages that came back after the guest reclaimed them.
    refaulted_pages: u64,
    /// Time in which tasks of the guest waited for memory; 0 if the guest's kernel does not count. Unit: us.
    waited_us: u64,
    /// Memory of the guest in the host's swap. Unit: bytes.
    swapped_bytes: u64,
    /// Pages that came back soon after the host took them; null where the host does not page.
    host_refaulted_pages: Option<u64>,
    /// Time in which QEMU's threads waited for memory, 0 if the kernel does not count; null where the host
    /// does not page. Unit: us.
    host_waited_us: Option<u64>,
}

/// The document. `version` is that of the program.
///
/// # Errors
/// If a figure is no number of JSON, which does not happen.
pub fn json(spec: &Spec, outcome: &Outcome, version: &str) -> Result<String, serde_json::Error> {
    let document = Document {
        schema: SCHEMA,
        bifold: version,
        title: &spec.title,
        partial: outcome.partial(),
        host_memory_mib: spec.host_memory_mib,
        host_kernel: &outcome.host_kernel,
        qemu: &outcome.qemu,
        kvm: outcome.kvm,
        runs: outcome.cases.iter().map(|case| run(spec, outcome, case)).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn run<'a>(spec: &Spec, outcome: &Outcome, case: &'a CaseOutcome) -> Run<'a> {
    let guests = case.guests.iter().zip(of_guests(outcome, case)).map(|(guest, figures)| Guest {
        figures,
        memory_mib: guest.memory_mib,
        kernel: &guest.kernel,
        ended: guest.ended.as_ref().map(|(at, why)| Ended { at_s: milli(*at), why }),
        orders: &guest.orders,
    });
    Run {
        case: &case.spec,
        repetition: case.repetition,
        ending: match case.ending {
            Ending::Whole => "whole",
            Ending::Interrupted => "interrupted",
            Ending::Failed(_) => "failed",
        },
        seconds: milli(case.length()),
        all: of_host(outcome, case, case.spec.host_mib(spec)),
        guests: guests.collect(),
        notes: &case.notes,
        samples: case.samples.iter().map(sample).collect(),
    }
}

fn milli(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn sample(sample: &Sample) -> SampleRow {
    let guest = |g: &GuestSample| GuestRow {
        used_bytes: g.used,
        resident_bytes: g.resident,
        size_bytes: g.size,
        target_bytes: g.target,
        free_bytes: g.free,
        available_bytes: g.available,
        cpu_s: milli(g.cpu_s),
        phase: g.load.phase,
        operations: g.load.operations,
        busy_us: g.load.busy_us,
        kills: g.load.kills,
        major_faults: g.load.major_faults,
        swapped_in_pages: g.load.swapped_in,
        refaulted_pages: g.load.refaults,
        waited_us: g.load.waited_us,
        swapped_bytes: g.swapped,
        host_refaulted_pages: g.paging.map(|p| p.refaults),
        host_waited_us: g.paging.map(|p| p.waited_us),
    };
    let guests = sample.guests.iter().map(|g| g.as_ref().map(guest)).collect();
    SampleRow { at_s: milli(sample.at_s), guests }
}
