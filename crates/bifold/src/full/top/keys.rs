// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What keys do, as users of top, htop and virt-top expect.

use super::app::{App, Page, SHORTEST};
use super::column::COLUMNS;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// Keys and what they do, for the page of help.
pub const HELP: [(&str, &str); 10] = [
    ("Up Down j k", "select a VM; also PgUp PgDn Home End"),
    ("Enter", "open the page of the selected VM"),
    ("Esc q", "back; in the list, q ends"),
    ("/", "VMs whose name contains a text; Enter keeps it, Esc clears"),
    ("< > s", "sort by the column to the left or right"),
    ("r", "reverse the order"),
    ("+ -", "longer or shorter intervals"),
    ("Space", "pause; the next interval begins where the last one ended"),
    ("? h", "this help"),
    ("Ctrl-C", "end"),
];

/// Lengths of an interval that + and - choose from, in milliseconds.
const LENGTHS: [u64; 10] =
    [SHORTEST.as_millis() as u64, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000];
/// Lines of PgUp and PgDn.
const MANY: usize = 10;
/// Longest text of the filter.
const LONGEST: usize = 60;

impl App {
    /// Carries out a key.
    pub fn key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let control = key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => self.done = true,
            KeyCode::Char(_) if control => {}
            code if self.help => self.key_of_help(code),
            code if self.typing => self.key_of_filter(code),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => (self.help, self.scroll) = (true, 0),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.longer(),
            KeyCode::Char('-') => self.shorter(),
            code if self.page == Page::List => self.key_of_list(code),
            code => self.key_of_vm(code),
        }
    }

    fn key_of_list(&mut self, code: KeyCode) {
        let last = COLUMNS.len() - 1;
        match code {
            KeyCode::Char('q') => self.done = true,
            KeyCode::Esc if self.filter.is_empty() => self.done = true,
            KeyCode::Esc => self.filter(String::new()),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Enter => {
                if let Some(id) = self.selected {
                    self.chosen = true;
                    (self.page, self.scroll) = (Page::Vm(id), 0);
                }
            }
            KeyCode::Char('s' | '>') => {
                self.sort_by(if self.sort == last { 0 } else { self.sort + 1 }, self.reversed)
            }
            KeyCode::Char('<') => self.sort_by(self.sort.checked_sub(1).unwrap_or(last), self.reversed),
            KeyCode::Char('r') => self.sort_by(self.sort, !self.reversed),
            code => {
                if let Some(place) = moved(code, self.place()) {
                    self.chosen = true;
                    self.select(place);
                }
            }
        }
    }

    fn key_of_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter(String::new());
            }
            KeyCode::Backspace => {
                let mut text = self.filter.clone();
                text.pop();
                self.filter(text);
            }
            KeyCode::Char(c) if self.filter.chars().count() < LONGEST => {
                self.filter(format!("{}{c}", self.filter));
            }
            _ => {}
        }
    }

    fn key_of_vm(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => self.page = Page::List,
            code => self.scroll = moved(code, self.scroll).unwrap_or(self.scroll),
        }
    }

    fn key_of_help(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q' | '?' | 'h') | KeyCode::Esc | KeyCode::Enter | KeyCode::F(1) => {
                (self.help, self.scroll) = (false, 0);
            }
            code => self.scroll = moved(code, self.scroll).unwrap_or(self.scroll),
        }
    }

    fn filter(&mut self, text: String) {
        let place = self.place();
        self.filter = text;
        self.settle(place);
    }

    fn sort_by(&mut self, column: usize, reversed: bool) {
        (self.sort, self.reversed) = (column, reversed);
        self.settle(0);
    }

    fn longer(&mut self) {
        let longer = LENGTHS.into_iter().map(Duration::from_millis).find(|l| *l > self.interval);
        self.interval = longer.unwrap_or(self.interval);
    }

    fn shorter(&mut self) {
        let shorter = LENGTHS.into_iter().rev().map(Duration::from_millis).find(|l| *l < self.interval);
        self.interval = shorter.unwrap_or(self.interval);
    }
}

/// The place that a key leads to; the end of a list is wherever its user says.
fn moved(code: KeyCode, place: usize) -> Option<usize> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => place.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => place.saturating_add(1),
        KeyCode::PageUp => place.saturating_sub(MANY),
        KeyCode::PageDown => place.saturating_add(MANY),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => return None,
    })
}
