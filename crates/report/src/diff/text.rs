// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables and sentences of a diff, for terminals (at most 100 columns) and for the page.

use super::{Change, Diff, Kind, Made, Side, made};
use crate::PageTable;
use crate::text::{TimeUnit, fine_decimals, fixed, grouped, less_or_more, signed, wrapped_to};
use crate::text_table::table;
use bifold_model::{Config, Paging};

/// Columns of a line.
const WIDTH: usize = 100;
/// Columns of a label before its text.
const INDENT: usize = 9;
/// Most rows of exits that changed.
const MOST_EXITS: usize = 12;

/// Figures of the second table with their names. Only JSON has the overheads at half and double CPI, which
/// are twice and half the overhead.
const FIGURES: [(&str, &str); 7] = [
    ("overhead_percent", "overhead %"),
    ("walk_percent", "walks %"),
    ("vmm_percent", "VMM %"),
    ("extra_cycles_per_1000", "extra cycles /1000 instr."),
    ("tlb_misses_per_1000", "TLB misses /1000 instr."),
    ("refs_per_walk", "refs /walk"),
    ("exits_per_1000", "exits /1000 instr."),
];

pub(super) fn render(d: &Diff) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: &str| {
        out += &wrapped_to(&format!("{label:<INDENT$}{text}"), INDENT, WIDTH);
    };
    for (label, side) in [("A", &d.a), ("B", &d.b)] {
        line(label, &about(side));
    }
    for (label, text) in in_common(d) {
        line(label, &text);
    }
    for x in made::differences(&d.a.made, &d.b.made) {
        line("differs", &format!("{}: A {}, B {}", x.what, x.a, x.b));
    }
    for w in d.warnings() {
        line("WARNING", &w);
    }
    for t in tables(d) {
        out += "\n";
        out += &table(t.head, t.rows);
    }
    out += "\n";
    out += &wrapped_to(&format!("{:<INDENT$}{}", "result", verdict(d)), INDENT, WIDTH);
    for note in notes(d) {
        out += &wrapped_to(&format!("{:<INDENT$}{note}", "note"), INDENT, WIDTH);
    }
    out
}

/// The profile and the state of the VM, where both sides have one; else they are among the differences.
pub(super) fn in_common(d: &Diff) -> Vec<(&'static str, String)> {
    let of = |made: &Made| [("profile", made.profile_words()), ("VM", made.vm.name().to_string())];
    of(&d.a.made).into_iter().zip(of(&d.b.made)).filter(|(a, b)| a == b).map(|(both, _)| both).collect()
}

/// One side in a line.
pub(super) fn about(s: &Side) -> String {
    let kind = match s.kind {
        Kind::Recording => "recording",
        Kind::Result => "result",
    };
    let runs = if s.runs() == 1 { String::new() } else { format!(" of {} runs", s.runs()) };
    format!("{}, {kind}{runs}: {}", crate::shell_words(&[&s.name]), s.made.program)
}

/// Notes on the columns.
pub(super) fn notes(d: &Diff) -> Vec<String> {
    let mut out = Vec::new();
    if spread(d) {
        out.push(
            "±95 % is half the width of Welch's 95 % interval of the difference of means; a difference is larger \
             than the spread if 0 lies outside that interval"
                .into(),
        );
    } else {
        out.push(
            "one run on a side has no spread: `bifold compare --runs N --format json` on both sides tells \
             differences from chance"
                .into(),
        );
    }
    if other_events(d) {
        out.push(
            "the same command gave other events: its files differ, or its environment, which lies on its stack. Shells set `_` and \
             OLDPWD, whose lengths move counts a little: `-- env -i CMD` leaves them out"
                .into(),
        );
    }
    let more = d.exits().len().saturating_sub(MOST_EXITS);
    if more > 0 {
        out.push(format!("{more} further counts of exits changed by less; --format json has all"));
    }
    out
}

