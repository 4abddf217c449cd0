// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the values of axes do: the predicted time of each combination over its repeats, and the changes
//! between values.
//!
//! A change pairs tasks that differ in one axis alone, so that what differs between programs and the other
//! settings is no part of its spread (a paired t interval at 95 %). Runs are compared by their times: a value
//! may change the ideal run, too, of which the overhead is a percentage.

use crate::plan::{Plan, Task};
use bifold_model::Config;
use bifold_report::diff::Side;
use bifold_report::{
    Page, PageBar, PageBars, PageTable, Spread, TimeUnit, grouped, labelled, signed, text_table_with_keys,
    vm_and_profile, wrapped,
};
use std::collections::BTreeMap;

/// Most bars of the page's picture.
const MOST_BARS: usize = 24;

/// The figures of a task's configurations.
#[derive(Debug, Clone)]
pub struct Measured {
    task: Task,
    values: Vec<Values>,
    instructions: u64,
    vm: &'static str,
    profile: String,
}

/// The figures of one configuration.
#[derive(Debug, Clone, Copy)]
struct Values {
    config: Config,
    seconds: f64,
    overhead: f64,
    misses: f64,
    exits: f64,
}

/// A combination of settings over its repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Program and settings, without repeats.
    pub name: String,
    /// The configuration.
    pub config: Config,
    /// Predicted time in seconds.
    pub seconds: Spread,
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
    /// Change of the predicted time in percent of the time with the first value: less than 0 is less time.
    pub percent: Spread,
    /// Change of the number of instructions, in percent.
    pub instructions_percent: f64,
}

impl Measured {
    /// The figures of a task's result.
    pub fn of(task: &Task, side: &Side) -> Measured {
        let totals: Vec<_> = side.totals().next().into_iter().flatten().collect();
        let values = totals.iter().map(|(config, _, f)| Values {
            config: *config,
            seconds: f.seconds,
            overhead: f.overhead_percent,
            misses: f.tlb_misses_per_1000,
            exits: f.exits_per_1000,
        });
        let instructions = totals.first().map_or(0, |(_, sample, _)| sample.instructions);
        let (vm, profile) = (side.made().vm.name(), side.made().profile_words());
        Measured { task: task.clone(), values: values.collect(), instructions, vm, profile }
    }
}

