// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of a check as JSON.

use super::Checked;
use bifold_share::ksm::Work;
use bifold_trial::ksm_check::KsmPass;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.share.check/1";

/// What `bifold share check --format json` writes: the model of ksmd beside this kernel's ksmd, pass by pass.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// The command line.
    command: &'a str,
    /// Release of this machine's kernel.
    kernel: &'a str,
    /// Pages of 4 KB of each content that the check made; null with `--processes`.
    pages: Option<u32>,
    /// Largest difference between prediction and count that passes, as a share of the count.
    tolerance: f64,
    /// Why the check ended early; null if the check is complete.
    partial: Option<&'a str>,
    /// The runs, in order.
    runs: Vec<RunRow>,
    /// The passes of all runs.
    passes: Vec<PassRow<'a>>,
}

/// A run.
#[derive(Serialize, JsonSchema)]
struct RunRow {
    /// Length of the run. Unit: s.
    took_s: f64,
}

/// A pass of ksmd over a content.
#[derive(Serialize, JsonSchema)]
struct PassRow<'a> {
    /// Number of the run, from 1.
    run: usize,
    /// The checked memory.
    content: &'a str,
    /// KSM's settings.
    settings: &'a str,
    /// Number of the pass, from 1.
    pass: u64,
    /// Merged frames.
    pages_shared: Judged,
    /// Pages that share these frames beyond the first page of each.
    pages_sharing: Judged,
    /// Pages that KSM made mappings of the kernel's zero page.
    ksm_zero_pages: Judged,
    /// Pages in the unstable tree.
    pages_unshared: Beside,
    /// Pages on record that are in neither tree.
    pages_volatile: Beside,
    /// Contents with several merged copies.
    stable_node_chains: Beside,
    /// Merged copies of contents with several of them.
    stable_node_dups: Beside,
    /// Pages of other processes that are merged or mapped to the zero page, by the host's counters.
    others_merged_pages: u64,
    /// How often the content was checked, until no other memory changed meanwhile.
    tries: u32,
    /// Whether other mergeable memory came, went or was split during the last try too, or the kernel made
    /// pages huge.
    disturbed: bool,
    /// The largest difference of `pages_shared`, `pages_sharing` and `ksm_zero_pages`, as a share of the
    /// count.
    difference: f64,
    /// The model's work in this pass.
    work: Work,
    /// CPU time of ksmd.
    cpu_s: CpuTime,
}

/// A figure of the checked memory.
#[derive(Serialize, JsonSchema)]
struct Judged {
    /// By the model.
    predicted: u64,
    /// By the page tables of the checked memory.
    counted: u64,
}

/// A figure that the kernel has for the whole host only, with other processes.
#[derive(Serialize, JsonSchema)]
struct Beside {
    /// By the model, for the checked memory.
    predicted: u64,
    /// By the kernel, for the whole host.
    host: u64,
}

/// A time of ksmd.
#[derive(Serialize, JsonSchema)]
struct CpuTime {
    /// By the model. Unit: s.
    predicted: f64,
    /// By the kernel; null if unknown. Unit: s.
    counted: Option<f64>,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

impl Checked {
    /// As JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> anyhow::Result<String> {
        let numbered = self.runs.iter().enumerate();
        let document = Document {
            schema: SCHEMA,
            command: &self.command,
            kernel: &self.kernel,
            pages: self.pages,
            tolerance: self.tolerance,
            partial: self.partial.as_deref(),
            runs: self.runs.iter().map(|r| RunRow { took_s: r.took.as_secs_f64() }).collect(),
            passes: numbered.flat_map(|(n, run)| run.rows.iter().map(move |r| pass(n + 1, r))).collect(),
        };
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }
}

fn pass(run: usize, r: &KsmPass) -> PassRow<'_> {
    let (p, host) = (&r.predicted, &r.host);
    let [pages_shared, pages_sharing, ksm_zero_pages] =
        r.figures().map(|(_, predicted, counted)| Judged { predicted, counted });
    PassRow {
        run,
        content: &r.content,
        settings: &r.case,
        pass: r.pass,
        pages_shared,
        pages_sharing,
        ksm_zero_pages,
        pages_unshared: Beside { predicted: p.pages_unshared, host: host.pages_unshared },
        pages_volatile: Beside { predicted: p.pages_volatile, host: host.pages_volatile },
        stable_node_chains: Beside { predicted: p.stable_node_chains, host: host.stable_node_chains },
        stable_node_dups: Beside { predicted: p.stable_node_dups, host: host.stable_node_dups },
        others_merged_pages: r.others(),
        tries: r.tries,
        disturbed: r.disturbed,
        difference: r.difference(),
        work: r.work,
        cpu_s: CpuTime {
            predicted: r.predicted_cpu.as_secs_f64(),
            counted: r.counted_cpu.map(|d| d.as_secs_f64()),
        },
    }
}
