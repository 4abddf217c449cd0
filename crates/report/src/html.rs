// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page of a run: one HTML file that needs no network. A template makes text and tables; vendored
//! scripts draw charts in the browser from data embedded as JSON.
//!
//! Text of users and guests (command lines, paths, profiles) reaches the page only through the template's
//! HTML escaping or as JSON with escaped `<`, `>`, `&` and `'`. So the text can end neither an element nor a
//! script. A content security policy keeps the page from loading anything.

use crate::first_touches;
use crate::flames::flames;
use crate::memory::MemoryChart;
use crate::meta::{profile_choice, profile_words};
use crate::page::{self, PageTable};
use crate::table::{self, Column};
use crate::template::{STYLE, environment, scripts};
use crate::text::{grouped, number, page_words, seconds};
use crate::{
    Comparison, Figures, MemoryNeeds, RenderError, caches, clock, placement, policies, regions, several,
    start, verdict,
};
use bifold_mmu::PageSize;
use bifold_model::Sample;
use bifold_policy::evaluate::{Evaluation, Program};
use minijinja::context;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const TEMPLATE: &str = include_str!("../html/report.html.j2");

/// Most points of a timeline per configuration: more would overlap on a screen.
const MAX_POINTS: usize = 400;

/// One configuration's row in the table.
#[derive(Serialize)]
struct TableRow {
    name: String,
    cells: Vec<String>,
}

/// One configuration's figures for the charts; times are in the unit of the table.
#[derive(Serialize)]
struct Bar {
    config: String,
    ideal: f64,
    walk: f64,
    vmm: f64,
    data: f64,
    frames: f64,
    time: f64,
    low: f64,
    high: f64,
    /// Misses per 1000 instructions by page size.
    misses: [f64; 3],
    /// The table's cells by the first words of their columns' heads, so that a chart and the table show the
    /// same numbers.
    cells: BTreeMap<String, String>,
}

/// Exits for one reason in one configuration.
#[derive(Serialize)]
struct ExitBar {
    config: String,
    reason: String,
    count: u64,
    doc: &'static str,
}

/// One configuration's cost in one stretch of the timeline.
#[derive(Serialize)]
struct Point {
    config: String,
    from: f64,
    to: f64,
    overhead: f64,
    cold: f64,
}

#[derive(Serialize)]
struct Charts {
    configs: Vec<String>,
    /// The unit of times.
    unit: &'static str,
    /// Whether the bars have a part for waits for data.
    has_data: bool,
    bars: Vec<Bar>,
    exits: Vec<ExitBar>,
    timeline: Vec<Point>,
    strips: Option<policies::Strips>,
    memory: Option<MemoryChart>,
}