/// Every combination, in the order of tasks.
pub fn cells(plan: &Plan, measured: &[Measured]) -> Vec<Cell> {
    let mut cells: Vec<(String, Vec<Values>)> = Vec::new();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    for m in measured {
        let settings = m.task.settings.iter().filter(|(axis, _)| !plan.repeats.contains(axis));
        let settings: String = settings.map(|(axis, value)| format!(" {axis}={value}")).collect();
        let name = format!("{}{settings}", m.task.program);
        for values in &m.values {
            let place = *places.entry((name.clone(), values.config.name())).or_insert_with(|| {
                cells.push((name.clone(), Vec::new()));
                cells.len() - 1
            });
            cells[place].1.push(*values);
        }
    }
    let cell = |(name, values): (String, Vec<Values>)| {
        let spread = |get: fn(&Values) -> f64| {
            Spread::of(&values.iter().map(get).collect::<Vec<_>>()).expect("a cell has a task")
        };
        Cell {
            config: values[0].config,
            seconds: spread(|v| v.seconds),
            overhead: spread(|v| v.overhead),
            misses: spread(|v| v.misses),
            exits: spread(|v| v.exits),
            name,
        }
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
            let mut differences: BTreeMap<(String, usize), Vec<[f64; 2]>> = BTreeMap::new();
            let mut configs: Vec<Config> = Vec::new();
            for m in measured.iter().filter(|m| m.task.setting(axis) == Some(to)) {
                let Some(base) = base.get(&key(&m.task)) else { continue };
                let percent = |was: f64, is: f64| if was > 0.0 { 100.0 * (is / was - 1.0) } else { 0.0 };
                for is in &m.values {
                    let Some(was) = base.values.iter().find(|v| v.config == is.config) else { continue };
                    let at = configs.iter().position(|c| *c == is.config).unwrap_or_else(|| {
                        configs.push(is.config);
                        configs.len() - 1
                    });
                    let instructions = percent(base.instructions as f64, m.instructions as f64);
                    let change = [percent(was.seconds, is.seconds), instructions];
                    differences.entry((m.task.program.clone(), at)).or_default().push(change);
                }
            }
            let effect = |program: Option<&String>, config: Config, changes: &[[f64; 2]]| {
                let [percent, instructions] =
                    [0, 1].map(|i| Spread::of(&changes.iter().map(|c| c[i]).collect::<Vec<_>>()));
                let (axis, from, to) = (axis.clone(), from.clone(), to.clone());
                let (percent, instructions_percent) = (percent?, instructions?.mean);
                Some(Effect {
                    axis,
                    from,
                    to,
                    program: program.cloned(),
                    config,
                    percent,
                    instructions_percent,
                })
            };
            for (at, config) in configs.iter().enumerate() {
                let of_config: Vec<_> = differences.iter().filter(|((_, c), _)| *c == at).collect();
                out.extend(
                    of_config.iter().filter_map(|((program, _), d)| effect(Some(program), *config, d)),
                );
                if of_config.len() > 1 {
                    let mean =
                        |d: &[[f64; 2]], i: usize| d.iter().map(|c| c[i]).sum::<f64>() / d.len() as f64;
                    let means = of_config.iter().map(|(_, d)| [mean(d, 0), mean(d, 1)]);
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
    let all = cells(plan, measured);
    let unit = TimeUnit::of(all.iter().map(|c| c.seconds.mean));
    let cell = |c: Cell| {
        let half = c.seconds.ci95.map_or_else(|| "-".into(), |half| format!("±{}", unit.number(half)));
        let mut row = vec![c.name, c.config.name(), unit.number(c.seconds.mean), half];
        row.extend([
            format!("{:.2}", c.overhead.mean),
            format!("{:.3}", c.misses.mean),
            format!("{:.4}", c.exits.mean),
            grouped(c.seconds.n as u64),
        ]);
        row
    };
    let combinations = PageTable {
        title: "predicted time of each combination".into(),
        head: [
            "program and settings",
            "config",
            &format!("time\n{}", unit.name),
            "95 %\ninterval",
            "over-\nhead %",
            "TLB misses\n/1000 ins.",
            "exits\n/1000 ins.",
            "n",
        ]
        .map(String::from)
        .into(),
        rows: all.into_iter().map(cell).collect(),
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

/// Columns of changes.
const DIFFERENCES: [&str; 7] =
    ["program", "config", "time\n%", "95 %\ninterval", "differs", "instructions\n%", "n"];
/// What changes are.
const NOTE: &str = "The second value's predicted time against the first's, in percent: -20 is 20 % less time, +20 is 20 % more. `instructions`: how \
     the ideal runs differ. n counts pairs of tasks that differ in this axis alone, and for all programs the programs. `differs`: 0 lies \
     outside the paired t interval at 95 %.";

fn effect(e: Effect) -> Vec<String> {
    let clear = match e.percent.ci95 {
        Some(half) if e.percent.mean.abs() > half => "yes",
        Some(_) => "no",
        None => "-",
    };
    let program = e.program.unwrap_or_else(|| "(all programs)".into());
    let (mean, instructions) = (signed(e.percent.mean, 3), signed(e.instructions_percent, 2));
    let n = grouped(e.percent.n as u64);
    vec![program, e.config.name(), mean, interval(&e.percent), clear.into(), instructions, n]
}

/// The lines on the programs' results.
fn made(measured: &[Measured]) -> Vec<(&'static str, String)> {
    let each = measured.iter().map(|m| (&*m.task.program, m.vm, &*m.profile));
    vm_and_profile(&each.collect::<Vec<_>>())
}

/// The tables for a terminal.
pub fn text(plan: &Plan, measured: &[Measured]) -> String {
    let head: String = made(measured).iter().map(|(label, text)| labelled(label, text)).collect();
    let shown = tables(plan, measured).into_iter().map(|t| {
        let notes = t.notes.iter().map(|note| wrapped(note, 0)).collect::<String>();
        format!("{}\n{}{notes}", t.title, text_table_with_keys(2, t.head, t.rows))
    });
    head + "\n" + &shown.collect::<Vec<_>>().join("\n")
}

/// The largest changes as bars with their intervals; none without a difference.
fn bars(effects: &[Effect]) -> Option<PageBars> {
    let mut shown: Vec<&Effect> = effects.iter().filter(|e| e.program.is_some()).collect();
    shown.sort_by(|a, b| b.percent.mean.abs().total_cmp(&a.percent.mean.abs()));
    shown.truncate(MOST_BARS);
    let bar = |e: &&Effect| {
        let half = e.percent.ci95.unwrap_or(0.0);
        let program = e.program.as_deref().unwrap_or_default();
        PageBar {
            name: format!("{} {} -> {}, {program}, {}", e.axis, e.from, e.to, e.config.name()),
            value: e.percent.mean,
            low: e.percent.mean - half,
            high: e.percent.mean + half,
        }
    };
    (!shown.is_empty()).then(|| PageBars {
        title: "What each value changes, the largest first".into(),
        unit: "% of the time with the first value: left of 0 is less time".into(),
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
        alarm: (failed > 0)
            .then(|| format!("{} tasks have no result: means lack them.", grouped(failed as u64))),
        about: "Programs under each combination of settings, compared by their predicted times.".into(),
        facts: made(measured).into_iter().map(|(name, text)| (name.into(), text)).chain(axes).collect(),
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

    /// Tasks whose time is a product of parts: of the program, of each value, and of the seed.
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
            // Times of which a value takes its percents, and the program and the seed a factor.
            let seconds = program * (1.0 + seed / 8.0) * (1.0 + thp / 100.0) * (1.0 + profile / 100.0);
            let values = Values { config, seconds, overhead: program + seed / 8.0, misses: 1.0, exits: 2.0 };
            // A setting that shortens the program raises its overhead.
            Measured {
                task: t.clone(),
                values: vec![values],
                instructions: if thp > 0.0 { 200 } else { 100 },
                vm: "started",
                profile: t.setting("profile").unwrap().into(),
            }
        };
        let measured = plan.tasks.iter().map(of).collect();
        (plan, measured)
    }

    #[test]
    fn the_head_has_the_vm_and_the_profiles() {
        let (plan, measured) = measured();
        let head = "VM       started\nprofile  x: a, b; y: a, b; z: a, b\n\npredicted time";
        assert!(text(&plan, &measured).starts_with(head), "{}", text(&plan, &measured));
        let facts = page(&plan, &measured, "sweep").facts;
        assert_eq!(facts[0], ("VM".into(), "started".into()));
    }

    #[test]
    fn a_value_changes_its_part_alone() {
        let (plan, measured) = measured();
        let all = effects(&plan, &measured);
        let of = |axis: &str, to: &str, program: Option<&str>| {
            let found = |e: &&Effect| e.axis == axis && e.to == to && e.program.as_deref() == program;
            all.iter().find(found).unwrap().percent
        };
        // Three profiles and three seeds are nine pairs, whose differences agree.
        let thp = of("thp", "never", Some("b"));
        assert_eq!(thp.n, 9);
        assert!((thp.mean - 4.0).abs() < 1e-9 && thp.ci95.unwrap() < 1e-9, "{thp:?}");
        let of_thp = all.iter().find(|e| e.axis == "thp").unwrap();
        assert_eq!(of_thp.instructions_percent, 100.0);
        assert!((of("profile", "z", Some("a")).mean + 2.0).abs() < 1e-9);
        let of_all = of("profile", "z", None);
        assert!(of_all.n == 2 && (of_all.mean + 1.0).abs() < 1e-9);
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
            effects(&plan, &measured).iter().filter(|e| e.axis == "thp").map(|e| e.percent.n).sum();
        let first = measured.iter().filter(|m| m.task.setting("thp") == Some("always")).count();
        assert_eq!(pairs, first);
        assert!(effects(&plan, &[]).is_empty());
    }
}
