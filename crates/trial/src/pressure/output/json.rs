// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An outcome as JSON, schema `bifold.reclaim-run/1`.

use super::figures::{GuestFigures, HostFigures, of_guests, of_host};
use crate::experiment::Ending;
use crate::pressure::outcome::{CaseOutcome, GuestSample, Outcome, Sample};
use crate::pressure::spec::{CaseSpec, Spec};
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    bifold: &'a str,
    title: &'a str,
    partial: Option<String>,
    host_memory_mib: u64,
    host_kernel: &'a str,
    qemu: &'a str,
    kvm: bool,
    runs: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct Run<'a> {
    case: &'a CaseSpec,
    repetition: u32,
    ending: &'static str,
    seconds: f64,
    all: HostFigures,
    guests: Vec<Guest<'a>>,
    notes: &'a [String],
    samples: Vec<Value>,
}

#[derive(Serialize)]
struct Guest<'a> {
    #[serde(flatten)]
    figures: GuestFigures,
    memory_mib: u64,
    kernel: &'a str,
    ended: Option<Value>,
    orders: Value,
}

/// The document. `version` is that of the program.
///
/// # Errors
/// If a figure is no number of JSON, which does not happen.
pub fn json(spec: &Spec, outcome: &Outcome, version: &str) -> Result<String, serde_json::Error> {
    let document = Document {
        schema: "bifold.reclaim-run/1",
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
    let guests = case.guests.iter().zip(of_guests(outcome, case)).map(|(guest, figures)| {
        let o = &guest.orders;
        Guest {
            figures,
            memory_mib: guest.memory_mib,
            kernel: &guest.kernel,
            ended: guest.ended.as_ref().map(|(at, why)| json!({ "at_s": milli(*at), "why": why })),
            orders: json!({
                "steps": o.steps, "held": o.held, "at_least_size": o.short, "refused": o.refused,
                "given_back": o.given_back,
            }),
        }
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

fn sample(sample: &Sample) -> Value {
    let guest = |g: &GuestSample| {
        json!({
            "used_bytes": g.used, "resident_bytes": g.resident, "size_bytes": g.size, "target_bytes": g.target,
            "free_bytes": g.free, "available_bytes": g.available, "cpu_s": milli(g.cpu_s), "phase": g.load.phase,
            "operations": g.load.operations, "busy_us": g.load.busy_us, "kills": g.load.kills,
            "major_faults": g.load.major_faults, "swapped_in_pages": g.load.swapped_in,
            "refaulted_pages": g.load.refaults, "waited_us": g.load.waited_us,
            "swapped_bytes": g.swapped, "host_refaulted_pages": g.paging.map(|p| p.refaults),
            "host_waited_us": g.paging.map(|p| p.waited_us),
        })
    };
    let guests: Vec<Option<Value>> = sample.guests.iter().map(|g| g.as_ref().map(guest)).collect();
    json!({ "at_s": milli(sample.at_s), "guests": guests })
}
