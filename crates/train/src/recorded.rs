// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Learns from recordings of real VMs: from pairs, each of which has both modes' costs of the same work.
//!
//! The truth of a pair is **all cycles** of the VM for the same steps of the guest's work, not the sum of
//! walks and exits: a processor hides a part of a walk's cycles behind other work, and only the guest's
//! progress shows which. What walks and exits do not explain stands in the samples as a wait, which costs
//! have and policies do not see.
//!
//! - [`estimator()`] fits the other mode's cost. The sums for rebuilding tables, and the cost of a switch,
//!   are those of a given estimator, because a pair leaves the time after a switch out.
//! - [`programs`] turns pairs into timelines for [`search`](crate::search). A pair becomes an interval of one
//!   second, which is repeated for the time that the pair stands for. A switch costs what the estimator says.

use crate::error::{LEAST_OF_VM, LEAST_PAIRS, LEAST_VMS, TooFewPairs};
use crate::estimator::{
    MATTERS, Score, TrainingRow, What, counts, mean, name, score, scored, terms, weighted_sign,
};
use crate::linear::{self, Block};
use crate::{Program, Progress, TrainError, Trained, text};
use bifold_mmu::{Mode, PageSize};
use bifold_model::Sample;
use bifold_policy::timeline::{About, Runs, StaticRun, SwitchCosts};
use bifold_policy::{Counters, Estimator, Named, PerMode, Spec, Timeline};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Longest time that a pair stands for, in seconds. Half the time to the pairs before and after it is its
/// own, but what the guest does long before and after a try is unknown.
pub const MOST_STANDS_S: f64 = 60.0;
/// Most intervals of a VM's timeline. Counts are below 2^44, so that no sum over them overflows.
const MOST_INTERVALS: usize = 1 << 18;

/// What the same work cost a VM in two modes. The work is that of one second.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// When, in seconds.
    pub time: f64,
    /// Counts by mode, each below 2^44; 0 if unknown.
    pub samples: PerMode<Sample>,
    /// The known counters of each.
    pub known: PerMode<Counters>,
    /// All cycles by mode, each below 2^44.
    pub cycles: PerMode<f64>,
}

/// A VM's pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Vm {
    /// The VM's name, without control characters.
    pub name: String,
    /// The pairs, in order of their times.
    pub pairs: Vec<Pair>,
}

/// The pairs that are learnt from.
#[derive(Debug, Clone, PartialEq)]
pub struct Lessons {
    vms: Vec<Vm>,
    /// What was left out, for people; empty if nothing was.
    pub left_out: String,
}

/// The counters that the estimator's fit needs in either mode: its estimates stand beside their sum.
pub fn estimator_needs() -> PerMode<Counters> {
    let needs = Counters::WALK_CYCLES.and(Counters::VMM_CYCLES);
    Mode::BOTH.map(|mode| (mode.into(), needs)).into()
}

/// The counters that a policy, and its estimator, read in each mode.
pub fn needs(spec: &Spec, estimator: &Estimator) -> PerMode<Counters> {
    let needs = |mode: Mode| match spec.needs_other() {
        true => spec.needs().and(estimator.needs_in(mode.into())),
        false => spec.needs(),
    };
    Mode::BOTH.map(|mode| (mode.into(), needs(mode))).into()
}

