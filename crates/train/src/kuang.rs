// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trains Kuang's two support-vector machines (crate `linfa-svm`), one per direction of a switch.
//!
//! An interval is labelled "switch" if the other mode is cheaper over the next decisions, with the cost of
//! the switch and of the tables that it leaves cold. If both modes cost the same within 1 % of all cycles,
//! the interval is left out. Long programs give evenly spaced intervals, so that every program counts about
//! the same. Penalties give both classes the same weight. Of a few kernels and penalties, the trainer takes
//! those whose machines come nearest to the oracle on left-out programs. The reported gap is therefore
//! slightly too good.

use crate::programs::{Program, TrainError};
use crate::search::{self, Options, gap, mean_gap};
use crate::text::{self, row};
use crate::{Progress, Trained};
use bifold_model::Sample;
use bifold_policy::policies::kuang::Kuang;
use bifold_policy::policies::svm::{Feature, Kernel, Machine};
use bifold_policy::sweep::{self, Prepared};
use bifold_policy::{Mode, Named, Spec, View};
use linfa::Dataset;
use linfa::traits::Fit as _;
use linfa_svm::Svm;
use ndarray_of_linfa::{Array1, Array2};
use rayon::prelude::*;
use std::fmt::Write as _;

/// Number of decisions ahead over which a label compares the modes.
const AHEAD: usize = 10;
/// Share of all cycles within which the modes count as equal.
const DRAW: f64 = 1e-2;
/// Largest number of intervals taken from one program.
const MOST: usize = 80;
/// Coefficients below this share of the largest are dropped.
const NOTHING: f64 = 1e-6;

/// Kernels and penalties to choose from; the first is preferred among equals.
const CANDIDATES: [(Kernel, f64); 6] = [
    (Kernel::Linear {}, 1.0),
    (Kernel::Linear {}, 0.1),
    (Kernel::Linear {}, 10.0),
    (Kernel::Rbf { gamma: 0.1 }, 1.0),
    (Kernel::Rbf { gamma: 0.1 }, 10.0),
    (Kernel::Rbf { gamma: 0.5 }, 3.0),
];

/// Intervals of one program in one mode: features, and whether to switch.
#[derive(Debug, Clone, Default)]
struct Labelled {
    x: Vec<Vec<f64>>,
    switch: Vec<bool>,
}

/// Labels a program's intervals in `mode`; `every` intervals are one decision.
fn label(program: &Prepared, mode: Mode, every: usize, switch_scale: f64) -> Labelled {
    let (track, other) = (&program.track, mode.other());
    let decisions = track.len() / every;
    let mut all = Labelled::default();
    for d in 0..decisions.saturating_sub(1) {
        let (from, next) = (d * every, (d + 1) * every);
        let ahead = next..(next + AHEAD * every).min(track.len());
        let own: f64 = ahead.clone().map(|j| track.extra(mode, j)).sum();
        let cold: f64 = ahead.clone().map(|j| track.cold(other, j, next, 0).cycles).sum();
        let there = (track.costs.switch as f64 + cold) / switch_scale;
        let theirs: f64 = ahead.clone().map(|j| track.extra(other, j)).sum::<f64>() + there;
        let cycles: f64 = ahead.map(|j| track.ideal[j]).sum::<f64>() + own.max(theirs);
        if (own - theirs).abs() <= DRAW * cycles {
            continue;
        }
        let mut sample = Sample::default();
        track.samples[mode as usize][from..next].iter().for_each(|s| sample.add(s));
        let cycles = track.ideal[from..next].iter().sum::<f64>() + sample.extra_cycles() as f64;
        if sample.instructions == 0 {
            continue;
        }
        let view = View { mode, sample: &sample, cycles, load: 1.0, other: None };
        all.x.push(Feature::ALL.iter().map(|f| f.value(&view)).collect());
        all.switch.push(theirs < own);
    }
    let n = all.x.len();
    if n > MOST {
        let kept = (0..MOST).map(|i| i * n / MOST);
        let (x, switch) = kept.map(|i| (all.x[i].clone(), all.switch[i])).unzip();
        all = Labelled { x, switch };
    }
    all
}

