// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sweeps: replays a policy with many settings of its parameters over many programs.
//!
//! Costs and the oracle are computed once per program. Then every setting is replayed from every starting
//! mode, and the worst run counts, as in [`evaluate`](crate::evaluate). Scores are kept per program, so that
//! a program can be left out without replaying the others.

use crate::driver::Scale;
use crate::estimate::Estimator;
use crate::evaluate::{better, worst_start};
use crate::oracle::oracle;
use crate::replay::{Setup, replay};
use crate::spec::SpecError;
use crate::{Named, PerMode, Spec, Track};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};
use toml::{Table, Value};

/// Values of one parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The parameter's key; `table.key` for a parameter in a table.
    pub key: String,
    /// The values.
    pub values: Vec<Value>,
}

/// How an axis is written.
const AXIS: &str = "give KEY=FROM:TO:STEPS[:log] or KEY=VALUE,VALUE...";

/// Why a text is no axis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AxisError {
    /// The text has no `=`.
    #[error("`{0}`: no `=`; {AXIS}")]
    NoEquals(String),
    /// An end of the text's range is no number.
    #[error("`{0}`: `{1}` is no number; {AXIS}")]
    NoNumber(String, String),
    /// The range has a number of steps that is no number, or too small or large.
    #[error("`{0}`: STEPS is not 2 to 10000; {AXIS}")]
    Steps(String),
    /// Even factors do not lead from or to 0.
    #[error("`{0}`: log needs ends above 0; {AXIS}")]
    Log(String),
    /// The text lacks its key or values.
    #[error("`{0}`: no key or no value; {AXIS}")]
    Empty(String),
}

impl Axis {
    /// Parses `KEY=FROM:TO:STEPS` (even distances), `KEY=FROM:TO:STEPS:log` (even factors) or
    /// `KEY=VALUE,VALUE,...`.
    pub fn parse(text: &str) -> Result<Axis, AxisError> {
        let (key, values) = text.split_once('=').ok_or_else(|| AxisError::NoEquals(text.into()))?;
        let fields: Vec<&str> = values.split(':').collect();
        let (range, log) = match fields[..] {
            [f, t, n] => (Some((f, t, n)), false),
            [f, t, n, "log"] => (Some((f, t, n)), true),
            _ => (None, false),
        };
        let values = if let Some((from, to, steps)) = range {
            let number = |s: &str| s.parse::<f64>().ok().filter(|x| x.is_finite());
            let end = |s: &str| number(s).ok_or_else(|| AxisError::NoNumber(text.into(), s.into()));
            let (from, to) = (end(from)?, end(to)?);
            let steps = steps.parse::<usize>().ok().filter(|n| (2..=10_000).contains(n));
            let steps = steps.ok_or_else(|| AxisError::Steps(text.into()))?;
            if log && !(from > 0.0 && to > 0.0) {
                return Err(AxisError::Log(text.into()));
            }
            let at = |i: usize| {
                let part = i as f64 / (steps - 1) as f64;
                match (i == steps - 1, log) {
                    (true, _) => to,
                    (false, true) => from * (to / from).powf(part),
                    (false, false) => from + (to - from) * part,
                }
            };
            (0..steps).map(at).map(Value::Float).collect()
        } else {
            let one = |s: &str| -> Value {
                let parsed = format!("x = {s}").parse::<Table>().ok().and_then(|mut t| t.remove("x"));
                parsed.unwrap_or_else(|| Value::String(s.into()))
            };
            values.split(',').map(str::trim).filter(|s| !s.is_empty()).map(one).collect::<Vec<_>>()
        };
        if key.is_empty() || values.is_empty() {
            return Err(AxisError::Empty(text.into()));
        }
        Ok(Axis { key: key.into(), values })
    }
}

/// Settings of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The combinations in range, named by their values.
    pub named: Vec<Named>,
    /// Number of combinations out of range.
    pub skipped: usize,
    /// Why the first of the skipped combinations is out of range.
    pub why: Option<String>,
}

/// All combinations of the axes' values; the last axis changes fastest. Combinations that the policy refuses
/// are counted.
///
/// # Errors
/// If the policy has no parameter of an axis' key, or if no combination is in range.
pub fn settings(base: &Named, axes: &[Axis]) -> Result<Settings, SpecError> {
    let syntax = |message: String| SpecError::Syntax { name: base.name.clone(), message };
    let table = Table::try_from(&base.spec).map_err(|e| syntax(e.to_string()))?;
    let total =
        axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.values.len()).filter(|n| *n <= 10_000_000));
    let total = total.ok_or_else(|| syntax("more than ten million settings".into()))?;
    let (mut named, mut skipped, mut why) = (Vec::with_capacity(total), 0, None);
    for i in 0..total {
        let (mut rest, mut table, mut set) = (i, table.clone(), Vec::new());
        for axis in axes.iter().rev() {
            let value = &axis.values[rest % axis.values.len()];
            rest /= axis.values.len();
            let put = put(&mut table, &axis.key, value, &base.name)?;
            set.insert(0, format!("{}={put}", axis.key));
        }
        let name =
            if set.is_empty() { base.name.clone() } else { format!("{} {}", base.name, set.join(" ")) };
        let spec = table.try_into::<Spec>().map_err(|e| e.to_string().trim_end().to_string());
        let setting = spec.and_then(|spec| {
            let named = Named { name, spec };
            named.clone().checked().map_err(|e| match e {
                SpecError::Range { why, .. } => why.to_string(),
                other => other.to_string(),
            })
        });
        match setting {
            Ok(setting) => named.push(setting),
            Err(message) => {
                skipped += 1;
                why.get_or_insert(message);
            }
        }
    }
    if named.is_empty() {
        return Err(SpecError::NoneInRange(base.name.clone(), total, why.unwrap_or_default()));
    }
    Ok(Settings { named, skipped, why })
}

