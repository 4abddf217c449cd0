// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes tables, rows and charts of an outcome. Every figure is computed here once; the writers (terminal,
//! Markdown, CSV, a page) only lay it out.

mod charts;
mod rows;

pub use charts::charts;
pub use rows::{SampleRow, rows};

use super::outcome::{Outcome, Sample};
use super::spec::{Plan, Published};
use crate::output::{MIB, ResultTable, UNKNOWN};
use crate::run::Ending;
use bifold_host::ksm::{Counter, Merged};
use bifold_share::potential::Counts;

const PAGE: u64 = 4096;
/// The share of the final saving that counts as reaching it.
const MOST_OF: f64 = 0.9;

/// All tables, the most important first.
pub fn tables(plan: &Plan, outcome: &Outcome) -> Vec<ResultTable> {
    let mut all = vec![memory(outcome), sharing(outcome), whole_host(outcome)];
    all.extend(published(plan, outcome));
    all.push(guests(outcome));
    all
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / MIB)
}

fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1}", 100.0 * part / whole) } else { UNKNOWN.into() }
}

fn or_unknown<T: ToString>(value: Option<T>) -> String {
    value.map_or(UNKNOWN.into(), |v| v.to_string())
}

/// Memory with and without sharing, and the potential.
fn memory(outcome: &Outcome) -> ResultTable {
    let mut table = ResultTable::new(
        "Memory, MiB",
        "case|guests'\nmemory|without\nsharing|with\nsharing|saved,\n%|potential\nat, s|zero|minimum|\
         intra|inter|saved of\npotential, %|repeats lost to\n2 MB pages, %",
    );
    for case in &outcome.cases {
        let Some(last) = case.samples.last() else { continue };
        let mut row = vec![
            case.name.clone(),
            mib(case.memory()),
            mib(last.unshared),
            mib(last.used),
            share(last.saved() as f64, last.unshared as f64),
        ];
        match case.marks.last() {
            Some(m) => {
                let pages = |n: u64| mib(n * PAGE);
                let repeats = m.small.saved() * PAGE;
                row.push(format!("{:.0}", m.at_s));
                row.extend([m.small.zero, m.small.minimum, m.small.intra, m.small.inter].map(pages));
                row.push(share(last.saved() as f64, repeats as f64));
                row.push(share(m.lost_to_huge as f64, m.small.saved() as f64));
            }
            None => row.extend(vec![UNKNOWN.to_string(); 7]),
        }
        table.rows.push(row);
    }
    table.notes = vec![
        "Without sharing: the guests' resident memory. With sharing: a page with n mappings counts 1/n. Potential: \
         the guests' resident pages at the last marked time. Saved of potential: memory saved in the end, as a \
         share of zero, intra and inter at that time."
            .into(),
    ];
    let with_others = outcome.cases.iter().filter(|c| c.others.merged() > 0).map(|c| c.name.as_str());
    let with_others: Vec<&str> = with_others.collect();
    if !with_others.is_empty() {
        table.notes.push(format!(
            "Other programs had merged pages, too ({}). Where they map the guests' frames, `with sharing` is less than \
             the guests alone would take; `KSM: these guests` has what is saved among the guests.",
            with_others.join(", ")
        ));
    }
    table
}

/// What KSM merged of these guests.
fn sharing(outcome: &Outcome) -> ResultTable {
    let mut table = ResultTable::new(
        "KSM: these guests",
        "case|merged\npages|merged\nframes|saved\npages|zero\npages|first merge,\ns|\
         90 % of\nsaving, s",
    );
    for case in &outcome.cases {
        let Some(last) = case.samples.last() else { continue };
        let at = |s: Option<&Sample>| or_unknown(s.map(|s| format!("{:.0}", s.at_s)));
        let first = case.samples.iter().find(|s| s.of_guests(|g| g.merging_pages).is_some_and(|n| n > 0));
        let most = case
            .samples
            .iter()
            .find(|s| last.saved() > 0 && s.saved() as f64 >= MOST_OF * last.saved() as f64);
        let merged = |figure: fn(&Merged) -> u64| or_unknown(case.merged.as_ref().map(figure));
        table.rows.push(vec![
            case.name.clone(),
            merged(|m| m.pages),
            merged(|m| m.frames),
            merged(|m| m.pages - m.frames),
            merged(|m| m.zero_pages),
            at(first),
            at(most),
        ]);
    }
    table.notes = vec![
        "At the end of each case, by the guests' own page tables: other programs' pages are not in it. \
              Zero pages: mappings of the kernel's zero page that KSM made."
            .into(),
    ];
    table
}

/// What KSM did on the whole host, including other programs.
fn whole_host(outcome: &Outcome) -> ResultTable {
    let mut table = ResultTable::new(
        "KSM: the whole host",
        "case|shared\nframes|sharing\npages|unshared\npages|volatile\npages|full\nscans|\
         ksmd CPU\nmean, %|ksmd CPU\npeak, %|page\ncopies|page copies\nper s|others'\nmerged pages",
    );
    for case in &outcome.cases {
        let Some(last) = case.samples.last() else { continue };
        let counter = |c| or_unknown(last.ksm.get(c));
        let percent = case.ksmd_percent();
        // The kernel's count continues from case to case.
        let passes = |s: &Sample| s.ksm.get(Counter::FullScans);
        let scans = case.samples.first().and_then(|first| Some(passes(last)? - passes(first)?));
        let mean = last.ksmd_cpu_s.map(|cpu| format!("{:.1}", 100.0 * cpu / last.at_s.max(1e-9)));
        let peak = percent.iter().map(|p| p.1).reduce(f64::max).map(|p| format!("{p:.1}"));
        let per_second = last.copies.map(|n| format!("{:.0}", n as f64 / last.at_s.max(1e-9)));
        table.rows.push(vec![
            case.name.clone(),
            counter(Counter::PagesShared),
            counter(Counter::PagesSharing),
            counter(Counter::PagesUnshared),
            counter(Counter::PagesVolatile),
            or_unknown(scans),
            or_unknown(mean),
            or_unknown(peak),
            or_unknown(last.copies),
            or_unknown(per_second),
            case.others.merged().to_string(),
        ]);
        if case.others.pages() > 0 {
            table.notes.push(format!(
                "{}: other programs share, too: {} mergeable pages ({})",
                case.name,
                case.others.pages(),
                case.others
            ));
        }
    }
    table.notes.push(
        "At the end of each case, by the host's counters: these guests and all other programs. Full scans: since \
         the case's start. Copies: writes to merged pages, which get a frame of their own again (cow_ksm). CPU: of \
         one processor."
            .into(),
    );
    table
}