impl Lessons {
    /// Takes the pairs that have all needed counters, of the VMs that have enough of them.
    ///
    /// # Errors
    /// If too few are left.
    pub fn of(vms: Vec<Vm>, needs: &PerMode<Counters>) -> Result<Lessons, TrainError> {
        let mut all = vms;
        let (mut lacking, mut first) = (0, None);
        for vm in &mut all {
            vm.pairs.retain(|pair| match lacks(pair, needs) {
                None => true,
                Some(counter) => {
                    lacking += 1;
                    first.get_or_insert(counter);
                    false
                }
            });
        }
        let lacking = first.map(|counter| (lacking, counter));
        let usable = all.iter().map(|vm| (vm.name.clone(), vm.pairs.len())).collect();
        let (vms, few): (Vec<Vm>, Vec<Vm>) = all.into_iter().partition(|vm| vm.pairs.len() >= LEAST_OF_VM);
        let pairs: usize = vms.iter().map(|vm| vm.pairs.len()).sum();
        if vms.len() < LEAST_VMS || pairs < LEAST_PAIRS {
            return Err(TrainError::TooFewPairs(TooFewPairs { usable, lacking }));
        }
        let mut left_out = String::new();
        if let Some((n, counter)) = lacking {
            let _ = writeln!(left_out, "{n} pairs left out: they lack {counter}");
        }
        if !few.is_empty() {
            let names: Vec<&str> = few.iter().map(|vm| vm.name.as_str()).take(8).collect();
            let _ = writeln!(
                left_out,
                "{} VMs left out, with fewer than {LEAST_OF_VM} usable pairs: {}",
                few.len(),
                names.join(", ")
            );
        }
        Ok(Lessons { vms, left_out })
    }

    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.vms.iter().flat_map(|vm| &vm.pairs)
    }

    /// The counters that every pair has in this mode.
    fn known(&self, mode: Mode) -> Counters {
        let unknown = |p: &Pair| Counters::ALL.less(p.known[mode.into()]);
        self.pairs().fold(Counters::ALL, |known, p| known.less(unknown(p)))
    }
}

/// The first counter that a pair lacks, and the mode.
fn lacks(pair: &Pair, needs: &PerMode<Counters>) -> Option<String> {
    needs.iter().find_map(|(mode, needs)| {
        let Some(known) = pair.known.get(mode) else { return Some(format!("costs in {}", mode.words())) };
        let missing = needs.less(*known).iter().next()?;
        Some(format!("{} in {}", missing.name, mode.words()))
    })
}

/// A mode's sample as a live host counts it.
fn seen(pair: &Pair, mode: Mode) -> Sample {
    let unseen = Counters::ALL.less(pair.known[mode.into()]).and(Counters::WAITS);
    unseen.zeroed(&pair.samples[mode.into()])
}

/// A pair as a row of the fit for a VM in this mode.
fn row(pair: &Pair, mode: Mode) -> TrainingRow {
    let sample = seen(pair, mode);
    let own = sample.extra_cycles() as f64;
    let [here, there] = [mode, mode.other()].map(|m| pair.cycles[m.into()]);
    TrainingRow {
        counts: counts(&[sample], (mode, What::Extra)),
        truth: own + there - here,
        own,
        cycles: here.max(there),
    }
}

/// A VM's pairs as rows of equal weight.
fn block(rows: &[TrainingRow]) -> Block {
    let mut block = Block::default();
    let each = 1.0 / (rows.len().max(1) as f64).sqrt();
    for r in rows {
        block.push(&r.counts, r.truth, each / (r.own - r.truth).abs().max(MATTERS * r.cycles));
    }
    block
}

/// A sum that is kept from another estimator, without the counters that are not known in this mode; the names
/// of these.
fn kept(sum: BTreeMap<String, f64>, known: Counters) -> (BTreeMap<String, f64>, Vec<String>) {
    let is_known = |name: &str| known.iter().any(|c| c.name == name);
    let (kept, unknown): (BTreeMap<_, _>, BTreeMap<_, _>) =
        sum.into_iter().partition(|(name, _)| is_known(name));
    (kept, unknown.into_keys().collect())
}

