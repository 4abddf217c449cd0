// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of what a fuzzing run did. The counts of several rounds add up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kvm::{Errno, Op, errno_name};

/// Counts by name.
pub type Counts = BTreeMap<String, u64>;

/// What a run or a round did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Rounds by kind.
    pub rounds: Counts,
    /// Calls by name, and by `ok` or the error's name.
    pub calls: BTreeMap<String, Counts>,
    /// Switches by the mode they went to, and refused ones by the error's name.
    pub switches: Counts,
    /// Ends of KVM_RUN by the exit's name.
    pub exits: Counts,
    /// Guest code: slots that ran to their end, exceptions by vector.
    pub guest: Counts,
    /// Differences between the two VMs that have a known reason.
    pub tolerated: Counts,
    /// Everything else that the run wants to tell.
    pub notes: Counts,
}

fn add(to: &mut Counts, from: &Counts) {
    for (name, n) in from {
        *to.entry(name.clone()).or_default() += n;
    }
}

/// Adds one to a count.
pub fn count(counts: &mut Counts, name: impl AsRef<str>) {
    let name = name.as_ref();
    match counts.get_mut(name) {
        Some(n) => *n += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}

impl Tally {
    /// Counts a call, and passes its result on.
    pub fn call<T>(&mut self, op: Op, result: Result<T, Errno>) -> Result<T, Errno> {
        let end = match &result {
            Ok(_) => "ok".to_owned(),
            Err(e) => errno_name(*e),
        };
        if !self.calls.contains_key(op.name) {
            self.calls.insert(op.name.to_owned(), Counts::new());
        }
        if let Some(counts) = self.calls.get_mut(op.name) {
            count(counts, end);
        }
        result
    }

    /// Counts a switch.
    pub fn switch(&mut self, to: &str, result: Result<(), Errno>) {
        match result {
            Ok(()) => count(&mut self.switches, format!("to {to}")),
            Err(e) => count(&mut self.switches, format!("refused {}", errno_name(e))),
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Tally) {
        for (to, from) in [
            (&mut self.rounds, &other.rounds),
            (&mut self.switches, &other.switches),
            (&mut self.exits, &other.exits),
            (&mut self.guest, &other.guest),
            (&mut self.tolerated, &other.tolerated),
            (&mut self.notes, &other.notes),
        ] {
            add(to, from);
        }
        for (name, counts) in &other.calls {
            add(self.calls.entry(name.clone()).or_default(), counts);
        }
    }

    /// Number of calls.
    pub fn all_calls(&self) -> u64 {
        self.calls.values().flat_map(Counts::values).sum()
    }

    /// Number of switches that were made.
    pub fn switched(&self) -> u64 {
        self.switches.iter().filter(|(name, _)| name.starts_with("to ")).map(|(_, n)| n).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::kvm::{RUN, SET_SREGS};

    #[test]
    fn calls_are_counted_by_name_and_end_and_rounds_add_up() {
        let mut a = Tally::default();
        assert_eq!(a.call(RUN, Ok(3)), Ok(3));
        assert_eq!(a.call::<i32>(RUN, Err(libc::EINTR)), Err(libc::EINTR));
        a.switch("shadow", Ok(()));
        a.switch("shadow", Err(libc::EBUSY));
        let mut b = Tally::default();
        let _ = b.call(SET_SREGS, Ok(()));
        b.switch("nested", Ok(()));
        a.merge(&b);
        assert_eq!(a.calls["KVM_RUN"], [("EINTR".into(), 1), ("ok".into(), 1)].into());
        assert_eq!((a.all_calls(), a.switched()), (3, 2));
        assert_eq!(a.switches["refused EBUSY"], 1);
    }
}
