// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws a VM's last intervals: a sparkline for each figure, the newest interval on the right, and below them
//! the mode of each interval.

use super::{TerminalStyle, take};
use crate::full::top::app::Moment;
use crate::full::top::column::text;
use bifold_live::Figure;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::symbols::bar;
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline};
use std::collections::VecDeque;

/// Lines of the history: a heading, a line for each figure, modes.
pub const LINES: u16 = 6;
/// The same with two lines for each figure.
pub const TALL: u16 = 10;

/// Columns left of the sparklines: name, value now, most.
const LEFT: u16 = 29;

/// Bars of ASCII characters.
const ASCII: bar::Set = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "*",
    five_eighths: "+",
    half: "=",
    three_eighths: "-",
    one_quarter: ":",
    one_eighth: ".",
    empty: " ",
};

/// A figure over time: its name, and what a full bar means; without that, the most that was seen.
type Series = (&'static str, &'static Figure, Option<f64>);

const SERIES: [Series; 4] = [
    ("exits /s", &Figure::EXITS, None),
    ("page faults /s", &Figure::PAGE_FAULTS, None),
    ("ran %", &Figure::RAN, Some(1.0)),
    ("walks % cycles", &Figure::WALKS, None),
];

/// Draws the intervals.
pub fn draw(frame: &mut Frame, history: &VecDeque<Moment>, look: TerminalStyle, mut area: Rect) {
    let bars = area.width.saturating_sub(LEFT);
    let shown = history.len().min(bars.into());
    let lines = if area.height >= TALL { 2 } else { 1 };
    let line = |left: String, right: String| {
        Line::from_iter([Span::from(format!("{left:<width$}", width = LEFT.into())), right.into()])
    };
    let left = format!("{:<14} {:>6} {:>6}", "history", "now", "most");
    let right = format!("last {shown} intervals, the newest on the right");
    frame.render_widget(line(left, right).style(Style::new().bold()), take(&mut area, 1));
    let newest_first = || history.iter().rev().take(shown);
    for (name, figure, full) in SERIES {
        let values: Vec<_> = newest_first().map(|m| (figure.number)(&m.figures)).collect();
        let most = values.iter().flatten().copied().reduce(f64::max);
        let now = values.first().copied().flatten();
        let [now, most_text] = [now, most].map(|n| text(figure, n, false));
        let left = format!("{name:<14} {now:>6} {most_text:>6}");
        let mut place = take(&mut area, lines);
        frame.render_widget(line(left, String::new()), Rect { height: place.height.min(1), ..place });
        place.x = place.x.saturating_add(LEFT).min(place.right());
        place.width = bars;
        // Sparklines take whole numbers.
        let full = full.or(most).filter(|m| *m > 0.0).unwrap_or(1.0);
        let scaled = values.into_iter().map(|v| v.map(|v| (1000.0 * v / full).clamp(0.0, 1000.0) as u64));
        let sparkline = Sparkline::default()
            .data(scaled)
            .max(1000)
            .direction(RenderDirection::RightToLeft)
            .bar_set(if look.ascii { ASCII } else { bar::NINE_LEVELS })
            .absent_value_symbol(" ")
            .style(look.color(Color::Blue));
        frame.render_widget(sparkline, place);
    }
    let mut marks: Vec<char> = newest_first().map(mark).collect();
    marks.extend(std::iter::repeat_n(' ', usize::from(bars) - shown));
    let marks = marks.into_iter().rev().collect();
    frame.render_widget(line("mode (n, s; * switched)".into(), marks), take(&mut area, 1));
}

/// The mode of an interval in one character.
fn mark(moment: &Moment) -> char {
    match (moment.mode, moment.switches) {
        (Some(mode), _) => mode.name().chars().next().unwrap_or('?'),
        (None, Some(n)) if n > 0 => '*',
        (None, _) => '-',
    }
}