/// Fits the estimator's `extra` sums to pairs. `given` has the rest.
///
/// # Errors
/// If both modes cost the same in all pairs, no counter tells the other mode's cost, or the solver fails.
pub fn estimator(lessons: &Lessons, given: &Estimator, progress: &Progress) -> Result<Trained, TrainError> {
    let [shadow, nested] = Mode::BOTH.map(bifold_policy::Mode::from);
    if lessons.pairs().all(|p| (p.cycles[shadow] - p.cycles[nested]).abs() < 1.0) {
        return Err(TrainError::NoDifference("a cycle"));
    }
    let names: Vec<&str> = lessons.vms.iter().map(|vm| vm.name.as_str()).collect();
    let all = lessons.pairs().count();
    let mut table = format!(
        "Each VM, estimated from the others, over {all} pairs. The columns are means in percent\n\
         of the slower mode's cycles: true cost, error and bias of the estimate, the difference\n\
         between the modes, and the share of that difference whose sign the estimate has right.\n{}",
        lessons.left_out
    );
    let mut toml = text::header_of(
        "What the other mode would cost: cycles per count, by the mode that the VM is in.",
        "estimator RECORDING...",
        &format!("VMs in recordings of this host, {all} pairs of both modes' costs"),
        &names,
    );
    toml += "# Pairs do not show what a switch costs: `switch` and the sums `rebuild` are the given estimator's.\n";
    let _ = writeln!(toml, "switch = {}", text::digits(given.switch));
    for (mode, rebuild) in [(Mode::Shadow, &given.shadow.rebuild), (Mode::Nested, &given.nested.rebuild)] {
        progress(&name((mode, What::Extra)));
        extra(lessons, mode, &mut table, &mut toml)?;
        let (rebuild, unknown) = kept(rebuild.clone().into(), lessons.known(mode));
        toml.push('\n');
        if !unknown.is_empty() {
            let _ = writeln!(toml, "# Without {}: not known in all pairs.", unknown.join(", "));
        }
        let _ = writeln!(toml, "[{}]", name((mode, What::Rebuild)));
        for (counter, cycles) in rebuild {
            let _ = writeln!(toml, "{counter} = {}", text::digits(cycles));
        }
    }
    Estimator::parse(&toml).map_err(|e| TrainError::Solver(e.to_string()))?;
    Ok(Trained { table, toml })
}

/// Fits the sum for a VM in this mode.
fn extra(lessons: &Lessons, mode: Mode, table: &mut String, toml: &mut String) -> Result<(), TrainError> {
    let line = (mode, What::Extra);
    let rows: Vec<Vec<TrainingRow>> =
        lessons.vms.iter().map(|vm| vm.pairs.iter().map(|p| row(p, mode)).collect()).collect();
    let blocks: Vec<Block> = rows.iter().map(|rows| block(rows)).collect();
    let known = lessons.known(mode);
    let terms = terms(line);
    let is_known = |place: &usize| known.iter().any(|c| c.name == terms[*place].0);
    let (candidates, unknown): (Vec<usize>, Vec<usize>) = (0..terms.len()).partition(is_known);
    let chosen = linear::choose(&blocks, &candidates)?;
    let sum = linear::fit(&blocks, None, &chosen)?;
    // An empty sum would say that the other mode costs nothing.
    if sum.columns.is_empty() {
        return Err(TrainError::Unexplained(mode.name()));
    }
    let others = linear::without_each(&blocks, &chosen)?;
    let scores: Vec<(String, Score)> = (lessons.vms.iter().zip(&rows).zip(&others))
        .map(|((vm, rows), sum)| (vm.name.clone(), score(rows, sum)))
        .collect();
    table.push('\n');
    *table += &scored(&name(line), &scores, What::Extra);
    let error = mean(scores.iter().map(|(_, s)| Some(s.error))).unwrap_or(0.0);
    let sign = weighted_sign(&scores);
    let _ = writeln!(table, "right sign of the difference, over all VMs: {sign:.1} %");
    let _ = writeln!(
        toml,
        "\n# error over VMs left out: {error:.2} % of cycles, sign of the modes' difference {sign:.1} %."
    );
    if !unknown.is_empty() {
        let names: Vec<&str> = unknown.iter().map(|place| terms[*place].0).collect();
        let _ = writeln!(toml, "# Not known in all pairs: {}.", names.join(", "));
    }
    let _ = writeln!(toml, "[{}]", name(line));
    for (&c, k) in sum.columns.iter().zip(&sum.coefficients) {
        let (name, sign) = terms[c];
        let _ = writeln!(toml, "{name} = {}", text::digits(sign * k));
    }
    Ok(())
}

