// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the page of one VM: its vCPUs, KVM's statistics, its memory, and its last intervals.

use super::{TerminalStyle, heading, history, keys, numbers, take, take_bottom, title};
use crate::full::top::app::{App, Vm};
use crate::full::top::column::{UNKNOWN, mode, percent, rate, text};
use bifold_host::{Kind, Statistic, VmId};
use bifold_live::Figure;
use bifold_report::grouped;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

/// The figures of vCPUs, and the width of each one's column.
const FIGURES: [(&Figure, u16); 5] =
    [(&Figure::RAN, 4), (&Figure::WAITED, 4), (&Figure::CYCLES, 6), (&Figure::IPC, 4), (&Figure::MISSES, 8)];
/// Columns of a screen on which the statistics stand beside the vCPUs.
const BESIDE: u16 = 76;
/// Width of the table of vCPUs, and the gap on its right.
const VCPUS_WIDTH: u16 = 46;
/// Columns of the statistics.
const STATISTICS: [u16; 2] = [21, 10];

/// Lines of a piece of advice.
const ADVICE: u16 = 3;

/// Columns of the interval's length, on the right of the first line.
const EVERY: usize = 12;
/// Characters that the name has in any case.
const SHORTEST_NAME: usize = 8;

/// Draws the page.
pub fn draw(frame: &mut Frame, app: &mut App, id: VmId, look: TerminalStyle, mut area: Rect) {
    let vm = &app.vms[&id];
    let words = format!("  VM {id}, process {}, ", vm.pid);
    let state = mode(vm.state, true);
    // A long name is cut, so that the rest has room.
    let room = usize::from(area.width).saturating_sub(words.len() + state.len() + EVERY).max(SHORTEST_NAME);
    let name: String = vm.name.chars().take(room).collect();
    let state = Span::styled(state, look.of_mode(vm.state));
    title(frame, app, Line::from_iter([name.into(), words.into(), state]), take(&mut area, 1));
    keys(
        frame,
        &[("Esc", "back"), ("Up Down", "scroll"), ("+-", "interval"), ("Space", "pause"), ("?", "help")],
        take_bottom(&mut area, 1),
    );
    // The tables are what the page is for: the history gets no line that they need.
    if area.height >= history::LINES + 8 {
        let lines = if area.height >= 2 * history::LINES + 14 { history::TALL } else { history::LINES };
        history::draw(frame, &vm.history, look, take_bottom(&mut area, lines));
        take_bottom(&mut area, 1);
    }
    if area.height >= 6 {
        let advice = ADVICE * vm.advice.len().min(2) as u16;
        memory(frame, vm, take_bottom(&mut area, 2 + advice));
        take_bottom(&mut area, 1);
    }
    let (left, right) = places(area, vm.each_vcpu.len());
    let (vcpus, statistics) = (vcpus(vm), statistics(vm));
    let beyond = |rows: &[Row], area: Rect| rows.len().saturating_sub(area.height.saturating_sub(2).into());
    let (last_vcpu, last_statistic) = (beyond(&vcpus, left), beyond(&statistics, right));
    app.scroll = app.scroll.min(last_vcpu.max(last_statistic));
    let style = Style::new().bold();
    // A column has room, or is left out.
    let mut end = 0;
    let fits = |(_, width): &([&str; 2], u16)| {
        end += width + 1;
        end - 1 <= left.width
    };
    let figures = FIGURES.map(|(figure, width)| (figure.short, width));
    let all = [(["vCPU", ""], 4), (["thread", ""], 7)].into_iter().chain(figures);
    let columns: Vec<_> = all.take_while(fits).collect();
    let head = columns.iter().enumerate().map(|(n, (lines, _))| {
        heading(lines, if n == 0 { Alignment::Left } else { Alignment::Right }, style)
    });
    let widths: Vec<_> = columns.iter().map(|(_, width)| Constraint::Length(*width)).collect();
    let rows = vcpus.into_iter().skip(app.scroll.min(last_vcpu));
    frame.render_widget(Table::new(rows, widths).header(Row::new(head).height(2)), left);
    let head = [
        heading(&["KVM's statistics", ""], Alignment::Left, style),
        heading(&["/s", ""], Alignment::Right, style),
    ];
    let rows = statistics.into_iter().skip(app.scroll.min(last_statistic));
    let widths = STATISTICS.map(Constraint::Length);
    frame.render_widget(Table::new(rows, widths).header(Row::new(head).height(2)), right);
}

