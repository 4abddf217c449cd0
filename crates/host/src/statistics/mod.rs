// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's statistics of a VM: how often what exited, and what backs the guest's memory.
//!
//! KVM offers the same numbers in two ways: a file per number in the VM's directory of debugfs
//! ([`StatisticsFiles`], for root), and a file descriptor that the VM's own process asks KVM for
//! ([`BinaryStatistics`]). The names are those of `kvm_vm_stats_desc` and `kvm_vcpu_stats_desc` in Linux's
//! `arch/x86/kvm/x86.c`. A kernel that lacks a number leaves it unknown, never 0.

mod binary;
mod files;

pub use binary::{BadStatistics, BinaryStatistics};
pub use files::StatisticsFiles;

/// What a number of KVM's statistics means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Events since the VM began.
    Count,
    /// Nanoseconds since the VM began.
    Nanoseconds,
    /// The present state.
    Level,
}

macro_rules! statistics {
    ($( $variant:ident $name:literal $kind:ident = $doc:literal ),* $(,)?) => {
        /// One number of KVM's statistics. Numbers of vCPUs are sums over all vCPUs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Statistic {
            $( #[doc = $doc] $variant, )*
        }

        impl Statistic {
            /// All of them.
            pub const ALL: &'static [Statistic] = &[ $( Statistic::$variant ),* ];

            /// KVM's name.
            pub fn name(self) -> &'static str {
                match self { $( Statistic::$variant => $name ),* }
            }

            /// The number's meaning, in a sentence.
            pub fn doc(self) -> &'static str {
                match self { $( Statistic::$variant => $doc ),* }
            }

            /// Whether the number is a count, a time or a level.
            pub fn kind(self) -> Kind {
                match self { $( Statistic::$variant => Kind::$kind ),* }
            }
        }
    };
}

statistics! {
    Exits "exits" Count = "Exits from the guest, for any reason.",
    PfTaken "pf_taken" Count = "Page faults and violations that KVM handled.",
    PfFixed "pf_fixed" Count = "Page faults and violations mended by an entry.",
    PfEmulate "pf_emulate" Count = "Page faults and violations whose instruction was emulated.",
    PfSpurious "pf_spurious" Count = "Page faults and violations whose entry was there already.",
    PfFast "pf_fast" Count = "Page faults and violations mended without KVM's lock.",
    PfGuest "pf_guest" Count = "Page faults that are the guest's own: seen in shadow paging only.",
    TlbFlush "tlb_flush" Count = "TLB flushes of vCPUs, by KVM or asked for by the guest's CR3.",
    Invlpg "invlpg" Count = "INVLPG instructions that exited.",
    RemoteTlbFlush "remote_tlb_flush" Count = "TLB flushes of all vCPUs.",
    IoExits "io_exits" Count = "Exits for port I/O that KVM does not serve.",
    MmioExits "mmio_exits" Count = "Exits for memory-mapped I/O that KVM does not serve.",
    IrqExits "irq_exits" Count = "Exits for interrupts of the host.",
    IrqWindowExits "irq_window_exits" Count = "Exits because the guest can take an interrupt again.",
    HaltExits "halt_exits" Count = "Exits for HLT.",
    InsnEmulation "insn_emulation" Count = "Instructions that KVM emulated.",
    Hypercalls "hypercalls" Count = "Hypercalls.",
    HaltPollSuccessNs "halt_poll_success_ns" Nanoseconds = "Time polled in HLT until work came.",
    HaltPollFailNs "halt_poll_fail_ns" Nanoseconds = "Time polled in HLT for nothing.",
    HaltWaitNs "halt_wait_ns" Nanoseconds = "Time slept in HLT.",
    MmuPteWrite "mmu_pte_write" Count = "Writes to shadowed tables that were emulated.",
    MmuShadowZapped "mmu_shadow_zapped" Count = "Shadow pages zapped.",
    MmuCacheMiss "mmu_cache_miss" Count = "Shadow pages made.",
    MmuUnsync "mmu_unsync" Level = "Shadow pages that are out of sync.",
    Pages4k "pages_4k" Level = "Entries that map 4 KB.",
    Pages2m "pages_2m" Level = "Entries that map 2 MB.",
    Pages1g "pages_1g" Level = "Entries that map 1 GB.",
}

/// KVM's statistics of a VM at one moment, or over an interval.
///
/// ```
/// use bifold_host::{Statistic, Statistics};
///
/// let (mut before, mut now) = (Statistics::default(), Statistics::default());
/// before.set(Statistic::Exits, 10);
/// now.set(Statistic::Exits, 25);
/// now.set(Statistic::Pages4k, 7);
/// let interval = now.since(&before);
/// assert_eq!(interval.get(Statistic::Exits), Some(15));
/// assert_eq!(interval.get(Statistic::Pages4k), Some(7)); // a state, not a count
/// assert_eq!(interval.get(Statistic::Invlpg), None); // unknown
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics([Option<u64>; Statistic::ALL.len()]);

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics([None; Statistic::ALL.len()])
    }
}

impl Statistics {
    /// A number; `None` if this kernel does not have it.
    pub fn get(&self, statistic: Statistic) -> Option<u64> {
        self.0[statistic as usize]
    }

    /// Sets a number.
    pub fn set(&mut self, statistic: Statistic, value: u64) {
        self.0[statistic as usize] = Some(value);
    }

    /// Adds to a number: the numbers of vCPUs that are read one by one.
    fn add(&mut self, statistic: Statistic, value: u64) {
        let sum = self.get(statistic).unwrap_or(0).saturating_add(value);
        self.set(statistic, sum);
    }

    /// What was counted since an earlier moment; of levels, the present state. A count that has fallen was
    /// set to 0 by somebody (the files can be written), and is unknown for this interval.
    pub fn since(&self, earlier: &Statistics) -> Statistics {
        let mut interval = Statistics::default();
        for &statistic in Statistic::ALL {
            let now = self.get(statistic);
            interval.0[statistic as usize] = match statistic.kind() {
                Kind::Level => now,
                Kind::Count | Kind::Nanoseconds => {
                    now.zip(earlier.get(statistic)).and_then(|(now, then)| now.checked_sub(then))
                }
            };
        }
        interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_numbers_are_those_of_the_list() {
        for (place, &statistic) in Statistic::ALL.iter().enumerate() {
            assert_eq!(statistic as usize, place, "{}", statistic.name());
        }
    }

    #[test]
    fn a_count_that_falls_is_unknown_and_a_level_may_fall() {
        let (mut before, mut now) = (Statistics::default(), Statistics::default());
        for s in [Statistic::Exits, Statistic::Pages2m] {
            before.set(s, 9);
            now.set(s, 4);
        }
        let interval = now.since(&before);
        assert_eq!((interval.get(Statistic::Exits), interval.get(Statistic::Pages2m)), (None, Some(4)));
    }
}
