// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies in reports: over one run beside the run's figures, and over many programs.
//!
//! Figures come from [`bifold_policy::evaluate`] unchanged. A [`Line`] is a row of tables and pages: a
//! policy, a static mode or the oracle over one program.

mod html;
mod rows;
mod text;

pub(crate) use html::{Strips, html_table, strips, strips_between};
pub(crate) use rows::{CheckRow, Document, JsonLine, PolicyRow, SCHEMA, check_rows, policy_rows};
pub(crate) use text::{checks, of_run};

use crate::text::page_words;
use crate::{Format, RenderError};
use bifold_model::VmState;
use bifold_policy::evaluate::{Evaluation, OracleFigures, Program, Shares};
use bifold_policy::replay_check::ReplayCheck;
use bifold_policy::{Mode, PerMode, VmKind};

/// Policies over a run's own timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPolicies {
    /// The policies over the run as one program, or the reason why there are none.
    pub evaluation: Result<Evaluation, NoPolicies>,
    /// VMs that really switched during the run, beside their replay.
    pub checks: Vec<ReplayCheck>,
}

/// Why policies were not judged over a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPolicies {
    /// The run has no timeline, and why.
    #[error("they need a timeline, and {0}")]
    NoTimeline(String),
    /// One of the two modes was not modelled.
    #[error("they need shadow and nested of one page size among --configs")]
    NoPair,
    /// The run has fewer intervals than a judgement needs: both numbers.
    #[error(
        "too short: {0} interval{s}, where no policy can be judged on fewer than {1} (capture it with a shorter --interval)",
        s = if *.0 == 1 { "" } else { "s" }
    )]
    TooShort(usize, usize),
    /// The evaluation refused the timeline, in its words.
    #[error("{0}")]
    Refused(String),
}

/// Policies over programs.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyComparison {
    /// Version of Bifold.
    pub bifold: String,
    /// The figures.
    pub evaluation: Evaluation,
    /// VMs that really switched during the capture beside their replay, by program; none unless asked for.
    pub checks: Option<Vec<(String, Vec<ReplayCheck>)>>,
}

impl PolicyComparison {
    /// The comparison in the given format.
    pub fn render(&self, format: Format) -> Result<String, RenderError> {
        match format {
            Format::Table => Ok(text::render(self)),
            Format::Json => rows::render_json(self),
            Format::Jsonl => rows::render_jsonl(self),
            Format::Csv => rows::render_csv(self),
        }
    }

    /// The comparison as one HTML file that needs no network.
    pub fn render_html(&self) -> Result<String, RenderError> {
        html::render(self)
    }
}

/// A table of replay checks by program, as text.
pub fn checks_table(checks: &[(String, Vec<ReplayCheck>)]) -> String {
    text::checks_by_program(checks)
}

/// A time scale in words.
pub fn scale_words(time: f64, switch: f64) -> String {
    if time == 1.0 && switch == 1.0 {
        return "policies decide in real time, with the costs of switching unchanged".into();
    }
    let second = crate::text::brief_seconds(1.0 / time);
    format!("1 s of a policy = {second} of the run; costs of switching divided by {switch}")
}

/// The state and the kind of a VM, worded to follow "the VM is".
pub fn vm_words(state: VmState, vm: &VmKind) -> String {
    let state = match state {
        VmState::LongLived => "long-lived",
        VmState::Started => "just started",
        VmState::Restored => "restored from a snapshot's file",
        VmState::RestoredUffd => "restored from a snapshot by userfaultfd",
    };
    let tables = if vm.keep_nested { "kept" } else { "dropped" };
    format!("{state}, on {} host pages, nested tables {tables} at a switch", page_words(vm.host_page))
}

/// The kind of VM and the source of the other mode's cost, in words.
pub(crate) fn setting_words(e: &Evaluation) -> String {
    let vm = VmKind { host_page: e.host_page, keep_nested: e.keep_nested };
    let other = if e.estimated { "estimated" } else { "known from the timeline" };
    format!("{}; the other mode's cost is {other} where a policy needs it", vm_words(e.vm, &vm))
}

/// A row of a program's table.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Line {
    pub name: String,
    pub overhead: f64,
    pub static_gap: f64,
    pub oracle_gap: f64,
    pub switches: u64,
    pub decisions: Option<u64>,
    /// Percent of the intervals in each mode.
    pub shares: PerMode<f64>,
    pub start: Mode,
}

/// The modes that never switch, the oracle, and every policy.
pub(crate) fn lines(p: &Program) -> Vec<Line> {
    let cycles = p.static_percent.map(|_, percent| p.ideal_cycles * (1.0 + percent / 100.0));
    let better = cycles.values().copied().fold(f64::INFINITY, f64::min);
    let above = |cycles: f64, than: f64| if than > 0.0 { 100.0 * (cycles / than - 1.0) } else { 0.0 };
    let never = |mode: Mode| Line {
        name: format!("{} alone", mode.name()),
        overhead: p.static_percent[mode],
        static_gap: above(cycles[mode], better),
        oracle_gap: above(cycles[mode], p.oracle[mode].cycles),
        switches: 0,
        decisions: None,
        shares: p.static_percent.map(|m, _| if m == mode { 100.0 } else { 0.0 }),
        start: mode,
    };
    let oracle = worse_oracle(p).map(|(start, o)| Line {
        name: "oracle".into(),
        overhead: o.overhead_percent,
        static_gap: above(o.cycles, better),
        oracle_gap: 0.0,
        switches: o.switches,
        decisions: None,
        shares: percents(p, &o.shares),
        start,
    });
    let policies = p.rows.iter().map(|r| {
        let f = r.worse();
        Line {
            name: r.policy.clone(),
            overhead: f.overhead_percent,
            static_gap: f.static_gap_percent,
            oracle_gap: f.oracle_gap_percent,
            switches: f.switches,
            decisions: Some(f.decisions),
            shares: percents(p, &f.shares),
            start: r.worse_start,
        }
    });
    p.modes.iter().copied().map(never).chain(oracle).chain(policies).collect()
}

/// The modes of these programs, in the order of tables.
pub(crate) fn modes(programs: &[Program]) -> Vec<Mode> {
    let all = programs.iter().flat_map(|p| p.modes.iter().map(|mode| (*mode, ())));
    all.collect::<PerMode<()>>().modes().collect()
}

/// The modes whose time has a column: nested mode has the rest.
pub(crate) fn timed(programs: &[Program]) -> Vec<Mode> {
    modes(programs).into_iter().filter(|mode| *mode != Mode::Nested).collect()
}

fn percents(p: &Program, shares: &Shares) -> PerMode<f64> {
    p.static_percent.map(|mode, _| 100.0 * shares.of_mode(mode))
}

/// The oracle from the start that costs it most; among equal costs, the last.
pub(crate) fn worse_oracle(p: &Program) -> Option<(Mode, &OracleFigures)> {
    p.oracle.iter().max_by(|a, b| a.1.cycles.total_cmp(&b.1.cycles))
}
