// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fits [`bifold_policy::Estimator`], which estimates the other mode's cost from the counters of the mode
//! that the VM is in. The two modes are shadow and nested, which KVM can switch a VM between, so that a host
//! can check the estimates.
//!
//! The fit uses VMs on 4 KB host pages, single intervals, and windows of ten intervals. Errors
//! are relative to the difference between the modes (at least 2 % of all cycles), because an estimate has to
//! tell which mode is cheaper: a large difference may be estimated roughly, a small difference may not.
//!
//! Each counter has a fixed sign. Events cost cycles, so signs are positive, except for exits of shadow
//! paging that cause walks which nested paging would not have. Counters that also hold the effects of a
//! switch (cold entries, the switch itself) are left out, because the estimate is needed most just after a
//! switch. Instructions are left out, because they cost the same in both modes.

use crate::linear::{self, Block, Sum};
use crate::text;
use crate::{Program, TrainError};
use crate::{Progress, Trained};
use bifold_mmu::Mode;
use bifold_model::Sample;
use bifold_policy::{Estimator, Track, VmKind};
use rayon::prelude::*;
use std::fmt::Write as _;

/// Intervals of a window.
const WINDOW: usize = 10;
/// Share of all cycles below which a difference between the modes hardly matters.
pub(crate) const MATTERS: f64 = 0.02;

/// The estimated cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The other mode's extra cycles.
    Extra,
    /// Cycles to rebuild the shadow tables of the interval.
    Rebuild,
}

const LINES: [(Mode, What); 4] = [
    (Mode::Shadow, What::Extra),
    (Mode::Shadow, What::Rebuild),
    (Mode::Nested, What::Extra),
    (Mode::Nested, What::Rebuild),
];

/// Counters that a sum may have, each with the sign of its coefficient.
pub(crate) fn terms((mode, what): (Mode, What)) -> Vec<(&'static str, f64)> {
    let mut terms = vec![
        ("walk_cycles", 1.0),
        ("tlb_misses_4k", 1.0),
        ("tlb_misses_2m", 1.0),
        ("tlb_misses_1g", 1.0),
        ("guest_page_faults", 1.0),
    ];
    match (mode, what) {
        // Walks after flushes, which nested paging does not make.
        (Mode::Shadow, What::Extra) => {
            let flushing = [
                "tlb_flushes",
                "exits_cr3_write",
                "exits_invlpg",
                "exits_cr4_write",
                "exits_emulated_write",
                "exits_unsync",
            ];
            terms.extend(flushing.map(|name| (name, -1.0)));
        }
        // A guest that flushes loads CR3, which is an exit under shadow paging.
        (Mode::Nested, What::Extra) => terms.push(("tlb_flushes", 1.0)),
        // Misses with long walks return to the same entries; misses with short walks go on to new entries.
        (_, What::Rebuild) => terms[0].1 = -1.0,
    }
    terms
}

/// One interval or window: its counts, the cost to estimate, and the cycles that errors are relative to.
pub(crate) struct TrainingRow {
    pub counts: Vec<f64>,
    pub truth: f64,
    /// Extra cycles in the mode that the VM is in.
    pub own: f64,
    /// All cycles of the slower mode.
    pub cycles: f64,
}

/// The terms' counts, multiplied by their signs.
pub(crate) fn counts(samples: &[Sample], line: (Mode, What)) -> Vec<f64> {
    let mut sum = Sample::default();
    samples.iter().for_each(|s| sum.add(s));
    let values = sum.values();
    let of = |(name, sign): (&str, f64)| {
        let i = Sample::COUNTERS.iter().position(|c| c.name == name).expect("a test looks for it");
        sign * values[i] as f64
    };
    terms(line).into_iter().map(of).collect()
}

