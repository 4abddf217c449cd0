// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies on a page: tables, and for every program the costs over time with the mode in
//! which each policy was under them.

use super::{Line, PolicyComparison, lines, scale_words, setting_words};
use crate::html::{environment, VENDORED};
use crate::text::{fixed, grouped, seconds};
use crate::{Format, RenderError};
use bifold_policy::Mode;
use bifold_policy::evaluate::{Evaluation, Program};
use minijinja::context;
use serde::Serialize;

/// Most stretches of a strip or points of a curve: more than a screen has columns would only
/// be drawn over each other.
const MAX_POINTS: usize = 400;

/// The mode over time: where a stretch ends, in units of the strips' step, and how many
/// percent of it are in shadow mode.
#[derive(Debug, Serialize)]
pub(crate) struct Strip {
    pub name: String,
    pub overhead: String,
    pub stretches: Vec<(usize, u8)>,
}

/// A program's strips: the oracle's first.
#[derive(Debug, Serialize)]
pub(crate) struct Strips {
    /// Seconds of one step.
    pub step: f64,
    /// Seconds of the whole.
    pub end: f64,
    pub strips: Vec<Strip>,
}

/// A static mode's overhead over time, a point per step.
#[derive(Debug, Serialize)]
pub(crate) struct Curve {
    pub name: &'static str,
    pub points: Vec<f64>,
}

/// Intervals that are joined into one step.
fn joined(p: &Program) -> usize {
    p.intervals.div_ceil(MAX_POINTS).max(1)
}

/// The strips of a program: what the oracle does, then every policy, from the worse start.
pub(crate) fn strips(p: &Program) -> Strips {
    let joined = joined(p);
    let strip = |name: &str, overhead: f64, modes: &[Mode]| {
        let mut stretches: Vec<(usize, u8)> = Vec::new();
        for (i, step) in modes.chunks(joined).enumerate() {
            let shadow = step.iter().filter(|m| **m == Mode::Shadow).count();
            let percent = (100 * shadow / step.len()) as u8;
            match stretches.last_mut() {
                Some(last) if last.1 == percent => last.0 = i + 1,
                _ => stretches.push((i + 1, percent)),
            }
        }
        Strip { name: name.into(), overhead: fixed(overhead, 2) + " %", stretches }
    };
    let worse = &p.oracle[(p.oracle[1].cycles > p.oracle[0].cycles) as usize];
    let oracle = strip("oracle", worse.overhead_percent, &worse.modes);
    let policies = p.rows.iter().map(|r| strip(&r.policy, r.worse().overhead_percent, &r.worse().modes));
    Strips {
        step: joined as f64 * p.interval_s,
        end: p.intervals as f64 * p.interval_s,
        strips: [oracle].into_iter().chain(policies).collect(),
    }
}

/// Both static modes' overhead over time.
fn curves(p: &Program) -> Vec<Curve> {
    let mean = |step: &[f64]| {
        let mean = step.iter().sum::<f64>() / step.len() as f64;
        (mean * 100.0).round() / 100.0
    };
    let of = |mode: Mode| Curve {
        name: mode.name(),
        points: p.curves[mode as usize].chunks(joined(p)).map(mean).collect(),
    };
    Mode::BOTH.map(of).into()
}

pub(super) fn render(c: &PolicyComparison) -> Result<String, RenderError> {
    let _ = (environment as fn() -> _, VENDORED, curves);
    c.render(Format::Table)
}
