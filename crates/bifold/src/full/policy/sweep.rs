// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy sweep`: replays a policy with a grid of parameters.

use super::setting::{Setting, VmArgs, axes, distinct_files, load, no_grid, one_state, timelines, track};
use crate::console::{Delivery, Progress, create_for_data, named, note};
use crate::status::Status;
use crate::words;
use anyhow::Context as _;
use bifold_mmu::PageSize;
use bifold_model::VmState;
use bifold_policy::sweep::{Axis, Prepared, Score, SettingScores, settings, sweep};
use bifold_policy::{Named, Spec};
use bifold_report::{Format, scale_words, text_table, vm_words, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::PathBuf;

const FORMATS: &[Format] = &[Format::Table, Format::Json, Format::Csv];

const EXAMPLES: &str = "\
Examples:
  bifold policy sweep --policy dsp --set interval_s=1,2,5,10 gcc.timeline
  bifold policy sweep --policy zhang --set tlb_miss_threshold=0.5:8:16:log --set n=3,5,7 --format csv -o zhang.csv";

/// Try a policy's parameters over a grid
///
/// Replays every combination of the values of --set over every timeline, from both starting modes. The table
/// has the settings nearest to the oracle; `--format csv` and `json` have every setting.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SweepArgs {
    /// Timelines written by `bifold compare --timeline` [default: evidence/timelines]
    #[arg(value_name = "TIMELINE")]
    pub timelines: Vec<PathBuf>,

    /// The policy: a built-in name or a TOML file
    #[arg(long, value_name = "NAME|FILE")]
    pub policy: String,

    /// Values of a parameter: KEY=A,B,C, or KEY=FROM:TO:STEPS, or the latter with `:log` for even factors
    /// (repeatable)
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    pub set: Vec<String>,

    /// Number of settings that the table shows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub count: usize,

    /// Output format; `json` and `csv` have every setting
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|json|csv", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Options of the VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.policy-sweep/2";

/// What `bifold policy sweep --format json` writes: a policy with every setting of a grid of parameters.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The policy.
    policy: &'a str,
    /// The policy's parameters as they are, with `policy`, the name of the algorithm.
    #[schemars(with = "Map<String, Value>")]
    parameters: &'a Spec,
    /// Size of the host's pages.
    host_page: PageSize,
    /// State of the VM at the start: what the host held of its memory.
    vm: VmState,
    /// Whether nested tables are kept in shadow mode.
    keep_nested: bool,
    /// Seconds of the policy per second of the run.
    time_scale: f64,
    /// What costs of switching are divided by.
    switch_scale: f64,
    /// Whether the other mode's cost was estimated; if not, the cost is the timeline's.
    estimated: bool,
    /// The policy as it is.
    as_it_is: Row,
    /// Every setting, nearest to the oracle first.
    settings: Vec<Row>,
}

/// A setting over all programs.
#[derive(Serialize, JsonSchema)]
struct Row {
    /// Values of the swept parameters, by key.
    set: Map<String, Value>,
    /// Geometric mean of all cycles over the oracle's, less 1. Unit: %.
    oracle_gap_percent: f64,
    /// The largest loss to the better static mode. Unit: % of that mode's cycles.
    worst_static_gap_percent: f64,
    /// The program with that loss.
    worst_program: String,
    /// Switches over all programs.
    switches: u64,
    /// Each program, from the worst starting mode.
    programs: Vec<OfProgram>,
}

/// A setting over one program.
#[derive(Serialize, JsonSchema)]
struct OfProgram {
    /// The program.
    program: String,
    #[serde(flatten)]
    score: Score,
}

/// The schema of the document.
pub fn schema() -> Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// Every setting, best first, and the policy as it is.
struct Swept<'a> {
    base: &'a Named,
    base_row: SettingScores,
    axes: &'a [Axis],
    settings: Vec<Named>,
    rows: Vec<SettingScores>,
    programs: Vec<Prepared>,
    setting: &'a Setting,
    state: VmState,
}

/// Sweeps and prints.
pub fn run(args: SweepArgs) -> anyhow::Result<Status> {
    let axes = axes(&args.set)?;
    let outputs = named([("--output", args.output.as_deref())]);
    distinct_files(&args.timelines, std::slice::from_ref(&args.policy), &args.vm, &outputs)?;
    let setting = Setting::new(&args.vm)?;
    let base = load("--policy", &args.policy)?;
    let grid = settings(&base, &axes).map_err(|e| no_grid(&base, &axes, &args.set, e))?;
    let inputs = timelines(&args.timelines)?;
    let state = one_state(&inputs)?;
    let output = create_for_data(args.output.as_deref())?;
    let prepare = |i: &bifold_policy::evaluate::Input| {
        Ok(Prepared::new(&i.name, track(i, &setting)?, setting.scale.switch))
    };
    let programs: Vec<Prepared> = inputs.iter().map(prepare).collect::<anyhow::Result<_>>()?;
    let over = |settings: &[Named], done: &(dyn Fn(usize) + Sync)| {
        sweep(settings, &programs, setting.scale, setting.estimator.as_ref(), done)
    };
    let base_row = over(std::slice::from_ref(&base), &|_| {}).remove(0);
    let all = grid.named.len();
    let progress = Progress::start(!args.quiet, &format!("{all} settings"));
    let mut rows = over(&grid.named, &|done| progress.count("settings replayed", done, all));
    progress.end();
    rows.sort_by(|a, b| a.total(None).oracle_gap_percent.total_cmp(&b.total(None).oracle_gap_percent));
    if let Some(why) = &grid.why {
        let skipped = grid.skipped;
        note(!args.quiet, format_args!("{skipped} settings are out of range and left out; the first: {why}"));
    }
    let settings = grid.named;
    let swept =
        Swept { base: &base, base_row, axes: &axes, settings, rows, programs, setting: &setting, state };
    let text = match args.format {
        Format::Json => swept.json()?,
        Format::Csv => swept.csv()?,
        _ => swept.table(args.count),
    };
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&text, output);
    delivery.done()?;
    Ok(Status::Done)
}

