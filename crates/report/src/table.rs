// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of a run for terminals: the run, a row per configuration and the verdict; exits by reason,
//! policies and self-checks if asked for. The table is plain text without colour, at most 100 columns wide
//! except for a long command line, and for places of cost, which take 112 where there is room.

use crate::meta::{profile_choice, profile_words};
use crate::text::{TimeUnit, WIDTH, decimals, fixed, grouped, number, seconds};
use crate::text_table::{labelled, page_table, table};
use crate::{
    Comparison, Figures, Show, caches, clock, first_touches, placement, policies, regions, sampled, several,
    start, terminal, verdict,
};
use bifold_model::{Paging, Sample};
use std::fmt::Write as _;

pub(crate) fn render(c: &Comparison, show: Show) -> String {
    let mut parts = vec![head(c), costs(c)];
    parts.extend(regions::table(c));
    parts.extend(sampled::table(c));
    if show.exits {
        parts.extend(exits(c));
    }
    // Places are there only if a user asked for them.
    if let Some(p) = &c.places {
        let note = p.missing().map(|text| labelled("note", &text));
        parts.push(p.table(terminal::columns()) + &note.unwrap_or_default());
    }
    parts.extend(placement::table(c));
    parts.extend(c.memory.as_ref().map(|m| m.table()));
    if let Some(p) = &c.policies {
        if show.policies {
            parts.push(policies::of_run(&p.evaluation));
        }
        // Checks are there only if a user asked for them.
        if !p.checks.is_empty() {
            parts.push(policies::checks(&p.checks));
        }
    }
    let mut end: String = verdict::sentences(c).iter().map(|(label, text)| labelled(label, text)).collect();
    end.extend(first_touches::line(c).map(|text| labelled("started", &text)));
    end.extend(several::line(c).map(|text| labelled("vCPUs", &text)));
    if show.checks {
        end += &labelled("checks", &verdict::checks_line(c));
        for line in verdict::caveats(c) {
            end += &labelled("note", &line);
        }
    }
    parts.push(end);
    parts.extend(c.baseline.as_ref().map(|judged| judged.table()));
    parts.join("\n")
}

/// The lines above the table: the command, the guest, the run.
pub(crate) fn head(c: &Comparison) -> String {
    let o = &c.outcome;
    let total = o.configs.first().map(|r| r.total).unwrap_or_default();
    let mut lines = vec![("ran", c.meta.what())];
    if let Some(g) = &c.meta.guest {
        lines.push(("guest", g.describe()));
        let before = o.before_region.map(|n| match &o.regions {
            None => format!(" ({} instructions came before)", grouped(n)),
            Some(r) => format!(
                " ({} regions; {} instructions came before the first, {} between them)",
                grouped(r.count),
                grouped(n),
                grouped(r.between_instructions)
            ),
        });
        lines.extend(g.region.as_ref().map(|r| ("region", format!("{r}{}", before.unwrap_or_default()))));
    }
    lines.push((
        "profile",
        format!(
            "{} at {} GHz, {} CPI {}, seed {}; {}",
            profile_words(&c.meta.hardware),
            number(o.frequency_hz as f64 / 1e9),
            if o.caches.is_some() { "base" } else { "assumed" },
            o.base_cpi,
            o.seed,
            profile_choice(&c.meta.hardware)
        ),
    ));
    if o.configs.iter().any(|c| c.config.mode != Paging::Native) {
        lines.push(("VM", format!("{}: {}", o.vm.name(), o.vm.words())));
    }
    lines.extend((o.nested_levels != 4).then(|| ("nested", format!("tables of {} levels", o.nested_levels))));
    lines.extend(caches::line(c).map(|text| ("caches", text)));
    let mut run = format!(
        "{} instructions, {} accesses, {} ideal",
        grouped(total.instructions),
        grouped(total.accesses),
        seconds(o.ideal_cycles() / o.frequency_hz.max(1) as f64),
    );
    let n = o.interval_starts.len();
    if n > 1 {
        let _ = write!(run, ", {n} intervals");
    }
    if let Some(e) = c.meta.exit {
        let _ = write!(run, "; {}", e.describe());
    }
    lines.push(("run", run));
    lines.extend(start::line(c).map(|text| ("start", text)));
    lines.extend(clock::line(c).map(|text| ("clock", text)));
    let warnings = c.warnings();
    lines.extend(warnings.iter().map(|w| ("WARNING", w.clone())));
    lines.extend(sampled::windows_line(c).map(|text| ("sampled", text)));
    lines.iter().map(|(label, text)| labelled(label, text)).collect()
}

/// A column of a table of configurations: its head, in which `\n` breaks the line, and a cell for each
/// configuration.
pub(crate) struct Column {
    /// The head, two lines.
    pub head: String,
    /// The cells.
    pub cells: Vec<String>,
    /// Whether the column is of a count, and of no cost.
    pub is_count: bool,
}

