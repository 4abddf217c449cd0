// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a run one by one: a row per region and one for all together, for tables, pages and JSON.

use crate::Comparison;
use crate::page::PageTable;
use crate::text::{decimals, fixed, grouped, seconds};
use crate::text_table::{labelled, table as text_table};
use bifold_model::{RegionOutcome, RegionTotal, Regions, Sample};
use schemars::JsonSchema;
use serde::Serialize;

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

/// A total between its configuration's name and the overhead.
#[derive(Serialize, JsonSchema)]
pub(crate) struct NamedTotal<'a> {
    /// Name of the configuration.
    name: String,
    #[serde(flatten)]
    of: &'a RegionTotal,
    /// Cycles beyond the ideal run's. Unit: % of the ideal run of the same part.
    overhead_percent: f64,
}

/// The totals of one region, or of the guest's own start.
pub(crate) fn named<'a>(c: &Comparison, configs: &'a [RegionTotal]) -> Vec<NamedTotal<'a>> {
    let of = |of: &'a RegionTotal| {
        let overhead_percent = overhead(&of.total, c.outcome.base_cpi);
        NamedTotal { name: of.config.name(), of, overhead_percent }
    };
    configs.iter().map(of).collect()
}

/// Regions with the names of configurations.
#[derive(Serialize, JsonSchema)]
pub(crate) struct NamedRegions<'a> {
    /// How many there were. With more than 1,000, the others are part of the totals alone, and
    /// `interval_starts` and `intervals` have one interval, which is the whole.
    count: u64,
    /// Instructions between regions, which are in no count.
    between_instructions: u64,
    /// The first 1,000 in the order of time.
    rows: Vec<NamedRegion<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct NamedRegion<'a> {
    /// The region's number, counted from 1.
    number: u64,
    /// Instructions of the command since the end of the region before, or for the first since its start.
    before_instructions: u64,
    /// The region in each configuration, in the order of `outcome.configs`.
    configs: Vec<NamedTotal<'a>>,
}

impl NamedRegions<'_> {
    pub(crate) fn of<'a>(c: &Comparison, regions: &'a Regions) -> NamedRegions<'a> {
        let of = |r: &'a RegionOutcome| NamedRegion {
            number: r.number,
            before_instructions: r.before_instructions,
            configs: named(c, &r.configs),
        };
        let Regions { count, between_instructions, .. } = *regions;
        NamedRegions { count, between_instructions, rows: regions.rows.iter().map(of).collect() }
    }
}
