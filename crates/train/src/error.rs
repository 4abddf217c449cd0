// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why training fails, and how many pairs of both modes' costs it takes.

use bifold_policy::TimelineError;
use bifold_policy::evaluate::EvaluateError;
use std::fmt;

/// Fewest pairs of a VM.
pub(crate) const LEAST_OF_VM: usize = 3;
/// Fewest VMs, because each is judged by what the others teach.
pub(crate) const LEAST_VMS: usize = 2;
/// Fewest pairs of all VMs: twice the most coefficients of a sum.
pub(crate) const LEAST_PAIRS: usize = 10;

/// Why training failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A timeline cannot be used.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// Two files have the same name.
    #[error(
        "two timelines are called {0}: give each program one timeline, so that leaving it out leaves all of it out"
    )]
    Twice(String),
    /// Fewer programs than needed.
    #[error(
        "got {0} timelines, and training takes 2 or more: each program is left out in turn and tested on what the others teach"
    )]
    TooFew(usize),
    /// A timeline lacks one of the two modes on the pages to learn from.
    #[error("timeline {name} has no pair of modes on {pages} host pages")]
    NoPair {
        /// The program.
        name: String,
        /// The host pages.
        pages: &'static str,
    },
    /// The timelines were made on different machines.
    #[error("timelines {a} and {b} are of different {what}: what is learnt holds for one machine")]
    Mixed {
        /// One program.
        a: String,
        /// Another.
        b: String,
        /// What differs.
        what: &'static str,
    },
    /// The timelines are of VMs in different states.
    #[error(transparent)]
    States(#[from] EvaluateError),
    /// Both modes cost the same in all timelines.
    #[error("the modes do not differ by {0}: there is nothing to learn from these timelines")]
    NoDifference(&'static str),
    /// Recordings have too few pairs of both modes' costs.
    #[error("{0}")]
    TooFewPairs(TooFewPairs),
    /// No counter helps to estimate the other mode's cost.
    #[error(
        "no counter of a VM in {0} paging tells what the other mode costs: the pairs of these recordings contradict each other"
    )]
    Unexplained(&'static str),
    /// Published samples are not TOML, or not samples.
    #[error("{}", .0.to_string().trim_end())]
    Samples(toml::de::Error),
    /// Published samples leave no gap for a threshold: its name, and the ends of the gap that they have.
    #[error("the samples leave no gap for {0}: from {low} to {high}", low = end(*.1), high = end(*.2))]
    NoGap(&'static str, Option<f64>, Option<f64>),
    /// Thresholds of DSP were to be put into another policy.
    #[error("{0} is not DSP")]
    NotDsp(String),
    /// The solver failed.
    #[error("{0}")]
    Solver(String),
}

fn end(of_gap: Option<f64>) -> String {
    of_gap.map_or_else(|| "nothing".into(), |x| x.to_string())
}

/// Too few pairs, and what would give more.
#[derive(Debug, Clone, PartialEq)]
pub struct TooFewPairs {
    /// Number of usable pairs, by VM.
    pub(crate) usable: Vec<(String, usize)>,
    /// Number of pairs without a counter, and the first counter that one lacks.
    pub(crate) lacking: Option<(usize, String)>,
}

impl fmt::Display for TooFewPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: usize = self.usable.iter().map(|(_, n)| n).sum();
        write!(f, "found {all} usable pairs of both modes' costs")?;
        let some = self.usable.iter().filter(|(_, n)| *n > 0).take(8);
        let of: Vec<String> = some.map(|(name, n)| format!("{name} has {n}")).collect();
        if !of.is_empty() {
            write!(f, " ({})", of.join(", "))?;
        }
        write!(
            f,
            ", and training takes {LEAST_PAIRS} pairs, of {LEAST_VMS} VMs or more with at least {LEAST_OF_VM} each"
        )?;
        if let Some((n, counter)) = &self.lacking {
            write!(f, "; {n} more pairs lack {counter}")?;
        }
        f.write_str(
            ". A pair is a try of the other mode for at most a minute, and the return. To get more, let the daemon probe VMs \
             whose guests report progress ([vm.probe] in bifold.toml), and record for longer",
        )
    }
}
