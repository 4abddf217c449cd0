// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim advise`: what is wrong about guests' memory, and what to do.

use crate::console::{note, print};
use crate::status::{self, Status};
use crate::words;
use bifold_host::Host;
use bifold_live::memory::rules::{Finding, advise};
use bifold_live::memory::{HostMemory, see};
use bifold_report::{Format, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.reclaim-advise/1";

const EXAMPLES: &str = "\
Examples:
  bifold reclaim advise
  bifold reclaim advise --format json | jq -r '.findings[].how'";

/// Say what is wrong about guests' memory, with figures, and what to do
///
/// Looks once at all guests: QEMU's balloon and the guest's statistics, the process's memory in the host and
/// in its swap, its cgroup, the host's memory. `bifold reclaim watch --stats` turns statistics on for a
/// while. Changes nothing. Without root, other users' guests are seen in part.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct AdviseArgs {
    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    format: Format,
}

/// Carries out the verb on this machine.
pub fn run(args: &AdviseArgs) -> anyhow::Result<Status> {
    let seen = see(&Host::live());
    print(&answer(&seen, args.format)?)?;
    super::guests::silent(&seen).iter().for_each(|text| note(true, text));
    Ok(Status::Done)
}

fn answer(seen: &HostMemory, format: Format) -> anyhow::Result<String> {
    let findings = advise(seen);
    match format {
        Format::Json => Ok(serde_json::to_string_pretty(&document(seen, &findings))? + "\n"),
        _ => Ok(text(seen, &findings)),
    }
}

fn text(seen: &HostMemory, findings: &[Finding]) -> String {
    if findings.is_empty() {
        let guests = seen.guests.len();
        return format!(
            "nothing to say about the memory of {guests} guest{}\n",
            if guests == 1 { "" } else { "s" }
        );
    }
    let mut out = String::new();
    for f in findings {
        let line = |label: &str, text: &str| wrapped(&format!("{label:<6}{text}"), 6);
        out += &wrapped(&format!("{} (process {}): {}", f.vm, f.pid, f.what), 6);
        out += &line("  why", f.why);
        out += &format!("  how {}\n", f.how);
    }
    out
}

/// What `bifold reclaim advise --format json` writes: what is wrong about guests' memory, and what to do.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// The host's memory; null if unknown. Unit: bytes.
    memory_bytes: Option<u64>,
    /// What the host's programs can take without swapping; null if unknown. Unit: bytes.
    available_bytes: Option<u64>,
    /// The host's swap; null if unknown. Unit: bytes.
    swap_bytes: Option<u64>,
    /// Free swap of the host; null if unknown. Unit: bytes.
    swap_free_bytes: Option<u64>,
    /// Share of the last minute in which some task of the host waited for memory; null without PSI.
    waiting_some_60s_ratio: Option<f64>,
    /// Number of guests.
    guests: usize,
    /// The findings.
    findings: &'a [Finding],
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

fn document<'a>(seen: &HostMemory, findings: &'a [Finding]) -> Document<'a> {
    Document {
        schema: SCHEMA,
        memory_bytes: seen.memory.total,
        available_bytes: seen.memory.available,
        swap_bytes: seen.swap.map(|s| s.total),
        swap_free_bytes: seen.swap.map(|s| s.free),
        waiting_some_60s_ratio: seen.waiting_60.map(|p| p / 100.0),
        guests: seen.guests.len(),
        findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full::reclaim::guests::example;

    #[test]
    fn findings_have_figures_reasons_and_commands() {
        let mut seen = example();
        insta::assert_snapshot!("reclaim_advise", answer(&seen, Format::Table).unwrap());
        insta::assert_snapshot!("reclaim_advise_json", answer(&seen, Format::Json).unwrap());
        seen.guests.clear();
        assert_eq!(answer(&seen, Format::Table).unwrap(), "nothing to say about the memory of 0 guests\n");
    }
}
