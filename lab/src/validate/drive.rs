// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drives a comparison: runs predictions and counts, several at a time, and makes rows of them. Counts are
//! saved to a file after every boot, because a boot takes a minute and a later one may fail.

use bifold_base::whole;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use super::count::{self, Run};
use super::predict::{self, Predicted};
use super::table::{self, ExitRow};
use super::{CONFIGS, Workload};
use crate::exits::Window;
use crate::lab::Lab;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Configurations.
    pub configs: Vec<&'static str>,
    /// Values of KPTI to compare: off, on, or both.
    pub kpti: Vec<bool>,
    /// Runs under KVM per configuration.
    pub runs: u64,
    /// Number of boots at a time.
    pub jobs: usize,
    /// File with the counts. It is read if it exists, and written otherwise.
    pub kept: Option<PathBuf>,
    /// Directory for all exits of both sides, with a file per configuration and program.
    pub logs: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            configs: CONFIGS.to_vec(),
            kpti: vec![false, true],
            runs: 3,
            jobs: 2,
            kept: None,
            logs: None,
        }
    }
}

/// Counts by run and window.
type Counted = BTreeMap<String, BTreeMap<u64, Window>>;

fn key(run: Run) -> String {
    format!("{}{} run {}", run.config, if run.kpti { " kpti" } else { "" }, run.number)
}

/// The runs that are left, and the results so far.
struct State {
    predictions: Vec<bool>,
    runs: Vec<Run>,
    predicted: BTreeMap<bool, BTreeMap<&'static str, Predicted>>,
    counted: Counted,
}

/// Writes a file whole or not at all.
pub(crate) fn write(path: &Path, data: &[u8]) -> Result<()> {
    whole::write(path, &[data]).with_context(|| format!("cannot write {}", path.display()))
}

fn read(path: Option<&Path>) -> Result<Counted> {
    match path.filter(|p| p.exists()) {
        None => Ok(BTreeMap::new()),
        Some(path) => {
            let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_slice(&text)
                .with_context(|| format!("{}: not what an earlier run counted; remove it", path.display()))
        }
    }
}

/// Writes a line per exit, with its reason and address.
fn logs(
    dir: &Path,
    workload: &Workload,
    run: Run,
    predicted: &Predicted,
    counted: Option<&BTreeMap<u64, Window>>,
) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for program in &workload.programs {
        let name = format!("{}{}-{}", run.config, if run.kpti { "-kpti" } else { "" }, program.name);
        let lines: String = predicted
            .get(&program.window)
            .into_iter()
            .flat_map(|w| w.log.iter().map(|(reason, address)| format!("{reason} {address:x}\n")))
            .collect();
        write(&dir.join(format!("{name}.predicted")), lines.as_bytes())?;
        let lines: String = counted
            .and_then(|c| c.get(&program.window))
            .into_iter()
            .flat_map(|w| w.log.iter().map(|e| format!("{} {:x}\n", e.reason, e.address)))
            .collect();
        write(&dir.join(format!("{name}.counted")), lines.as_bytes())?;
    }
    Ok(())
}

/// Predicts and counts, `settings.jobs` at a time, and compares.
pub fn drive(
    lab: &Lab,
    workload: &Workload,
    settings: &Settings,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Vec<ExitRow>> {
    let counted = read(settings.kept.as_deref())?;
    let all = || {
        settings.kpti.iter().flat_map(|&kpti| {
            let of = move |config| (0..settings.runs).map(move |number| Run { config, kpti, number });
            settings.configs.iter().copied().flat_map(of)
        })
    };
    let mut runs: Vec<Run> = all().filter(|r| !counted.contains_key(&key(*r))).collect();
    runs.reverse(); // they are taken from the end
    let state =
        Mutex::new(State { predictions: settings.kpti.clone(), runs, predicted: BTreeMap::new(), counted });
    let died = |_| anyhow!("a worker died");
    let worker = || -> Result<()> {
        loop {
            let (prediction, run) = {
                let mut s = state.lock().map_err(died)?;
                match s.predictions.pop() {
                    Some(kpti) => (Some(kpti), None),
                    None => (None, s.runs.pop()),
                }
            };
            let begun = Instant::now();
            let what = match (prediction, run) {
                (Some(kpti), _) => {
                    let p =
                        predict::predict(lab, workload, &settings.configs, kpti, settings.logs.is_some())?;
                    state.lock().map_err(died)?.predicted.insert(kpti, p);
                    format!("predicted{}", if kpti { " kpti" } else { "" })
                }
                (None, Some(run)) => {
                    let windows = count::count(lab, workload, run, settings.logs.is_some())
                        .with_context(|| key(run))?;
                    let mut s = state.lock().map_err(died)?;
                    s.counted.insert(key(run), windows);
                    if let Some(path) = &settings.kept {
                        write(path, &serde_json::to_vec(&s.counted)?)?;
                    }
                    format!("counted {}", key(run))
                }
                (None, None) => return Ok(()),
            };
            say(&format!("{what} in {:.0?}", begun.elapsed()));
        }
    };
    std::thread::scope(|s| -> Result<()> {
        let workers: Vec<_> = (0..settings.jobs.max(1)).map(|_| s.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker died"))?)
    })?;
    let state = state.into_inner().map_err(|_| anyhow!("a worker died"))?;
    rows(workload, settings, &state)
}

/// The rows of all configurations; logs what both sides have.
fn rows(workload: &Workload, settings: &Settings, state: &State) -> Result<Vec<ExitRow>> {
    let mut rows = Vec::new();
    for &kpti in &settings.kpti {
        for &config in &settings.configs {
            let runs: Vec<_> = (0..settings.runs)
                .filter_map(|number| state.counted.get(&key(Run { config, kpti, number })))
                .map(|windows| count::reasons(workload, windows, kpti))
                .collect();
            if let Some(dir) = &settings.logs {
                let run = Run { config, kpti, number: 0 };
                logs(dir, workload, run, &state.predicted[&kpti][config], state.counted.get(&key(run)))?;
            }
            let predicted = predict::reasons(&state.predicted[&kpti][config]);
            rows.extend(table::rows(&workload.programs, kpti, config, &predicted, &runs));
        }
    }
    Ok(rows)
}
