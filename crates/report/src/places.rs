// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places of cost: the most expensive places as a table, all places as data.

use crate::terminal::plain;
use crate::text::{grouped, wrapped};
use bifold_attribute::{Metric, Missing, PlaceRow, View, Where};
use bifold_model::{Config, Costs};
use schemars::JsonSchema;
use serde::Serialize;

/// Rows of the table.
const SHOWN: usize = 10;
/// Rows of the JSON document, which has the sum of all other rows too.
const LISTED: usize = 1000;
/// Columns of the table.
const WIDTH: usize = 112;
/// Columns that a narrower terminal does not get: of walk cycles, and of waits for data.
const NARROW: [(usize, usize); 2] = [(6, 100), (7, WIDTH)];
/// Cells of a row.
const CELLS: usize = 9;
/// Fewest columns of a shortened name.
const SHORTEST: usize = 8;
/// Most paths in a note.
const NAMED: usize = 3;

/// Costs by place, and the view and the configuration in which they are shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Places {
    /// The costs.
    pub places: Where,
    /// The view of the table and of graphs. Data and the report's tables have both.
    pub view: View,
    /// Index of the configuration that ranks the places.
    pub config: usize,
}

impl Places {
    /// Places ranked by `config`, or by the configuration that the verdict keeps: the cheaper mode under a
    /// hypervisor with the smallest host pages.
    pub fn new(places: Where, view: View, config: Option<Config>) -> Places {
        let totals = places.totals(view);
        let modes = || {
            let all = places.configs.iter().enumerate();
            all.filter(|(_, c)| c.mode.is_offered())
        };
        let kept = || {
            let smallest = modes().map(|(_, c)| c.host_page).min()?;
            let of_size = modes().filter(|(_, c)| c.host_page == smallest);
            of_size.map(|(i, _)| i).min_by_key(|i| totals[*i].extra_cycles())
        };
        let named = config.and_then(|c| places.configs.iter().position(|o| *o == c));
        Places { config: named.or_else(kept).unwrap_or(0), view, places }
    }

    /// Name of the configuration shown.
    pub(crate) fn config_name(&self) -> String {
        self.places.configs.get(self.config).map_or(String::new(), |c| c.name())
    }

    /// The most expensive rows of a view.
    fn costliest(&self, view: View) -> Vec<&PlaceRow> {
        let mut rows = self.places.ranked(view, self.config, Metric::ExtraCycles);
        rows.truncate(SHOWN);
        rows
    }

    /// A row's cells: four names, share of the extra cycles, TLB misses, walk cycles, waits for data, exits.
    pub(crate) fn cells(&self, row: &PlaceRow) -> [String; CELLS] {
        let total = self.places.totals(self.view)[self.config].extra_cycles();
        let c = &row.costs[self.config];
        let share = 100.0 * c.extra_cycles() as f64 / total.max(1) as f64;
        let [a, b, d, e] = [&row.process, &row.binary, &row.function, &row.mapping].map(String::clone);
        let waits = grouped(c.data_wait_cycles.unsigned_abs());
        let sign = if c.data_wait_cycles < 0 { "-" } else { "" };
        let [misses, walks, exits] = [c.tlb_misses, c.walk_cycles, c.exits].map(grouped);
        [a, b, d, e, format!("{share:.2}"), misses, walks, format!("{sign}{waits}"), exits]
    }

    /// The share of the shown places, in a sentence.
    fn sentence(&self, view: View) -> String {
        let total = self.places.totals(self.view)[self.config].extra_cycles();
        let rows = self.costliest(view);
        let shown: i64 = rows.iter().map(|r| r.costs[self.config].extra_cycles()).sum();
        let of = self.places.ranked(view, self.config, Metric::ExtraCycles).len();
        format!(
            "The {} most expensive of {} places in {} cause {:.1} % of its {} extra cycles.",
            rows.len(),
            grouped(of as u64),
            self.config_name(),
            100.0 * shown as f64 / total.max(1) as f64,
            grouped(total.max(0) as u64)
        )
    }

    /// The line above the table.
    fn heading(&self) -> String {
        let other = match self.view {
            View::Code => View::Cause,
            View::Cause => View::Code,
        };
        format!("Costs {} (--where={}: {})", by(self.view), other.name(), by(other))
    }

