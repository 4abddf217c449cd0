// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Comparison of two results: for each configuration the figures of both and their differences, the exits
//! that changed most, and differences in how the results were made.
//!
//! A [`Side`] is one result, of one run or of several: a [`Comparison`], or the JSON of one or of
//! several. A [`Diff`] takes two sides. If both have several runs, the diff marks differences that are
//! larger than the runs' spread.

mod json;
mod made;
mod page;
mod read;
mod text;

pub(crate) use json::{Document, SCHEMA};
pub use made::{Difference, Made};
pub(crate) use made::{REVISION, differences, program};
pub use read::{Counters, MOST_BYTES, ReadError};
pub(crate) use read::{MOST, form_error};

use crate::{Comparison, Figures, Format, Partial, RenderError, Spread};
use bifold_model::{Config, Counter, Profile, Sample};
use schemars::JsonSchema;
use serde::Serialize;

/// The source of a side's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A recording that was modelled just now.
    Recording,
    /// The JSON of one run or of several.
    Result,
}

/// One configuration's total in one run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Total {
    pub(crate) config: Config,
    pub(crate) sample: Sample,
    figures: Figures,
}

/// A result on one side of a diff.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// The file, as given.
    pub(crate) name: String,
    kind: Kind,
    /// The schema of the file; that of one run for a recording.
    pub(crate) schema: String,
    pub(crate) made: Made,
    /// The profile of the first run; none in a file without one, or with one of another version.
    pub(crate) hardware: Option<Profile>,
    /// Why the events of a run end before its command.
    pub(crate) partial: Option<Partial>,
    /// Self-checks that disagreed, over all runs.
    pub(crate) failed_checks: u64,
    /// Counters that the Bifold which wrote the file lacked.
    unknown: Vec<&'static str>,
    /// Runs, each with its configurations.
    pub(crate) runs: Vec<Vec<Total>>,
}

/// A figure or counter on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "change")]
pub struct Change {
    /// Over A's runs.
    pub a: Spread,
    /// Over B's runs.
    pub b: Spread,
    /// B's mean less A's, in the figure's unit: percentage points where the unit is percent.
    pub difference: f64,
    /// The difference in percent of A's mean; null where that is 0.
    pub percent: Option<f64>,
    /// Half the width of Welch's 95 % interval of the difference; null unless both have several runs.
    pub ci95: Option<f64>,
    /// Whether 0 lies outside that interval; null without an interval.
    pub beyond_spread: Option<bool>,
}

/// One configuration on both sides.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigChange {
    config: Config,
    /// In the order of [`Figures::ALL`].
    figures: Vec<Change>,
    /// In the order of [`Sample::COUNTERS`].
    counters: Vec<Change>,
}

/// Two results and their differences.
#[derive(Debug, Clone, PartialEq)]
pub struct Diff {
    a: Side,
    b: Side,
    /// Configurations that both sides have.
    configs: Vec<ConfigChange>,
}

/// The two sides have no configuration in common.
#[derive(Debug, thiserror::Error)]
#[error("nothing to compare: {a} has {of_a}, {b} has {of_b}")]
pub struct NothingInCommon {
    a: String,
    b: String,
    of_a: String,
    of_b: String,
}

impl Change {
    fn of(a: &[f64], b: &[f64]) -> Option<Change> {
        let (a, b) = (Spread::of(a)?, Spread::of(b)?);
        let difference = b.mean - a.mean;
        let ci95 = a.welch(&b);
        Some(Change {
            a,
            b,
            difference,
            percent: (a.mean != 0.0).then(|| 100.0 * difference / a.mean),
            ci95,
            beyond_spread: ci95.map(|half| difference.abs() > half),
        })
    }
}

impl Side {
    /// The side of a recording at `name` that was modelled just now.
    pub fn of(name: &str, c: &Comparison) -> Side {
        let total = |o: &bifold_model::ConfigOutcome| Total {
            config: o.config,
            sample: o.total,
            figures: Figures::of(&c.outcome, o),
        };
        Side {
            name: name.into(),
            kind: Kind::Recording,
            schema: crate::json::SCHEMA.into(),
            made: Made::of(c),
            hardware: Some(c.meta.hardware.clone()),
            partial: c.meta.partial,
            failed_checks: c.checks().1,
            unknown: Vec::new(),
            runs: vec![c.outcome.configs.iter().map(total).collect()],
        }
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// How the result was made.
    pub fn made(&self) -> &Made {
        &self.made
    }

    /// The profile of the run, with all of its values: for the recording beside it.
    pub fn profile(&self) -> Option<&Profile> {
        self.hardware.as_ref()
    }

    /// Why the events of a run end before its command; none if they do not.
    pub fn partial(&self) -> Option<Partial> {
        self.partial
    }

    /// Self-checks that disagreed, over all runs.
    pub fn failed_checks(&self) -> u64 {
        self.failed_checks
    }

    /// Counters that the Bifold which wrote the result lacked. They are 0 in samples.
    pub fn unknown(&self) -> &[&'static str] {
        &self.unknown
    }

    /// The configurations of each run, with their counters and figures.
    pub fn totals(&self) -> impl Iterator<Item = impl Iterator<Item = (Config, &Sample, &Figures)>> {
        self.runs.iter().map(|run| run.iter().map(|t| (t.config, &t.sample, &t.figures)))
    }

    fn configs(&self) -> Vec<Config> {
        self.runs.first().map_or(Vec::new(), |run| run.iter().map(|t| t.config).collect())
    }

    /// A value of one configuration, run by run.
    fn values(&self, config: Config, get: impl Fn(&Total) -> f64) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.iter().find(|t| t.config == config).map(&get)).collect()
    }
}

