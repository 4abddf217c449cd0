// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drives a comparison: runs the prediction and the counts, several at a time, and makes rows of them.
//! Results are saved after every boot, because a boot takes minutes and a later one may fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use super::count::{Counted, Run, count};
use super::predict::{Predictions, predict};
use super::table::{RefaultRow, rows};
use crate::lab::Lab;
use crate::validate::Workload;
use crate::validate::drive::write;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Configurations.
    pub configs: Vec<&'static str>,
    /// What the host holds of the guest at most, in MiB.
    pub sizes_mib: Vec<u64>,
    /// Runs under KVM per configuration and size.
    pub runs: u64,
    /// Number of boots at a time.
    pub jobs: usize,
    /// File with results. What it has is not run again.
    pub kept: Option<PathBuf>,
}

/// Results so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Results {
    /// The prediction.
    pub predicted: Predictions,
    /// Counts by the run's name.
    pub counted: BTreeMap<String, Counted>,
}

impl Results {
    fn read(path: Option<&Path>) -> Result<Results> {
        let Some(path) = path.filter(|p| p.exists()) else { return Ok(Results::default()) };
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{}: not what an earlier run left; remove it", path.display()))
    }

    fn write(&self, path: Option<&Path>) -> Result<()> {
        path.map_or(Ok(()), |path| write(path, &serde_json::to_vec(self)?))
    }
}

/// What is left to do.
enum Task {
    Predict,
    Count(Run),
}

/// Predicts and counts, `settings.jobs` at a time, and compares.
pub fn drive(
    lab: &Lab,
    workload: &Workload,
    settings: &Settings,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(Vec<RefaultRow>, Results)> {
    let results = Results::read(settings.kept.as_deref())?;
    let runs = Run::all(&settings.configs, &settings.sizes_mib, settings.runs);
    let mut tasks: Vec<Task> =
        runs.iter().filter(|r| !results.counted.contains_key(&r.name())).map(|r| Task::Count(*r)).collect();
    tasks.reverse(); // they are taken from the end
    if !settings.sizes_mib.iter().all(|mib| results.predicted.contains_key(mib)) {
        tasks.push(Task::Predict);
    }
    let state = Mutex::new((tasks, results));
    let died = |_| anyhow!("a worker died");
    let worker = || -> Result<()> {
        loop {
            let Some(task) = state.lock().map_err(died)?.0.pop() else { return Ok(()) };
            let begun = Instant::now();
            let what = match task {
                Task::Predict => {
                    let predicted = predict(lab, workload, &settings.sizes_mib)?;
                    state.lock().map_err(died)?.1.predicted = predicted;
                    "predicted".into()
                }
                Task::Count(run) => {
                    let counted = count(lab, workload, run)
                        .with_context(|| run.name())
                        .inspect_err(|e| say(&format!("{e:#}")))?;
                    state.lock().map_err(died)?.1.counted.insert(run.name(), counted);
                    format!("counted {}", run.name())
                }
            };
            state.lock().map_err(died)?.1.write(settings.kept.as_deref())?;
            say(&format!("{what} in {:.0?}", begun.elapsed()));
        }
    };
    std::thread::scope(|s| -> Result<()> {
        let workers: Vec<_> = (0..settings.jobs.max(1)).map(|_| s.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker died"))?)
    })?;
    let (_, results) = state.into_inner().map_err(|_| anyhow!("a worker died"))?;
    Ok((rows(&workload.programs, &runs, &results), results))
}