    /// The table for terminals of this many columns, at most 112 wide. A narrower terminal gets fewer counts.
    pub(crate) fn table(&self, columns: usize) -> String {
        let head = [
            "process",
            "binary",
            "function",
            "mapping",
            "share %",
            "TLB misses",
            "walk cycles",
            "data waits",
            "exits",
        ];
        let most = WIDTH.min(columns);
        let fits = |c: &usize| NARROW.iter().all(|(column, least)| column != c || most >= *least);
        let shown: Vec<usize> = (0..head.len()).filter(fits).collect();
        let mut rows = vec![head.map(String::from)];
        let costliest = self.costliest(self.view).into_iter();
        rows.extend(costliest.map(|r| self.cells(r).map(|cell| plain(&cell).into_owned())));
        let mut widths: [usize; CELLS] = std::array::from_fn(|i| width(rows.iter().map(|r| &r[i])));
        let line =
            |widths: &[usize; CELLS]| shown.iter().map(|c| widths[*c]).sum::<usize>() + 2 * (shown.len() - 1);
        while line(&widths) > most {
            let widest = (0..4).max_by_key(|i| widths[*i]).expect("four names");
            if widths[widest] <= SHORTEST {
                break;
            }
            widths[widest] -= 1;
        }
        let set = |row: &[String; CELLS]| {
            let cell = |&c: &usize| match (&row[c], widths[c]) {
                (name, w) if c < 4 => format!("{:<w$}", shortened(name, w)),
                (count, w) => format!("{count:>w$}"),
            };
            shown.iter().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let under = "─".repeat(line(&widths)) + "\n";
        let table = set(&rows[0]) + &under + &rows[1..].iter().map(set).collect::<String>();
        wrapped(&self.heading(), 0) + &plain(&table) + "\n" + &wrapped(&self.sentence(self.view), 0)
    }

    /// The section of the report, for the template.
    pub(crate) fn section(&self) -> Section {
        let totals = self.places.totals(self.view);
        let row = |row: &PlaceRow| {
            let cells = self.cells(row);
            let share = |(c, t): (&Costs, &Costs)| {
                format!("{:.1}", 100.0 * c.extra_cycles() as f64 / t.extra_cycles().max(1) as f64)
            };
            SectionRow {
                names: cells[..4].to_vec(),
                shares: row.costs.iter().zip(&totals).map(share).collect(),
                counts: cells[5..].to_vec(),
            }
        };
        let other = View::ALL.into_iter().filter(|v| *v != self.view);
        let table = |view| SectionTable {
            by: by(view),
            sentence: self.sentence(view),
            rows: self.costliest(view).into_iter().map(row).collect(),
        };
        Section {
            config: self.config_name(),
            configs: self.places.configs.iter().map(|c| c.name()).collect(),
            by: by(self.view),
            stacks: self.places.stacks.is_some(),
            missing: self.missing(),
            tables: [self.view].into_iter().chain(other).map(table).collect(),
        }
    }

    /// A note on binaries whose functions have no names, if there are any.
    pub(crate) fn missing(&self) -> Option<String> {
        let all = &self.places.missing;
        if all.is_empty() {
            return None;
        }
        let named: Vec<String> = all.iter().take(NAMED).map(|m| format!("{} {}", m.path, m.why)).collect();
        let more = match all.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!("; and {n} more"),
        };
        Some(format!("functions without names: {}{more}", named.join("; ")))
    }

    /// The costs as data: of both views the most expensive rows and the sum of all others, and the totals.
    pub(crate) fn listed(&self) -> Listing<'_> {
        self.listing(View::ALL.map(|view| {
            let mut rows = self.places.ranked(view, self.config, Metric::ExtraCycles);
            rows.truncate(LISTED);
            rows
        }))
    }

    /// The costs as data: these rows by code and by cause, the sum of all others, and the totals.
    pub(crate) fn listing<'a>(&'a self, listed: [Vec<&'a PlaceRow>; 2]) -> Listing<'a> {
        let w = &self.places;
        // Rows that cost nothing in this configuration may cost something in another.
        let others = |view: View, listed: &[&PlaceRow]| {
            let totals = w.totals(view);
            let rest = |i: usize| {
                let mut rest = totals[i];
                for row in listed {
                    let c = &row.costs[i];
                    rest.tlb_misses -= c.tlb_misses;
                    rest.walk_cycles -= c.walk_cycles;
                    rest.walk_hidden_cycles -= c.walk_hidden_cycles;
                    rest.exits -= c.exits;
                    rest.vmm_cycles -= c.vmm_cycles;
                    rest.data_wait_cycles -= c.data_wait_cycles;
                }
                rest
            };
            let costs: Vec<Costs> = (0..w.configs.len()).map(rest).collect();
            Others { rows: w.rows(view).len() - listed.len(), costs }
        };
        let [rows, cause_rows] = listed;
        Listing {
            view: self.view.name(),
            ranked_by: self.config_name(),
            configs: w.configs.iter().map(|c| c.name()).collect(),
            others: others(View::Code, &rows),
            cause_others: others(View::Cause, &cause_rows),
            rows,
            cause_rows,
            totals: w.totals(View::Code),
            missing: &w.missing,
        }
    }
}

