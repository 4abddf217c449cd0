// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies as tables for terminals: one table for a run; for many programs the bounds of each program, a
//! matrix of programs and policies, and a summary per policy. At most 100 columns wide with the built-in
//! policies' names.

use super::{Line, NoPolicies, PolicyComparison, lines, modes, scale_words, setting_words, timed};
use crate::text::{fixed, grouped, page_words, seconds, wrapped};
use crate::text_table::{labelled, table};
use bifold_policy::Mode;
use bifold_policy::evaluate::{Evaluation, Program, Summary, WITHIN_PERCENT};
use bifold_policy::replay_check::{ReplayCheck, TOLERANCE_PERCENT};

/// Columns of a table.
const WIDTH: usize = 100;

pub(super) fn render(c: &PolicyComparison) -> String {
    let e = &c.evaluation;
    let mut out = labelled("VM", &setting_words(e));
    out += &labelled("scale", &scale_words(e.time_scale, e.switch_scale));
    out += "\n";
    if let [program] = &e.programs[..] {
        out += &one(program);
    } else {
        out += &programs(e);
        let gaps =
            "Gap to the better static mode, in percent of its cycles; negative where switching saved cycles:";
        out += &format!("\n{}\n", wrapped(gaps, 0));
        out += &matrix(e);
        out += "\n";
        out += &summary(e);
    }
    out += "\n";
    for line in notes(e) {
        out += &labelled("note", &line);
    }
    if let Some(checks) = &c.checks {
        out += "\n";
        out += &checks_by_program(checks);
    }
    out
}

/// Notes on the columns.
pub(super) fn notes(e: &Evaluation) -> Vec<String> {
    let mut out = vec![
        format!(
            "every policy runs from {} starting modes; the table has the {} run, compared with the oracle \
             from the same starting mode",
            all_words(&e.programs),
            worst_word(&e.programs)
        ),
        "a static mode is a VM that starts in this mode and never switches".to_string(),
    ];
    out.extend(few_decisions(e));
    // One program makes no rate.
    if e.programs.len() > 1 {
        out.push(format!(
            "mean gap: geometric mean over the programs; programs within {WITHIN_PERCENT} %: programs on which the policy \
             costs at most {WITHIN_PERCENT} % more than the better static mode"
        ));
    }
    out
}

/// The number of starting modes, in words.
pub(super) fn all_words(programs: &[Program]) -> &'static str {
    if modes(programs).len() > 2 { "all" } else { "both" }
}

/// The run that counts among those from the starting modes.
pub(super) fn worst_word(programs: &[Program]) -> &'static str {
    if modes(programs).len() > 2 { "worst" } else { "worse" }
}

/// Policies that decided too few times in a run, so that the starting mode dominates their figures.
fn few_decisions(e: &Evaluation) -> Option<String> {
    const FEW: u64 = 10;
    let on = |i: usize| {
        let few = |p: &&Program| p.rows[i].runs.values().any(|f| f.decisions < FEW);
        e.programs.iter().filter(few).map(|p| p.name.as_str()).collect::<Vec<_>>()
    };
    let names = e.policies.iter().enumerate().map(|(i, s)| (s.policy.as_str(), on(i)));
    let names: Vec<String> = names
        .filter(|(_, on)| !on.is_empty())
        .map(|(policy, on)| format!("{policy} on {}", on.join(", ")))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "fewer than {FEW} decisions, so the starting mode dominates (see --time-scale): {}",
            names.join("; ")
        )
    })
}

/// The policies over a run, for the run's table: a table of policies, or a line with the reason why there are
/// none.
pub(crate) fn of_run(evaluation: &Result<Evaluation, NoPolicies>) -> String {
    match evaluation {
        Ok(e) => {
            let program = e.programs.first().map(one).unwrap_or_default();
            program
                + "\n"
                + &labelled("policies", &format!("in a VM that is {}", setting_words(e)))
                + &labelled("scale", &scale_words(e.time_scale, e.switch_scale))
                + &few_decisions(e).map(|few| labelled("note", &few)).unwrap_or_default()
        }
        Err(why) => labelled("policies", &format!("none: {why}")),
    }
}