/// One row per window of `window` intervals.
fn rows(track: &Track, (mode, what): (Mode, What), window: usize) -> Vec<TrainingRow> {
    let row = |from: usize| {
        let to = (from + window).min(track.len());
        let extra = |mode: Mode| (from..to).map(|j| track.extra(mode.into(), j)).sum::<f64>();
        let truth = match what {
            What::Extra => extra(mode.other()),
            What::Rebuild => (from..to).map(|j| track.cold(Mode::Shadow.into(), j, from, 0).cycles).sum(),
        };
        let ideal: f64 = track.ideal[from..to].iter().sum();
        TrainingRow {
            counts: counts(&track.samples[mode.into()][from..to], (mode, what)),
            truth,
            own: extra(mode),
            cycles: ideal + extra(mode).max(extra(mode.other())),
        }
    };
    (0..track.len()).step_by(window).map(row).filter(|r| r.cycles > 0.0).collect()
}

/// A program's rows. Single intervals and windows have the same weight.
fn block(track: &Track, line: (Mode, What)) -> Block {
    let mut block = Block::default();
    for window in [1, WINDOW] {
        // The tables that ten intervals need are not the sum of those that each interval needs.
        if line.1 == What::Rebuild && window > 1 {
            continue;
        }
        let rows = rows(track, line, window);
        let each = 1.0 / (rows.len().max(1) as f64).sqrt();
        let size = |r: &TrainingRow| match line.1 {
            What::Extra => (r.own - r.truth).abs(),
            What::Rebuild => r.truth,
        };
        rows.iter().for_each(|r| {
            block.push(&r.counts, r.truth, each / size(r).max(MATTERS * r.cycles));
        });
    }
    block
}

/// How well a sum estimates a program's cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Score {
    /// Means of the true cost, of the estimate's error and bias, and of the difference between the modes, in
    /// percent of all cycles.
    truth: f64,
    pub error: f64,
    bias: f64,
    difference: f64,
    /// Share of the variance that the estimate explains; none without variance.
    r2: Option<f64>,
    /// Share of the difference between the modes whose sign the estimate has right, 0 to 1.
    sign: Option<f64>,
}

pub(crate) fn score(rows: &[TrainingRow], sum: &Sum) -> Score {
    let total = |f: &dyn Fn(&TrainingRow) -> f64| rows.iter().map(f).sum::<f64>();
    let cycles = total(&|r| r.cycles).max(1.0);
    let percent = |x: f64| 100.0 * x / cycles;
    // The estimator returns no cost below 0.
    let told = |r: &TrainingRow| sum.of(&r.counts).max(0.0);
    let error = |r: &TrainingRow| told(r) - r.truth;
    let mean = total(&|r| r.truth) / rows.len().max(1) as f64;
    let variance = total(&|r| (r.truth - mean).powi(2));
    let all = total(&|r| (r.own - r.truth).abs());
    let right = total(&|r| {
        let (is, told) = (r.own - r.truth, r.own - told(r));
        if is * told > 0.0 { is.abs() } else { 0.0 }
    });
    Score {
        truth: percent(total(&|r| r.truth)),
        error: percent(total(&|r| error(r).abs())),
        bias: percent(total(&error)),
        difference: percent(all),
        r2: (variance > 0.0).then(|| 1.0 - total(&|r| error(r).powi(2)) / variance),
        sign: (all > 0.0).then(|| right / all),
    }
}

pub(crate) fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.flatten().collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn cells(name: &str, s: &Score, what: What) -> Vec<String> {
    let some = |x: Option<f64>, f: fn(f64) -> String| x.map_or_else(|| "-".into(), f);
    let mut row = vec![
        name.to_string(),
        format!("{:.2}", s.truth),
        format!("{:.2}", s.error),
        format!("{:+.2}", s.bias),
        some(s.r2, |r| format!("{r:.2}")),
    ];
    if what == What::Extra {
        row.push(format!("{:.2}", s.difference));
        row.push(some(s.sign, |x| format!("{:.1}", 100.0 * x)));
    }
    row
}

pub(crate) fn name((mode, what): (Mode, What)) -> String {
    format!("{}.{}", mode.name(), if what == What::Extra { "extra" } else { "rebuild" })
}

