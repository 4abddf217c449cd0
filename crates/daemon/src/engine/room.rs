// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches stays in shadow paging: notes which ones KVM ended, and ends one whose memory runs out before KVM
//! has to.

use super::switcher::Switcher;
use crate::vm::mode::{EarlyEnd, ModeHalf};
use bifold_host::{Mode, State};

impl Switcher {
    /// Notes whether KVM has ended a stay of the VM since the last reading.
    pub fn see_stays(&mut self, vm: &mut ModeHalf) {
        let Some(watched) = self.watch.vm(vm.id) else { return };
        let early = vm.stays.reading(watched.state(), watched.paging_stats(), self.log.up);
        if let Some(why) = early {
            self.ended_early(vm, "KVM brought the VM back to nested paging", &why);
        }
    }

    /// Ends the stay of a VM whose cgroups leave too little for the stay to go on.
    pub fn look_at_room(&mut self, vm: &mut ModeHalf) {
        let shadow = Some(State::In(Mode::Shadow));
        let state = self.watch.vm(vm.id).and_then(|watched| watched.state());
        if state != shadow || !vm.may_end_stay(self.log.up) {
            return;
        }
        let host = self.watch.host();
        // A VM that is gone, and one without limits, has no shortage.
        let Ok(Some(room)) = host.room(vm.pid) else { return };
        let Some(why) = vm.stays.is_short(room, || host.shadow_need(vm.pid)) else { return };
        // The interval's decision may have ended the stay.
        if host.paging(vm.id).state() != shadow {
            return;
        }
        match self.switch(vm, Mode::Nested) {
            Ok(_) => self.ended_early(vm, "the daemon brings the VM back to nested paging", &why),
            Err(e) => {
                vm.tell(&mut self.log, &format!("is to go back to nested paging ({why}), and does not: {e}"));
            }
        }
    }

    fn ended_early(&mut self, vm: &mut ModeHalf, who: &str, why: &EarlyEnd) {
        vm.totals.ended_early += 1;
        let pause = vm.stays.ended_early(self.log.up).as_secs();
        let text = match vm.stays.in_a_row() {
            1 => format!("{who}: {why}; no switch to shadow paging for {pause} s"),
            n => format!(
                "{who}: {why}; this is the {n}. time in a row: no switch to shadow paging for {pause} s"
            ),
        };
        vm.tell(&mut self.log, &text);
    }
}