/// Both sides are of one command in equal guests that repeat to the bit, and their events differ.
fn other_events(d: &Diff) -> bool {
    let (a, b) = (&d.a.made, &d.b.made);
    let exact = |made: &Made| made.guest.as_ref().and_then(|g| g.timing.as_deref()) == Some("exact");
    exact(a) && exact(b) && a.input_hash != b.input_hash && made::differences(a, b).is_empty()
}

fn spread(d: &Diff) -> bool {
    d.a.runs() > 1 && d.b.runs() > 1
}

/// Predicted times, then every figure, then exits that changed.
pub(super) fn tables(d: &Diff) -> Vec<PageTable> {
    let mut out = vec![times(d), figures(d)];
    out.extend(exits(d));
    out
}

fn tail_head(d: &Diff) -> Vec<&'static str> {
    let spread: &[&str] = if spread(d) { &["±95 %", "larger than\nthe spread"] } else { &[] };
    ["A", "B", "B - A", "change\n%"].into_iter().chain(spread.iter().copied()).collect()
}

fn cells(d: &Diff, c: &Change, places: usize) -> Vec<String> {
    let mut out = vec![
        fixed(c.a.mean, places),
        fixed(c.b.mean, places),
        signed(c.difference, places),
        c.percent.map_or("-".into(), |p| signed(p, if p.abs() < 1000.0 { 1 } else { 0 })),
    ];
    if spread(d) {
        out.push(c.ci95.map_or("-".into(), |v| fixed(v, places)));
        out.push(c.beyond_spread.map_or("-", |y| if y { "yes" } else { "no" }).into());
    }
    out
}

/// The predicted times in one unit.
fn times(d: &Diff) -> PageTable {
    let (_, rows) = d.figure("seconds").expect("the time is a figure");
    let unit = unit(&rows);
    let row = |(config, c): &(Config, Change)| {
        let mut cells = cells(d, c, 1);
        let texts = [unit.number(c.a.mean), unit.number(c.b.mean), unit.difference(c.difference)];
        cells[..3].clone_from_slice(&texts);
        if let (Some(cell), Some(half)) = (cells.get_mut(4), c.ci95) {
            *cell = unit.number(half);
        }
        if let Some(percent) = c.percent {
            cells[3] = signed(percent, 2);
        }
        [config.name()].into_iter().chain(cells).collect()
    };
    let mut head: Vec<String> = tail_head(d).into_iter().map(String::from).collect();
    head[2] = format!("B - A\n{}", unit.name);
    PageTable {
        title: "Predicted time".into(),
        head: [format!("time, {}", unit.name)].into_iter().chain(head).collect(),
        rows: rows.iter().map(row).collect(),
        notes: Vec::new(),
    }
}

fn unit(rows: &[(Config, Change)]) -> TimeUnit {
    TimeUnit::of(rows.iter().flat_map(|(_, c)| [c.a.mean, c.b.mean]))
}

fn figures(d: &Diff) -> PageTable {
    let mut rows = Vec::new();
    for (name, words) in &FIGURES {
        let Some((_, of_figure)) = d.figure(name) else { continue };
        let largest = of_figure.iter().map(|(_, c)| c.a.mean.max(c.b.mean)).fold(0.0, f64::max);
        let shown = of_figure.iter().filter(|(_, c)| c.a.max != 0.0 || c.b.max != 0.0);
        for (i, (config, c)) in shown.enumerate() {
            // The figure's name stands at its first row.
            let figure = if i == 0 { (*words).to_string() } else { String::new() };
            rows.push(
                [figure, config.name()].into_iter().chain(cells(d, c, fine_decimals(largest))).collect(),
            );
        }
    }
    let head = ["figure", "configuration"].into_iter().chain(tail_head(d)).map(String::from);
    PageTable { title: "Figures".into(), head: head.collect(), rows, notes: Vec::new() }
}

