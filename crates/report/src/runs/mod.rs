// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several runs of one command: mean and spread of each figure, and outliers.
//!
//! Every run is a whole [`Comparison`]. A mean includes outliers: readers decide which runs to leave out,
//! because they may know why a run differs.

mod json;
mod text;

pub(crate) use json::{Document, SCHEMA};

use crate::spread::{Spread, outliers};
use crate::{Comparison, Figures, Format, Meta, Partial, RenderError, Show, html, rows, table};
use bifold_model::{Config, Paging, Sample};
use bifold_trace::CommandExit;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// Several runs of one command in fresh guests.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Number of runs asked for.
    pub asked: usize,
    /// The runs, in order. Those before the last are whole; a run that was interrupted or failed is
    /// here only if it is the first.
    pub runs: Vec<Comparison>,
}

/// A figure of a run that is far from the figures of the other runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Outlier {
    /// The run, from 1.
    pub run: usize,
    /// The configuration whose time it is; null for the number of instructions.
    pub config: Option<String>,
    /// `seconds` or `instructions`.
    pub figure: &'static str,
    /// The run's value.
    pub value: f64,
    /// The runs' median.
    pub median: f64,
    /// Distance from the median in scaled median absolute deviations; in JSON null where more than half of
    /// the runs have the median itself.
    #[schemars(with = "Option<f64>")]
    pub deviations: f64,
}

/// Spreads of a configuration over the runs.
pub(crate) struct ConfigSpreads {
    pub config: Config,
    /// Spreads in the order of [`Figures::ALL`].
    pub figures: Vec<Spread>,
    /// Spreads in the order of [`Sample::COUNTERS`].
    pub counters: Vec<Spread>,
}

impl ConfigSpreads {
    /// The spread of a figure.
    pub fn figure(&self, name: &str) -> &Spread {
        let at = Figures::ALL.iter().position(|f| f.name == name);
        &self.figures[at.expect("the name of a figure")]
    }
}

impl Runs {
    /// The runs in the given format.
    ///
    /// # Errors
    /// If the format's writer fails.
    pub fn render(&self, format: Format) -> Result<String, RenderError> {
        let numbered = || self.runs.iter().enumerate().map(|(i, c)| (Some(i + 1), c));
        match format {
            Format::Table => Ok(self.render_table(Show::default())),
            Format::Json => json::render(self),
            Format::Jsonl => {
                let mut out = String::new();
                for (run, c) in numbered() {
                    out += &rows::render_jsonl(c, run)?;
                }
                Ok(out + &json::spread_lines(self)?)
            }
            Format::Csv => rows::csv_of(numbered()),
        }
    }

    /// The runs as a table for terminals, with further parts if they are asked for. Policies are shown
    /// only where all runs agree: JSON has them of every run.
    pub fn render_table(&self, show: Show) -> String {
        text::render(self, show)
    }

    /// The first run's page with a section on the spread over all runs.
    ///
    /// # Errors
    /// If the template fails.
    pub fn render_html(&self) -> Result<String, RenderError> {
        let Some(first) = self.runs.first() else { return Ok(String::new()) };
        html::render(first, Some(&text::page_tables(self)))
    }

    /// The whole runs. A run that was stopped at the time limit counts as whole, because the user set the
    /// limit.
    pub fn whole(&self) -> impl Iterator<Item = &Comparison> {
        self.runs.iter().filter(|c| whole(&c.meta))
    }

    /// Whether all runs agree to the bit, in events and in figures.
    pub fn agree(&self) -> bool {
        let totals = |c: &Comparison| c.outcome.configs.iter().map(|o| o.total).collect::<Vec<_>>();
        let mut runs = self.whole();
        let first = runs.next().map(|c| (c.outcome.input_hash.clone(), totals(c)));
        let mut others = runs.peekable();
        others.peek().is_some()
            && first.is_some_and(|(hash, of_first)| {
                others.all(|c| c.outcome.input_hash == hash && totals(c) == of_first)
            })
    }

    /// Number of different event streams.
    pub fn streams(&self) -> usize {
        self.whole().map(|c| &c.outcome.input_hash).collect::<BTreeSet<_>>().len()
    }

    /// The ways in which the commands ended, each with its runs, in the order of the runs.
    pub fn endings(&self) -> Vec<(Option<CommandExit>, Vec<usize>)> {
        let mut out: Vec<(Option<CommandExit>, Vec<usize>)> = Vec::new();
        for (i, c) in self.runs.iter().enumerate() {
            match out.iter_mut().find(|(e, _)| *e == c.meta.exit) {
                Some((_, runs)) => runs.push(i + 1),
                None => out.push((c.meta.exit, vec![i + 1])),
            }
        }
        out
    }

