// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the list: a line for each VM, and below it what is not known here.

use super::{TerminalStyle, heading, keys, right, take, take_bottom, title};
use crate::full::top::app::App;
use crate::full::top::column::{COLUMNS, Column, NAME_WIDTH};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};

/// Columns of a screen on which headings and rates have more room.
const WIDE: u16 = 120;
/// Narrower, the list has no name any more, only its first characters.
const SHORTEST_NAME: u16 = 8;

/// Draws the page.
pub fn draw(frame: &mut Frame, app: &mut App, look: TerminalStyle, mut area: Rect) {
    let wide = area.width >= WIDE;
    let all = app.visible();
    let column = COLUMNS[app.sort].name;
    let order = if app.reversed { ", reversed" } else { "" };
    let vms = if app.vms.len() == 1 { "VM" } else { "VMs" };
    let mut words = format!("bifold top: {} {vms}, sorted by {column}{order}", app.vms.len());
    if !app.filter.is_empty() {
        words += &format!(", {} with {}", all.len(), app.filter);
    }
    title(frame, app, words.into(), take(&mut area, 1));
    bottom(frame, app, take_bottom(&mut area, 1));
    notes(frame, app, &mut area);

    let columns = columns(area.width, wide);
    let head = columns.iter().map(|(place, c, _)| {
        let style = if *place == app.sort { Style::new().bold().reversed() } else { Style::new().bold() };
        heading(if wide { &c.wide.0 } else { &c.narrow.0 }, alignment(*place), style)
    });
    let rows = all.iter().map(|id| {
        let vm = &app.vms[id];
        Row::new(columns.iter().map(|(place, c, _)| match c.name {
            "mode" => Cell::from((c.text)(vm, wide)).style(look.of_mode(vm.state)),
            _ if alignment(*place) == Alignment::Left => Cell::from((c.text)(vm, wide)),
            _ => right((c.text)(vm, wide)),
        }))
    });
    let table = Table::new(rows, columns.iter().map(|(.., width)| Constraint::Length(*width)))
        .header(Row::new(head).height(2))
        .row_highlight_style(Style::new().reversed());
    app.table.select((!all.is_empty()).then(|| app.place()));
    if all.is_empty() {
        *app.table.offset_mut() = 0;
    }
    frame.render_stateful_widget(table, area, &mut app.table);
    if all.is_empty() && !app.vms.is_empty() {
        take(&mut area, 2);
        frame.render_widget(Line::from(format!("no VM has {} in its name", app.filter)), area);
    }
}

/// Name and mode are text, all others numbers.
fn alignment(place: usize) -> Alignment {
    if place < 2 { Alignment::Left } else { Alignment::Right }
}

/// The columns that have room, with their places and widths. The name gets what the others leave.
fn columns(room: u16, wide: bool) -> Vec<(usize, &'static Column, u16)> {
    let width = |c: &Column| if wide { c.wide.1 } else { c.narrow.1 };
    let mut columns: Vec<_> = COLUMNS.iter().enumerate().map(|(place, c)| (place, c, width(c))).collect();
    let others = |columns: &[(usize, &Column, u16)]| columns[1..].iter().map(|(.., w)| w + 1).sum::<u16>();
    while columns.len() > 1 && others(&columns) + SHORTEST_NAME > room {
        columns.pop();
    }
    columns[0].2 = room.saturating_sub(others(&columns)).max(1);
    debug_assert!(room < 80 || columns[0].2 >= NAME_WIDTH);
    columns
}

/// What is not known here, a line each. The page of help has the whole sentences.
fn notes(frame: &mut Frame, app: &App, area: &mut Rect) {
    if app.notes.is_empty() || area.height < 8 {
        return;
    }
    let lines = u16::try_from(app.notes.len()).unwrap_or(u16::MAX).min(area.height / 4);
    let text = Paragraph::new(app.notes.join("\n"));
    frame.render_widget(text, take_bottom(area, lines));
}

fn bottom(frame: &mut Frame, app: &App, area: Rect) {
    if app.typing {
        let text = Line::from(format!("Name contains: {}_   Enter keeps, Esc clears", app.filter));
        return frame.render_widget(text, area);
    }
    let all = [
        ("q", "end"),
        ("Enter", "VM"),
        ("/", "filter"),
        ("<>", "sort"),
        ("r", "reverse"),
        ("+-", "interval"),
        ("Space", "pause"),
        ("?", "help"),
    ];
    keys(frame, &all, area);
}