/// Trains a machine on all programs but one.
fn machine(
    labelled: &[Labelled],
    but: Option<usize>,
    mode: Mode,
    (kernel, penalty): (Kernel, f64),
) -> Result<Machine, TrainError> {
    let used = || labelled.iter().enumerate().filter(|(i, _)| Some(*i) != but).map(|(_, l)| l);
    let rows: Vec<(&Vec<f64>, bool)> =
        used().flat_map(|l| l.x.iter().zip(l.switch.iter().copied())).collect();
    let (n, yes) = (rows.len(), rows.iter().filter(|r| r.1).count());
    if yes == 0 || yes == n {
        let what = format!(
            "of {n} intervals in {} mode {} have the other mode cheaper: a machine needs both kinds in several \
             programs",
            mode.name(),
            if yes == 0 { "none" } else { "all" }
        );
        return Err(TrainError::Solver(what));
    }
    let over = |f: &dyn Fn(f64) -> f64, i: usize| rows.iter().map(|(x, _)| f(x[i])).sum::<f64>() / n as f64;
    let mut features = Vec::new();
    let (mut mean, mut scale, mut at) = (Vec::new(), Vec::new(), Vec::new());
    for (i, feature) in Feature::ALL.into_iter().enumerate() {
        let m = text::round(over(&|x| x, i));
        let s = text::round(over(&|x| (x - m).powi(2), i).sqrt());
        // A constant feature tells nothing, and its scale would be 0.
        if s > 1e-9 {
            features.push(feature);
            mean.push(m);
            scale.push(s);
            at.push(i);
        }
    }
    let standardised = |r: usize, c: usize| text::round((rows[r].0[at[c]] - mean[c]) / scale[c]);
    let x = Array2::from_shape_fn((n, features.len()), |(r, c)| standardised(r, c));
    let y = Array1::from_iter(rows.iter().map(|r| r.1));
    let weight = |class: usize| penalty * n as f64 / (2.0 * class as f64);
    let svm = Svm::<f64, bool>::params().pos_neg_weights(weight(yes), weight(n - yes));
    let svm = match kernel {
        Kernel::Linear {} => svm.linear_kernel(),
        Kernel::Rbf { gamma } => svm.gaussian_kernel(1.0 / gamma),
    };
    let svm = svm.fit(&Dataset::new(x.clone(), y)).map_err(|e| TrainError::Solver(e.to_string()))?;
    let largest = svm.alpha.iter().fold(0.0f64, |m, a| m.max(a.abs()));
    let support = || svm.alpha.iter().enumerate().filter(|(_, a)| a.abs() > NOTHING * largest);
    let (vectors, coefficients) = match kernel {
        // A linear machine is one vector of weights.
        Kernel::Linear {} => {
            let weight = |c| support().map(|(r, a)| a * x[(r, c)]).sum::<f64>();
            (vec![(0..features.len()).map(weight).collect()], vec![1.0])
        }
        Kernel::Rbf { .. } => support().map(|(r, a)| (x.row(r).to_vec(), *a)).unzip(),
    };
    let machine = Machine { features, mean, scale, kernel, vectors, coefficients, bias: -svm.rho };
    // Compares the written machine's decisions with the library's.
    for r in (0..n).step_by(1 + n / 50) {
        let (theirs, ours) = (svm.weighted_sum(&x.row(r)) - svm.rho, machine.decision(&x.row(r).to_vec()));
        if (theirs - ours).abs() > 1e-3 * (1.0 + theirs.abs()) {
            let what = format!("the written machine gives {ours} where its trainer gives {theirs}");
            return Err(TrainError::Solver(what));
        }
    }
    machine.check("machine").map_err(TrainError::Solver)?;
    Ok(machine)
}

fn decides(machine: &Machine, x: &[f64]) -> bool {
    let standard = |(i, f): (usize, &Feature)| {
        let at = Feature::ALL.iter().position(|g| g == f).expect("one of all");
        (x[at] - machine.mean[i]) / machine.scale[i]
    };
    machine.decision(&machine.features.iter().enumerate().map(standard).collect::<Vec<_>>()) > 0.0
}

/// Numbers of right decisions and of all decisions, for intervals that should switch and for those that
/// should stay.
type Right = [(usize, usize); 2];

fn right(machine: &Machine, l: &Labelled) -> Right {
    let mut right = [(0, 0); 2];
    for (x, &switch) in l.x.iter().zip(&l.switch) {
        let slot = &mut right[usize::from(!switch)];
        slot.0 += usize::from(decides(machine, x) == switch);
        slot.1 += 1;
    }
    right
}

fn sum(all: impl Iterator<Item = Right>) -> Right {
    all.fold([(0, 0); 2], |s, r| [0, 1].map(|k: usize| (s[k].0 + r[k].0, s[k].1 + r[k].1)))
}

/// Percentages of right decisions as `92.1 (80.0, 95.5)`: of all, of those that should switch, of those that
/// should stay.
fn accuracy(r: Right) -> String {
    let percent = |(right, all): (usize, usize)| {
        if all == 0 { "-".into() } else { format!("{:.1}", 100.0 * right as f64 / all as f64) }
    };
    format!("{} ({}, {})", percent((r[0].0 + r[1].0, r[0].1 + r[1].1)), percent(r[0]), percent(r[1]))
}