/// The places of the vCPUs and of KVM's statistics: beside each other where there is room.
fn places(mut area: Rect, vcpus: usize) -> (Rect, Rect) {
    if area.width >= BESIDE {
        let left = Rect { width: VCPUS_WIDTH, ..area };
        let x = area.x + VCPUS_WIDTH;
        (left, Rect { x, width: (area.width - VCPUS_WIDTH).min(STATISTICS[0] + STATISTICS[1] + 1), ..area })
    } else {
        // A line for each vCPU, but half of the screen at most.
        let lines = u16::try_from(vcpus).unwrap_or(u16::MAX).saturating_add(2).min(area.height / 2);
        let left = take(&mut area, lines);
        (left, area)
    }
}

fn vcpus(vm: &Vm) -> Vec<Row<'static>> {
    let row = |v: &crate::full::top::app::Vcpu| {
        let figures = FIGURES.iter().map(|(figure, _)| text(figure, (figure.number)(&v.figures), false));
        numbers(v.number.to_string(), std::iter::once(v.thread.to_string()).chain(figures))
    };
    vm.each_vcpu.iter().map(row).collect()
}

/// What KVM counted, the most frequent first; then times, and states at the interval's end.
fn statistics(vm: &Vm) -> Vec<Row<'static>> {
    let known = |kind| {
        let of = move |s: &&Statistic| s.kind() == kind;
        Statistic::ALL.iter().filter(of).filter_map(|s| Some((s.name(), vm.statistics.get(*s)?)))
    };
    let per_second = |n: u64| Some(n as f64 / vm.seconds).filter(|n| n.is_finite());
    let mut counts: Vec<_> = known(Kind::Count).collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let counts = counts.into_iter().map(|(name, n)| numbers(name.into(), [rate(per_second(n), true)]));
    let times = known(Kind::Nanoseconds).map(|(name, ns)| {
        let share = per_second(ns).map(|s| s / 1e9);
        let name = name.strip_suffix("_ns").unwrap_or(name);
        numbers(name.into(), [format!("{} %", percent(share))])
    });
    let states = known(Kind::Level)
        .map(|(name, n)| numbers(name.into(), [format!("now {}", rate(Some(n as f64), false))]));
    counts.chain(times).chain(states).collect()
}

fn memory(frame: &mut Frame, vm: &Vm, mut area: Rect) {
    let mib = |bytes: u64| format!("{} MiB", grouped(bytes >> 20));
    let (pages, nodes) = match &vm.backing {
        None => (UNKNOWN.into(), UNKNOWN.into()),
        Some(b) => {
            let sizes = [("4 KB", b.small), ("2 MB", b.huge), ("1 GB", b.giant)];
            let pages = sizes.map(|(size, bytes)| format!("{size}: {}", mib(bytes))).join("   ");
            let nodes: Vec<_> =
                b.nodes.iter().map(|(n, bytes)| format!("node {n}: {}", mib(*bytes))).collect();
            (pages, if nodes.is_empty() { UNKNOWN.into() } else { nodes.join("   ") })
        }
    };
    let named = |name: &str| Span::styled(format!("{name:<12}"), Style::new().bold());
    for (name, text) in [("host pages", pages), ("NUMA", nodes)] {
        frame.render_widget(Line::from_iter([named(name), text.into()]), take(&mut area, 1));
    }
    for advice in &vm.advice {
        let text = Line::from_iter([named("advice"), advice.as_str().into()]);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), take(&mut area, ADVICE));
    }
}
