// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies on HTML pages: tables, and for every program the costs over time above the modes that each
//! policy was in.

use super::text::{all_words, cells, percent, summary_cells, worst_word};
use super::{PolicyComparison, checks_table, lines, modes, scale_words, setting_words, timed, worse_oracle};
use crate::RenderError;
use crate::template::{STYLE, environment, scripts};
use crate::text::{grouped, seconds};
use bifold_policy::Mode;
use bifold_policy::evaluate::{Evaluation, Program};
use minijinja::{Value, context};
use serde::Serialize;

/// Most stretches of a strip or points of a curve: more would overlap on a screen.
const MAX_POINTS: usize = 400;

/// The mode over time. A stretch has its end, in units of the strips' step, and the percentage of its time
/// in each of [`Strips::modes`].
#[derive(Debug, Serialize)]
pub(crate) struct Strip {
    pub name: String,
    pub overhead: String,
    pub stretches: Vec<Vec<usize>>,
}

/// The strips of a program, the oracle's first.
#[derive(Debug, Serialize)]
pub(crate) struct Strips {
    /// Length of a step, seconds.
    pub step: f64,
    /// Start of each step in seconds, where steps differ in length; none where all but the last are alike.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<f64>,
    /// Length of the run, seconds.
    pub end: f64,
    /// The modes other than nested mode, which has the rest of a stretch.
    pub modes: Vec<&'static str>,
    pub strips: Vec<Strip>,
}

/// A static mode's overhead over time, a point per step.
#[derive(Debug, Serialize)]
pub(crate) struct Curve {
    pub name: &'static str,
    pub points: Vec<f64>,
}

/// Intervals that are joined into one step.
fn joined(p: &Program) -> usize {
    p.intervals.div_ceil(MAX_POINTS).max(1)
}

/// The strips of a program: the oracle, then every policy, each from its worse starting mode.
pub(crate) fn strips(p: &Program) -> Strips {
    let joined = joined(p);
    let times = timed(std::slice::from_ref(p));
    let strip = |name: &str, overhead: f64, modes: &[Mode]| {
        let mut stretches: Vec<Vec<usize>> = Vec::new();
        for (i, step) in modes.chunks(joined).enumerate() {
            let share = |mode: &Mode| 100 * step.iter().filter(|m| *m == mode).count() / step.len();
            let stretch: Vec<usize> = [i + 1].into_iter().chain(times.iter().map(share)).collect();
            match stretches.last_mut() {
                Some(last) if last[1..] == stretch[1..] => *last = stretch,
                _ => stretches.push(stretch),
            }
        }
        Strip { name: name.into(), overhead: percent(overhead) + " %", stretches }
    };
    let oracle = worse_oracle(p).map(|(_, o)| strip("oracle", o.overhead_percent, &o.modes));
    let policies = p.rows.iter().map(|r| strip(&r.policy, r.worse().overhead_percent, &r.worse().modes));
    Strips {
        step: joined as f64 * p.interval_s,
        starts: Vec::new(),
        end: p.intervals as f64 * p.interval_s,
        modes: times.iter().map(|mode| mode.name()).collect(),
        strips: oracle.into_iter().chain(policies).collect(),
    }
}

/// The strips of a run whose intervals start at these seconds and differ in length, as the ends of regions
/// cut some.
pub(crate) fn strips_between(p: &Program, starts: &[f64], end: f64) -> Strips {
    Strips { starts: starts.iter().copied().step_by(joined(p)).collect(), end, ..strips(p) }
}

/// The overhead of each static mode over time.
fn curves(p: &Program) -> Vec<Curve> {
    let mean = |step: &[f64]| {
        let mean = step.iter().sum::<f64>() / step.len() as f64;
        (mean * 100.0).round() / 100.0
    };
    let of = |(mode, curve): (Mode, &Vec<f64>)| Curve {
        name: mode.name(),
        points: curve.chunks(joined(p)).map(mean).collect(),
    };
    p.curves.iter().map(of).collect()
}

/// A program's table.
pub(crate) fn html_table(p: &Program) -> Result<String, RenderError> {
    let mut env = environment();
    env.add_template("table.html", include_str!("../../html/policy-table.html.j2"))?;
    let programs = std::slice::from_ref(p);
    let times = timed(programs);
    let lines = lines(p).into_iter().map(|l| context! { name => l.name, cells => cells(&l, &times) });
    Ok(env.get_template("table.html")?.render(context! {
        lines => lines.collect::<Vec<_>>(),
        times => times.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
        first => p.modes.len() + 1,
        worse => worst_word(programs),
    })?)
}

