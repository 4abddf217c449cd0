// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the profile says of values that were measured, refused or not reached.

use crate::estimate::Estimate;
use crate::rounds::End;
use crate::survey::{Part, Survey};
use bifold_model::Unmeasured;
use std::cell::RefCell;

/// A value of the profile that the survey was to give and did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwritten {
    /// The dotted key.
    pub key: String,
    /// Whether the measurement was refused or not reached.
    pub why: Unmeasured,
    /// Why a measurement was refused, with its interval; empty if it was not reached.
    pub reason: String,
    /// What the profile has in its place: `as zen4's`.
    pub stands: String,
}

impl Unwritten {
    /// The note of each refused value, and one of all that were not reached; each a sentence without its full
    /// stop.
    pub fn notes(all: &[Unwritten], ended: Option<End>) -> Vec<String> {
        let is = |why: Unmeasured| all.iter().filter(move |u| u.why == why);
        let refused = |u: &Unwritten| {
            format!("{} was refused, because {}; in the profile: {}", u.key, u.reason, u.stands)
        };
        let mut out: Vec<String> = is(Unmeasured::Refused).map(refused).collect();
        // Neighbours with the same stand-in share the words for the stand-in.
        let missing: Vec<&Unwritten> = is(Unmeasured::NotReached).collect();
        let keys: Vec<String> = missing
            .chunk_by(|a, b| a.stands == b.stands)
            .map(|same| {
                let keys: Vec<&str> = same.iter().map(|u| &u.key[..]).collect();
                format!("{} ({})", keys.join(", "), same[0].stands)
            })
            .collect();
        if !keys.is_empty() {
            let why = match ended {
                Some(End::Stopped) => "a signal ended the survey",
                _ => "--limit ended the survey, which needs more seconds here",
            };
            out.push(format!("not reached, because {why}: {}", keys.join("; ")));
        }
        out
    }
}

/// What a table of the profile says of a key.
pub(super) enum Taken {
    /// A value that may be written as measured.
    Measured(Estimate),
    /// What `prior` says of a key that keeps another value.
    Prior(String),
}

/// What a table says of its values' origins.
#[derive(Default)]
pub(super) struct Origins {
    /// Of measured values.
    pub source: Vec<String>,
    /// Of the others.
    pub prior: Vec<String>,
}

impl Origins {
    /// The value if it is measured; otherwise `prior` says why it is not.
    pub fn measured(&mut self, value: Taken) -> Option<Estimate> {
        match value {
            Taken::Measured(estimate) => Some(estimate),
            Taken::Prior(why) => {
                self.prior.push(why);
                None
            }
        }
    }
}

/// What goes into every table's words.
pub(super) struct Words<'a> {
    pub base: &'a str,
    pub date: &'a str,
    not_reached: &'a [Part],
    /// How measured times contradict those of the base profile: no time of a cache or of memory is written
    /// then.
    contradiction: Option<&'a str>,
    pub unwritten: RefCell<Vec<Unwritten>>,
}

impl<'a> Words<'a> {
    pub fn new(
        base: &'a str,
        date: &'a str,
        survey: &'a Survey,
        contradiction: Option<&'a str>,
    ) -> Words<'a> {
        Words { base, date, not_reached: &survey.not_reached, contradiction, unwritten: RefCell::default() }
    }

    /// That the base profile's value stands.
    pub fn base_s(&self) -> String {
        format!("as {}'s", self.base)
    }

    pub fn reached(&self, part: Part) -> bool {
        !self.not_reached.contains(&part)
    }

    /// The value if it may be written as measured; otherwise what `prior` says of the key, whose value is
    /// `stands`.
    pub fn take(
        &self,
        part: Part,
        [table, key]: [&str; 2],
        value: Option<Estimate>,
        digits: usize,
        stands: &str,
    ) -> Taken {
        let Some(e) = value else {
            return Taken::Prior(match self.reached(part) {
                true => format!("{key}: {stands}"),
                false => self.not_reached([table, key], stands),
            });
        };
        let contradicts = || {
            let is_time = key == "cycles" && (table == "memory" || table.starts_with("cache."));
            let what = self.contradiction.filter(|_| is_time)?;
            Some(format!("{} contradicts another value ({what})", spread(&e, digits)))
        };
        match e.refusal().map(|r| r.of(&spread(&e, digits))).or_else(contradicts) {
            None => Taken::Measured(e),
            Some(reason) => Taken::Prior(self.refused([table, key], reason, stands)),
        }
    }

    /// What `prior` says of a key whose part of the survey is not complete.
    pub fn not_reached(&self, key: [&str; 2], stands: &str) -> String {
        self.unwritten(key, Unmeasured::NotReached, String::new(), stands)
    }

    /// What `prior` says of a key whose measurement was refused.
    pub fn refused(&self, key: [&str; 2], reason: String, stands: &str) -> String {
        self.unwritten(key, Unmeasured::Refused, reason, stands)
    }

    fn unwritten(&self, [table, key]: [&str; 2], why: Unmeasured, reason: String, stands: &str) -> String {
        let because = if reason.is_empty() { String::new() } else { format!(", because {reason}") };
        let text = format!("{key}: {}{because}: {stands}", why.word());
        let key = format!("{table}.{key}");
        self.unwritten.borrow_mut().push(Unwritten { key, why, reason, stands: stands.into() });
        text
    }
}

/// `12.3 (12.1 to 12.6)`.
pub(super) fn spread(e: &Estimate, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$} to {:.digits$})", e.median, e.low, e.high)
}
