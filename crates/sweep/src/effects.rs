// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the values of axes do: the overhead of each combination over its repeats, and the differences between values.
//!
//! A difference pairs tasks that differ in one axis alone, so that what differs between programs and the other settings is
//! no part of its spread (a paired t interval at 95 %).

use crate::plan::{Plan, Task};
use bifold_model::Config;
use bifold_report::diff::Side;
use bifold_report::{Page, PageBar, PageBars, PageTable, Spread, grouped, text_table_with_keys, wrapped};
use std::collections::BTreeMap;

/// Most bars of the page's picture.
const MOST_BARS: usize = 24;

/// The figures of a task's configurations.
#[derive(Debug, Clone)]
pub struct Measured {
    task: Task,
    values: Vec<(Config, f64, f64, f64)>,
}

/// A combination of settings over its repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Program and settings, without repeats.
    pub name: String,
    /// The configuration.
    pub config: Config,
    /// Overhead in percent of the ideal run.
    pub overhead: Spread,
    /// TLB misses per 1000 instructions.
    pub misses: Spread,
    /// Exits per 1000 instructions.
    pub exits: Spread,
}

/// A value of an axis against its first value.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// The axis.
    pub axis: String,
    /// Its first value.
    pub from: String,
    /// The other value.
    pub to: String,
    /// The program; none for all programs, whose means are the sample.
    pub program: Option<String>,
    /// The configuration.
    pub config: Config,
    /// Change of the overhead in percentage points: negative is cheaper.
    pub points: Spread,
}

impl Measured {
    /// The figures of a task's result.
    pub fn of(task: &Task, side: &Side) -> Measured {
        let totals = side.totals().next().into_iter().flatten();
        let values = totals
            .map(|(config, _, f)| (config, f.overhead_percent, f.tlb_misses_per_1000, f.exits_per_1000))
            .collect();
        Measured { task: task.clone(), values }
    }
}

/// Every combination, in the order of tasks.
pub fn cells(plan: &Plan, measured: &[Measured]) -> Vec<Cell> {
    let mut cells: Vec<(String, Config, [Vec<f64>; 3])> = Vec::new();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    for m in measured {
        let settings = m.task.settings.iter().filter(|(axis, _)| !plan.repeats.contains(axis));
        let settings: String = settings.map(|(axis, value)| format!(" {axis}={value}")).collect();
        let name = format!("{}{settings}", m.task.program);
        for (config, overhead, misses, exits) in &m.values {
            let place = *places.entry((name.clone(), config.name())).or_insert_with(|| {
                cells.push((name.clone(), *config, Default::default()));
                cells.len() - 1
            });
            let all = &mut cells[place].2;
            [overhead, misses, exits].into_iter().zip(all).for_each(|(v, all)| all.push(*v));
        }
    }
    let spread = |values: &[f64]| Spread::of(values).expect("a cell has a task");
    let cell = |(name, config, [overhead, misses, exits]): (_, _, [Vec<f64>; 3])| Cell {
        name,
        config,
        overhead: spread(&overhead),
        misses: spread(&misses),
        exits: spread(&exits),
    };
    cells.into_iter().map(cell).collect()
}

/// Each value of each axis against the axis's first value: program by program, and for all programs together.
pub fn effects(plan: &Plan, measured: &[Measured]) -> Vec<Effect> {
    let mut out = Vec::new();
    for (axis, values) in plan.axes.iter().filter(|(axis, _)| !plan.repeats.contains(axis)) {
        let Some((from, others)) = values.split_first() else { continue };
        // Tasks that differ in this axis alone have the same key.
        let key = |task: &Task| {
            let others = task.settings.iter().filter(|(a, _)| a != axis).cloned();
            (task.program.clone(), others.collect::<Vec<_>>())
        };
        let of_first = measured.iter().filter(|m| m.task.setting(axis) == Some(from));
        let base: BTreeMap<_, _> = of_first.map(|m| (key(&m.task), m)).collect();
        for to in others {
            let mut differences: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
            let mut configs: Vec<Config> = Vec::new();
            for m in measured.iter().filter(|m| m.task.setting(axis) == Some(to)) {
                let Some(base) = base.get(&key(&m.task)) else { continue };
                for (config, overhead, ..) in &m.values {
                    let Some((_, before, ..)) = base.values.iter().find(|(c, ..)| c == config) else {
                        continue;
                    };
                    let at = configs.iter().position(|c| c == config).unwrap_or_else(|| {
                        configs.push(*config);
                        configs.len() - 1
                    });
                    differences.entry((m.task.program.clone(), at)).or_default().push(overhead - before);
                }
            }
            let effect = |program: Option<&String>, config: Config, values: &[f64]| {
                let points = Spread::of(values)?;
                let (axis, from, to) = (axis.clone(), from.clone(), to.clone());
                Some(Effect { axis, from, to, program: program.cloned(), config, points })
            };
            for (at, config) in configs.iter().enumerate() {
                let of_config: Vec<_> = differences.iter().filter(|((_, c), _)| *c == at).collect();
                out.extend(
                    of_config.iter().filter_map(|((program, _), d)| effect(Some(program), *config, d)),
                );
                if of_config.len() > 1 {
                    let means = of_config.iter().filter_map(|(_, d)| Spread::of(d)).map(|s| s.mean);
                    out.extend(effect(None, *config, &means.collect::<Vec<_>>()));
                }
            }
        }
    }
    out
}