/// The page of one run, with tables of the spread if there are several runs.
pub(crate) fn render(c: &Comparison, spread: Option<&[PageTable]>) -> Result<String, RenderError> {
    let mut env = environment();
    env.add_template("report.html", TEMPLATE)?;
    let o = &c.outcome;
    let total = o.configs.first().map(|r| r.total).unwrap_or_default();
    let (made, failed) = c.checks();
    let priors = c.meta.hardware.priors();
    let columns = table::columns(c);
    let page = env.get_template("report.html")?.render(context! {
        style => STYLE,
        scripts => scripts(include_str!("../html/charts.js")),
        data => data(c),
        bifold => c.meta.bifold,
        what => c.meta.what(),
        guest => c.meta.guest.as_ref().map(|g| g.describe()),
        exit => c.meta.exit.map(|e| e.describe()),
        warnings => c.warnings(),
        start => start::line(c),
        clock => clock::line(c),
        several => several::line(c),
        verdict => verdict::sentences(c),
        started => first_touches::line(c),
        instructions => grouped(total.instructions),
        accesses => grouped(total.accesses),
        ideal => seconds(o.ideal_cycles() / o.frequency_hz.max(1) as f64),
        profile => profile_words(&c.meta.hardware),
        choice => profile_choice(&c.meta.hardware),
        hardware => serde_json::to_string_pretty(&c.meta.hardware)?,
        frequency => number(o.frequency_hz as f64 / 1e9),
        cpi => o.base_cpi,
        half_cpi => o.base_cpi / 2.0,
        double_cpi => o.base_cpi * 2.0,
        caches => caches::line(c),
        seed => o.seed,
        config_hash => o.config_hash,
        input_hash => o.input_hash,
        interval => seconds(o.interval_cycles as f64 / o.frequency_hz.max(1) as f64),
        heads => columns.iter().map(|c| c.head.split('\n').collect::<Vec<_>>()).collect::<Vec<_>>(),
        rows => rows(c, &columns),
        vm => format!("{}: {}", o.vm.name(), o.vm.words()),
        modes => o.configs.iter().map(|r| r.config.mode).collect::<BTreeSet<_>>(),
        sizes => sizes(c),
        priors => priors.iter().map(|p| p.split_once(": ").unwrap_or((p, ""))).collect::<Vec<_>>(),
        checks => verdict::checks(c).iter()
            .map(|(what, made, bad)| (*what, grouped(*made), grouped(*bad)))
            .collect::<Vec<_>>(),
        checked => made > 0 || failed > 0,
        failed => grouped(failed),
        untranslated => grouped(o.untranslated),
        wrong => failed > 0,
        regions => regions::page_table(c).map(|t| page::tables(&[t])).transpose()?,
        placed => placement::page_table(c).map(|t| page::tables(&[t])).transpose()?,
        memory => c.memory.as_ref().map(|m| page::tables(&[m.page_table()])).transpose()?,
        baseline => c.baseline.as_ref().map(|j| j.verdict()),
        moved => c.baseline.as_ref().map(|j| page::tables(&j.tables())).transpose()?,
        places => c.places.as_ref().map(|p| p.section()),
        flames => c.places.as_ref().map(flames).transpose()?.flatten(),
        policies => evaluation(c).and_then(|e| e.programs.first()).map(policies::html_table).transpose()?,
        no_policies => c.policies.as_ref().and_then(|p| p.evaluation.as_ref().err().map(ToString::to_string)),
        setting => evaluation(c).map(policies::setting_words),
        scale => evaluation(c).map(|e| policies::scale_words(e.time_scale, e.switch_scale)),
        tables => spread.map(page::tables).transpose()?,
        replay => c.policies.as_ref().filter(|p| !p.checks.is_empty()).map(|p| policies::checks(&p.checks)),
    })?;
    Ok(page)
}

/// The policies over this run, if there are any.
fn evaluation(c: &Comparison) -> Option<&Evaluation> {
    c.policies.as_ref()?.evaluation.as_ref().ok()
}

/// The table's row of each configuration.
fn rows(c: &Comparison, columns: &[Column]) -> Vec<TableRow> {
    let row = |(i, r): (usize, &bifold_model::ConfigOutcome)| TableRow {
        name: r.config.name(),
        cells: columns.iter().map(|column| column.cells[i].clone()).collect(),
    };
    c.outcome.configs.iter().enumerate().map(row).collect()
}

/// The sizes of host pages in the names of the configurations, with their words: `4k`, `4 KB`.
fn sizes(c: &Comparison) -> Vec<(&'static str, &'static str)> {
    let has =
        |page| c.outcome.configs.iter().any(|r| r.config.mode.has_sizes() && r.config.host_page == page);
    let all = [("4k", PageSize::Size4K), ("2m", PageSize::Size2M), ("1g", PageSize::Size1G)];
    all.into_iter().filter(|(_, page)| has(*page)).map(|(name, page)| (name, page_words(page))).collect()
}