/// The columns of the table of configurations, the name's left out.
pub(crate) fn columns(c: &Comparison) -> Vec<Column> {
    let rows = &c.outcome.configs;
    let figures: Vec<Figures> = rows.iter().map(|r| Figures::of(&c.outcome, r)).collect();
    let unit = unit(c);
    let cost = |head: &str, cells| Column { head: head.into(), cells, is_count: false };
    let mut out = vec![
        cost(&format!("time\n{}", unit.name), figures.iter().map(|f| unit.number(f.seconds)).collect()),
        cost(
            &format!("band\n{}", unit.name),
            figures.iter().map(|f| unit.band(f.low_seconds, f.high_seconds)).collect(),
        ),
    ];
    type Get = fn(&Figures) -> f64;
    // One number of decimals per column, so that digits of equal weight align.
    let cells = |get: Get| -> Vec<String> {
        let max = figures.iter().map(get).fold(0.0, f64::max);
        figures.iter().map(|f| fixed(get(f), decimals(max))).collect()
    };
    let mut costs: Vec<(&str, Get)> =
        vec![("over-\nhead %", |f| f.overhead_percent), ("walks\n%", |f| f.walk_percent)];
    if c.outcome.caches.is_some() {
        costs.extend([("data\n%", (|f| f.data_percent) as Get), ("frames\n%", |f| f.frames_percent)]);
    }
    costs.push(("VMM\n%", |f| f.vmm_percent));
    out.extend(costs.into_iter().map(|(head, get)| cost(head, cells(get))));
    let count = |head: &str, cells| Column { head: head.into(), cells, is_count: true };
    out.push(count("misses\n/1000", cells(|f| f.tlb_misses_per_1000)));
    out.push(count("refs\n/walk", cells(|f| f.refs_per_walk)));
    out.push(count("exits\ncount", rows.iter().map(|r| grouped(r.total.all_exits())).collect()));
    let has_outer = |r: &bifold_model::ConfigOutcome| r.config.mode.has_outer_exits();
    if rows.iter().any(has_outer) {
        let outer = |r| if has_outer(r) { grouped(r.total.outer_exits) } else { "-".into() };
        out.push(count("outer\nexits", rows.iter().map(outer).collect()));
    }
    out
}

/// The unit of the predicted times.
pub(crate) fn unit(c: &Comparison) -> TimeUnit {
    TimeUnit::of(c.outcome.configs.iter().map(|r| Figures::of(&c.outcome, r).seconds))
}

/// The table of configurations. Where all columns are wider than a page of text, counts have a table of their
/// own.
fn costs(c: &Comparison) -> String {
    let all = columns(c);
    let names: Vec<String> = c.outcome.configs.iter().map(|r| r.config.name()).collect();
    let set = |columns: &[&Column]| {
        let head = ["\nconfig".to_string()].into_iter().chain(columns.iter().map(|c| c.head.clone()));
        let row = |(i, name): (usize, &String)| {
            [name.clone()].into_iter().chain(columns.iter().map(|c| c.cells[i].clone())).collect()
        };
        table(head.collect(), names.iter().enumerate().map(row).collect())
    };
    let whole = set(&all.iter().collect::<Vec<_>>());
    if whole.lines().all(|line| line.chars().count() <= WIDTH) {
        return whole;
    }
    let (counts, costs): (Vec<&Column>, Vec<&Column>) = all.iter().partition(|c| c.is_count);
    format!("{}\n{}", set(&costs), set(&counts))
}

/// Exits to the outer hypervisor, where the guest's one runs in a virtual machine itself.
fn outer_exits(s: &Sample) -> [(&'static str, u64); 4] {
    [
        ("to the outer hypervisor", s.outer_exits),
        ("- of these fills", s.outer_fills),
        ("- table stores", s.outer_stores),
        ("- flushes", s.outer_flushes),
    ]
}

/// Exits by reason, a row per reason; none without exits.
fn exits(c: &Comparison) -> Option<String> {
    let rows = &c.outcome.configs;
    let all = |s: &Sample| s.exits().chain(outer_exits(s)).collect::<Vec<_>>();
    let reasons: Vec<&str> = all(&Sample::default()).into_iter().map(|(name, _)| name).collect();
    let counts: Vec<Vec<u64>> =
        rows.iter().map(|r| all(&r.total).into_iter().map(|(_, n)| n).collect()).collect();
    let cells: Vec<Vec<String>> = reasons
        .iter()
        .enumerate()
        .filter(|(i, _)| counts.iter().any(|c| c[*i] > 0))
        .map(|(i, name)| {
            // A dash for 0 makes the other counts easy to find.
            let cell = |n| if n == 0 { "-".into() } else { grouped(n) };
            let counts = counts.iter().map(|c| cell(c[i]));
            [name.replace('_', " ")].into_iter().chain(counts).collect()
        })
        .collect();
    if cells.is_empty() {
        return None;
    }
    let head = ["exits by reason, count".to_string()].into_iter();
    Some(page_table(1, head.chain(rows.iter().map(|r| r.config.name())).collect(), cells))
}
