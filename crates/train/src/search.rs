// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Learns any policy's parameters by direct search: replays every setting of a grid over the programs, and
//! takes the setting with the smallest gap to the oracle (geometric mean over the programs, each from its
//! worse starting mode).
//!
//! The grid is fixed before a program is replayed. A setting for a left-out program is therefore chosen by
//! the other programs' scores alone.

use crate::text::{self, row};
use crate::{Program, TrainError};
use crate::{Progress, Trained};
use bifold_policy::sweep::{self, Axis, Prepared, SettingScores};
use bifold_policy::{Estimator, Named, Scale, SpecError, Track, VmKind};
use rayon::prelude::*;
use std::fmt::Write as _;

/// How programs are replayed.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The kind of VM.
    pub vm: VmKind,
    /// Scale between a policy's time and the timelines' time.
    pub scale: Scale,
    /// Estimates the other mode's cost for policies that need it; none if the timeline tells.
    pub estimator: Option<&'a Estimator>,
    /// Whether policies see [`Counters::WAITS`](bifold_policy::Counters::WAITS), as in the model; no live
    /// host counts them.
    pub waits: bool,
}

impl Default for Options<'static> {
    fn default() -> Self {
        Options {
            vm: VmKind::default(),
            scale: Scale::both(100.0),
            estimator: Some(Estimator::fitted()),
            waits: true,
        }
    }
}

/// Settings of DSP's thresholds over the range in which each can matter: upper bounds in factors of about 3
/// around the published values, lower bounds as fractions of the upper bounds.
pub fn dsp_grid(base: &Named) -> Vec<Named> {
    let bifold_policy::Spec::Dsp(dsp) = &base.spec else { return Vec::new() };
    let mut grid = Vec::new();
    for page_fault_upper in [2e-4, 5e-4, 2e-3, 5e-3, 2e-2, 5e-2] {
        for page_fault_part in [0.02, 0.2] {
            for tlb_miss_upper in [0.3, 1.0, 2.0, 5.0, 10.0, 20.0] {
                for tlb_miss_part in [0.01, 0.1, 0.3] {
                    for p_to_t_upper in [2e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2] {
                        for p_to_t_part in [0.3, 0.75] {
                            let mut d = *dsp;
                            d.page_fault_upper = page_fault_upper;
                            d.page_fault_lower = page_fault_upper * page_fault_part;
                            d.tlb_miss_upper = tlb_miss_upper;
                            d.tlb_miss_lower = tlb_miss_upper * tlb_miss_part;
                            d.p_to_t_upper = p_to_t_upper;
                            d.p_to_t_lower = p_to_t_upper * p_to_t_part;
                            let spec = bifold_policy::Spec::Dsp(d);
                            grid.extend(Named { name: base.name.clone(), spec }.checked());
                        }
                    }
                }
            }
        }
    }
    grid
}

/// All combinations of the axes' values that are in range, and a note if some are not.
pub fn grid(base: &Named, axes: &[Axis]) -> Result<(Vec<Named>, Option<String>), SpecError> {
    let s = sweep::settings(base, axes)?;
    let why = s.why.unwrap_or_default();
    Ok((s.named, (s.skipped > 0).then(|| format!("{} settings left out: {why}", s.skipped))))
}