/// Places of a run as data.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Listing<'a> {
    /// The view that the table shows: `code` by the code that ran, `cause` by the user code that caused the
    /// cost. This document has both.
    view: &'static str,
    /// The configuration by whose extra cycles rows are ranked.
    ranked_by: String,
    /// Names of the configurations, in the order of all lists of costs.
    configs: Vec<String>,
    /// The costliest 1,000 places by the code that ran.
    rows: Vec<&'a PlaceRow>,
    /// All other places by the code that ran.
    others: Others,
    /// The costliest 1,000 places by the user code that caused the cost. The kernel's work for that code
    /// counts there; `(interrupt)` and `(idle)` are functions that no user code caused.
    cause_rows: Vec<&'a PlaceRow>,
    /// All other places by cause.
    cause_others: Others,
    /// Costs of all places, one per configuration, in the order of `configs`.
    totals: Vec<Costs>,
    /// Binaries whose functions have no names here.
    missing: &'a [Missing],
}

/// All other places of the view together.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "place_others")]
struct Others {
    /// How many places they are.
    rows: usize,
    /// One per configuration, in the order of `configs`.
    costs: Vec<Costs>,
}

/// The view in words.
fn by(view: View) -> &'static str {
    match view {
        View::Code => "by the code that ran",
        View::Cause => "by the user code that caused them",
    }
}

/// A section of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    config: String,
    configs: Vec<String>,
    /// The view of the graph.
    by: &'static str,
    /// Whether the graph has the functions that called.
    stacks: bool,
    missing: Option<String>,
    /// A table per view, first that of the graph's view.
    tables: Vec<SectionTable>,
}

#[derive(Debug, Serialize)]
struct SectionTable {
    by: &'static str,
    sentence: String,
    rows: Vec<SectionRow>,
}

#[derive(Debug, Serialize)]
struct SectionRow {
    names: Vec<String>,
    /// Percent of each configuration's extra cycles.
    shares: Vec<String>,
    /// TLB misses, walk cycles, waits for data and exits in the configuration shown.
    counts: Vec<String>,
}

fn width<'a>(cells: impl Iterator<Item = &'a String>) -> usize {
    cells.map(|c| c.chars().count()).max().unwrap_or(0)
}

/// A name of at most `width` characters: a long name loses its middle.
pub(crate) fn shortened(name: &str, width: usize) -> String {
    let n = name.chars().count();
    if n <= width {
        return name.to_owned();
    }
    let (front, back) = (width.div_ceil(2) - 1, width / 2);
    let head: String = name.chars().take(front).collect();
    let tail: String = name.chars().skip(n - back).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_a_terminal_of_80_columns_with_fewer_counts() {
        let cost = Costs {
            tlb_misses: 12_345_678,
            walk_cycles: 900_000_000,
            exits: 1_000_000,
            data_wait_cycles: -5000,
            ..Costs::default()
        };
        let row = PlaceRow {
            process: "python3.11".into(),
            binary: "libpython3.11.so.1.0".into(),
            function: "_PyEval_EvalFrameDefault".into(),
            mapping: "file libpython3.11.so.1.0".into(),
            costs: vec![cost],
        };
        let (code, cause, missing) = (vec![row.clone()], vec![row], Vec::new());
        let places = Places::new(
            Where { configs: Config::ALL[..1].into(), code, cause, stacks: None, missing },
            View::Cause,
            None,
        );
        let rows =
            |columns| places.table(columns).lines().skip(1).take(3).map(String::from).collect::<Vec<_>>();
        let widths = |columns| rows(columns).iter().map(|l| l.chars().count()).collect::<Vec<_>>();
        assert_eq!((widths(80), widths(100), widths(200)), (vec![80; 3], vec![100; 3], vec![112; 3]));
        assert!(!rows(80)[0].contains("walk") && rows(100)[0].contains("walk cycles"));
        assert!(!rows(100)[0].contains("waits") && rows(200)[0].contains("data waits"));
        assert!(rows(200)[2].contains("  -5,000  "));
        assert!(rows(80)[2].contains("12,345,678") && rows(80)[2].ends_with("1,000,000"));
    }

    #[test]
    fn a_long_name_keeps_both_its_ends() {
        assert_eq!(shortened("handle_mm_fault", 15), "handle_mm_fault");
        assert_eq!(shortened("handle_mm_fault", 9), "hand…ault");
        assert_eq!(shortened("handle_mm_fault", 8), "han…ault");
        assert_eq!(shortened("größenordnungen", 8), "grö…ngen");
    }
}