/// The 95 % interval in words.
fn interval(s: &Spread) -> String {
    s.ci95.map_or_else(|| "-".into(), |half| format!("±{half:.3}"))
}

/// Tables of combinations and differences.
pub fn tables(plan: &Plan, measured: &[Measured]) -> Vec<PageTable> {
    let repeats = match &plan.repeats[..] {
        [] => "no axis repeats a measurement".into(),
        axes => format!("n counts the repeats ({})", axes.join(", ")),
    };
    let cell = |c: Cell| {
        let mut row = vec![c.name, c.config.name(), format!("{:.3}", c.overhead.mean), interval(&c.overhead)];
        row.extend([
            format!("{:.3}", c.misses.mean),
            format!("{:.4}", c.exits.mean),
            grouped(c.overhead.n as u64),
        ]);
        row
    };
    let combinations = PageTable {
        title: "overhead of each combination".into(),
        head: [
            "program and settings",
            "config",
            "overhead\n%",
            "95 %\ninterval",
            "TLB misses\n/1000 ins.",
            "exits\n/1000 ins.",
            "n",
        ]
        .map(String::from)
        .into(),
        rows: cells(plan, measured).into_iter().map(cell).collect(),
        notes: vec![format!(
            "Means; intervals are Student's t at 95 %, and {repeats}. All runs that agree have an interval of 0."
        )],
    };
    let mut out = vec![combinations];
    for e in effects(plan, measured) {
        let title = format!("{}: {} -> {}", e.axis, e.from, e.to);
        if out.last().is_none_or(|t| t.title != title) {
            out.push(PageTable { title, head: DIFFERENCES.map(String::from).into(), ..PageTable::default() });
        }
        out.last_mut().expect("pushed above").rows.push(effect(e));
    }
    if out.len() > 1 {
        out.last_mut().expect("there are tables").notes.push(NOTE.into());
    }
    out
}

/// Columns of differences.
const DIFFERENCES: [&str; 6] = ["program", "config", "points", "95 %\ninterval", "differs", "n"];
/// What differences are.
const NOTE: &str = "The second value's overhead less the first's, in percentage points: negative is cheaper. n counts pairs of tasks that \
     differ in this axis alone, and for all programs the programs. `differs`: 0 lies outside the paired t interval at 95 %.";

fn effect(e: Effect) -> Vec<String> {
    let clear = match e.points.ci95 {
        Some(half) if e.points.mean.abs() > half => "yes",
        Some(_) => "no",
        None => "-",
    };
    let program = e.program.unwrap_or_else(|| "(all programs)".into());
    let mean = format!("{:+.3}", e.points.mean);
    vec![program, e.config.name(), mean, interval(&e.points), clear.into(), grouped(e.points.n as u64)]
}

