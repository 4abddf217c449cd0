// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places of cost: the most expensive places as a table, all places as data.

use crate::terminal::plain;
use crate::text::{grouped, wrapped};
use bifold_attribute::{Metric, Row, Where};
use bifold_model::{Config, Costs, Paging};
use serde::Serialize;
use serde_json::{Value, json};

/// Rows of the table.
const SHOWN: usize = 10;
/// Rows of the JSON document, which has the sum of all other rows too.
const LISTED: usize = 1000;
/// Columns of the table.
const WIDTH: usize = 100;
/// Fewest columns of a shortened name.
const SHORTEST: usize = 8;
/// Most paths in a note.
const NAMED: usize = 3;

/// Costs by place, and the configuration in which they are shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Places {
    /// The costs.
    pub places: Where,
    /// Index of the configuration that ranks the places.
    pub config: usize,
}

impl Places {
    /// Places ranked by `config`, or by the configuration that the verdict keeps: the cheaper mode under a hypervisor with the
    /// smallest host pages.
    pub fn new(places: Where, config: Option<Config>) -> Places {
        let totals = places.totals();
        let modes = || {
            let all = places.configs.iter().enumerate();
            all.filter(|(_, c)| matches!(c.mode, Paging::Nested | Paging::Shadow))
        };
        let kept = || {
            let smallest = modes().map(|(_, c)| c.host_page).min()?;
            let of_size = modes().filter(|(_, c)| c.host_page == smallest);
            of_size.map(|(i, _)| i).min_by_key(|i| totals[*i].extra_cycles())
        };
        let named = config.and_then(|c| places.configs.iter().position(|o| *o == c));
        Places { config: named.or_else(kept).unwrap_or(0), places }
    }

    /// Name of the configuration shown.
    pub(crate) fn config_name(&self) -> String {
        self.places.configs.get(self.config).map_or(String::new(), |c| c.name())
    }

    /// The most expensive rows.
    pub(crate) fn dearest(&self) -> Vec<&Row> {
        let mut rows = self.places.ranked(self.config, Metric::ExtraCycles);
        rows.truncate(SHOWN);
        rows
    }

    /// A row's cells: four names, share of the extra cycles, TLB misses, walk cycles, exits.
    pub(crate) fn cells(&self, row: &Row) -> [String; 8] {
        let total = self.places.totals()[self.config].extra_cycles();
        let c = &row.costs[self.config];
        let share = 100.0 * c.extra_cycles() as f64 / total.max(1) as f64;
        let [a, b, d, e] = [&row.process, &row.binary, &row.function, &row.mapping].map(String::clone);
        [a, b, d, e, format!("{share:.2}"), grouped(c.tlb_misses), grouped(c.walk_cycles), grouped(c.exits)]
    }

    /// The share of the shown places, in a sentence.
    pub(crate) fn sentence(&self) -> String {
        let total = self.places.totals()[self.config].extra_cycles();
        let rows = self.dearest();
        let shown: u64 = rows.iter().map(|r| r.costs[self.config].extra_cycles()).sum();
        let of = self.places.ranked(self.config, Metric::ExtraCycles).len();
        format!(
            "The {} most expensive of {} places in {} cause {:.1} % of its {} extra cycles.",
            rows.len(),
            grouped(of as u64),
            self.config_name(),
            100.0 * shown as f64 / total.max(1) as f64,
            grouped(total)
        )
    }

