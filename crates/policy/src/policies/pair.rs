// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies whose rule is published for two modes, shadow and nested.

use crate::{Log, Policy, View};
use bifold_mmu::Mode;

/// A rule that decides between shadow and nested mode.
pub(super) trait Rule: Send {
    /// The mode of the next interval of a VM in `mode`.
    fn decide(&mut self, mode: Mode, view: &View, log: &mut Log) -> Mode;
}

/// The policy of such a rule. The rule says nothing of a third mode, so that a VM in a third mode stays
/// there.
pub(super) struct Pair<R>(pub R);

impl<R: Rule> Policy for Pair<R> {
    fn decide(&mut self, view: &View, log: &mut Log) -> crate::Mode {
        match view.mode.switchable() {
            Some(mode) => self.0.decide(mode, view, log).into(),
            None => {
                log.say(|| {
                    format!("Stay in {}: the rule is about shadow and nested alone.", view.mode.name())
                });
                view.mode
            }
        }
    }
}