/// The exits that changed most; none if no count changed.
fn exits(d: &Diff) -> Option<PageTable> {
    let all = d.exits();
    let row = |(config, reason, c): &(Config, &str, Change)| {
        let whole = |v: f64| grouped(v.round() as u64);
        let sign = if c.difference < 0.0 { '-' } else { '+' };
        let difference = format!("{sign}{}", whole(c.difference.abs()));
        let mut cells = cells(d, c, 1);
        cells[..3].clone_from_slice(&[whole(c.a.mean), whole(c.b.mean), difference]);
        let head = [reason.replace('_', " "), config.name()];
        head.into_iter().chain(cells).collect()
    };
    let head = ["exits, count", "configuration"].into_iter().chain(tail_head(d)).map(String::from);
    (!all.is_empty()).then(|| PageTable {
        title: "Exits that changed most".into(),
        head: head.collect(),
        rows: all.iter().take(MOST_EXITS).map(row).collect(),
        notes: Vec::new(),
    })
}

/// The verdict of the diff, in one or two sentences.
pub(super) fn verdict(d: &Diff) -> String {
    if d.same() {
        return "A and B agree in every counter.".into();
    }
    let (_, rows) = d.figure("seconds").expect("the time is a figure");
    let percent = |c: &Change| c.percent.unwrap_or(0.0);
    let guests: Vec<&(Config, Change)> = rows.iter().filter(|(c, _)| c.mode != Paging::Native).collect();
    let shown = if guests.is_empty() { rows.iter().collect() } else { guests.clone() };
    let by_size =
        |x: &&&(Config, Change), y: &&&(Config, Change)| percent(&x.1).abs().total_cmp(&percent(&y.1).abs());
    let Some((config, most)) = shown.iter().max_by(by_size).copied() else { return String::new() };
    let unit = unit(&rows);
    let beyond = match most.beyond_spread {
        Some(true) => ", which is more than the runs' spread",
        Some(false) => ", which is within the runs' spread",
        None => "",
    };
    let mut out = match percent(most) {
        0.0 => "B takes the same time as A in every configuration.".to_string(),
        p => format!(
            "B takes {} than A in {}: {} in place of {}{beyond}.",
            less_or_more(p),
            config.name(),
            unit.text(most.b.mean),
            unit.text(most.a.mean),
        ),
    };
    let other_way = |x: &&&(Config, Change)| percent(&x.1) * percent(most) < 0.0;
    if let Some((config, c)) = shown.iter().filter(other_way).max_by(by_size) {
        out += &format!(" In {}, it takes {}.", config.name(), less_or_more(percent(c)));
    }
    let best = |get: fn(&Change) -> f64| {
        guests.iter().min_by(|x, y| get(&x.1).total_cmp(&get(&y.1))).map(|(config, _)| config.name())
    };
    if let (Some(a), Some(b)) = (best(|c| c.a.mean), best(|c| c.b.mean)) {
        if a == b {
            out += &format!(" Under a hypervisor, {a} is fastest in both.");
        } else {
            out += &format!(" Under a hypervisor, {a} is fastest in A and {b} in B.");
        }
    }
    out + &ideal(d)
}

/// How the ideal runs differ; nothing where they do not.
fn ideal(d: &Diff) -> String {
    let (instructions, seconds) = d.ideal();
    if instructions.difference == 0.0 && seconds.difference == 0.0 {
        return String::new();
    }
    let whole = |v: f64| grouped(v.round() as u64);
    let percent = instructions.percent.unwrap_or(0.0);
    let executes = match instructions.difference {
        0.0 => "B executes as many instructions as A".to_string(),
        n => format!(
            "B executes {} % {} instructions ({} in place of {})",
            fixed(percent.abs(), if percent.abs() < 0.095 { 4 } else { 2 }),
            if n < 0.0 { "fewer" } else { "more" },
            whole(instructions.b.mean),
            whole(instructions.a.mean)
        ),
    };
    let takes = less_or_more(seconds.percent.unwrap_or(0.0));
    format!(
        " The ideal runs differ, so compare times and not overheads: {executes}, and takes {takes} without walks and exits."
    )
}
