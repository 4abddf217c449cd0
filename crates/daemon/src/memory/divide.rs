// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Divides the host's memory: the policy decides over all guests that were seen.

use super::guest::WantedSize;
use super::thread::mib;
use super::{FRAME, Id, LogLine, Memory, every, sum, tell};
use crate::config::{Config, ShareMemory};
use crate::record::MemoryLine;
use bifold_host::Host;
use bifold_live::order::OrderError;
use bifold_reclaim::{GuestObservation, PolicyName};
use std::time::Duration;

impl Memory {
    /// Lets the policy decide over all guests that were seen.
    pub(super) fn decide(
        &mut self,
        host: &Host,
        config: &Config,
        (up, time): (Duration, f64),
        said: &mut Vec<LogLine>,
        lines: &mut Vec<MemoryLine>,
    ) {
        let Some(share) = &config.memory else { return };
        let Some((total, limit)) = self.limit(host, share) else { return };
        let seconds = self.last.replace(up).map_or(0.0, |last| up.saturating_sub(last).as_secs_f64());
        let every = every(config);
        let seen: Vec<_> = self
            .guests
            .iter_mut()
            .filter_map(|(id, guest)| Some((*id, guest.seen(share.policy, up, every, total)?)))
            .collect();
        // What guests hold that do not tell their size, the others cannot have.
        let unseen = self.guests.values().filter(|guest| guest.control.sight().0.is_none());
        let unseen = sum(unseen.filter_map(|guest| host.process_memory(guest.live.pid).resident));
        let ids: Vec<Id> = seen.iter().map(|(id, _)| *id).collect();
        let views: Vec<_> = seen.iter().map(|(_, (view, _))| *view).collect();
        let least = sum(views.iter().map(|view| view.least.saturating_mul(FRAME)));
        if least.saturating_add(unseen) > limit {
            self.trouble = Some(too_much(least, unseen, limit));
        }
        if seen.is_empty() {
            return;
        }
        self.choose(share.policy, &ids, &views);
        let Some((policy, _)) = &mut self.policy else { return };
        let sizes = policy.decide(limit.saturating_sub(unseen) / FRAME, seconds, &views);
        for ((id, (_, why)), size) in seen.into_iter().zip(sizes) {
            let Some(guest) = self.guests.get_mut(&id) else { continue };
            let wish = WantedSize { size: size * FRAME, why };
            let (news, now, done) = guest.decide(wish.clone(), up);
            lines.push(MemoryLine {
                schema: MemoryLine::schema(),
                time,
                pid: id.0,
                vm: guest.live.vm.map(|vm| vm.to_string()),
                name: guest.live.name.clone(),
                policy: share.policy.name().into(),
                now_bytes: now,
                wants_bytes: wish.size,
                done: done.word().into(),
                note: Some(done.to_string()).filter(|text| text != done.word()),
                why: wish.why,
            });
            if let Some(text) = news {
                tell(guest, time, text, said);
            }
        }
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
    fn choose(&mut self, policy: PolicyName, ids: &[Id], views: &[GuestObservation]) {
        if self.policy.as_ref().is_none_or(|(_, known)| known != ids) {
            // What each has been given: a policy changes that.
            let given = |(id, view): (&Id, &GuestObservation)| {
                let wanted = self.guests.get(id).and_then(|g| g.control.wanted());
                wanted.map_or(view.most.max(view.size), |bytes| bytes / FRAME)
            };
            let sizes: Vec<u64> = ids.iter().zip(views).map(given).collect();
            self.policy = policy.on_line_from(&sizes).map(|policy| (policy, ids.to_vec()));
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