    /// The table for terminals, at most 100 columns wide.
    pub(crate) fn table(&self) -> String {
        let head =
            ["process", "binary", "function", "mapping", "share %", "TLB misses", "walk cycles", "exits"];
        let mut rows = vec![head.map(String::from)];
        rows.extend(self.dearest().into_iter().map(|r| self.cells(r).map(|cell| plain(&cell).into_owned())));
        let mut widths: [usize; 8] = std::array::from_fn(|i| width(rows.iter().map(|r| &r[i])));
        while widths.iter().sum::<usize>() + 2 * (widths.len() - 1) > WIDTH {
            let widest = (0..4).max_by_key(|i| widths[*i]).expect("four names");
            if widths[widest] <= SHORTEST {
                break;
            }
            widths[widest] -= 1;
        }
        let mut out = String::new();
        for (n, row) in rows.iter().enumerate() {
            let mut line = String::new();
            for (i, (cell, &w)) in row.iter().zip(&widths).enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                line += &if i < 4 {
                    format!("{gap}{:<w$}", shortened(cell, w))
                } else {
                    format!("{gap}{cell:>w$}")
                };
            }
            out += line.trim_end();
            out.push('\n');
            if n == 0 {
                out += &"─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
                out.push('\n');
            }
        }
        plain(&out).into_owned() + "\n" + &wrapped(&self.sentence(), 0)
    }

    /// The section of the report, for the template.
    pub(crate) fn view(&self) -> View {
        let totals = self.places.totals();
        let row = |row: &Row| {
            let cells = self.cells(row);
            let share = |(c, t): (&Costs, &Costs)| {
                format!("{:.1}", 100.0 * c.extra_cycles() as f64 / t.extra_cycles().max(1) as f64)
            };
            ViewRow {
                names: cells[..4].to_vec(),
                shares: row.costs.iter().zip(&totals).map(share).collect(),
                counts: cells[5..].to_vec(),
            }
        };
        View {
            config: self.config_name(),
            configs: self.places.configs.iter().map(|c| c.name()).collect(),
            sentence: self.sentence(),
            missing: self.missing(),
            rows: self.dearest().into_iter().map(row).collect(),
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

    /// The costs as data: the most expensive rows, the sum of all others, and the totals.
    pub(crate) fn json(&self) -> Value {
        let w = &self.places;
        let rows = w.ranked(self.config, Metric::ExtraCycles);
        let listed = &rows[..rows.len().min(LISTED)];
        let totals = w.totals();
        // Rows that cost nothing in this configuration may cost something in another.
        let others: Vec<Costs> = (0..w.configs.len())
            .map(|i| {
                let mut rest = totals[i];
                for row in listed {
                    let c = &row.costs[i];
                    rest.tlb_misses -= c.tlb_misses;
                    rest.walk_cycles -= c.walk_cycles;
                    rest.walk_hidden_cycles -= c.walk_hidden_cycles;
                    rest.exits -= c.exits;
                    rest.vmm_cycles -= c.vmm_cycles;
                }
                rest
            })
            .collect();
        json!({
            "ranked_by": self.config_name(),
            "configs": w.configs.iter().map(|c| c.name()).collect::<Vec<_>>(),
            "rows": listed,
            "others": { "rows": w.rows.len() - listed.len(), "costs": others },
            "totals": totals,
            "missing": w.missing,
        })
    }
}

/// A section of the report.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    config: String,
    configs: Vec<String>,
    sentence: String,
    missing: Option<String>,
    rows: Vec<ViewRow>,
}

#[derive(Debug, Serialize)]
struct ViewRow {
    names: Vec<String>,
    /// Percent of each configuration's extra cycles.
    shares: Vec<String>,
    /// TLB misses, walk cycles and exits in the configuration shown.
    counts: Vec<String>,
}

fn width<'a>(cells: impl Iterator<Item = &'a String>) -> usize {
    cells.map(|c| c.chars().count()).max().unwrap_or(0)
}

/// A name of at most `width` characters: a long name loses its middle.
fn shortened(name: &str, width: usize) -> String {
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
    fn a_long_name_keeps_both_its_ends() {
        assert_eq!(shortened("handle_mm_fault", 15), "handle_mm_fault");
        assert_eq!(shortened("handle_mm_fault", 9), "hand…ault");
        assert_eq!(shortened("handle_mm_fault", 8), "han…ault");
        assert_eq!(shortened("größenordnungen", 8), "grö…ngen");
    }
}