/// Replaces a parameter's value, and returns the new value in the parameter's own type.
fn put(table: &mut Table, key: &str, value: &Value, base: &str) -> Result<Value, SpecError> {
    let no = |message| SpecError::Syntax { name: base.into(), message };
    let (first, rest) = key.split_once('.').map_or((key, None), |(f, r)| (f, Some(r)));
    let known = table.keys().filter(|k| *k != "policy").cloned().collect::<Vec<_>>().join(", ");
    let slot = table.get_mut(first).filter(|_| first != "policy");
    let slot = slot.ok_or_else(|| no(format!("no parameter `{first}`: there are {known}")))?;
    if let Some(rest) = rest {
        let inner =
            slot.as_table_mut().ok_or_else(|| no(format!("`{first}` has no parameters of its own")))?;
        return put(inner, rest, value, base);
    }
    // Ranges give floats and lists give what was written; the parameter's type decides.
    *slot = match (&*slot, value) {
        (Value::Integer(_), Value::Float(x)) => Value::Integer(x.round() as i64),
        (Value::Float(_), Value::Integer(i)) => Value::Float(*i as f64),
        _ => value.clone(),
    };
    Ok(slot.clone())
}

/// A program with its costs and bounds, for sweeps.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The program's name.
    pub name: String,
    /// The program's costs.
    pub track: Track,
    /// The oracle's cycles, by starting mode.
    pub oracle: PerMode<f64>,
    /// Cycles of VMs that never switch, by mode.
    pub statics: PerMode<f64>,
}

impl Prepared {
    /// Computes the bounds, with costs of switching divided by `switch_scale`.
    pub fn new(name: &str, track: Track, switch_scale: f64) -> Prepared {
        let oracle = track.samples.map(|start, _| oracle(&track, start, switch_scale).cycles);
        let statics = track.samples.map(|mode, _| track.static_cycles(mode));
        Prepared { name: name.into(), track, oracle, statics }
    }
}

/// The result of one setting over one program, from the worst starting mode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Score {
    /// All cycles, as a ratio of the oracle's from the same start; 1 or more.
    pub to_oracle: f64,
    /// All cycles, as a ratio of the better static mode's.
    pub to_static: f64,
    /// Number of switches.
    pub switches: u64,
}

/// The results of one setting over all programs.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingScores {
    /// Index of the setting.
    pub setting: usize,
    /// One score per program, in the programs' order.
    pub scores: Vec<Score>,
}

/// The results of one setting, summed over programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Total {
    /// Geometric mean of the gaps to the oracle, percent.
    pub oracle_gap_percent: f64,
    /// Largest gap to the better static mode, percent.
    pub worst_static_gap_percent: f64,
    /// Number of switches.
    pub switches: u64,
}

impl SettingScores {
    /// Sums over all programs, or over all but one.
    pub fn total(&self, but: Option<usize>) -> Total {
        let of = || self.scores.iter().enumerate().filter(|(i, _)| Some(*i) != but).map(|(_, s)| s);
        let n = of().count().max(1) as f64;
        let worst = of().map(|s| s.to_static).fold(f64::NEG_INFINITY, f64::max);
        Total {
            oracle_gap_percent: 100.0 * (of().map(|s| s.to_oracle.ln()).sum::<f64>() / n).exp_m1(),
            worst_static_gap_percent: if worst.is_finite() { 100.0 * (worst - 1.0) } else { 0.0 },
            switches: of().map(|s| s.switches).sum(),
        }
    }
}

/// The row with the smallest gap to the oracle over all programs, or over all but one. Among equal rows, the
/// smaller worst gap to the static mode decides, then fewer switches, then the order.
pub fn best(rows: &[SettingScores], but: Option<usize>) -> Option<&SettingScores> {
    let key = |r: &SettingScores| r.total(but);
    let by = |a: &(&SettingScores, Total), b: &(&SettingScores, Total)| {
        let gap = a.1.oracle_gap_percent.total_cmp(&b.1.oracle_gap_percent);
        let worst = a.1.worst_static_gap_percent.total_cmp(&b.1.worst_static_gap_percent);
        gap.then(worst).then(a.1.switches.cmp(&b.1.switches))
    };
    rows.iter().map(|r| (r, key(r))).min_by(by).map(|(r, _)| r)
}

fn score(setting: &Named, program: &Prepared, scale: Scale, estimator: Option<&Estimator>) -> Score {
    let better = better(&program.statics);
    let over = |cycles: f64, than: f64| if than > 0.0 { cycles / than } else { 1.0 };
    let scores = program.oracle.map(|start, oracle| {
        let run = replay(&program.track, &setting.spec, &Setup { start, scale, estimator }, false);
        Score {
            to_oracle: over(run.cycles, *oracle),
            to_static: over(run.cycles, better),
            switches: run.switches,
        }
    });
    let worst = worst_start(&program.statics, |start| scores[start].to_oracle).expect("a track has modes");
    scores[worst]
}

/// Replays every setting over every program from every starting mode. Calls `done` from time to time with the
/// number of settings that are done.
pub fn sweep(
    settings: &[Named],
    programs: &[Prepared],
    scale: Scale,
    estimator: Option<&Estimator>,
    done: &(dyn Fn(usize) + Sync),
) -> Vec<SettingScores> {
    let behind = AtomicUsize::new(0);
    let row = |(i, setting): (usize, &Named)| {
        let scores = programs.iter().map(|p| score(setting, p, scale, estimator)).collect();
        let n = behind.fetch_add(1, Ordering::Relaxed) + 1;
        if n % 100 == 0 || n == settings.len() {
            done(n);
        }
        SettingScores { setting: i, scores }
    };
    settings.par_iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests;
