// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays a recording with the rules of a configuration: the decisions that the daemon comes to, limits
//! included.

use crate::config::{Config, Rule};
use crate::pilot::{Choice, Pilot, Switches};
use bifold_host::VmId;
use bifold_live::recording::RecordedVm;
use bifold_policy::UnknownCounter;

/// What a rule's policy and limits come to over a recorded VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// The interval after which the policy decided.
    pub interval: usize,
    /// The decision, and whether the limits allow a switch.
    pub choice: Choice,
}

/// The rule for a recorded VM; `None` also if the rule is for memory alone.
pub fn rule<'a>(vm: &RecordedVm, config: &'a Config) -> Option<&'a Rule> {
    // An identifier that KVM would not give fits no rule by identifier.
    let id = VmId::parse(&vm.vm).unwrap_or(VmId { thread: 0, fd: 0 });
    config.rule(id, Some(&vm.name)).filter(|rule| rule.decides.is_some())
}

/// Replays a VM under its rule.
///
/// # Errors
/// If no interval has a counter that the policy needs.
pub fn replay(vm: &RecordedVm, rule: &Rule, config: &Config) -> Result<Vec<Decided>, UnknownCounter> {
    let (mut pilot, mut switches) = (Pilot::new(rule, config, false), Switches::default());
    let mut starts = vm.starts.iter().peekable();
    let decided = vm.intervals.iter().enumerate().filter_map(|(interval, i)| {
        if let Some(start) = starts.next_if(|s| s.interval == interval) {
            pilot = Pilot::new(rule, config, start.away);
            switches = if start.away { Switches::just_now() } else { Switches::default() };
        }
        switches.interval(&i.seen);
        pilot.as_mut()?.interval(&i.seen, &switches).map(|choice| Decided { interval, choice })
    });
    let decided: Vec<Decided> = decided.collect();
    match pilot.and_then(|p| p.missing()).filter(|_| decided.is_empty()) {
        Some(unknown) => Err(unknown),
        None => Ok(decided),
    }
}