fn data(c: &Comparison) -> Charts {
    let o = &c.outcome;
    let per_1000 = |n: u64, s: &Sample| 1000.0 * n as f64 / s.instructions.max(1) as f64;
    let doc = |reason: &str| {
        let name = format!("exits_{reason}");
        Sample::COUNTERS.iter().find(|c| c.name == name).map_or("", |c| c.doc)
    };
    let columns = table::columns(c);
    let word = |column: &Column| column.head.split('\n').next().unwrap_or_default().to_string();
    let unit = table::unit(c);
    let bar = |(i, r): (usize, &bifold_model::ConfigOutcome)| {
        let (f, t) = (Figures::of(o, r), &r.total);
        let time = |seconds: f64| seconds * unit.per_second;
        let ideal = time(f.seconds) / (1.0 + f.overhead_percent / 100.0);
        let part = |percent: f64| ideal * percent / 100.0;
        Bar {
            config: r.config.name(),
            ideal,
            walk: part(f.walk_percent),
            vmm: part(f.vmm_percent),
            data: if o.caches.is_some() { part(f.data_percent) } else { 0.0 },
            frames: part(f.frames_percent),
            time: time(f.seconds),
            low: time(f.low_seconds),
            high: time(f.high_seconds),
            cells: columns.iter().map(|column| (word(column), column.cells[i].clone())).collect(),
            misses: [t.tlb_misses_4k, t.tlb_misses_2m, t.tlb_misses_1g].map(|n| per_1000(n, t)),
        }
    };
    Charts {
        configs: o.configs.iter().map(|r| r.config.name()).collect(),
        unit: unit.name,
        has_data: o.caches.is_some(),
        bars: o.configs.iter().enumerate().map(bar).collect(),
        exits: o
            .configs
            .iter()
            .flat_map(|r| {
                r.total.exits().filter(|(_, n)| *n > 0).map(|(reason, count)| ExitBar {
                    config: r.config.name(),
                    reason: reason.replace('_', " "),
                    count,
                    doc: doc(reason),
                })
            })
            .collect(),
        timeline: timeline(c),
        strips: evaluation(c).and_then(|e| e.programs.first()).map(|p| strips(c, p)),
        memory: c.memory.as_ref().map(MemoryNeeds::chart),
    }
}

/// The modes over time that the policies were in.
fn strips(c: &Comparison, p: &Program) -> policies::Strips {
    let o = &c.outcome;
    if o.regions.is_none() {
        return policies::strips(p);
    }
    let seconds = |cycles: f64| cycles / o.frequency_hz.max(1) as f64;
    let starts: Vec<f64> = o.interval_starts.iter().map(|&s| seconds(s as f64)).collect();
    policies::strips_between(p, &starts, seconds(o.ideal_cycles()))
}

/// The timeline, neighbouring intervals joined where there are too many to draw.
fn timeline(c: &Comparison) -> Vec<Point> {
    let o = &c.outcome;
    let hz = o.frequency_hz.max(1) as f64;
    let n = o.interval_starts.len();
    let joined = n.div_ceil(MAX_POINTS).max(1);
    let mut points = Vec::new();
    for first in (0..n).step_by(joined) {
        let next = first + joined;
        let start = o.interval_starts[first] as f64;
        let end = o.interval_starts.get(next).map_or(o.ideal_cycles(), |&s| s as f64);
        for r in &o.configs {
            let mut sum = Sample::default();
            r.intervals.iter().take(next).skip(first).for_each(|s| sum.add(s));
            // Relative to the ideal time of these instructions, because the last interval is short.
            let ideal = sum.ideal_cycles(o.base_cpi);
            let percent = |cycles: u64| if ideal > 0.0 { 100.0 * cycles as f64 / ideal } else { 0.0 };
            points.push(Point {
                config: r.config.name(),
                from: start / hz,
                to: end.max(start) / hz,
                overhead: percent(sum.extra_cycles()),
                cold: percent(sum.cold_cycles),
            });
        }
    }
    points
}