impl Diff {
    /// The diff from `a` to `b`.
    ///
    /// # Errors
    /// If no configuration is in both.
    pub fn new(a: Side, b: Side) -> Result<Diff, NothingInCommon> {
        let change = |config: Config| {
            let of = |get: &dyn Fn(&Total) -> f64| Change::of(&a.values(config, get), &b.values(config, get));
            let figures = (0..Figures::ALL.len()).map(|i| of(&|t| t.figures.values()[i]));
            let counters = (0..Sample::COUNTERS.len()).map(|i| of(&|t| t.sample.values()[i] as f64));
            Some(ConfigChange {
                config,
                figures: figures.collect::<Option<_>>()?,
                counters: counters.collect::<Option<_>>()?,
            })
        };
        let configs: Vec<ConfigChange> = a.configs().into_iter().filter_map(change).collect();
        if configs.is_empty() {
            let names = |s: &Side| match &s.configs()[..] {
                [] => "no configuration".to_string(),
                some => some.iter().map(|c| c.name()).collect::<Vec<_>>().join(", "),
            };
            let (of_a, of_b) = (names(&a), names(&b));
            return Err(NothingInCommon { a: a.name, b: b.name, of_a, of_b });
        }
        Ok(Diff { a, b, configs })
    }

    /// Whether a self-check of either side failed.
    pub fn checks_failed(&self) -> bool {
        self.a.failed_checks + self.b.failed_checks > 0
    }

    /// The diff as a table or as JSON.
    ///
    /// # Errors
    /// If JSON cannot be made.
    pub fn render(&self, format: Format) -> Result<String, RenderError> {
        match format {
            Format::Json => json::render(self),
            _ => Ok(text::render(self)),
        }
    }

    /// The diff as one HTML file that needs no network.
    ///
    /// # Errors
    /// If the template fails.
    pub fn render_html(&self) -> Result<String, RenderError> {
        page::page(self).render()
    }

    /// Exits by configuration and reason that are not as many on both sides, the largest change first.
    pub(crate) fn exits(&self) -> Vec<(Config, &'static str, Change)> {
        let mut out: Vec<_> = self
            .configs
            .iter()
            .flat_map(|c| {
                Sample::COUNTERS.iter().zip(&c.counters).map(move |(n, change)| (c.config, n, *change))
            })
            .filter_map(|(config, n, change)| Some((config, n.name.strip_prefix("exits_")?, change)))
            .filter(|(.., change)| change.difference != 0.0)
            .collect();
        out.sort_by(|x, y| y.2.difference.abs().total_cmp(&x.2.difference.abs()));
        out
    }

    /// Whether both sides agree in every counter of every run.
    pub(crate) fn same(&self) -> bool {
        let even = |c: &Change| c.a.min == c.b.min && c.a.max == c.b.max && c.difference == 0.0;
        self.configs.iter().all(|c| c.counters.iter().chain(&c.figures).all(even))
    }

    /// The ideal runs: instructions, and time in seconds.
    pub(crate) fn ideal(&self) -> (Change, Change) {
        let of = |side: &Side, get: fn(&Sample, &Made) -> f64| -> Vec<f64> {
            side.runs.iter().filter_map(|run| Some(get(&run.first()?.sample, &side.made))).collect()
        };
        let change = |get| Change::of(&of(&self.a, get), &of(&self.b, get)).expect("both sides have runs");
        let seconds =
            |s: &Sample, made: &Made| s.ideal_cycles(made.base_cpi) / made.frequency_hz.max(1) as f64;
        (change(|s, _| s.instructions as f64), change(seconds))
    }

    /// Every figure with its changes by configuration.
    pub(crate) fn figure(&self, name: &str) -> Option<(&'static Counter, Vec<(Config, Change)>)> {
        let i = Figures::ALL.iter().position(|f| f.name == name)?;
        Some((&Figures::ALL[i], self.configs.iter().map(|c| (c.config, c.figures[i])).collect()))
    }

    /// Reasons why the sides are not comparable, or why a side is not to be trusted.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (a, b) = (&self.a, &self.b);
        let mut out = made::warnings(&a.made, &b.made);
        for (letter, side) in [("A", a), ("B", b)] {
            if let Some(p) = side.partial {
                out.push(format!("{letter} is partial: {}", p.describe()));
            }
            if side.failed_checks > 0 {
                out.push(format!(
                    "{} of {letter}'s self-checks FAILED: do not trust its figures",
                    side.failed_checks
                ));
            }
            if !side.unknown.is_empty() {
                out.push(format!(
                    "the Bifold that made {letter} did not count {}: 0 is taken",
                    side.unknown.join(", ")
                ));
            }
        }
        let only = |x: &Side, y: &Side| -> Vec<String> {
            let of_y = y.configs();
            x.configs().iter().filter(|c| !of_y.contains(c)).map(|c| c.name()).collect()
        };
        for (letter, names) in [("A", only(a, b)), ("B", only(b, a))] {
            if !names.is_empty() {
                out.push(format!("only {letter} has {}", names.join(", ")));
            }
        }
        out
    }
}