/// The table of a program: static modes, the oracle, every policy.
fn one(p: &Program) -> String {
    let programs = std::slice::from_ref(p);
    let times = timed(programs);
    let mut head: Vec<String> =
        ["\npolicy", "overhead\n%", "gap to\nstatic %", "gap to\noracle %", "\nswitches", "\ndecisions"]
            .map(String::from)
            .into();
    head.extend(times.iter().map(|mode| format!("time in\n{} %", mode.name())));
    head.push(format!("{}\nstart", worst_word(programs)));
    let row = |l: &Line| [l.name.clone()].into_iter().chain(cells(l, &times)).collect();
    table(head, lines(p).iter().map(row).collect())
}

/// Percent with two decimals; a value that rounds to 0 has no sign.
pub(super) fn percent(v: f64) -> String {
    fixed(if v.abs() < 0.005 { 0.0 } else { v }, 2)
}

/// The cells of a line, with the time in these modes.
pub(super) fn cells(l: &Line, times: &[Mode]) -> Vec<String> {
    let mut all = vec![
        percent(l.overhead),
        percent(l.static_gap),
        percent(l.oracle_gap),
        grouped(l.switches),
        l.decisions.map_or("-".into(), grouped),
    ];
    all.extend(times.iter().map(|mode| fixed(l.shares[*mode], 1)));
    all.push(l.start.name().into());
    all
}

/// The cells of a summary over these programs, with the time in these modes.
pub(super) fn summary_cells(s: &Summary, programs: usize, times: &[Mode]) -> Vec<String> {
    let mut all = vec![
        percent(s.oracle_gap_percent),
        percent(s.worst_static_gap_percent),
        s.worst_program.clone(),
        format!("{} of {programs}", s.within),
        grouped(s.switches),
    ];
    all.extend(times.iter().map(|mode| fixed(100.0 * s.shares.of_mode(*mode), 1)));
    all.extend([format!("{} s", s.interval_s), if s.needs_other { "yes" } else { "no" }.into()]);
    all
}

/// Bounds of each program: the static modes and the oracle.
fn programs(e: &Evaluation) -> String {
    let modes = modes(&e.programs);
    let columns =
        |words: &str| modes.iter().map(|mode| words.replace("MODE", mode.name())).collect::<Vec<_>>();
    let mut head = vec!["\n\n\nprogram".to_string(), "\n\nideal\ntime".into(), "\n\n\nintervals".into()];
    head.extend(columns("static\nMODE\noverhead\n%"));
    head.extend(columns("oracle\noverhead\nfrom\nMODE %"));
    head.extend(columns("oracle\nswitches\nfrom\nMODE"));
    let row = |p: &Program| {
        let cells = |of: &dyn Fn(Mode) -> Option<String>| {
            modes.iter().map(|mode| of(*mode).unwrap_or("-".into())).collect::<Vec<_>>()
        };
        let mut row = vec![p.name.clone(), seconds(p.ideal_s), grouped(p.intervals as u64)];
        row.extend(cells(&|mode| p.static_percent.get(mode).map(|x| percent(*x))));
        row.extend(cells(&|mode| p.oracle.get(mode).map(|o| percent(o.overhead_percent))));
        row.extend(cells(&|mode| p.oracle.get(mode).map(|o| grouped(o.switches))));
        row
    };
    table(head, e.programs.iter().map(row).collect())
}

/// Gaps to the better static mode: a row for each program, a column for the oracle and each policy, in
/// as many blocks as the width needs.
fn matrix(e: &Evaluation) -> String {
    // Every program has the static modes first, then the oracle and the policies in one order.
    let all: Vec<Vec<Line>> =
        e.programs.iter().map(|p| lines(p).into_iter().skip(p.modes.len()).collect()).collect();
    let names: Vec<String> = all.first().into_iter().flatten().map(|l| header(&l.name)).collect();
    let programs: Vec<String> = e.programs.iter().map(|p| p.name.clone()).collect();
    let columns: Vec<(String, Vec<String>)> = names
        .into_iter()
        .enumerate()
        .map(|(i, name)| (name, all.iter().map(|l| percent(l[i].static_gap)).collect()))
        .collect();
    let widest = |head: &str, cells: &[String]| {
        head.lines().map(str::len).chain(cells.iter().map(|c| c.chars().count())).max().unwrap_or(0)
    };
    let first = widest("program", &programs) + 1;
    let mut out = String::new();
    let mut rest = &columns[..];
    while !rest.is_empty() {
        let mut width = first;
        let fits = rest.iter().take_while(|(head, cells)| {
            width += widest(head, cells) + 2;
            width < WIDTH.min(crate::terminal::columns())
        });
        let (block, after) = rest.split_at(fits.count().max(1));
        rest = after;
        let mut rows: Vec<Vec<String>> = programs.iter().map(|p| vec![p.clone()]).collect();
        for (_, cells) in block {
            rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell.clone()));
        }
        if !out.is_empty() {
            out += "\n";
        }
        let lines = block.iter().map(|(h, _)| h.lines().count()).max().unwrap_or(1);
        let head = ["program"].into_iter().chain(block.iter().map(|(h, _)| h.as_str()));
        // Heads of fewer lines are aligned at the bottom.
        let bottom = |h: &str| "\n".repeat(lines - h.lines().count()) + h;
        out += &table(head.map(bottom).collect(), rows);
    }
    out
}

