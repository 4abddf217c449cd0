// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an interval of a VM leads to.

use super::switcher::Switcher;
use crate::config::Config;
use crate::pilot::{Choice, Verdict};
use crate::record::DecisionLine;
use crate::vm::mode::{Done, ModeHalf, NotSwitched};
use bifold_live::{Interval, IntervalRow, Observation};

impl Switcher {
    /// Finds the rule of a VM that has none yet, or was renamed.
    pub fn find_rule(&mut self, vm: &mut ModeHalf, config: &Config) {
        let Some(watched) = self.watch.vm(vm.id) else { return };
        if vm.has_rule_for(watched.name.as_deref()) {
            return;
        }
        if let Some(text) = vm.take_rule(watched, config, self.homes.get(vm.id).is_some()) {
            vm.tell(&mut self.log, &text);
        }
    }

    /// Takes an interval, records it, and carries out what is decided.
    pub fn interval(&mut self, vm: &mut ModeHalf, interval: &Interval, config: &Config) {
        self.find_rule(vm, config);
        let Some(watched) = self.watch.vm(vm.id) else { return };
        let seen = Observation::of(interval);
        if let Some(recorder) = &mut self.recorder {
            recorder.reading(&IntervalRow::observed(self.log.time, watched, interval, &seen));
        }
        vm.count(&seen, interval);
        let choice = vm.interval(&seen);
        if let Some(text) = vm.new_missing() {
            vm.tell(&mut self.log, &text);
        }
        if let Some(choice) = choice {
            self.decided(vm, choice);
        }
    }

    /// Carries a decision out, and writes down what became of it.
    fn decided(&mut self, vm: &mut ModeHalf, choice: Choice) {
        // The mode as KVM knows it.
        let to = choice.decision.mode.switchable();
        if let Some(to) = to.filter(|_| choice.verdict == Verdict::Switch) {
            self.look(vm, to);
        }
        vm.totals.decisions += 1;
        let may_not = to.and_then(|to| vm.may_not(to, self.log.up));
        let done = match (choice.verdict, to) {
            (Verdict::Stay, _) => Done::Stayed,
            (_, None) => Done::NotSwitched(NotSwitched::NoMode(choice.decision.mode.words())),
            (Verdict::Switch, Some(to)) => {
                may_not.unwrap_or_else(|| self.switch(vm, to).unwrap_or_else(Done::NotSwitched))
            }
            (Verdict::TooEarly { left_s }, _) => Done::NotSwitched(NotSwitched::TooEarly(left_s)),
            (Verdict::TooMany { switches }, _) => Done::NotSwitched(NotSwitched::TooMany(switches)),
        };
        let line = DecisionLine {
            schema: DecisionLine::schema(),
            time: self.log.time,
            vm: vm.id.to_string(),
            name: vm.name.clone(),
            policy: vm.policy.clone().unwrap_or_default(),
            now: choice.now.name().into(),
            wants: choice.decision.mode.name().into(),
            verdict: choice.verdict.word().into(),
            done: done.to_string(),
            why: choice.decision.why.clone(),
        };
        let text = format!("{} mode, wants {}: {} ({})", line.now, line.wants, line.done, line.why);
        // Every decision is recorded. The log has those that differ from the last.
        let news = vm.is_news(choice.decision.mode, &done);
        vm.remember(self.log.time, text.clone(), choice);
        if let Some(recorder) = &mut self.recorder {
            recorder.line(&line);
        }
        if news {
            vm.say(&mut self.log, &text);
        }
    }
}