/// Measured shares beside published shares.
fn published(plan: &Plan, outcome: &Outcome) -> Option<ResultTable> {
    if plan.spec.published.is_empty() {
        return None;
    }
    let mut table = ResultTable::new(
        "Beside published figures, percent of the guests' memory",
        "|minimum|intra|inter|used without\nsharing|used with\nsharing|saved of\nused",
    );
    for case in &outcome.cases {
        let of_case = |p: &&Published| p.case.as_ref().is_none_or(|c| *c == case.name);
        for p in plan.spec.published.iter().filter(of_case) {
            let cell = |n: u64| share(n as f64, p.memory as f64);
            let mut row = vec![p.source.clone()];
            row.extend([p.minimum, p.intra, p.inter, p.used_without, p.used_with_sharing].map(cell));
            row.push(share(p.used_without.saturating_sub(p.used_with_sharing) as f64, p.used_without as f64));
            table.rows.push(row);
        }
        let Some(last) = case.samples.last() else { continue };
        let cell = |n: u64| share(n as f64, case.memory() as f64);
        let mut row = vec![format!("here: {}", case.name)];
        match case.marks.last() {
            Some(m) => row.extend([m.small.minimum, m.small.intra, m.small.inter].map(|n| cell(n * PAGE))),
            None => row.extend(vec![UNKNOWN.to_string(); 3]),
        }
        row.extend([last.unshared, last.used].map(cell));
        row.push(share(last.saved() as f64, last.unshared as f64));
        table.rows.push(row);
    }
    Some(table)
}

/// Figures of each guest.
fn guests(outcome: &Outcome) -> ResultTable {
    let mut table = ResultTable::new(
        "Guests at the end",
        "case|guest|kernel|ready,\ns|workload\ncycles|resident,\nMiB|proportional,\nMiB|\
         merged\npages|zero\npages|profit,\nMiB|zero, minimum, intra, inter\nat the mark, MiB",
    );
    for case in &outcome.cases {
        for (n, guest) in case.guests.iter().enumerate() {
            // The last sample in which the guest was running.
            let seen = case.samples.iter().rev().find_map(|s| s.guests.get(n).copied().flatten());
            let counts = case.marks.last().and_then(|m| m.guests.iter().find(|g| g.0 == guest.name));
            let words = |c: &Counts| [c.zero, c.minimum, c.intra, c.inter].map(|p| mib(p * PAGE)).join(", ");
            table.rows.push(vec![
                case.name.clone(),
                guest.name.clone(),
                guest.kernel.clone(),
                guest.ready_s.map_or("never".into(), |s| format!("{s:.0}")),
                guest.cycles.to_string(),
                or_unknown(seen.map(|s| mib(s.rss))),
                or_unknown(seen.map(|s| mib(s.pss))),
                or_unknown(seen.and_then(|s| s.merging_pages)),
                or_unknown(seen.and_then(|s| s.zero_pages)),
                or_unknown(seen.and_then(|s| s.profit).map(|p| format!("{:.0}", p as f64 / MIB))),
                or_unknown(counts.map(|c| words(&c.1))),
            ]);
            if let Some((at, why)) = &guest.died {
                table.notes.push(format!("{}, {}: died at {at:.0} s: {why}", case.name, guest.name));
            } else if let Some(why) = &guest.failed {
                table.notes.push(format!("{}, {}: its workload gave up: {why}", case.name, guest.name));
            }
        }
    }
    table
}

/// What is missing of the plan, as text; `None` if the run is complete.
pub fn partial(outcome: &Outcome) -> Option<String> {
    if !outcome.partial() {
        return None;
    }
    let mut what = Vec::new();
    for case in &outcome.cases {
        let end = case.samples.last().map_or(0.0, |s| s.at_s);
        match &case.ending {
            Ending::Interrupted => what.push(format!("{} was interrupted at {end:.0} s", case.name)),
            Ending::Failed(why) => what.push(format!("{} failed at {end:.0} s: {why}", case.name)),
            Ending::Whole => {}
        }
        let bad: Vec<&str> = case
            .guests
            .iter()
            .filter(|g| g.died.is_some() || g.failed.is_some() || g.ready_s.is_none())
            .map(|g| g.name.as_str())
            .collect();
        if !bad.is_empty() {
            what.push(format!("{}: {} died, gave up or never got ready", case.name, bad.join(", ")));
        }
    }
    let missing = outcome.planned - outcome.cases.len();
    if missing > 0 {
        what.push(format!("{missing} of {} cases did not run", outcome.planned));
    }
    Some(format!("Partial: {}", what.join("; ")))
}

#[cfg(test)]
mod tests;
