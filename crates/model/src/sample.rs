// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sample: what one VM cost in one configuration during one interval.
//!
//! Every counter is defined once, here, with its unit and meaning; tables, JSON,
//! CSV and reports take name, unit and text from [`Sample::COUNTERS`].

use crate::host::{Given, Origin};
use bifold_mmu::PageSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A counter or a figure derived from counters.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "definition")]
pub struct Counter {
    /// Name, as in every output.
    pub name: &'static str,
    /// Unit; 1 for counts.
    pub unit: &'static str,
    /// Meaning.
    pub doc: &'static str,
}

macro_rules! counters {
    ($( $name:ident : $unit:literal = $doc:literal ),* $(,)?) => {
        /// What one VM cost in one configuration during one interval (or in all).
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[schemars(rename = "sample")]
        pub struct Sample {
            $( #[doc = concat!($doc, " Unit: ", $unit, ".")] pub $name: u64, )*
        }

        impl Sample {
            /// Every counter, in the order of the fields.
            pub const COUNTERS: &'static [Counter] = &[
                $( Counter { name: stringify!($name), unit: $unit, doc: $doc } ),*
            ];

            /// The counters' values, in the order of [`Sample::COUNTERS`].
            pub fn values(&self) -> [u64; Sample::COUNTERS.len()] {
                [ $( self.$name ),* ]
            }

            /// The sample of these values, in the order of [`Sample::COUNTERS`].
            pub fn from_values(values: [u64; Sample::COUNTERS.len()]) -> Sample {
                let [ $( $name ),* ] = values;
                Sample { $( $name ),* }
            }

            /// Adds another sample's counters to this one's.
            pub fn add(&mut self, other: &Sample) {
                $( self.$name += other.$name; )*
            }

            /// The growth of the counters since `earlier`, an earlier state of the same counters.
            pub fn since(&self, earlier: &Sample) -> Sample {
                Sample { $( $name: self.$name - earlier.$name ),* }
            }
        }
    };
}

