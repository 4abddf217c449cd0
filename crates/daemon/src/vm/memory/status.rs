// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon says of a guest: news for the log, events for `explain`, and its status.

use super::control::{Kind, Under};
use super::{HOUR, LONGEST, MIB, MemoryHalf, OLD, PAUSE};
use crate::status::GuestStatus;
use bifold_host::printable;
use bifold_live::order::mib;
use std::time::Duration;

impl MemoryHalf {
    /// Takes the news of the guest's thread, and its findings. Returns what the log is to have.
    pub fn news(&mut self, up: Duration) -> Vec<String> {
        let mut said = Vec::new();
        for news in self.control.news() {
            match news.kind {
                Kind::Note => {}
                Kind::Holds => (self.pause, self.totals.held) = (PAUSE, self.totals.held + 1),
                Kind::Refused | Kind::Ended | Kind::Lost => {
                    let refused = news.kind == Kind::Refused;
                    self.lost |= news.kind == Kind::Lost;
                    self.totals.refused += u64::from(refused);
                    self.totals.ended += u64::from(!refused);
                    let why = format!("{}; the next order comes in {} s", news.text, self.pause.as_secs());
                    self.paused = Some((up.saturating_add(self.pause), why));
                    self.pause = (2 * self.pause).min(LONGEST);
                }
                Kind::Another => {
                    self.totals.ended += 1;
                    self.another = Some(format!(
                        "{}: no order follows until the configuration is read again",
                        news.text
                    ));
                }
            }
            let refused = news.kind == Kind::Refused;
            said.push(if refused { format!("gets no order: {}", news.text) } else { news.text });
        }
        for finding in self.findings() {
            if self.found.insert(finding.rule) {
                said.push(printable(&format!("has a finding: {}: {}", finding.what, finding.how)));
            }
        }
        said
    }

    fn findings(&self) -> Vec<bifold_live::memory::rules::Finding> {
        let mut all = self.control.findings();
        // That is what the daemon decides itself.
        all.retain(|f| !(self.rule.act && f.rule == "could-give"));
        all
    }

    pub fn status(&self, up: Duration, every: Duration) -> GuestStatus {
        let (sight, silent) = self.control.sight();
        let under = self.control.under();
        let inside = sight.as_ref().and_then(|s| self.inside(s, up, every));
        let refused = || sight.as_ref().and_then(|s| s.refused.clone());
        let held = self.hold.filter(|hold| hold.lasts(up));
        let (state, note) = match (held, &self.another, &self.paused) {
            _ if silent.is_some() || sight.is_none() => ("not seen", silent.clone()),
            _ if !self.rule.act => ("observes", refused().or(self.missing.clone())),
            (Some(hold), ..) => ("held", Some(hold.left(up))),
            (_, Some(why), _) => ("cannot", Some(why.clone())),
            _ if under.is_none() && refused().is_some() => ("blocked", refused()),
            (.., Some((until, why))) if *until > up => ("blocked", Some(why.clone())),
            _ => ("acts", self.missing.clone().or_else(|| under.and_then(of_order))),
        };
        let report =
            self.reported.as_ref().filter(|(at, _)| up.saturating_sub(*at) <= OLD).map(|(_, view)| view);
        GuestStatus {
            pid: self.live.pid,
            name: self.live.name.clone(),
            vm: self.live.vm.map(|id| id.to_string()),
            rule: self.pattern.clone(),
            state: state.into(),
            note,
            size_bytes: under.map(|u| u.size).or(sight.as_ref().map(|s| s.size.size)),
            found_bytes: sight.as_ref().map(|s| self.all(s)),
            resident_bytes: sight.as_ref().and_then(|s| s.size.resident),
            free_bytes: inside.and_then(|i| i.free),
            available_bytes: inside.and_then(|i| i.available),
            known_by: inside.map(|i| i.from.to_owned()),
            refaults: report.and_then(|r| r.refaults),
            major_faults: report.and_then(|r| r.major_faults),
            waited_us: report.and_then(|r| r.waited_us),
            wants_bytes: self.wish.as_ref().map(|w| w.size),
            why: self.wish.as_ref().map(|w| w.why.clone()),
            done: self.done.as_ref().map(|d| d.word().to_owned()),
            ordered_bytes: self.control.ordered(),
            orders_in_hour: self.takes.iter().filter(|at| up.saturating_sub(**at) <= HOUR).count() as u64,
            findings: self.findings().into_iter().map(|f| format!("{}: {}", f.what, f.how)).collect(),
            totals: self.totals,
        }
    }
}
/// What an order does that is under way.
fn of_order(under: Under) -> Option<String> {
    let taken = under.found.saturating_sub(under.size);
    Some(match under.holds {
        None if taken < MIB => "an order begins".into(),
        None => format!("{} MiB are taken so far", mib(taken)),
        Some(true) => format!("{} MiB are taken", mib(taken)),
        Some(false) => format!("{} MiB are taken, down to its least size", mib(taken)),
    })
}