/// The table of all programs, and their mean.
pub(crate) fn scored(name: &str, scores: &[(String, Score)], what: What) -> String {
    let mut header = text::row([name, "cost %", "error %", "bias %", "R2"]);
    if what == What::Extra {
        header.extend(text::row(["difference %", "right sign %"]));
    }
    let mut rows = vec![header];
    rows.extend(scores.iter().map(|(n, s)| cells(n, s, what)));
    let over = |f: &dyn Fn(&Score) -> Option<f64>| mean(scores.iter().map(|(_, s)| f(s)));
    let all = Score {
        truth: over(&|s| Some(s.truth)).unwrap_or(0.0),
        error: over(&|s| Some(s.error)).unwrap_or(0.0),
        bias: over(&|s| Some(s.bias)).unwrap_or(0.0),
        difference: over(&|s| Some(s.difference)).unwrap_or(0.0),
        r2: None,
        sign: over(&|s| s.sign),
    };
    rows.push(cells("mean", &all, what));
    text::table(&rows)
}

/// Share of the difference between the modes whose sign is right, over all programs, weighted by each
/// program's difference; percent.
pub(crate) fn weighted_sign(scores: &[(String, Score)]) -> f64 {
    let (all, right) = scores.iter().fold((0.0, 0.0), |(all, right), (_, s)| {
        (all + s.difference, right + s.difference * s.sign.unwrap_or(0.0))
    });
    if all > 0.0 { 100.0 * right / all } else { 0.0 }
}