/// Results of one candidate on left-out programs.
struct Tried {
    candidate: (Kernel, f64),
    /// Per program: gap to the oracle, and decisions by mode.
    programs: Vec<(f64, [Right; 2])>,
}

impl Tried {
    fn gap(&self) -> f64 {
        mean_gap(&self.programs.iter().map(|p| p.0).collect::<Vec<_>>())
    }

    fn right(&self, mode: Mode) -> Right {
        sum(self.programs.iter().map(|p| p.1[mode as usize]))
    }
}

fn say((kernel, penalty): (Kernel, f64)) -> String {
    match kernel {
        Kernel::Linear {} => format!("linear, C {penalty}"),
        Kernel::Rbf { gamma } => format!("rbf, gamma {gamma}, C {penalty}"),
    }
}

/// Trains both machines; `base` has the interval.
pub fn train(
    programs: &[Program],
    base: &Named,
    options: &Options,
    progress: &Progress,
) -> Result<Trained, TrainError> {
    Program::check(programs)?;
    let Spec::Kuang(before) = &base.spec else {
        return Err(TrainError::Solver(format!("{} is not Kuang's policy", base.name)));
    };
    progress("costs and oracles");
    let prepared = search::prepare(programs, options)?;
    let labels = |mode: Mode| -> Vec<Labelled> {
        let every = |p: &Prepared| options.scale.every(before.interval_s, p.track.interval_s);
        prepared.par_iter().map(|p| label(p, mode, every(p), options.scale.switch)).collect()
    };
    let labelled = Mode::BOTH.map(labels);
    let pair = |candidate, but| -> Result<Kuang, TrainError> {
        let [to_nested, to_shadow] =
            Mode::BOTH.map(|mode| machine(&labelled[mode as usize], but, mode, candidate));
        Ok(Kuang { interval_s: before.interval_s, to_nested: to_nested?, to_shadow: to_shadow? })
    };
    let replayed = |kuang: &Kuang, i: usize| {
        let named = Named { name: base.name.clone(), spec: Spec::Kuang(kuang.clone()) };
        let one = std::slice::from_ref(&prepared[i]);
        let rows = sweep::sweep(&[named], one, options.scale, options.estimator, &|_| ());
        gap(&rows[0], 0)
    };
    let mut tried = Vec::new();
    for candidate in CANDIDATES {
        progress(&say(candidate));
        let one = |i: usize| {
            let kuang = pair(candidate, Some(i))?;
            let of = |mode: Mode, m| right(m, &labelled[mode as usize][i]);
            let rights = [of(Mode::Shadow, &kuang.to_nested), of(Mode::Nested, &kuang.to_shadow)];
            Ok((replayed(&kuang, i), rights))
        };
        let programs =
            (0..prepared.len()).into_par_iter().map(one).collect::<Result<Vec<_>, TrainError>>()?;
        tried.push(Tried { candidate, programs });
    }
    let best = tried.iter().min_by(|a, b| a.gap().total_cmp(&b.gap())).expect("there are candidates");
    let kuang = pair(best.candidate, None)?;

    let mut lines = vec![row(["machines", "gap left out %", "right in shadow %", "right in nested %"])];
    for t in &tried {
        lines.push(vec![
            say(t.candidate),
            format!("{:.2}", t.gap()),
            accuracy(t.right(Mode::Shadow)),
            accuracy(t.right(Mode::Nested)),
        ]);
    }
    let mut table = String::from(
        "Support-vector machines on left-out programs: gap to the oracle from the worse\n\
         starting mode (geometric mean), and right decisions in percent of all decisions\n\
         (of those that should switch, of those that should stay).\n\n",
    );
    table += &text::table(&lines);
    let was: Vec<f64> = (0..prepared.len()).into_par_iter().map(|i| replayed(before, i)).collect();
    let is: Vec<f64> = (0..prepared.len()).into_par_iter().map(|i| replayed(&kuang, i)).collect();
    let mut lines = vec![row([
        "program",
        "gap before %",
        "gap learnt %",
        "gap left out %",
        "right in shadow %",
        "right in nested %",
    ])];
    for (i, p) in prepared.iter().enumerate() {
        let (gap, [shadow, nested]) = best.programs[i];
        let gaps = [was[i], is[i], gap].map(|g| format!("{g:.2}"));
        let mut line = vec![p.name.clone()];
        line.extend(gaps);
        line.extend([accuracy(shadow), accuracy(nested)]);
        lines.push(line);
    }
    let mut line = vec!["geometric mean".to_string()];
    line.extend([mean_gap(&was), mean_gap(&is), best.gap()].map(|g| format!("{g:.2}")));
    lines.push(line);
    let _ = write!(table, "\nChosen: {}.\n\n", say(best.candidate));
    table += &text::table(&lines);

    let mut toml = text::header(
        "Kuang (2014): two support-vector machines, trained on timelines; what was published is the method.",
        "kuang TIMELINE...",
        programs,
    );
    let _ = writeln!(
        toml,
        "# {}. A label looks {AHEAD} decisions ahead. On programs left out: gap to the oracle {:.2} %; right\n\
         # decisions of all (of those that should switch, that should stay):\n# in shadow {} %, in nested {} %.",
        say(best.candidate),
        best.gap(),
        accuracy(best.right(Mode::Shadow)),
        accuracy(best.right(Mode::Nested))
    );
    let _ = writeln!(toml, "policy = \"kuang\"\ninterval_s = {:?}", kuang.interval_s);
    write_machine(&mut toml, "to_nested", "Asked in shadow.", &kuang.to_nested);
    write_machine(&mut toml, "to_shadow", "Asked in nested.", &kuang.to_shadow);
    Named::parse(&base.name, &toml).map_err(|e| TrainError::Solver(e.to_string()))?;
    Ok(Trained { table, toml })
}