/// A gap to the better static mode with the class of its cell.
fn gap(gap: f64) -> Value {
    let class = match gap {
        g if g < -0.1 => "gain",
        g if g > 10.0 => "much",
        g if g > 1.0 => "lost",
        _ => "",
    };
    context! { class => class, text => percent(gap) }
}

/// Whether the policy is a static mode, which has a column of its own.
fn is_static(name: &str) -> bool {
    name.strip_prefix("always-").is_some_and(|mode| bifold_policy::mode_from_name(mode).is_some())
}

/// A program, in a table with these modes' columns.
fn program(p: &Program, modes: &[Mode]) -> Result<Value, RenderError> {
    let worse = p.oracle.values().map(|o| o.overhead_percent).fold(0.0, f64::max);
    let lines = lines(p);
    let unknown = || context! { class => "", text => "-" };
    let of_mode = |mode: &Mode| {
        let line = p.modes.iter().position(|m| m == mode).map(|i| &lines[i]);
        line.map_or_else(unknown, |l| gap(l.static_gap))
    };
    let others = lines[p.modes.len()..].iter().filter(|l| !is_static(&l.name));
    let statics =
        p.static_percent.iter().map(|(mode, x)| context! { mode => mode.name(), text => percent(*x) });
    Ok(context! {
        name => p.name,
        program => p.program,
        profile => p.profile,
        ideal => seconds(p.ideal_s),
        intervals => grouped(p.intervals as u64),
        statics => statics.collect::<Vec<_>>(),
        oracle => percent(worse),
        gaps => modes.iter().map(of_mode).chain(others.map(|l| gap(l.static_gap))).collect::<Vec<_>>(),
        table => html_table(p)?,
    })
}

/// The policy nearest to the oracle, in a sentence.
fn verdict(e: &Evaluation) -> String {
    let best = e.policies.iter().min_by(|a, b| a.oracle_gap_percent.total_cmp(&b.oracle_gap_percent));
    let Some(best) = best else { return "No policy was compared.".into() };
    format!(
        "{} is nearest to the oracle: {} % above it (geometric mean), and at worst {} % above the better static mode (on \
         {}).",
        best.policy,
        percent(best.oracle_gap_percent),
        percent(best.worst_static_gap_percent),
        best.worst_program
    )
}

pub(super) fn render(c: &PolicyComparison) -> Result<String, RenderError> {
    #[derive(Serialize)]
    struct Charts {
        strips: Strips,
        curves: Vec<Curve>,
    }
    let e = &c.evaluation;
    let mut env = environment();
    env.add_template("policies.html", include_str!("../../html/policies.html.j2"))?;
    let data: Vec<Charts> =
        e.programs.iter().map(|p| Charts { strips: strips(p), curves: curves(p) }).collect();
    let (modes, times) = (modes(&e.programs), timed(&e.programs));
    let names = |modes: &[Mode]| modes.iter().map(|mode| mode.name()).collect::<Vec<_>>();
    let mut summaries: Vec<_> = e.policies.iter().collect();
    summaries.sort_by(|a, b| a.oracle_gap_percent.total_cmp(&b.oracle_gap_percent));
    let summary = |s: &&bifold_policy::evaluate::Summary| {
        context! { name => s.policy, cells => summary_cells(s, e.programs.len(), &times) }
    };
    let columns =
        ["oracle"].into_iter().chain(e.policies.iter().map(|s| s.policy.as_str()).filter(|n| !is_static(n)));
    Ok(env.get_template("policies.html")?.render(context! {
        style => STYLE,
        scripts => scripts(include_str!("../../html/policies.js")),
        data => data,
        bifold => c.bifold,
        verdict => verdict(e),
        setting => setting_words(e),
        scale => scale_words(e.time_scale, e.switch_scale),
        policies => summaries.iter().map(summary).collect::<Vec<_>>(),
        columns => columns.collect::<Vec<_>>(),
        modes => names(&modes),
        times => names(&times),
        all => all_words(&e.programs),
        worse => worst_word(&e.programs),
        programs => e.programs.iter().map(|p| program(p, &modes)).collect::<Result<Vec<_>, _>>()?,
        checks => c.checks.as_ref().map(|checks| checks_table(checks)),
    })?)
}