/// The tables for a terminal.
pub fn text(plan: &Plan, measured: &[Measured]) -> String {
    let shown = tables(plan, measured).into_iter().map(|t| {
        let notes = t.notes.iter().map(|note| wrapped(note, 0)).collect::<String>();
        format!("{}\n{}{notes}", t.title, text_table_with_keys(2, t.head, t.rows))
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// The largest differences as bars with their intervals; none without a difference.
fn bars(effects: &[Effect]) -> Option<PageBars> {
    let mut shown: Vec<&Effect> = effects.iter().filter(|e| e.program.is_some()).collect();
    shown.sort_by(|a, b| b.points.mean.abs().total_cmp(&a.points.mean.abs()));
    shown.truncate(MOST_BARS);
    let bar = |e: &&Effect| {
        let half = e.points.ci95.unwrap_or(0.0);
        let program = e.program.as_deref().unwrap_or_default();
        PageBar {
            name: format!("{} {} -> {}, {program}, {}", e.axis, e.from, e.to, e.config.name()),
            value: e.points.mean,
            low: e.points.mean - half,
            high: e.points.mean + half,
        }
    };
    (!shown.is_empty()).then(|| PageBars {
        title: "What each value changes, the largest first".into(),
        unit: "percentage points of overhead".into(),
        bars: shown.iter().map(bar).collect(),
    })
}

/// The page of a sweep.
pub fn page(plan: &Plan, measured: &[Measured], name: &str) -> Page {
    let all = plan.tasks.len();
    let failed = all - measured.len();
    let axes = plan.axes.iter().map(|(axis, values)| (axis.clone(), values.join(", ")));
    Page {
        version: plan.bifold.clone(),
        brand: "sweep".into(),
        title: name.into(),
        verdict: format!("{} of {} tasks have results.", grouped(measured.len() as u64), grouped(all as u64)),
        alarm: (failed > 0).then(|| format!("{} tasks have no result: means lack them.", grouped(failed as u64))),
        about: "Programs under each combination of settings. Overheads are cycles beyond the ideal run, in percent of its cycles."
            .into(),
        facts: axes.collect(),
        bars: bars(&effects(plan, measured)),
        tables: tables(plan, measured),
        ..Page::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;
    use std::path::Path;

    /// Tasks whose overhead is a sum of parts: of the program, of each value, and of the seed.
    fn measured() -> (Plan, Vec<Measured>) {
        let text = "[programs.a]\ngenerate = 't'\n[programs.b]\ngenerate = 't'\n\
             [axes]\nseed = [1, 2, 3]\nthp = ['always', 'never']\nprofile = ['x', 'y', 'z']\n";
        let plan = Spec::plan_of(text, Path::new("t"), Path::new("/")).unwrap();
        let config = Config::from_name("nested-4k").unwrap();
        let of = |t: &Task| {
            let program = if t.program == "a" { 10.0 } else { 100.0 };
            let thp = if t.setting("thp") == Some("never") { 4.0 } else { 0.0 };
            let profile = match t.setting("profile") {
                Some("y") => 1.0,
                Some("z") if t.program == "a" => -2.0,
                _ => 0.0,
            };
            let seed: f64 = t.setting("seed").unwrap().parse().unwrap();
            let overhead = program + thp + profile + seed / 8.0;
            Measured { task: t.clone(), values: vec![(config, overhead, 1.0, 2.0)] }
        };
        let measured = plan.tasks.iter().map(of).collect();
        (plan, measured)
    }

    #[test]
    fn a_value_changes_its_part_alone() {
        let (plan, measured) = measured();
        let all = effects(&plan, &measured);
        let of = |axis: &str, to: &str, program: Option<&str>| {
            let found = |e: &&Effect| e.axis == axis && e.to == to && e.program.as_deref() == program;
            all.iter().find(found).unwrap().points
        };
        // Three profiles and three seeds are nine pairs, whose differences agree.
        let thp = of("thp", "never", Some("b"));
        assert_eq!((thp.n, thp.mean, thp.ci95), (9, 4.0, Some(0.0)));
        assert_eq!(of("profile", "z", Some("a")).mean, -2.0);
        let of_all = of("profile", "z", None);
        assert_eq!((of_all.n, of_all.mean), (2, -1.0));
        assert!(of_all.ci95.unwrap() > 1.0, "two programs that differ say little of others");
        // The seed repeats, and is no axis of its own.
        assert!(all.iter().all(|e| e.axis != "seed"));
        let cells = cells(&plan, &measured);
        assert_eq!(cells.len(), 2 * 2 * 3);
        assert!(cells.iter().all(|c| c.overhead.n == 3 && (c.overhead.sd.unwrap() - 0.125).abs() < 1e-9));
    }

    #[test]
    fn tasks_without_their_pair_are_left_out() {
        let (plan, mut measured) = measured();
        measured.retain(|m| {
            m.task.program == "a" && (m.task.setting("thp") == Some("never") || m.task.number % 2 == 0)
        });
        let pairs: usize =
            effects(&plan, &measured).iter().filter(|e| e.axis == "thp").map(|e| e.points.n).sum();
        let first = measured.iter().filter(|m| m.task.setting("thp") == Some("always")).count();
        assert_eq!(pairs, first);
        assert!(effects(&plan, &[]).is_empty());
    }
}