counters! {
    instructions: "1" = "Guest instructions executed.",
    accesses: "1" = "Data accesses (loads and stores; one that crosses a page counts twice).",
    l1_misses: "1" = "Misses of the first-level TLBs, data and instruction.",
    tlb_misses_4k: "1" = "Misses of all TLB levels on a translation of 4 KB.",
    tlb_misses_2m: "1" = "Misses of all TLB levels on a translation of 2 MB.",
    tlb_misses_1g: "1" = "Misses of all TLB levels on a translation of 1 GB.",
    walks: "1" = "Page walks, those that end in a fault or exit and those for a dirty bit included.",
    guest_refs: "1" = "References to guest tables (native: the tables; shadow: the shadow tables; agile: both) made by walks.",
    host_refs: "1" = "References to nested (host) tables made by walks.",
    walk_cycles: "cycles" = "Cycles in page walks, as a PMU would count them.",
    tlb_flushes: "1" = "Flushes of a TLB, whole or all but global entries.",
    guest_page_faults: "1" = "Page faults delivered to the guest.",
    tlb_shootdowns: "1" = "Flushes of a vCPU's TLB that another vCPU asked for by an inter-processor interrupt.",
    exits_violation: "1" = "Exits for a guest frame that the nested tables do not map (EPT violation, nested page fault).",
    exits_guest_fault: "1" = "Exits for a page fault that is the guest's own and is reflected into it.",
    exits_hidden_fault: "1" = "Exits for an entry missing in the shadow tables though present in the guest's.",
    exits_permission: "1" = "Exits for an entry present in the shadow tables that forbids what the guest's allows: read-only because the guest's was clean, or out of date.",
    exits_unsync: "1" = "Exits for a write to a synced leaf table, which becomes unsync.",
    exits_emulated_write: "1" = "Exits for a write to a non-leaf table, which is emulated.",
    exits_unprotect: "1" = "Exits for a store to a tracked table by another kind of instruction: the table is unprotected and the store retried.",
    exits_cr3_write: "1" = "Exits for MOV to CR3.",
    exits_cr3_read: "1" = "Exits for MOV from CR3.",
    exits_invlpg: "1" = "Exits for INVLPG.",
    exits_cr4_write: "1" = "Exits for writes to CR4.",
    exits_ipi: "1" = "Exits for inter-processor interrupts that a vCPU sends: writes to the command register of its interrupt controller. In guests of several vCPUs only.",
    vmm_cycles: "cycles" = "Cycles in exits and in the hypervisor's work for them.",
    first_touch_cycles: "cycles" = "The part of vmm_cycles that a long-lived VM, whose memory the host has backed before, does not pay.",
    root_misses: "1" = "CR3 loads whose root was not among the cached ones.",
    syncs: "pages" = "Unsync shadow pages re-read from the guest's tables.",
    shadow_pages_made: "pages" = "Shadow pages created.",
    shadow_pages_zapped: "pages" = "Shadow pages zapped.",
    mode_switches: "1" = "Switches of the paging mode.",
    frames_backed: "pages" = "4 KB host pages newly backed for the guest, those from a snapshot left out.",
    huge_frames_backed: "pages" = "2 MB host pages newly backed for the guest, those from a snapshot left out; a 1 GB page counts as 512.",
    cold_exits: "1" = "Further exits that a cold start of this mode at the interval's beginning would bring within it.",
    cold_cycles: "cycles" = "Cycles of those further exits, and of making shadow pages again.",
    walk_hidden_cycles: "cycles" = "The part of walk_cycles that the core hides behind independent work.",
    l1d_cache_misses: "1" = "Data accesses that missed the first-level data cache.",
    l2_cache_misses: "1" = "Data accesses that missed the second-level cache, prefetched lines left out.",
    l3_cache_misses: "1" = "Data accesses that missed the third-level cache, prefetched lines left out.",
    data_stall_cycles: "cycles" = "Cycles for which data accesses wait beyond the first-level cache.",
    data_hidden_cycles: "cycles" = "The part of data_stall_cycles that the core hides behind independent work.",
    ideal_stall_cycles: "cycles" = "As data_stall_cycles, in the ideal run: without walks and exits.",
    ideal_hidden_cycles: "cycles" = "The part of ideal_stall_cycles that the core hides behind independent work.",
    frames_stall_cycles: "cycles" = "As ideal_stall_cycles, with the data in the configuration's host frames: what exceeds the ideal run's is the placement of the frames in the caches.",
    frames_hidden_cycles: "cycles" = "The part of frames_stall_cycles that the core hides behind independent work.",
    exits_hypercall: "1" = "Hypercalls of direct paging that change page tables: one for each batch.",
    hypercall_entries: "1" = "Entries of page tables that the hypervisor checked: changed by hypercalls, or found in new tables.",
    outer_exits: "1" = "Exits to the outer hypervisor, where the guest's hypervisor runs in a virtual machine: all exits to that hypervisor pass the outer one, as do its entries into the guest; and those of the next three counters.",
    outer_fills: "1" = "Exits to the outer hypervisor for an entry that is missing in its composed tables, though present in the inner hypervisor's.",
    outer_stores: "1" = "Exits to the outer hypervisor for stores of the inner one to its nested tables.",
    outer_flushes: "1" = "Exits to the outer hypervisor for the inner one's flushes of single addresses and of nested translations (INVLPGA, INVVPID, INVEPT).",
    outer_frames_backed: "pages" = "4 KB pages newly backed by the outer host, where the guest's hypervisor runs in a virtual machine that has just started: each is an exit more to the outer hypervisor, which outer_exits does not have.",
    outer_huge_frames_backed: "pages" = "The same of 2 MB.",
    frames_from_file: "pages" = "4 KB pages of a snapshot's file that the host mapped or copied at the guest's first touch.",
    frames_from_uffd: "pages" = "4 KB pages of a snapshot that a process of the host copied at the guest's first touch (userfaultfd).",
    huge_frames_from_uffd: "pages" = "The same of 2 MB; a 1 GB page counts as 512.",
    frames_first_used: "pages" = "4 KB pages of a long-lived VM's nested tables that the guest used for the first time: in a VM that has just started, each would have been a violation and a page to back.",
    huge_frames_first_used: "pages" = "The same of 2 MB; a 1 GB page counts as 512.",
    cr3_load_cycles: "cycles" = "Cycles of the guest's loads of CR3 as the processor alone takes them: a part of the ideal run.",
}

impl Sample {
    /// TLB misses of all page sizes.
    pub fn tlb_misses(&self) -> u64 {
        self.tlb_misses_4k + self.tlb_misses_2m + self.tlb_misses_1g
    }

    /// References per walk to all tables together; 0 without walks.
    pub fn refs_per_walk(&self) -> f64 {
        if self.walks == 0 {
            return 0.0;
        }
        (self.guest_refs + self.host_refs) as f64 / self.walks as f64
    }

