// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page of a run: one HTML file that needs no network. A template makes text and tables; vendored
//! scripts draw charts in the browser from data embedded as JSON.
//!
//! Text of users and guests (command lines, paths, profiles) reaches the page only through the template's
//! HTML escaping or as JSON with escaped `<`, `>`, `&` and `'`. So the text can end neither an element nor a
//! script. A content security policy keeps the page from loading anything.

use crate::flames::flames;
use crate::page::{self, PageTable};
use crate::template::{STYLE, environment, scripts};
use crate::text::{decimals, fixed, grouped, number, seconds};
use crate::{Comparison, Figures, RenderError, caches, clock, placement, policies, verdict};
use bifold_model::{Paging, Sample};
use bifold_policy::evaluate::Evaluation;
use minijinja::context;
use serde::Serialize;

const TEMPLATE: &str = include_str!("../html/report.html.j2");

/// Most points of a timeline per configuration: more would overlap on a screen.
const MAX_POINTS: usize = 400;

/// One configuration's row in the table.
#[derive(Serialize)]
struct Row {
    name: String,
    mode: Paging,
    cells: Vec<String>,
}

/// One configuration's figures for the charts.
#[derive(Serialize)]
struct Bar {
    config: String,
    walk: f64,
    vmm: f64,
    long_lived: f64,
    /// Misses per 1000 instructions by page size.
    misses: [f64; 3],
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
    bars: Vec<Bar>,
    exits: Vec<ExitBar>,
    timeline: Vec<Point>,
    strips: Option<policies::Strips>,
}

/// The page of one run, with tables of the spread if there are several runs.
pub(crate) fn render(c: &Comparison, spread: Option<&[PageTable]>) -> Result<String, RenderError> {
    let mut env = environment();
    env.add_template("report.html", TEMPLATE)?;
    let o = &c.outcome;
    let total = o.configs.first().map(|r| r.total).unwrap_or_default();
    let (made, failed) = c.checks();
    let priors = c.meta.hardware.priors();
    let page = env.get_template("report.html")?.render(context! {
        style => STYLE,
        scripts => scripts(include_str!("../html/charts.js")),
        data => data(c),
        bifold => c.meta.bifold,
        what => c.meta.what(),
        guest => c.meta.guest.as_ref().map(|g| g.describe()),
        exit => c.meta.exit.map(|e| e.describe()),
        warnings => c.warnings(),
        clock => clock::line(c),
        verdict => verdict::sentences(c),
        instructions => grouped(total.instructions),
        accesses => grouped(total.accesses),
        ideal => seconds(o.ideal_cycles() / o.frequency_hz.max(1) as f64),
        profile => c.meta.profile_words(),
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
        rows => rows(c),
        priors => priors.iter().map(|p| p.split_once(": ").unwrap_or((p, ""))).collect::<Vec<_>>(),
        checks => verdict::checks(c).iter()
            .map(|(what, made, bad)| (*what, grouped(*made), grouped(*bad)))
            .collect::<Vec<_>>(),
        checked => made > 0 || failed > 0,
        failed => grouped(failed),
        untranslated => grouped(o.untranslated),
        wrong => failed > 0,
        placed => placement::page_table(c).map(|t| page::tables(&[t])).transpose()?,
        places => c.places.as_ref().map(|p| p.view()),
        flames => c.places.as_ref().map(flames).transpose()?.flatten(),
        policies => evaluation(c).and_then(|e| e.programs.first()).map(policies::html_table).transpose()?,
        no_policies => c.policies.as_ref().and_then(|p| p.evaluation.as_ref().err()),
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

/// The table: one row per configuration, cells as text.
fn rows(c: &Comparison) -> Vec<Row> {
    let columns: [fn(&Figures) -> f64; 9] = [
        |f| f.overhead_percent,
        |f| f.walk_percent,
        |f| f.vmm_percent,
        |f| f.long_lived_percent,
        |f| f.low_percent,
        |f| f.high_percent,
        |f| f.extra_cycles_per_1000,
        |f| f.tlb_misses_per_1000,
        |f| f.refs_per_walk,
    ];
    let all: Vec<Figures> = c.outcome.configs.iter().map(|r| Figures::of(&c.outcome, r)).collect();
    let places = columns.map(|get| decimals(all.iter().map(get).fold(0.0, f64::max)));
    let row = |(r, f): (&bifold_model::ConfigOutcome, &Figures)| {
        let cells = columns.iter().zip(places).map(|(get, places)| fixed(get(f), places));
        let cells = cells.chain([grouped(r.total.all_exits())]).collect();
        Row { name: r.config.name(), mode: r.config.mode, cells }
    };
    c.outcome.configs.iter().zip(&all).map(row).collect()
}

fn data(c: &Comparison) -> Charts {
    let o = &c.outcome;
    let per_1000 = |n: u64, s: &Sample| 1000.0 * n as f64 / s.instructions.max(1) as f64;
    let doc = |reason: &str| {
        let name = format!("exits_{reason}");
        Sample::COUNTERS.iter().find(|c| c.name == name).map_or("", |c| c.doc)
    };
    Charts {
        configs: o.configs.iter().map(|r| r.config.name()).collect(),
        bars: o
            .configs
            .iter()
            .map(|r| {
                let (f, t) = (Figures::of(o, r), &r.total);
                Bar {
                    config: r.config.name(),
                    walk: f.walk_percent,
                    vmm: f.vmm_percent,
                    long_lived: f.long_lived_percent,
                    misses: [t.tlb_misses_4k, t.tlb_misses_2m, t.tlb_misses_1g].map(|n| per_1000(n, t)),
                }
            })
            .collect(),
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
        strips: evaluation(c).and_then(|e| e.programs.first()).map(policies::strips),
    }
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
