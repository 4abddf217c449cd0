// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of counters: the counters that a policy needs, and those that a source of samples has.
//!
//! A [`Sample`] has a number in every field. If a live host cannot count something, that number means
//! nothing, and no policy may see it. A source therefore states its set, and
//! [`Driver::new`](crate::Driver::new) refuses a policy that needs more.

use bifold_model::{Counter, Sample};

const _: () = assert!(Sample::COUNTERS.len() < 64, "a counter is a bit of 64");

/// A set of counters of a [`Sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters(u64);

impl Counters {
    /// No counter.
    pub const NONE: Counters = Counters(0);
    /// Every counter, which a simulated timeline has.
    pub const ALL: Counters = Counters((1 << Sample::COUNTERS.len()) - 1);
    /// Instructions, which rates are divided by.
    pub const INSTRUCTIONS: Counters = Counters::of(&["instructions"]);
    /// TLB misses of all page sizes.
    pub const TLB_MISSES: Counters = Counters::of(&["tlb_misses_4k", "tlb_misses_2m", "tlb_misses_1g"]);
    /// Page faults delivered to the guest.
    pub const PAGE_FAULTS: Counters = Counters::of(&["guest_page_faults"]);
    /// Cycles in page walks.
    pub const WALK_CYCLES: Counters = Counters::of(&["walk_cycles"]);
    /// Cycles in exits and in the hypervisor.
    pub const VMM_CYCLES: Counters = Counters::of(&["vmm_cycles"]);
    /// Exits of all reasons.
    pub const EXITS: Counters = Counters::with_prefix("exits_");

    /// What the model knows of waits that the core hides and of waits for data. No hardware counts these, so
    /// no policy needs them; a source that lacks one has extra cycles of walks and exits alone.
    pub const WAITS: Counters = Counters::of(&[
        "walk_hidden_cycles",
        "data_stall_cycles",
        "data_hidden_cycles",
        "ideal_stall_cycles",
        "ideal_hidden_cycles",
        "frames_stall_cycles",
        "frames_hidden_cycles",
    ]);

    /// The counters of these names.
    ///
    /// # Panics
    /// If a sample has no counter of a name.
    pub const fn of(names: &[&str]) -> Counters {
        let mut set = 0;
        let mut n = 0;
        while n < names.len() {
            let one = Counters::matching(names[n], true);
            assert!(one.0 != 0, "no counter of this name");
            set |= one.0;
            n += 1;
        }
        Counters(set)
    }

    const fn with_prefix(prefix: &str) -> Counters {
        Counters::matching(prefix, false)
    }

    const fn matching(text: &str, whole: bool) -> Counters {
        let mut set = 0;
        let mut i = 0;
        while i < Sample::COUNTERS.len() {
            let name = Sample::COUNTERS[i].name;
            if starts_with(name, text) && (!whole || name.len() == text.len()) {
                set |= 1 << i;
            }
            i += 1;
        }
        Counters(set)
    }

    /// The counter at this index of [`Sample::COUNTERS`].
    pub(crate) fn at(place: usize) -> Counters {
        Counters(1 << place)
    }

    /// The union of this set and another.
    pub const fn and(self, other: Counters) -> Counters {
        Counters(self.0 | other.0)
    }

    /// The counters that another set lacks.
    pub const fn less(self, other: Counters) -> Counters {
        Counters(self.0 & !other.0)
    }

    /// Whether the set has the counter at this index of [`Sample::COUNTERS`].
    pub fn contains(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// The sample with 0 in place of this set's counters.
    pub fn zeroed(self, sample: &Sample) -> Sample {
        let mut values = sample.values();
        let of_set = values.iter_mut().enumerate().filter(|(place, _)| self.contains(*place));
        of_set.for_each(|(_, value)| *value = 0);
        Sample::from_values(values)
    }

    /// The set's counters, in the order of [`Sample::COUNTERS`].
    pub fn iter(self) -> impl Iterator<Item = &'static Counter> {
        Sample::COUNTERS.iter().enumerate().filter(move |(place, _)| self.contains(*place)).map(|(_, c)| c)
    }
}

const fn starts_with(name: &str, prefix: &str) -> bool {
    let (name, prefix) = (name.as_bytes(), prefix.as_bytes());
    let mut i = 0;
    while i < prefix.len() {
        if i == name.len() || name[i] != prefix[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_of_the_counters_that_they_name() {
        let names = |set: Counters| set.iter().map(|c| c.name).collect::<Vec<_>>();
        assert_eq!(names(Counters::TLB_MISSES), ["tlb_misses_4k", "tlb_misses_2m", "tlb_misses_1g"]);
        assert_eq!(names(Counters::WALK_CYCLES), ["walk_cycles"], "not `walks`");
        let exits: Vec<_> = Sample::default().exits().map(|(name, _)| format!("exits_{name}")).collect();
        assert_eq!(names(Counters::EXITS), exits);
        assert_eq!(names(Counters::ALL).len(), Sample::COUNTERS.len());
        assert_eq!(Counters::ALL.less(Counters::EXITS).and(Counters::EXITS), Counters::ALL);
        assert_eq!(names(Counters::NONE), [""; 0]);
    }
}
