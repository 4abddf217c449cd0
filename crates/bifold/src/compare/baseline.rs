// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options about a baseline, which a run's counts must not exceed.

use crate::run::Plan;
use crate::usage::UsageError;
use anyhow::Context as _;
use bifold_report::diff::MOST_BYTES;
use bifold_report::{Baseline, Guest};
use bifold_trace::Windows;
use clap::Args;
use std::path::{Path, PathBuf};

/// By how many percent a count may grow unless --worse-than says otherwise.
const WORSE_THAN: f64 = 2.0;

/// Options about a baseline.
#[derive(Debug, Args)]
#[command(next_help_heading = "Baseline")]
pub struct BaselineArgs {
    /// Compare the counts with those of an earlier run, and exit with status 4 if one grew
    ///
    /// FILE is of --save-baseline or of --format json, of the same program under the same guest options and
    /// version of Bifold. The run has the profile of FILE, on any machine; another one that is named is
    /// refused. TLB misses, walks, their references and cycles, exits, the guest's page faults and extra
    /// cycles are compared in each configuration, with --where also those of each place. A run repeats to the
    /// bit, so what grew has a cause: the program, its libraries, its environment or the guest's kernel.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    /// By how many percent a count may grow [default: 2%]
    ///
    /// Changes by less than 100 events or 100,000 cycles never count, nor do places of less than 0.1 % of the
    /// run's count.
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "baseline")]
    pub worse_than: Option<f64>,

    /// Also write the run's counts to FILE, for --baseline of later runs
    #[arg(long, value_name = "FILE")]
    pub save_baseline: Option<PathBuf>,
}

/// A baseline that was read, and by how many percent a count may grow.
pub struct Against {
    pub baseline: Baseline,
    pub worse_than: f64,
}

impl BaselineArgs {
    /// Refuses what has no exact counts, or several runs of them.
    pub fn check(&self, runs: usize, fast: bool, sample: Option<Windows>) -> Result<(), UsageError> {
        let option = match (&self.baseline, &self.save_baseline) {
            (Some(_), _) => "--baseline",
            (None, Some(_)) => "--save-baseline",
            (None, None) => return Ok(()),
        };
        let problem = match () {
            () if runs > 1 => "is of one run: leave out --runs",
            () if fast => "needs counts that repeat, and those of fast timing do not: leave out --fast",
            () if sample.is_some() => {
                "needs exact counts, and those of a sampled run are estimates: leave out --sample"
            }
            () => return Ok(()),
        };
        Err(UsageError::conflict(option, problem))
    }

    /// Reads the baseline, if one is named.
    pub fn read(&self) -> anyhow::Result<Option<Baseline>> {
        self.baseline.as_deref().map(read).transpose()
    }

    /// Refuses a baseline that is not for this run.
    pub fn against(&self, baseline: Baseline, plan: &Plan) -> anyhow::Result<Against> {
        let (source, input) = (plan.source.header().source, plan.source.input());
        let guest = (!source.command.is_empty()).then(|| Guest::named(source.command));
        baseline.refuse_early(bifold_base::version(), &input, guest.as_ref(), &plan.profile, plan.seed)?;
        baseline.refuse_configs(&plan.configs)?;
        Ok(Against { baseline, worse_than: self.worse_than.unwrap_or(WORSE_THAN) })
    }
}

fn read(path: &Path) -> anyhow::Result<Baseline> {
    let bytes = bifold_base::bounded::read(path, MOST_BYTES).with_context(|| {
        format!("cannot read the baseline {}; --save-baseline writes one", path.display())
    })?;
    Ok(Baseline::from_json(&path.to_string_lossy(), &bytes)?)
}

/// A number of percent, with or without its sign.
fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(p) if (0.0..=1000.0).contains(&p) => Ok(p),
        _ => Err("a number of percent from 0 to 1000, such as 2%".into()),
    }
}
