// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of a run for terminals: the run, a row per configuration and the verdict; exits by reason,
//! policies and self-checks if asked for. The table is plain text without colour, at most 100 columns wide
//! except for a long command line, for overheads above 1000 %, and for places of cost, which take 112 where there is room.

use crate::text::{decimals, fixed, grouped, number, seconds};
use crate::text_table::{labelled, table};
use crate::{
    Comparison, Figures, Show, caches, clock, placement, policies, regions, sampled, several, terminal,
    verdict,
};
use bifold_model::Sample;
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
            "{} at {} GHz, {} CPI {}, seed {}",
            c.meta.profile_words(),
            number(o.frequency_hz as f64 / 1e9),
            if o.caches.is_some() { "base" } else { "assumed" },
            o.base_cpi,
            o.seed
        ),
    ));
    lines.push(("VM", format!("{}: {}", o.vm.name(), o.vm.words())));
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
    lines.extend(clock::line(c).map(|text| ("clock", text)));
    let warnings = c.warnings();
    lines.extend(warnings.iter().map(|w| ("WARNING", w.clone())));
    lines.extend(sampled::windows_line(c).map(|text| ("sampled", text)));
    lines.iter().map(|(label, text)| labelled(label, text)).collect()
}

fn costs(c: &Comparison) -> String {
    type Column = (&'static str, fn(&Figures) -> f64);
    let mut columns: Vec<Column> = vec![
        ("overhead\n%", |f| f.overhead_percent),
        ("walks\n%", |f| f.walk_percent),
        ("VMM\n%", |f| f.vmm_percent),
    ];
    columns.push(("TLB miss\n/1000", |f| f.tlb_misses_per_1000));
    columns.push(("refs\n/walk", |f| f.refs_per_walk));
    let rows = &c.outcome.configs;
    let figures: Vec<Figures> = rows.iter().map(|r| Figures::of(&c.outcome, r)).collect();
    let mut cells: Vec<Vec<String>> = rows.iter().map(|r| vec![r.config.name()]).collect();
    for &(_, get) in &columns {
        // One number of decimals per column, so that digits of equal weight align.
        let max = figures.iter().map(get).fold(0.0, f64::max);
        for (row, f) in cells.iter_mut().zip(&figures) {
            row.push(fixed(get(f), decimals(max)));
        }
    }
    for (row, r) in cells.iter_mut().zip(rows) {
        row.push(grouped(r.total.all_exits()));
    }
    let mut head: Vec<&str> = ["\nconfig"].into_iter().chain(columns.iter().map(|(name, _)| *name)).collect();
    head.push("exits\ncount");
    if rows.iter().any(|r| r.config.mode.has_outer_exits()) {
        head.push("outer\nexits");
        for (row, r) in cells.iter_mut().zip(rows) {
            let exits =
                if r.config.mode.has_outer_exits() { grouped(r.total.outer_exits) } else { "-".into() };
            row.push(exits);
        }
    }
    if c.outcome.caches.is_some() {
        // With the digits of the overhead.
        let max = figures.iter().map(|f| f.overhead_percent).fold(0.0, f64::max);
        let cell = |v| fixed(v, decimals(max));
        let waits: [Column; 2] = [("frames\n%", |f| f.frames_percent), ("data\n%", |f| f.data_percent)];
        for (name, get) in waits {
            let max = figures.iter().map(get).fold(0.0, f64::max);
            for (row, f) in cells.iter_mut().zip(&figures) {
                row.insert(3, fixed(get(f), decimals(max)));
            }
            head.insert(3, name);
        }
        for (row, f) in cells.iter_mut().zip(&figures) {
            row.insert(2, format!("{}-{}", cell(f.low_percent), cell(f.high_percent)));
        }
        head.insert(2, "band\n%");
    }
    table(head.into_iter().map(String::from).collect(), cells)
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
    Some(table(head.chain(rows.iter().map(|r| r.config.name())).collect(), cells))
}