/// Computes the programs' costs and oracles for replays.
pub fn prepare(programs: &[Program], options: &Options) -> Result<Vec<Prepared>, TrainError> {
    let one = |p: &Program| -> Result<Prepared, TrainError> {
        let mut track = Track::new(&p.timeline, options.vm)
            .ok_or_else(|| TrainError::NoPair { name: p.name.clone(), pages: "these" })?;
        track.waits = options.waits;
        Ok(Prepared::new(&p.name, track, options.scale.switch))
    };
    let prepared = programs.par_iter().map(one).collect::<Result<Vec<_>, _>>()?;
    // If all modes cost the same in every program, all policies are equally good.
    let differ = |p: &Prepared| {
        let (least, most) =
            p.statics.values().fold((f64::INFINITY, 0.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
        least / most < 1.0 - 1e-6 || p.oracle.values().any(|o| o / least < 1.0 - 1e-6)
    };
    if !prepared.iter().any(differ) {
        return Err(TrainError::NoDifference("a millionth"));
    }
    Ok(prepared)
}

/// Gap to the oracle of one program in a row, in percent.
pub(crate) fn gap(row: &SettingScores, program: usize) -> f64 {
    100.0 * (row.scores[program].to_oracle - 1.0)
}

/// Geometric mean of the ratios behind gaps in percent, as a gap.
pub(crate) fn mean_gap(gaps: &[f64]) -> f64 {
    let n = gaps.len().max(1) as f64;
    100.0 * (gaps.iter().map(|g| (g / 100.0).ln_1p()).sum::<f64>() / n).exp_m1()
}

/// Chooses the best of `settings`. The table compares it with `base`; the file says that `command` made it.
pub fn train(
    programs: &[Program],
    base: &Named,
    settings: &[Named],
    command: &str,
    options: &Options,
    progress: &Progress,
) -> Result<Trained, TrainError> {
    Program::check(programs)?;
    progress("costs and oracles");
    let prepared = prepare(programs, options)?;
    let done = |n: usize| progress(&format!("{n} of {} settings", settings.len()));
    let rows = sweep::sweep(settings, &prepared, options.scale, options.estimator, &done);
    let before =
        sweep::sweep(std::slice::from_ref(base), &prepared, options.scale, options.estimator, &|_| ());
    let chosen =
        sweep::best(&rows, None).ok_or_else(|| TrainError::Solver("no setting to choose from".into()))?;

    let mut lines = vec![row([
        "program",
        "gap before %",
        "gap learnt %",
        "gap left out %",
        "gap to static %",
        "switches",
    ])];
    let mut out = Vec::new();
    let mut same = 0;
    for (i, p) in prepared.iter().enumerate() {
        let other = sweep::best(&rows, Some(i)).expect("there is a setting");
        same += usize::from(other.setting == chosen.setting);
        out.push(gap(other, i));
        lines.push(vec![
            p.name.clone(),
            format!("{:.2}", gap(&before[0], i)),
            format!("{:.2}", gap(chosen, i)),
            format!("{:.2}", gap(other, i)),
            format!("{:+.2}", 100.0 * (other.scores[i].to_static - 1.0)),
            other.scores[i].switches.to_string(),
        ]);
    }
    let (was, is, left_out) = (before[0].total(None), chosen.total(None), mean_gap(&out));
    lines.push(vec![
        "geometric mean".into(),
        format!("{:.2}", was.oracle_gap_percent),
        format!("{:.2}", is.oracle_gap_percent),
        format!("{left_out:.2}"),
    ]);
    let mut table = format!(
        "Gap to the oracle from the worse starting mode: {} before; learnt from all\n\
         programs; and learnt with this program left out, for which the gap to the\n\
         better static mode and the switches are shown too. Chosen of {} settings.\n\n",
        base.name,
        settings.len()
    );
    table += &text::table(&lines);
    let n = prepared.len();
    let _ = writeln!(table, "\nWith one program left out, the same setting is chosen {same} of {n} times.");

    let what = format!("{}: parameters learnt from timelines.", base.name);
    let mut toml = text::header(&what, command, programs);
    let _ = writeln!(
        toml,
        "# Geometric mean of the gap to the oracle: {:.2} % before, {:.2} % with these, {left_out:.2} % over programs \
         left out.",
        was.oracle_gap_percent, is.oracle_gap_percent
    );
    let spec = &settings[chosen.setting].spec;
    toml += &toml::to_string(spec).map_err(|e| TrainError::Solver(e.to_string()))?;
    Named::parse(&base.name, &toml).map_err(|e| TrainError::Solver(e.to_string()))?;
    Ok(Trained { table, toml })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{program, programs};
    use bifold_policy::Mode;

    fn learn(programs: &[Program]) -> Result<Trained, TrainError> {
        let base = Named::load("work-function").unwrap();
        let axes =
            [Axis::parse("switch_factor=0.1:10:5:log").unwrap(), Axis::parse("interval_s=1,20").unwrap()];
        let (settings, _) = grid(&base, &axes).unwrap();
        train(programs, &base, &settings, "work-function", &Options::default(), &|_| ())
    }

    #[test]
    fn what_is_learnt_is_read_again_and_is_no_worse_than_what_was() {
        let trained = learn(&programs()).unwrap();
        let named = Named::parse("w", &trained.toml).unwrap();
        let prepared = prepare(&programs(), &Options::default()).unwrap();
        let options = Options::default();
        let both = [named, Named::load("work-function").unwrap()];
        let rows = sweep::sweep(&both, &prepared, options.scale, options.estimator, &|_| ());
        let gaps: Vec<f64> = rows.iter().map(|r| r.total(None).oracle_gap_percent).collect();
        assert!(gaps[0] <= gaps[1], "{gaps:?} {}", trained.table);
        assert_eq!(learn(&programs()).unwrap(), trained);
    }

    #[test]
    fn one_program_and_programs_without_a_difference_teach_nothing() {
        let told = |p: &[Program]| learn(p).unwrap_err().to_string();
        assert!(told(&[program("a", 1, 50)]).starts_with("got 1 timelines"));
        let mut same = programs();
        for p in &mut same {
            let modes = &mut p.timeline.pages[0].modes;
            modes[Mode::Shadow] = modes[Mode::Nested].clone();
        }
        assert!(told(&same).contains("nothing to learn"));
    }

    #[test]
    fn the_dsp_grid_is_of_thresholds_in_range() {
        let grid = dsp_grid(&Named::load("dsp").unwrap());
        assert_eq!(grid.len(), 6 * 2 * 6 * 3 * 7 * 2);
        assert!(dsp_grid(&Named::load("bae").unwrap()).is_empty());
    }
}