/// The setting that does best over the pairs, of `settings`; see [`search::train`](crate::search::train).
///
/// # Errors
/// As [`search::train`](crate::search::train).
pub fn policy(
    lessons: &Lessons,
    base: &Named,
    settings: &[Named],
    command: &str,
    estimator: &Estimator,
    progress: &Progress,
) -> Result<Trained, TrainError> {
    let options = crate::search::Options {
        scale: bifold_policy::Scale::both(1.0),
        estimator: Some(estimator),
        waits: false,
        ..crate::search::Options::default()
    };
    let programs = programs(lessons, estimator);
    let mut trained = crate::search::train(&programs, base, settings, command, &options, progress)?;
    trained.table.insert_str(0, &lessons.left_out);
    Ok(trained)
}

/// The VMs as programs: each pair is repeated for the time that it stands for.
pub fn programs(lessons: &Lessons, estimator: &Estimator) -> Vec<Program> {
    let costs = SwitchCosts {
        switch: switch(lessons, estimator),
        hidden_fault: 0,
        violation: 0,
        make_page: 0,
        zap_page: 0,
    };
    lessons.vms.iter().map(|vm| program(vm, costs)).collect()
}

/// Cycles of a switch: the mean of the ways there and back, tables that are rebuilt included.
fn switch(lessons: &Lessons, estimator: &Estimator) -> u64 {
    let ways = lessons.pairs().filter_map(|p| {
        let other = estimator.other(Mode::Nested.into(), &seen(p, Mode::Nested), 1.0)?;
        Some((other.there_cycles + other.back_cycles) / 2.0)
    });
    (ways.sum::<f64>() / lessons.pairs().count().max(1) as f64).min((1u64 << 44) as f64).round() as u64
}

/// Number of intervals, each of a second, that each pair stands for.
fn repeats(vm: &Vm) -> Vec<usize> {
    let times: Vec<f64> = vm.pairs.iter().map(|p| p.time).collect();
    let half = |a: f64, b: f64| ((b - a).abs() / 2.0).min(MOST_STANDS_S / 2.0);
    let stands = |i: usize| {
        let before = i.checked_sub(1).map_or(MOST_STANDS_S / 2.0, |b| half(times[b], times[i]));
        let after = times.get(i + 1).map_or(MOST_STANDS_S / 2.0, |a| half(times[i], *a));
        (before + after).round().max(1.0) as usize
    };
    (0..times.len()).map(stands).collect()
}

fn program(vm: &Vm, costs: SwitchCosts) -> Program {
    let mut modes: PerMode<StaticRun> = Mode::BOTH.map(|mode| (mode.into(), StaticRun::default())).into();
    let repeated = vm.pairs.iter().zip(repeats(vm)).flat_map(|(pair, n)| std::iter::repeat_n(pair, n));
    for pair in repeated.take(MOST_INTERVALS) {
        for ((_, run), sample) in modes.iter_mut().zip(with_all_cycles(pair)) {
            run.samples.push(sample);
            run.reuse.push(Vec::new());
        }
    }
    let about = About {
        program: vm.name.clone(),
        bifold: bifold_base::version().into(),
        // The timeline's clock counts intervals.
        frequency_hz: 1,
        interval_cycles: 1,
        vcpus: 1,
        ..About::default()
    };
    let pages = vec![Runs { host_page: PageSize::Size4K, modes }];
    Program { name: vm.name.clone(), timeline: Timeline { about, costs, pages, switched: Vec::new() } }
}

/// Both modes' samples, with waits such that the guest's own cycles and the extra cycles make all cycles. The
/// own cycles are those that both modes have beside walks and exits; where a mode has more, the rest is a
/// wait.
fn with_all_cycles(pair: &Pair) -> [Sample; 2] {
    let samples = Mode::BOTH.map(|mode| seen(pair, mode));
    let rest = Mode::BOTH.map(|mode| {
        let all = pair.cycles[mode.into()].round() as u64;
        all.saturating_sub(samples[mode as usize].extra_cycles())
    });
    let own = rest[0].min(rest[1]);
    Mode::BOTH.map(|mode| Sample {
        ideal_stall_cycles: own,
        frames_stall_cycles: own,
        data_stall_cycles: rest[mode as usize],
        ..samples[mode as usize]
    })
}

#[cfg(test)]
mod tests;