/// A policy's name over as many lines as it has words.
fn header(name: &str) -> String {
    let mut out = String::new();
    for part in name.split_inclusive(['-', ' ']) {
        // A short word shares the line of its neighbour, so that `3` does not stand alone.
        let line = out.rsplit('\n').next().unwrap_or("").len();
        if line > 0 && line + part.len() > 9 {
            out = out.trim_end().to_string();
            out.push('\n');
        }
        out += part;
    }
    out
}

fn summary(e: &Evaluation) -> String {
    let times = timed(&e.programs);
    let mut head: Vec<String> = [
        "\n\npolicy",
        "mean gap\nto oracle\n%",
        "worst gap\nto static\n%",
        "program\nof worst\ngap",
        "programs\nwithin\n1 %",
        "\n\nswitches",
    ]
    .map(String::from)
    .into();
    head.extend(times.iter().map(|mode| format!("time in\n{}\n%", mode.name())));
    head.extend(["\ndecision\ninterval", "cost of\nother mode\nneeded"].map(String::from));
    let mut all: Vec<_> = e.policies.iter().collect();
    all.sort_by(|a, b| a.oracle_gap_percent.total_cmp(&b.oracle_gap_percent));
    let row = |s: &Summary| {
        [s.policy.clone()].into_iter().chain(summary_cells(s, e.programs.len(), &times)).collect()
    };
    table(head, all.into_iter().map(row).collect())
}

/// Replays beside the runs that they replay, and whether each is within the tolerance.
pub(crate) fn checks(checks: &[ReplayCheck]) -> String {
    checks_by_program(&[(String::new(), checks.to_vec())])
}

pub(super) fn checks_by_program(all: &[(String, Vec<ReplayCheck>)]) -> String {
    let flat: Vec<&ReplayCheck> = all.iter().flat_map(|(_, checks)| checks).collect();
    if flat.is_empty() {
        return labelled(
            "replay",
            "not checked: no VM switched during the capture (`bifold compare --check`)",
        );
    }
    let mut out = String::new();
    for (program, checks) in all.iter().filter(|(_, checks)| !checks.is_empty()) {
        if !program.is_empty() {
            out += &format!("replays over {program}\n\n");
        }
        out += &checks_of_program(checks);
        out += "\n";
    }
    let off = flat.iter().filter(|c| !c.passed()).count();
    let result = match off {
        0 => format!("all {} within {TOLERANCE_PERCENT} % of the run's cycles", flat.len()),
        n => format!("{n} of {} OFF by more than {TOLERANCE_PERCENT} % of the run's cycles", flat.len()),
    };
    out + &labelled("replay", &result)
}

fn checks_of_program(checks: &[ReplayCheck]) -> String {
    let head = [
        "\n\npolicy",
        "\nhost\npage",
        "\nnested\ntables",
        "\nstart\nmode",
        "\nrun\ncycles",
        "\nrun\nswitches",
        "error in\nthe run's\nmodes %",
        "error in\nits own\nmodes %",
        "\nreplay\nswitches",
        "\n\ncheck",
    ];
    let row = |c: &ReplayCheck| {
        let signed = |percent: f64| format!("{percent:+.3}");
        vec![
            c.name.clone(),
            page_words(c.vm.host_page).into(),
            if c.vm.keep_nested { "kept" } else { "dropped" }.into(),
            c.start.name().into(),
            grouped(c.cycles.round() as u64),
            grouped(c.switches),
            signed(c.same_modes_percent),
            c.own_decisions.map_or("-".into(), |(p, _)| signed(p)),
            c.own_decisions.map_or("-".into(), |(_, n)| grouped(n)),
            if c.passed() { "ok" } else { "OFF" }.into(),
        ]
    };
    table(head.map(String::from).into(), checks.iter().map(row).collect())
}