/// Fits the estimator.
pub fn train(programs: &[Program], progress: &Progress) -> Result<Trained, TrainError> {
    Program::check(programs)?;
    let pages = |host_page| VmKind { host_page, ..VmKind::default() };
    let small = VmKind::default().host_page;
    let track = |p: &Program| {
        Track::new(&p.timeline, pages(small))
            .ok_or_else(|| TrainError::NoPair { name: p.name.clone(), pages: "4 KB" })
    };
    let tracks = programs.iter().map(track).collect::<Result<Vec<_>, _>>()?;
    let same = |t: &Track, j| t.extra(Mode::Shadow.into(), j) == t.extra(Mode::Nested.into(), j);
    if tracks.iter().all(|t| (0..t.len()).all(|j| same(t, j))) {
        return Err(TrainError::NoDifference("a cycle"));
    }
    let large: Vec<Option<Track>> =
        programs.iter().map(|p| Track::new(&p.timeline, pages(bifold_mmu::PageSize::Size2M))).collect();

    let mut table = String::from(
        "Each program, estimated from the others. The columns are means in percent of the\n\
         slower mode's cycles: true cost, error and bias of the estimate. For the other\n\
         mode's cost also the difference between the modes, and the share of that\n\
         difference whose sign the estimate has right.\n",
    );
    let mut toml = text::header(
        "What the other mode would cost: cycles per count, by the mode that the VM is in.",
        "estimator TIMELINE...",
        programs,
    );
    let switch = tracks[0].costs.switch;
    let _ = writeln!(toml, "switch = {}    # the profile's", text::digits(switch as f64));
    for line in LINES {
        progress(&name(line));
        let blocks: Vec<Block> = tracks.par_iter().map(|t| block(t, line)).collect();
        let terms = terms(line);
        let candidates: Vec<usize> = (0..terms.len()).collect();
        let chosen = linear::choose(&blocks, &candidates)?;
        let sum = linear::fit(&blocks, None, &chosen)?;
        let others = linear::without_each(&blocks, &chosen)?;

        let score_all = |tracks: &[Option<&Track>], window| -> Vec<(String, Score)> {
            let with = programs.iter().zip(tracks).zip(&others);
            with.filter_map(|((p, t), s)| Some((p.name.clone(), score(&rows((*t)?, line, window), s))))
                .collect()
        };
        let small: Vec<Option<&Track>> = tracks.iter().map(Some).collect();
        let single = score_all(&small, 1);
        table.push('\n');
        table += &scored(&name(line), &single, line.1);
        let error = mean(single.iter().map(|(_, s)| Some(s.error))).unwrap_or(0.0);
        let mut told = format!("error over programs left out: {error:.2} % of cycles");
        if line.1 == What::Extra {
            let sign = weighted_sign(&single);
            let _ = writeln!(table, "right sign of the difference, over all programs: {sign:.1} %");
            let _ = write!(told, ", sign of the modes' difference {sign:.1} %");
        }
        let mut beside = |what: &str, scores: &[(String, Score)]| {
            let Some(error) = mean(scores.iter().map(|(_, s)| Some(s.error))) else { return };
            let bias = mean(scores.iter().map(|(_, s)| Some(s.bias))).unwrap_or(0.0);
            let truth = mean(scores.iter().map(|(_, s)| Some(s.truth))).unwrap_or(0.0);
            let _ = write!(table, "{what}: error {error:.2} %, bias {bias:+.2} %, cost {truth:.2} %");
            if line.1 == What::Extra {
                let _ = write!(table, ", right sign {:.1} %", weighted_sign(scores));
            }
            table.push('\n');
        };
        beside(&format!("windows of {WINDOW}"), &score_all(&small, WINDOW));
        let large: Vec<Option<&Track>> = large.iter().map(Option::as_ref).collect();
        beside("fit applied to 2 MB host pages", &score_all(&large, 1));

        let _ = writeln!(toml, "\n# {told}.\n[{}]", name(line));
        for (&c, k) in sum.columns.iter().zip(&sum.coefficients) {
            let (name, sign) = terms[c];
            let _ = writeln!(toml, "{name} = {}", text::digits(sign * k));
        }
    }
    Estimator::parse(&toml).map_err(|e| TrainError::Solver(e.to_string()))?;
    Ok(Trained { table, toml })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SHADOW_FAULT, SHADOW_WALKS, program, programs};

    fn quiet(programs: &[Program]) -> Result<Trained, TrainError> {
        train(programs, &|_| ())
    }

    #[test]
    fn every_term_can_be_measured() {
        for (name, _) in LINES.into_iter().flat_map(terms) {
            assert!(bifold_policy::estimate::MEASURABLE.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_linear_truth_is_found_again() {
        let trained = quiet(&programs()).unwrap();
        let e = Estimator::parse(&trained.toml).unwrap();
        assert_eq!(e.switch, 20_000.0);
        let tell = |walk_cycles, guest_page_faults| {
            let s = Sample {
                instructions: 10_000_000,
                walk_cycles,
                tlb_misses_4k: walk_cycles / 40,
                guest_page_faults,
                ..Sample::default()
            };
            e.other(Mode::Nested.into(), &s, 1.0).unwrap().extra_cycles
        };
        let near = |is: f64, wanted: f64| (is / wanted - 1.0).abs() < 0.02;
        assert!(near(tell(400_000, 0), 400_000.0 * SHADOW_WALKS), "{}", trained.toml);
        assert!(near(tell(400_000, 200) - tell(400_000, 0), (200 * SHADOW_FAULT) as f64), "{}", trained.toml);
        assert!(
            trained.table.contains("right sign of the difference, over all programs: 100.0 %"),
            "{}",
            trained.table
        );
    }

    #[test]
    fn the_same_timelines_give_the_same_file() {
        assert_eq!(quiet(&programs()).unwrap(), quiet(&programs()).unwrap());
    }

    #[test]
    fn what_cannot_be_learnt_from_is_told() {
        let told = |p: &[Program]| quiet(p).unwrap_err().to_string();
        assert!(told(&[]).starts_with("got 0 timelines"));
        assert!(told(&[program("a", 1, 50)]).starts_with("got 1 timelines"));
        assert!(told(&[program("a", 1, 50), program("a", 2, 50)]).contains("two timelines are called a"));
        let mut other = programs();
        other[1].timeline.costs.switch = 1;
        assert!(told(&other).contains("a and b are of different costs"));
        let mut states = programs();
        states[2].timeline.about.vm = bifold_model::VmState::Started;
        assert!(
            told(&states).starts_with(
                "timeline a is of a VM in the state long-lived, and c of one in the state started"
            )
        );
        let mut same = programs();
        for p in &mut same {
            let modes = &mut p.timeline.pages[0].modes;
            modes[Mode::Shadow.into()] = modes[Mode::Nested.into()].clone();
        }
        assert!(told(&same).contains("the modes do not differ"));
        let mut none = programs();
        none[2].timeline.pages[0].host_page = bifold_mmu::PageSize::Size2M;
        assert!(told(&none).contains("timeline c has no pair of modes on 4 KB host pages"));
    }
}