impl Swept<'_> {
    /// The swept parameters' values in a setting.
    fn values(&self, named: &Named) -> anyhow::Result<Vec<toml::Value>> {
        let table = toml::Table::try_from(&named.spec).context("a policy's parameters are no table")?;
        let value = |axis: &Axis| {
            let mut keys = axis.key.split('.');
            let first = keys.next().and_then(|k| table.get(k));
            keys.try_fold(first?, |v, k| v.get(k)).cloned()
        };
        Ok(self.axes.iter().map(|a| value(a).unwrap_or_else(|| "-".into())).collect())
    }

    /// The program with the largest gap to the better static mode.
    fn worst(&self, row: &SettingScores) -> &str {
        let scores = row.scores.iter().zip(&self.programs);
        scores.max_by(|a, b| a.0.to_static.total_cmp(&b.0.to_static)).map_or("", |(_, p)| &p.name)
    }

    fn figures(&self, row: &SettingScores) -> [String; 4] {
        let t = row.total(None);
        [
            format!("{:.2}", t.oracle_gap_percent),
            format!("{:.2}", t.worst_static_gap_percent),
            self.worst(row).to_string(),
            t.switches.to_string(),
        ]
    }

    fn table(&self, count: usize) -> String {
        let line = |first: String, named: &Named, row: &SettingScores| {
            let values = self.values(named).unwrap_or_default().into_iter().map(|v| short(&v));
            [first].into_iter().chain(values).chain(self.figures(row)).collect::<Vec<String>>()
        };
        let mut lines = vec![line("as it is".into(), self.base, &self.base_row)];
        let best = self.rows.iter().take(count).enumerate();
        lines.extend(best.map(|(i, r)| line((i + 1).to_string(), &self.settings[r.setting], r)));
        let head = ["setting".to_owned()].into_iter().chain(self.axes.iter().map(|a| a.key.clone()));
        let head = head.map(|h| format!("\n\n{h}"));
        let figures =
            ["mean gap\nto oracle\n%", "worst gap\nto static\n%", "program\nof worst\ngap", "\n\nswitches"];
        let head = head.chain(figures.map(String::from)).collect();
        let shown = self.rows.len().min(count);
        let best = format!(
            "best {shown} of {} settings; programs: {}; mean gap: geometric mean over the programs",
            self.rows.len(),
            self.programs.len()
        );
        let about = [
            format!("The policy is {}", self.base.name),
            format!("The VM is {}", vm_words(self.state, &self.setting.vm)),
            scale_words(self.setting.scale.time, self.setting.scale.switch),
        ];
        let about = about.map(|line| wrapped(&line, 0)).concat();
        format!("{about}\n{}\n{}", text_table(head, lines), wrapped(&best, 0))
    }

    fn json(&self) -> anyhow::Result<String> {
        let row = |named: &Named, row: &SettingScores| -> anyhow::Result<Row> {
            let total = row.total(None);
            let keys = self.axes.iter().map(|a| a.key.clone());
            let values = self.values(named)?.into_iter().map(|v| serde_json::to_value(v).unwrap_or_default());
            let scores = row.scores.iter().zip(&self.programs);
            Ok(Row {
                set: keys.zip(values).collect(),
                oracle_gap_percent: total.oracle_gap_percent,
                worst_static_gap_percent: total.worst_static_gap_percent,
                worst_program: self.worst(row).into(),
                switches: total.switches,
                programs: scores
                    .map(|(score, p)| OfProgram { program: p.name.clone(), score: *score })
                    .collect(),
            })
        };
        let rows = self.rows.iter().map(|r| row(&self.settings[r.setting], r));
        let document = Document {
            schema: SCHEMA,
            bifold: bifold_base::version(),
            policy: &self.base.name,
            parameters: &self.base.spec,
            host_page: self.setting.vm.host_page,
            vm: self.state,
            keep_nested: self.setting.vm.keep_nested,
            time_scale: self.setting.scale.time,
            switch_scale: self.setting.scale.switch,
            estimated: self.setting.estimator.is_some(),
            as_it_is: row(self.base, &self.base_row)?,
            settings: rows.collect::<anyhow::Result<_>>()?,
        };
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    fn csv(&self) -> anyhow::Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let keys = self.axes.iter().map(|a| a.key.as_str());
        let figures = ["oracle_gap_percent", "worst_static_gap_percent", "worst_program", "switches"];
        writer.write_record(keys.chain(figures))?;
        for row in &self.rows {
            let plain = |v: toml::Value| match v {
                toml::Value::String(s) => s,
                v => v.to_string(),
            };
            let values = self.values(&self.settings[row.setting])?.into_iter().map(plain);
            let t = row.total(None);
            let figures = [
                t.oracle_gap_percent.to_string(),
                t.worst_static_gap_percent.to_string(),
                self.worst(row).to_string(),
                t.switches.to_string(),
            ];
            writer.write_record(values.chain(figures))?;
        }
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}

/// A value for the table, with four digits.
fn short(value: &toml::Value) -> String {
    match value {
        toml::Value::Float(x) if *x != 0.0 && x.abs() < 1e-3 => format!("{x:.3e}"),
        toml::Value::Float(x) => {
            let text = format!("{x:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
        toml::Value::String(s) => s.clone(),
        v => v.to_string(),
    }
}
