// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a run one by one: a row per region and one for all together, for tables, pages and JSON.

use crate::Comparison;
use crate::page::PageTable;
use crate::text::{decimals, fixed, grouped, seconds};
use crate::text_table::{labelled, table as text_table};
use bifold_model::{RegionOutcome, RegionTotal, Regions, Sample};
use serde_json::{Map, Value};

const TITLE: &str = "Regions";

/// All regions have a row if there are no more.
const MOST: usize = 20;
/// Of more, the first ones have a row, and those that cost the most.
const FIRST: usize = 12;
const WORST: usize = 5;

/// Extra cycles in percent of the ideal run of the same part.
fn overhead(total: &Sample, base_cpi: f64) -> f64 {
    let ideal = total.ideal_cycles(base_cpi);
    if ideal == 0.0 { 0.0 } else { 100.0 * total.extra_cycles() as f64 / ideal }
}

/// The regions that have a row.
fn shown(regions: &Regions) -> Vec<&RegionOutcome> {
    if regions.rows.len() <= MOST {
        return regions.rows.iter().collect();
    }
    let (first, rest) = regions.rows.split_at(FIRST);
    let extra = |r: &RegionOutcome| r.configs.iter().map(|c| c.total.extra_cycles()).sum::<u64>();
    let mut worst: Vec<&RegionOutcome> = rest.iter().collect();
    worst.sort_by_key(|r| (std::cmp::Reverse(extra(r)), r.number));
    worst.truncate(WORST);
    worst.sort_by_key(|r| r.number);
    first.iter().chain(worst).collect()
}

/// Head and cells for people.
fn cells(c: &Comparison, regions: &Regions) -> (Vec<String>, Vec<Vec<String>>) {
    let o = &c.outcome;
    let mut lines: Vec<(String, Vec<&Sample>)> = Vec::new();
    for r in shown(regions) {
        lines.push((r.number.to_string(), r.configs.iter().map(|c| &c.total).collect()));
    }
    lines.push(("all".into(), o.configs.iter().map(|r| &r.total).collect()));
    let percent = |i: usize| lines.iter().map(move |(_, totals)| overhead(totals[i], o.base_cpi));
    // One number of decimals per column, so that digits of equal weight align.
    let digits: Vec<usize> = (0..o.configs.len()).map(|i| decimals(percent(i).fold(0.0, f64::max))).collect();
    let cells = |(name, totals): &(String, Vec<&Sample>)| {
        let first = totals.first().copied().copied().unwrap_or_default();
        let time = seconds(first.ideal_cycles(o.base_cpi) / o.frequency_hz.max(1) as f64);
        let overheads = totals.iter().zip(&digits).map(|(t, d)| fixed(overhead(t, o.base_cpi), *d));
        [name.clone(), grouped(first.instructions), time].into_iter().chain(overheads).collect()
    };
    let head = ["\nregion", "\ninstructions", "ideal\ntime"].map(String::from).into_iter();
    let names = o.configs.iter().map(|r| format!("{}\n%", r.config.name()));
    (head.chain(names).collect(), lines.iter().map(cells).collect())
}

/// Why regions have no row.
fn notes(regions: &Regions) -> Vec<String> {
    let mut notes = Vec::new();
    let n = regions.rows.len();
    if n > MOST {
        notes.push(format!(
            "{} regions are left out here: shown are the first {FIRST}, and the {WORST} of the others with the most \
             extra cycles in all configurations together; JSON has {}",
            grouped((n - FIRST - WORST) as u64),
            if regions.left_out() == 0 { "all".into() } else { format!("the first {}", grouped(n as u64)) },
        ));
    }
    if regions.left_out() > 0 {
        notes.push(format!(
            "{} regions behind region {} are in the row of all only; a run of so many has no timeline",
            grouped(regions.left_out()),
            grouped(n as u64)
        ));
    }
    notes
}

/// The table; none of one region.
pub(crate) fn table(c: &Comparison) -> Option<String> {
    let regions = c.outcome.regions.as_ref()?;
    let (head, rows) = cells(c, regions);
    let notes: String = notes(regions).iter().map(|n| labelled("note", n)).collect();
    Some(text_table(head, rows) + &notes)
}

/// The table of a page; none of one region.
pub(crate) fn page_table(c: &Comparison) -> Option<PageTable> {
    let regions = c.outcome.regions.as_ref()?;
    let (head, rows) = cells(c, regions);
    let mut notes = notes(regions);
    notes.insert(
        0,
        "Shown is the overhead of each configuration, in percent of the region's ideal time.".into(),
    );
    Some(PageTable { title: TITLE.into(), head, rows, notes })
}

/// Adds the name of its configuration and the overhead to each total of `outcome.regions`.
pub(crate) fn name(c: &Comparison, value: &mut Value) {
    let Some(regions) = &c.outcome.regions else { return };
    let rows = value["rows"].as_array_mut().into_iter().flatten();
    for (row, r) in rows.zip(&regions.rows) {
        name_configs(c, &mut row["configs"], &r.configs);
    }
}

/// Adds the same to the totals of one region, or of the guest's own start.
pub(crate) fn name_configs(c: &Comparison, value: &mut Value, configs: &[RegionTotal]) {
    for (v, of) in value.as_array_mut().into_iter().flatten().zip(configs) {
        let mut named = Map::new();
        named.insert("name".into(), of.config.name().into());
        if let Some(fields) = v.as_object_mut() {
            named.append(fields);
        }
        named.insert("overhead_percent".into(), overhead(&of.total, c.outcome.base_cpi).into());
        *v = Value::Object(named);
    }
}
