// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the state: one file for each page, and here what pages share and the page of help.
//!
//! A screen may have any size. What has no room is left out from the bottom or the right.

mod history;
mod list;
mod vm;

use super::app::{App, Page};
use super::column::COLUMNS;
use super::keys::HELP;
use bifold_host::Mode;
use bifold_host::State;
use ratatui::Frame;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Wrap};

/// What this terminal can show.
#[derive(Debug, Clone, Copy, Default)]
pub struct TerminalStyle {
    /// Only ASCII characters.
    pub ascii: bool,
    pub colors: bool,
}

impl TerminalStyle {
    fn color(self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    fn of_mode(self, state: Option<State>) -> Style {
        match state {
            Some(State::In(Mode::Nested)) => self.color(Color::Green),
            Some(State::In(Mode::Shadow)) => self.color(Color::Cyan),
            Some(State::To(_)) => self.color(Color::Yellow).bold(),
            None => Style::new(),
        }
    }
}

/// Draws the page.
pub fn draw(frame: &mut Frame, app: &mut App, look: TerminalStyle) {
    let area = frame.area();
    match app.page {
        _ if app.help => help(frame, app, area),
        Page::Vm(id) if app.vms.contains_key(&id) => vm::draw(frame, app, id, look, area),
        _ => list::draw(frame, app, look, area),
    }
}

/// Takes lines off the top of an area, as many as there are.
fn take(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    let top = Rect { height: lines, ..*area };
    *area = Rect { y: area.y + lines, height: area.height - lines, ..*area };
    top
}

/// Takes lines off the bottom of an area.
fn take_bottom(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    area.height -= lines;
    Rect { y: area.y + area.height, height: lines, ..*area }
}

/// The first line: what is shown, and on the right whether the display is paused.
fn title(frame: &mut Frame, app: &App, left: Line, area: Rect) {
    let right =
        if app.paused { " paused ".into() } else { format!(" every {} s ", app.interval.as_secs_f64()) };
    let width = (right.len() as u16).min(area.width);
    let [a, b] =
        [Rect { width: area.width - width, ..area }, Rect { x: area.right() - width, width, ..area }];
    frame.render_widget(left.style(Style::new().bold()), a);
    let style = if app.paused { Style::new().reversed() } else { Style::new() };
    frame.render_widget(Line::styled(right, style), b);
}

/// The last line: what keys do.
fn keys(frame: &mut Frame, keys: &[(&str, &str)], area: Rect) {
    let spans = keys
        .iter()
        .flat_map(|(key, does)| [Span::styled(*key, Style::new().reversed()), format!(" {does}  ").into()]);
    frame.render_widget(Line::from_iter(spans), area);
}

/// A heading over a column.
fn heading<'a>(lines: &[&'a str], alignment: Alignment, style: Style) -> Cell<'a> {
    let lines = lines.iter().map(|l| Line::from(*l).alignment(alignment));
    Cell::from(ratatui::text::Text::from_iter(lines)).style(style)
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

/// A row whose first column is text and whose others are numbers.
fn numbers(first: String, others: impl IntoIterator<Item = String>) -> Row<'static> {
    Row::new(std::iter::once(Cell::from(first)).chain(others.into_iter().map(right)))
}

fn help(frame: &mut Frame, app: &mut App, mut area: Rect) {
    let bottom = take_bottom(&mut area, 1);
    let width = HELP.iter().map(|(key, _)| key.len()).chain(COLUMNS.iter().map(|c| c.name.len())).max();
    let width = width.unwrap_or(0);
    let head = |text: &'static str| Line::styled(text, Style::new().bold());
    let line = |(name, text): (&str, &str)| Line::from(format!("  {name:width$}  {text}"));
    let mut lines = vec![head("Keys")];
    lines.extend(HELP.map(line));
    lines.extend([Line::default(), head("Columns of the list; what is unknown is -")]);
    lines.extend(COLUMNS.each_ref().map(|c| line((c.name, c.doc))));
    if !app.notes.is_empty() {
        lines.extend([Line::default(), head("Unknown here")]);
        lines.extend(app.notes.iter().map(|n| Line::from(format!("  {n}"))));
    }
    app.scroll = app.scroll.min(lines.len() - 1);
    let text = Paragraph::new(lines.split_off(app.scroll)).wrap(Wrap { trim: false });
    frame.render_widget(text, area);
    keys(frame, &[("Esc", "back"), ("Up Down", "scroll")], bottom);
}