    /// Exits by reason: the counters whose names start with `exits_`, without that prefix.
    pub fn exits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Sample::COUNTERS
            .iter()
            .zip(self.values())
            .filter_map(|(c, v)| Some((c.name.strip_prefix("exits_")?, v)))
    }

    /// Exits of all reasons.
    pub fn all_exits(&self) -> u64 {
        self.exits().map(|(_, n)| n).sum()
    }

    /// Counts a page that the host gave the guest.
    pub fn add_given(&mut self, given: Given) {
        let (small, large) = match given.from {
            Origin::Own => (&mut self.frames_backed, &mut self.huge_frames_backed),
            // Files have no large pages.
            Origin::File => {
                self.frames_from_file += 1;
                return;
            }
            Origin::Uffd => (&mut self.frames_from_uffd, &mut self.huge_frames_from_uffd),
        };
        match given.size {
            PageSize::Size4K => *small += 1,
            PageSize::Size2M => *large += 1,
            PageSize::Size1G => *large += 512,
        }
    }

    /// The counts without the pages that the host gave, whose work is the host's in every mode.
    pub fn without_given(self) -> Sample {
        Sample {
            frames_backed: 0,
            huge_frames_backed: 0,
            frames_from_file: 0,
            frames_from_uffd: 0,
            huge_frames_from_uffd: 0,
            ..self
        }
    }

    /// The counts of first touches alone: what a long-lived VM, whose memory the host has backed
    /// before, does not pay. Only nested tables of such a VM are full; shadow tables live and die with
    /// processes.
    pub fn first_touches(&self) -> Sample {
        Sample {
            frames_backed: self.frames_backed,
            huge_frames_backed: self.huge_frames_backed,
            outer_frames_backed: self.outer_frames_backed,
            outer_huge_frames_backed: self.outer_huge_frames_backed,
            frames_from_file: self.frames_from_file,
            frames_from_uffd: self.frames_from_uffd,
            huge_frames_from_uffd: self.huge_frames_from_uffd,
            exits_violation: self.exits_violation,
            // Those follow from violations of the inner hypervisor's guest.
            outer_fills: self.outer_fills,
            outer_stores: self.outer_stores,
            ..Sample::default()
        }
    }

    /// Cycles beyond the ideal run's, as far as the core does not hide them: of walks, of exits,
    /// and of data that walks and the host's placement keep out of the caches.
    pub fn extra_cycles(&self) -> u64 {
        self.vmm_cycles + self.exposed_memory_cycles()
    }

    /// The part of [`Sample::extra_cycles`] that is not the hypervisor's. Where the configuration's
    /// placement in the caches is luckier than the ideal run's by more than its walks cost, 0.
    pub fn exposed_memory_cycles(&self) -> u64 {
        (self.exposed_walk_cycles() as i64 + self.data_wait_cycles()).max(0) as u64
    }

    /// Cycles of waits for data beyond the ideal run's waits, as far as the core hides neither. Less than 0
    /// where the configuration's placement in the caches is luckier than the ideal run's.
    pub fn data_wait_cycles(&self) -> i64 {
        exposed(self.data_stall_cycles, self.data_hidden_cycles)
            - exposed(self.ideal_stall_cycles, self.ideal_hidden_cycles)
    }

    /// The part of [`Sample::data_wait_cycles`] that comes from where the host's frames lie in the caches: a
    /// run without walks and exits would wait as much longer than the ideal run. Less than 0 where the host's
    /// frames are luckier. Unit: cycles.
    pub fn frame_wait_cycles(&self) -> i64 {
        exposed(self.frames_stall_cycles, self.frames_hidden_cycles)
            - exposed(self.ideal_stall_cycles, self.ideal_hidden_cycles)
    }

    /// Cycles of walks that the core does not hide.
    pub fn exposed_walk_cycles(&self) -> u64 {
        self.walk_cycles.saturating_sub(self.walk_hidden_cycles)
    }

    /// Cycles of the ideal run at `base_cpi` cycles per instruction: the instructions, the loads of CR3, and
    /// the waits for data that the core does not hide.
    pub fn ideal_cycles(&self, base_cpi: f64) -> f64 {
        let stalls = exposed(self.ideal_stall_cycles, self.ideal_hidden_cycles);
        self.executing_cycles(base_cpi) + stalls as f64
    }

    /// Cycles of the ideal run without waits for data.
    pub fn executing_cycles(&self, base_cpi: f64) -> f64 {
        self.instructions as f64 * base_cpi + self.cr3_load_cycles as f64
    }
}

/// The part of a wait that the core does not hide.
fn exposed(all: u64, hidden: u64) -> i64 {
    all.saturating_sub(hidden) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_values_agree_in_number_and_every_exit_is_summed() {
        let s = Sample { exits_violation: 2, exits_cr4_write: 3, ..Sample::default() };
        assert_eq!(s.values().len(), Sample::COUNTERS.len());
        assert_eq!(Sample::from_values(s.values()), s);
        assert_eq!(s.all_exits(), 5);
        assert_eq!(s.exits().count(), 13);
    }
}
