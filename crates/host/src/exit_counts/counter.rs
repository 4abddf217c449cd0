// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace events that are counted, and the triggers that count them.
//!
//! Names of events and fields are those of Linux's `arch/x86/kvm/trace.h` and `mmu/mmutrace.h`, 6.1 and 6.12.
//! The triggers' syntax is that of `parse_assignment` in `kernel/trace/trace_events_hist.c`.

/// A table of counts by thread, or by thread and one more number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Exits by reason. The field `isa` of the event says whose reasons these are: a host has one vendor.
    Exits,
    /// Page faults and violations by error code. KVM traces both in the same event.
    PageFaults,
    InjectedPageFaults,
    UnsyncPages,
    EmulatedInstructions,
}

impl Counter {
    /// All of them, in the order of their values.
    pub const ALL: [Counter; 5] = [
        Counter::Exits,
        Counter::PageFaults,
        Counter::InjectedPageFaults,
        Counter::UnsyncPages,
        Counter::EmulatedInstructions,
    ];

    /// The event's folder in `events`.
    pub fn event(self) -> &'static str {
        match self {
            Counter::Exits => "kvm/kvm_exit",
            Counter::PageFaults => "kvm/kvm_page_fault",
            Counter::InjectedPageFaults => "kvm/kvm_inj_exception",
            Counter::UnsyncPages => "kvmmmu/kvm_mmu_unsync_page",
            Counter::EmulatedInstructions => "kvm/kvm_emulate_insn",
        }
    }

    /// What is written to the event's file `trigger`. Without modifiers the kernel prints keys as decimal
    /// numbers.
    pub fn trigger(self) -> String {
        let size = self.size();
        let (key, filter) = match self {
            Counter::Exits => (",exit_reason", ""),
            Counter::PageFaults => (",error_code", ""),
            // An exception that was being delivered when an exit came is injected once more
            // (kvm_inject_exception).
            Counter::InjectedPageFaults => ("", " if exception == 14 && reinjected == 0"),
            Counter::UnsyncPages => ("", ""),
            // A failed emulation is traced a second time (handle_emulation_failure).
            Counter::EmulatedInstructions => ("", " if failed == 0"),
        };
        format!("hist:keys=common_pid{key}:size={size}{filter}")
    }

    /// Entries of the kernel's table: a power of 2, at most 2^17 (`TRACING_MAP_BITS_MAX`). An entry takes
    /// about 200 bytes from the start on (`tracing_map_alloc_elts`). 400 vCPUs with 20 reasons each fill a
    /// quarter.
    pub fn size(self) -> usize {
        match self {
            Counter::Exits | Counter::PageFaults => 1 << 15,
            _ => 1 << 12,
        }
    }
}
