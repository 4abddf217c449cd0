// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon remembers of a VM's paging mode: rule, policy, limits, and what has become of decisions.

mod done;
mod obstacle;
mod stays;

pub use done::{Done, NotSwitched};
pub use obstacle::ObstacleCheck;
pub use stays::{EarlyEnd, Stays};

use super::Hold;
use crate::config::{Config, Rule};
use crate::log::{Log, RecentEvents};
use crate::pilot::{Choice, Pilot, Switches, Verdict};
use crate::status::{Totals, VmStatus};
use bifold_host::{Mode, Obstacle, State, Statistic, VmId, printable};
use bifold_live::{Interval, Observation, Watched};
use std::time::Duration;

/// Number of a VM's intervals after which a missing counter is reported.
const TELL_MISSING: u64 = 5;

/// The mode of a VM.
pub struct ModeHalf {
    pub id: VmId,
    pub name: Option<String>,
    pub pid: u32,
    /// When the VM's process started, in ticks since boot.
    pub started: u64,
    pub pilot: Option<Pilot>,
    pub switches: Switches,
    pub policy: Option<String>,
    rule: Option<Rule>,
    never: bool,
    acts: bool,
    /// Whether the rule is the one for the VM's present name and the present configuration.
    has_rule: bool,
    /// Whether a rule was looked for before.
    named: bool,
    pub hold: Option<Hold>,
    /// Is to return to its own mode, because a user asked.
    pub wants_home: bool,
    /// Why KVM will never switch this VM.
    pub cannot: Option<String>,
    /// The last look whether KVM would refuse a switch.
    pub look: Option<ObstacleCheck>,
    /// Not before this time since the daemon's start: KVM refused.
    pub again: Duration,
    /// Stays in shadow paging, and the pause after those that ended early.
    pub stays: Stays,
    pub totals: Totals,
    load: Option<f64>,
    last: Option<Choice>,
    /// The last decision in the log: the wish, and what was done.
    logged: Option<(bifold_policy::Mode, Done)>,
    intervals: u64,
    told_missing: bool,
    pub recent: RecentEvents,
}

impl ModeHalf {
    /// A VM that is seen for the first time; one whose mode is the doing of an earlier daemon is `adopted`.
    pub fn new(watched: &Watched, started: u64, adopted: bool) -> ModeHalf {
        ModeHalf {
            id: watched.id,
            name: watched.name.clone(),
            pid: watched.pid,
            started,
            pilot: None,
            switches: if adopted { Switches::just_now() } else { Switches::default() },
            policy: None,
            rule: None,
            never: false,
            acts: false,
            has_rule: false,
            named: false,
            hold: None,
            wants_home: false,
            cannot: None,
            look: None,
            again: Duration::ZERO,
            stays: Stays::default(),
            totals: Totals::default(),
            load: None,
            last: None,
            logged: None,
            intervals: 0,
            told_missing: false,
            recent: RecentEvents::default(),
        }
    }

    /// The VM in words: its identifier, and its name with control characters escaped.
    fn who(&self) -> String {
        let name = self.name.as_ref().map(|name| format!(" ({})", printable(name)));
        format!("VM {}{}", self.id, name.unwrap_or_default())
    }

    /// Has the log say something about the VM. Returns the log's line.
    pub fn say(&self, log: &mut Log, text: &str) -> String {
        let line = format!("{} {text}", self.who());
        log.say(Some(self.id), line.clone());
        line
    }

    /// Notes something that happened to the VM, in the log and in the VM's own history. Returns the log's
    /// line.
    pub fn tell(&mut self, log: &mut Log, text: &str) -> String {
        self.recent.add(log.time, text.into());
        self.say(log, text)
    }

    /// Lets the rule be looked for again, as the configuration is another.
    pub fn forget_rule(&mut self) {
        (self.has_rule, self.cannot, self.look) = (false, None, None);
    }

    pub fn has_rule_for(&self, name: Option<&str>) -> bool {
        self.has_rule && self.name.as_deref() == name
    }

    /// Restarts the policy, because the intervals that it gets are about to change.
    pub fn forget_policy(&mut self) {
        self.rule = None;
    }

