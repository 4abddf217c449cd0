// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Simulated cases for programs: one document, or rows.

use super::{SimulateArgs, SimulatedRow};
use bifold_noise::sim::{Collective, Gain, LogGp};
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.noise-simulate/1";

/// What `bifold noise simulate --format json` writes: what noise costs a parallel program.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// What a message costs; null without rows.
    loggp: Option<LogGp>,
    /// Start of the random numbers.
    seed: u64,
    /// Each case.
    rows: Vec<Row<'a>>,
}

/// A case, with what each source of noise costs.
#[derive(Serialize, JsonSchema)]
struct Row<'a> {
    #[serde(flatten)]
    tidy: Tidy<'a>,
    /// Each recorded source, the source with the largest gain first; absent without `--sources`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sources: Option<&'a [Gain]>,
}

/// A row of CSV and JSON.
#[derive(Serialize, JsonSchema)]
struct Tidy<'a> {
    /// Name of the noise: `recorded` for files, a file with `--coscheduled`, the words of `--noise`,
    /// `interrupts, exits` and `interrupts, no exits` for `--interrupts`, or `none`.
    noise: &'a str,
    /// Share of the time that the noise takes from a rank alone, 0 to 1.
    noise_share: f64,
    /// Whether all ranks are interrupted at the same time.
    coscheduled: bool,
    /// The operation at the end of a step.
    collective: Collective,
    /// Time for which each rank computes in a step. Unit: ns.
    grain_ns: f64,
    /// Number of ranks.
    ranks: usize,
    /// Steps that were simulated.
    steps: u32,
    /// How often the ranks together went through the recording, or through the mean time between two
    /// generated interruptions; co-scheduled ranks count as one.
    rounds: f64,
    /// Number of rounds that would be enough: with fewer, the figures are rough.
    enough_rounds: f64,
    /// Mean time of a step without noise. Unit: ns.
    quiet_step_ns: f64,
    /// Mean time of a step. Unit: ns.
    step_ns: f64,
    /// `step_ns` divided by `quiet_step_ns`; null where a step takes time by its noise alone.
    #[schemars(with = "Option<f64>")]
    slowdown: f64,
    /// `grain_ns` divided by `step_ns`: the share of the time in which ranks compute.
    efficiency: f64,
}

impl SimulatedRow {
    fn tidy(&self) -> Tidy<'_> {
        Tidy {
            noise: &self.noise,
            noise_share: self.case.noise.share(self.case.grain),
            coscheduled: self.case.coscheduled,
            collective: self.case.collective,
            grain_ns: self.case.grain,
            ranks: self.case.ranks,
            steps: self.cell.steps,
            rounds: self.cell.rounds,
            enough_rounds: self.cell.enough_rounds,
            quiet_step_ns: self.cell.quiet_step_ns,
            step_ns: self.cell.step_ns,
            slowdown: self.cell.slowdown,
            efficiency: self.cell.efficiency,
        }
    }
}

pub fn csv(rows: &[SimulatedRow]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row.tidy())?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

pub fn json(args: &SimulateArgs, rows: &[SimulatedRow]) -> anyhow::Result<String> {
    let row = |r| Row { tidy: SimulatedRow::tidy(r), sources: args.sources.then_some(&r.gains[..]) };
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        loggp: rows.first().map(|r| r.case.cost),
        seed: args.seed,
        rows: rows.iter().map(row).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}