fn write_machine(toml: &mut String, name: &str, comment: &str, m: &Machine) {
    let list = |v: &[f64]| v.iter().map(|x| text::digits(*x)).collect::<Vec<_>>().join(", ");
    // The kebab-case names are serde's.
    let names = |f: &Feature| {
        toml::Value::try_from(f)
            .ok()
            .and_then(|v| v.as_str().map(|s| format!("{s:?}")))
            .expect("a unit variant")
    };
    let kernel = match m.kernel {
        Kernel::Linear {} => "{ kind = \"linear\" }".to_string(),
        Kernel::Rbf { gamma } => format!("{{ kind = \"rbf\", gamma = {gamma:?} }}"),
    };
    let features = m.features.iter().map(names).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        toml,
        "\n# {comment}\n[{name}]\nfeatures = [{features}]\nmean = [{}]\nscale = [{}]\nkernel = {kernel}\nvectors = [",
        list(&m.mean),
        list(&m.scale)
    );
    m.vectors.iter().for_each(|v| _ = writeln!(toml, "    [{}],", list(v)));
    let _ = writeln!(toml, "]\ncoefficients = [");
    m.coefficients.chunks(12).for_each(|c| _ = writeln!(toml, "    {},", list(c)));
    let _ = writeln!(toml, "]\nbias = {}", text::digits(m.bias));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{program, programs};

    fn learn(programs: &[Program]) -> Result<Trained, TrainError> {
        train(programs, &Named::load("kuang").unwrap(), &Options::default(), &|_| ())
    }

    #[test]
    fn machines_tell_two_kinds_of_phases_apart_and_are_read_again() {
        let all = programs();
        let trained = learn(&all).unwrap();
        let Spec::Kuang(kuang) = Named::parse("k", &trained.toml).unwrap().spec else { panic!("not Kuang") };
        for (mode, machine) in [(Mode::Shadow, &kuang.to_nested), (Mode::Nested, &kuang.to_shadow)] {
            let prepared = search::prepare(&all, &Options::default()).unwrap();
            let labels = prepared.iter().map(|p| right(machine, &label(p, mode, 1, 100.0)));
            let [switch, stay] = sum(labels);
            let share = |(right, all): (usize, usize)| right as f64 / all as f64;
            // Intervals just before a phase changes cannot be told.
            assert!(share(switch) > 0.6 && share(stay) > 0.6, "{switch:?} {stay:?}\n{}", trained.table);
        }
    }

    #[test]
    fn the_same_timelines_give_the_same_machines() {
        let two = || learn(&[program("a", 1, 100), program("b", 2, 100)]).unwrap();
        assert_eq!(two(), two());
    }

    #[test]
    fn one_kind_of_phase_is_not_enough() {
        let mut only: Vec<Program> = ["a", "b"].map(|n| program(n, 1, 60)).into();
        for p in &mut only {
            for run in &mut p.timeline.pairs[0].runs {
                run.samples.truncate(0);
                run.reuse.truncate(0);
            }
            let [shadow, nested] = &mut p.timeline.pairs[0].runs;
            let s = |walk_cycles| Sample { instructions: 10_000_000, walk_cycles, ..Sample::default() };
            shadow.samples = vec![s(1_000_000); 60];
            nested.samples = vec![s(2_000_000); 60];
            shadow.reuse = vec![Vec::new(); 60];
            nested.reuse = vec![Vec::new(); 60];
        }
        let e = learn(&only).unwrap_err().to_string();
        assert!(e.contains("in shadow mode none have the other mode cheaper"), "{e}");
    }
}