    /// Takes the rule that the configuration has for the VM. Returns what that means, in words, unless all is
    /// as before. `away`: the VM's mode is the daemon's doing.
    pub fn take_rule(&mut self, watched: &Watched, config: &Config, away: bool) -> Option<String> {
        self.name = watched.name.clone();
        let name = self.name.as_deref();
        let rule = config.rule(watched.id, name);
        self.has_rule = true;
        let never = config.is_never(watched.id, name);
        if self.named && rule == self.rule.as_ref() && never == self.never {
            // A policy keeps what it has learnt.
            return None;
        }
        (self.named, self.never) = (true, never);
        self.acts = rule.is_some_and(|r| r.act);
        self.rule = rule.cloned();
        self.policy = rule.and_then(|r| r.policy()).map(String::from);
        self.pilot = rule.and_then(|r| Pilot::new(r, config, away));
        (self.last, self.logged, self.intervals, self.told_missing) = (None, None, 0, false);
        Some(match (&self.policy, self.acts) {
            (Some(policy), true) => format!("is switched by policy {policy}"),
            (Some(policy), false) => format!("is observed with policy {policy}"),
            (None, _) if self.never => "is never to be switched".into(),
            (None, _) if rule.is_some() => "has a rule for its memory alone".into(),
            (None, _) => "has no rule".into(),
        })
    }

    /// Whether to look if KVM would refuse a switch to this mode: before each request, and at an obstacle and
    /// for a VM that is only observed now and then.
    pub fn wants_look(&self, to: Mode, up: Duration) -> bool {
        let held = self.hold.is_some_and(|hold| hold.lasts(up));
        let may = self.cannot.is_none() && !held && self.again <= up && self.pause(to, up).is_none();
        let is_over = |look: &ObstacleCheck| look.is_over(to, up) || (self.acts && look.obstacle.is_none());
        may && self.look.as_ref().is_none_or(is_over)
    }

    /// How long the VM is not switched to this mode, because its last stay there ended early.
    fn pause(&self, to: Mode, up: Duration) -> Option<Duration> {
        self.stays.pause(up).filter(|_| to == Mode::Shadow)
    }

    /// Whether the daemon may bring the VM back to nested paging when its memory runs out.
    pub fn may_end_stay(&self, up: Duration) -> bool {
        self.acts
            && self.cannot.is_none()
            && !self.hold.is_some_and(|hold| hold.lasts(up))
            && self.again <= up
    }

    /// What would refuse a switch to this mode, by the last look.
    fn obstacle(&self, to: Mode) -> Option<&Obstacle> {
        self.look.as_ref().filter(|look| look.to == to)?.obstacle.as_ref()
    }

    /// Why the daemon may not switch the VM to this mode now; `None` if it may.
    pub fn may_not(&mut self, to: Mode, up: Duration) -> Option<Done> {
        self.hold = self.hold.filter(|hold| hold.lasts(up));
        let pause = self.pause(to, up).map(|left| NotSwitched::EndedEarly(left.as_secs_f64()));
        match (&self.cannot, self.hold, pause, self.obstacle(to)) {
            (.., Some(o)) if !self.acts => Some(Done::WouldBeRefused(o.clone())),
            _ if !self.acts => Some(Done::WouldSwitch),
            (_, Some(_), ..) => Some(Done::Held),
            (Some(why), ..) => Some(Done::NotSwitched(NotSwitched::Answer(why.clone()))),
            (.., Some(pause), _) => Some(Done::NotSwitched(pause)),
            (.., Some(o)) => Some(Done::Blocked(o.clone())),
            _ if up < self.again => Some(Done::NotSwitched(NotSwitched::Refused)),
            _ => None,
        }
    }

    /// Whether the daemon may leave the VM in another mode than its own.
    pub fn is_ours(&self) -> bool {
        self.acts
    }

    /// Takes an interval. Returns the decision, if one is due.
    pub fn interval(&mut self, seen: &Observation) -> Option<Choice> {
        self.switches.interval(seen);
        self.pilot.as_mut()?.interval(seen, &self.switches)
    }