    /// A sentence on runs that ended differently; none if all runs ended alike.
    pub fn ended_differently(&self) -> Option<String> {
        let endings = self.endings();
        let one = |(exit, runs): &(Option<CommandExit>, Vec<usize>)| {
            let how = exit.map_or("end not seen".into(), CommandExit::describe);
            format!("{how} in run{} {}", if runs.len() == 1 { "" } else { "s" }, numbers(runs))
        };
        let parts: Vec<String> = endings.iter().map(one).collect();
        (parts.len() > 1).then(|| format!("the runs ended differently: {}", parts.join("; ")))
    }

    /// Predicted times and numbers of instructions that are outliers by
    /// [`OUTLIER_RULE`](crate::spread::OUTLIER_RULE), in the order of the runs, farthest first.
    pub fn outliers(&self) -> Vec<Outlier> {
        let runs: Vec<&Comparison> = self.whole().collect();
        let mut out = Vec::new();
        let mut look = |config: Option<Config>, figure, values: Vec<f64>| {
            let median = Spread::of(&values).map_or(0.0, |s| s.median);
            out.extend(outliers(&values).into_iter().map(|(i, deviations)| Outlier {
                run: i + 1,
                config: config.map(|c| c.name()),
                figure,
                value: values[i],
                median,
                deviations,
            }));
        };
        let instructions = |c: &Comparison| c.outcome.configs.first().map(|o| o.total.instructions as f64);
        look(None, "instructions", runs.iter().filter_map(|c| instructions(c)).collect());
        for config in configs(&runs) {
            let times = of_config(&runs, config, |c, o| Figures::of(&c.outcome, o).seconds);
            look(Some(config), "seconds", times);
        }
        out.sort_by(|a, b| a.run.cmp(&b.run).then(b.deviations.total_cmp(&a.deviations)));
        out
    }

    /// Spreads of every configuration's figures and counters over the whole runs.
    pub(crate) fn rows(&self) -> Vec<ConfigSpreads> {
        let runs: Vec<&Comparison> = self.whole().collect();
        let row = |config| {
            let spread = |values: Vec<f64>| Spread::of(&values).expect("a configuration was in a run");
            let figures = (0..Figures::ALL.len())
                .map(|i| spread(of_config(&runs, config, |c, o| Figures::of(&c.outcome, o).values()[i])));
            let counters = (0..Sample::COUNTERS.len())
                .map(|i| spread(of_config(&runs, config, |_, o| o.total.values()[i] as f64)));
            ConfigSpreads { config, figures: figures.collect(), counters: counters.collect() }
        };
        configs(&runs).into_iter().map(row).collect()
    }

    /// The configuration under a hypervisor that is fastest in most runs, with the number of these runs.
    pub(crate) fn cheapest(&self) -> Option<(Config, usize)> {
        let runs: Vec<&Comparison> = self.whole().collect();
        let best = |c: &&Comparison| {
            let cost = |o: &&bifold_model::ConfigOutcome| Figures::of(&c.outcome, o).seconds;
            let guests = c.outcome.configs.iter().filter(|o| o.config.mode != Paging::Native);
            guests.min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|o| o.config)
        };
        let winners: Vec<Config> = runs.iter().filter_map(best).collect();
        let count = |config: &Config| winners.iter().filter(|w| *w == config).count();
        winners.iter().map(|w| (*w, count(w))).max_by_key(|(_, n)| *n)
    }
}

/// Whether means include the run.
fn whole(meta: &Meta) -> bool {
    !matches!(meta.partial, Some(Partial::Interrupted | Partial::Failed))
}

fn configs(runs: &[&Comparison]) -> Vec<Config> {
    runs.first().map_or(Vec::new(), |c| c.outcome.configs.iter().map(|o| o.config).collect())
}

/// A figure of one configuration, run by run.
fn of_config(
    runs: &[&Comparison],
    config: Config,
    get: impl Fn(&Comparison, &bifold_model::ConfigOutcome) -> f64,
) -> Vec<f64> {
    let find = |c: &&Comparison| c.outcome.configs.iter().find(|o| o.config == config).map(|o| get(c, o));
    runs.iter().filter_map(find).collect()
}

/// `1, 2 and 5`.
fn numbers(runs: &[usize]) -> String {
    let words: Vec<String> = runs.iter().map(usize::to_string).collect();
    match &words[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.join(""),
    }
}
