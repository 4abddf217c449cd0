// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Divides the host's memory: the policy decides over all guests that were seen.

use super::{Memory, every, sum};
use crate::config::{Config, ShareMemory};
use crate::log::Log;
use crate::record::MemoryLine;
use crate::vm::Vms;
use crate::vm::memory::{FRAME, MemoryHalf, WantedSize};
use bifold_host::Host;
use bifold_live::order::{OrderError, mib};
use bifold_reclaim::{GuestObservation, PolicyName};

/// A guest, what the policy sees of it, and the reason that fits.
type Seen<'a> = (&'a mut MemoryHalf, GuestObservation, String);

impl Memory {
    /// Lets the policy decide over all guests that were seen. Returns what is to be recorded.
    pub(super) fn decide(
        &mut self,
        vms: &mut Vms,
        host: &Host,
        config: &Config,
        log: &mut Log,
    ) -> Vec<MemoryLine> {
        let mut lines = Vec::new();
        let Some(share) = &config.memory else { return lines };
        let Some((total, limit)) = self.limit(host, share) else { return lines };
        let seconds = self.last.replace(log.up).map_or(0.0, |last| log.up.saturating_sub(last).as_secs_f64());
        let (mut seen, mut unseen): (Vec<Seen>, u64) = (Vec::new(), 0);
        for vm in vms.memories_mut() {
            match vm.seen(share.policy, log.up, every(config), total) {
                Some((view, why)) => seen.push((vm, view, why)),
                // What guests hold that do not tell their size, the others cannot have.
                None => {
                    let held = host.process_memory(vm.live.pid).resident;
                    unseen = unseen.saturating_add(held.unwrap_or(0));
                }
            }
        }
        let least = sum(seen.iter().map(|(_, view, _)| view.least.saturating_mul(FRAME)));
        if least.saturating_add(unseen) > limit {
            self.trouble = Some(too_much(least, unseen, limit));
        }
        if seen.is_empty() {
            return lines;
        }
        self.choose(share.policy, &seen);
        let Some((policy, _)) = &mut self.policy else { return lines };
        let views: Vec<GuestObservation> = seen.iter().map(|(_, view, _)| *view).collect();
        let sizes = policy.decide(limit.saturating_sub(unseen) / FRAME, seconds, &views);
        for ((vm, _, why), size) in seen.into_iter().zip(sizes) {
            let wish = WantedSize { size: size * FRAME, why };
            let (news, now, done) = vm.decide(wish.clone(), log.up);
            lines.push(MemoryLine {
                schema: MemoryLine::schema(),
                time: log.time,
                pid: vm.live.pid,
                vm: vm.live.vm.map(|vm| vm.to_string()),
                name: vm.live.name.clone(),
                policy: share.policy.name().into(),
                now_bytes: now,
                wants_bytes: wish.size,
                done: done.word().into(),
                note: Some(done.to_string()).filter(|text| text != done.word()),
                why: wish.why,
            });
            if let Some(text) = news {
                vm.tell(log, text);
            }
        }
        lines
    }

    /// The host's memory, and what guests may have of it together.
    fn limit(&mut self, host: &Host, share: &ShareMemory) -> Option<(u64, u64)> {
        if self.refuses {
            self.trouble = Some(format!("no VM's memory is looked at: {}", OrderError::NoFolder));
            return None;
        }
        let Some(total) = host.memory().ok().and_then(|m| m.total) else {
            self.trouble = Some("the host's memory cannot be read: no memory is divided".into());
            return None;
        };
        self.trouble = None;
        let limit = share.limit.bytes(total);
        self.limit = Some(limit);
        Some((total, limit))
    }

    /// Has a policy of these guests.
    fn choose(&mut self, policy: PolicyName, seen: &[Seen]) {
        let ids = seen.iter().map(|(vm, ..)| vm.process()).collect();
        if self.policy.as_ref().is_none_or(|(_, known)| *known != ids) {
            // What each has been given: a policy changes that.
            let given = |(vm, view, _): &Seen| {
                vm.control.wanted().map_or(view.most.max(view.size), |bytes| bytes / FRAME)
            };
            let sizes: Vec<u64> = seen.iter().map(given).collect();
            self.policy = policy.on_line_from(&sizes).map(|policy| (policy, ids));
        }
    }
}

/// That VMs keep more than the limit, `unseen` bytes of it in VMs that do not tell their size.
fn too_much(least: u64, unseen: u64, limit: u64) -> String {
    let of_unseen = if unseen == 0 {
        String::new()
    } else {
        format!(", {} MiB of it in VMs that do not tell their size", mib(unseen))
    };
    format!(
        "VMs keep at least {} MiB together{of_unseen}, more than the limit of {} MiB",
        mib(least.saturating_add(unseen)),
        mib(limit)
    )
}