    /// Counts what an interval had.
    pub fn count(&mut self, seen: &Observation, interval: &Interval) {
        self.intervals += 1;
        self.load = seen.measured.load;
        let add = |sum: &mut u64, n: Option<u64>| *sum = sum.saturating_add(n.unwrap_or(0));
        add(&mut self.totals.exits, interval.statistics.get(Statistic::Exits));
        add(&mut self.totals.ran_ns, interval.ran_ns());
        add(&mut self.totals.waited_ns, interval.waited_ns());
    }

    /// Why a rule with `act` only observes the VM.
    fn untrusted(&self) -> Option<String> {
        let rule = self.rule.as_ref().filter(|rule| rule.untrusted)?;
        Some(format!(
            "{} is a pattern; `trusted = true` in its rule lets the daemon switch the VM",
            rule.vms.text()
        ))
    }

    fn missing(&self) -> Option<String> {
        let unknown = self.pilot.as_ref()?.missing().filter(|_| self.intervals >= TELL_MISSING)?;
        Some(unknown.counter.to_string())
    }

    /// The counter that the policy lacks, in a sentence, if it was not reported yet.
    pub fn new_missing(&mut self) -> Option<String> {
        let counter = self.missing().filter(|_| !self.told_missing)?;
        self.told_missing = true;
        let policy = self.policy.as_deref().unwrap_or_default();
        Some(format!(
            "gets no decisions: policy {policy} needs the counter {counter}, which is not counted for this VM (docs/guide/watch.md)"
        ))
    }

    /// Whether the log lacks this decision: another wish, or another outcome.
    pub fn is_news(&mut self, wish: bifold_policy::Mode, done: &Done) -> bool {
        match self.logged.replace((wish, done.clone())) {
            Some((mode, before)) => mode != wish || !done.is_like(&before),
            // A first wish to stay is no news.
            None => *done != Done::Stayed,
        }
    }

    /// Notes a decision.
    pub fn remember(&mut self, time: f64, text: String, choice: Choice) {
        self.last = Some(choice);
        self.recent.add(time, text);
    }

    pub fn status(&self, state: Option<State>, own: Option<Mode>, up: Duration) -> VmStatus {
        let held = self.hold.filter(|hold| hold.lasts(up));
        let last = self.last.as_ref();
        let wants =
            |to| last.is_some_and(|c| c.verdict != Verdict::Stay && c.decision.mode.switchable() == Some(to));
        let look = self.look.as_ref().filter(|l| held.is_none() && state.is_none_or(|s| s.mode() != l.to));
        let obstacle =
            look.and_then(|l| l.obstacle.as_ref().filter(|o| o.lasts() == Some(true) || wants(l.to)));
        let paused = self.stays.pause(up).filter(|_| wants(Mode::Shadow));
        let paused = paused.map(|left| NotSwitched::EndedEarly(left.as_secs_f64()).to_string());
        let obstacle = obstacle.filter(|o| paused.is_none() || o.lasts() == Some(true));
        let (word, note) = match (held, &self.cannot, obstacle) {
            _ if self.never => ("never", None),
            _ if self.pilot.is_none() => ("no rule", None),
            (Some(hold), ..) => ("held", Some(hold.left(up))),
            _ if !self.acts => ("observes", self.untrusted().or(obstacle.map(Obstacle::to_string))),
            (None, Some(why), _) => ("cannot", Some(why.clone())),
            (.., Some(o)) if o.lasts() == Some(true) => ("cannot", Some(o.to_string())),
            (.., Some(o)) => ("blocked", Some(o.to_string())),
            _ if paused.is_some() => ("blocked", paused),
            _ => ("acts", None),
        };
        VmStatus {
            vm: self.id.to_string(),
            name: self.name.clone(),
            pid: self.pid,
            mode: state.map(|s| s.to_string()),
            own_mode: own.map(|m| m.name().to_string()),
            rule: self.rule.as_ref().map(|r| r.vms.text().to_string()),
            policy: self.policy.clone(),
            state: word.into(),
            note,
            refusal: obstacle.map(|o| o.reason.word().to_string()),
            wants: last.map(|c| c.decision.mode.name().to_string()),
            why: last.map(|c| c.decision.why.clone()),
            verdict: last.map(|c| c.verdict.word().to_string()),
            missing: self.missing(),
            load: self.load,
            switches_in_hour: self.switches.in_hour(),
            totals: self.totals,
        }
    }
}
