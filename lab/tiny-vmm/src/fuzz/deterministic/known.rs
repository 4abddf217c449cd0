// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Known reasons why the two VMs of a round may differ.

use crate::fuzz::layout::*;
use crate::fuzz::ops::GuestOp;
use crate::fuzz::play::end;
use crate::fuzz::state::NamedNumbers;
use crate::fuzz::steps::{Run, Step};
use kvm_bindings::{KVM_EXIT_FAIL_ENTRY, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_MMIO};

/// An entry for a device says nothing of the guest's rights (`handle_mmio_page_fault` in the kernel's mmu.c),
/// so the emulator takes an instruction that reads and writes the device, reads, and only then finds that the
/// guest may not write.
fn reads_before_fault(a: &NamedNumbers, b: &NamedNumbers) -> bool {
    const WRITE: u64 = 2;
    let Some(at) = a.0.iter().zip(&b.0).position(|(a, b)| a != b) else { return false };
    let read = matches!(b.0[at..], [("exit", exit), ("gpa", _), ("bytes", _), ("write", 0), ..] if exit == u64::from(KVM_EXIT_MMIO));
    let store = a.get("vector") == Some(14) && a.get("error code").is_some_and(|c| c & WRITE != 0);
    read && store && a.0[at..] == b.0[at + 4..]
}

/// A known reason why the two VMs may differ, and end their round.
pub(super) fn known_reason(
    step: &Step,
    a: &NamedNumbers,
    b: &NamedNumbers,
    shadow: bool,
    amd: bool,
) -> Option<&'static str> {
    let internal = u64::from(KVM_EXIT_INTERNAL_ERROR);
    // Under shadow paging KVM emulates an instruction that writes to a page table or reads through tables
    // that it could not shadow, and its emulator does not know every instruction.
    let emulation = |s: &NamedNumbers| s.get("exit") == Some(internal) && s.get("suberror") == Some(1);
    if matches!(step, Step::Run(_)) && shadow && emulation(b) && !emulation(a) {
        return Some("KVM's emulator does not know an instruction that it met in shadow paging");
    }
    let unknown = b.get("vector") == Some(6) && a.get("vector") != Some(6);
    // Shadow paging has two tables for the pieces of a large page that the kernel reads and, without CR0.WP,
    // writes against the page's rights. An instruction that reads one piece and writes another of the same
    // page never has both (validate_direct_spte in the kernel's mmu.c).
    let copies = |run: &Run| run.ops.iter().any(|op| matches!(op, GuestOp::Movs { .. }));
    let no_wp = b.get("cr0").is_some_and(|c| c & (CR0_WP | CR0_PG) == CR0_PG);
    if matches!(step, Step::Run(run) if copies(run)) && shadow && no_wp && unbounded(b) {
        return Some("a copy within a large page without CR0.WP, in shadow paging");
    }
    // Shadow paging needs NX for itself, so its tables serve guests with and without EFER.NXE
    // (kvm_init_shadow_mmu): an entry made while the guest had NXE is used after the guest took NXE away,
    // when its NX bit is a reserved one.
    const RESERVED: u64 = 8;
    let reserved = a.get("vector") == Some(14) && a.get("error code").is_some_and(|c| c & RESERVED != 0);
    if shadow && reserved && a.get("efer").is_some_and(|e| e & EFER_NXE == 0) {
        return Some("an NX bit that is reserved without EFER.NXE, in shadow paging");
    }
    if shadow && reads_before_fault(a, b) {
        return Some(
            "a read of a device before the fault of a store to it, by the emulator in shadow paging",
        );
    }
    // What follows is Intel's. With AMD real mode runs by itself in either mode.
    if amd {
        return None;
    }
    // An entry fails in nested paging with what user space set: an event that may not come now, or a CR3 that
    // no instruction could load. In shadow paging KVM emulates real mode on Intel, the delivery of events
    // included, and CR3 is KVM's own.
    if a.get("exit") == Some(KVM_EXIT_FAIL_ENTRY.into())
        && shadow
        && b.get("exit").is_some_and(|exit| exit != u64::from(KVM_EXIT_FAIL_ENTRY))
    {
        return Some("an entry that fails with what user space set, in nested paging");
    }
    // kvm-intel gives both errors (EMULATION and DELIVERY_EV against SIMUL_EX) for an exit while an event is
    // delivered that it cannot deliver again. Which one depends on the exit, that is on the mode.
    let delivery =
        |s: &NamedNumbers| s.get("exit") == Some(internal) && matches!(s.get("suberror"), Some(2 | 3));
    if shadow && delivery(a) && delivery(b) {
        return Some("an event that cannot be delivered, with another error in shadow paging");
    }
    // A hypervisor's VMX operation comes after SMM when user space sets both, so that SMM needs nested paging
    // on Intel, to which no vCPU goes that runs without paging.
    let smm = a.get("KVM_SET_VCPU_EVENTS") == Some(0)
        && b.get("KVM_SET_VCPU_EVENTS") == Some(-i64::from(libc::EBUSY) as u64);
    if matches!(step, Step::Smm { on: true, .. }) && shadow && smm {
        return Some("system management mode by user space without paging, in shadow paging");
    }
    // Neither single steps nor rare instructions are as a processor's in the emulator of real mode: DR6 has
    // no BS, and an instruction may be an undefined one.
    const DR6_BS: u64 = 1 << 14;
    let real =
        |single: bool| matches!(step, Step::Run(run) if run.width == Width::Real && run.single >= single);
    let stepped = a.get("dr6").zip(b.get("dr6")).is_some_and(|(a, b)| a == b | DR6_BS && a != b);
    if shadow && real(true) && stepped || shadow && real(false) && unknown {
        return Some(
            "a single step, or an instruction that the emulator does not know, in emulated real mode",
        );
    }
    // The emulator masks no NMIs while the handler of one runs (vmx_inject_nmi in the kernel's vmx.c).
    let masked = |s: &NamedNumbers| s.get("nmi").is_some_and(|n| n & 1 != 0);
    if matches!(step, Step::Run(run) if run.width == Width::Real) && shadow && masked(a) && !masked(b) {
        return Some("an NMI that masks no other, in emulated real mode");
    }
    let first = |s: &NamedNumbers| {
        s.get("vector").filter(|_| matches!(step, Step::Run(run) if run.width == Width::Real))
    };
    if shadow && first(a).is_some_and(|v| v < 32) && first(b).is_some_and(|v| v >= 32) {
        return Some("an interrupt behind an exception, both injected by user space, in emulated real mode");
    }
    None
}

pub(super) fn unbounded(seen: &NamedNumbers) -> bool {
    seen.get("end") == Some(end::ERROR) && seen.get("KVM_RUN") == Some(-i64::from(libc::EINTR) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::gen_ops::{Gen, Offered};
    use crate::fuzz::steps;
    use kvm_bindings::KVM_EXIT_SHUTDOWN;

    #[test]
    fn only_the_emulator_of_a_vm_in_shadow_paging_may_not_know_an_instruction() {
        let run = Step::Run(steps::draw_run(
            &mut Gen::new(1, Offered { amd: true, keys: false }, true),
            0,
            Width::Long,
            0,
            true,
        ));
        let (mut a, mut b) = (NamedNumbers::default(), NamedNumbers::default());
        a.add("exit", 2);
        b.add("exit", KVM_EXIT_INTERNAL_ERROR.into());
        b.add("suberror", 1);
        assert!(known_reason(&run, &a, &b, true, true).is_some());
        assert!(known_reason(&run, &a, &b, false, true).is_none());
        assert!(known_reason(&run, &b, &a, true, true).is_none());
        assert!(known_reason(&Step::AddVcpu, &a, &b, true, true).is_none());
        // An entry that fails in nested paging alone has a reason on Intel alone.
        let mut failed = NamedNumbers::default();
        failed.add("exit", KVM_EXIT_FAIL_ENTRY.into());
        let mut shut = NamedNumbers::default();
        shut.add("exit", KVM_EXIT_SHUTDOWN.into());
        assert!(known_reason(&run, &failed, &shut, true, false).is_some());
        assert!(known_reason(&run, &failed, &shut, true, true).is_none());
    }

    #[test]
    fn the_emulator_may_read_a_device_once_before_the_fault_of_a_store() {
        let seen = |read: bool, error: u64| {
            let mut s = NamedNumbers::default();
            if read {
                s.0.extend([("exit", KVM_EXIT_MMIO.into()), ("gpa", 0x1000), ("bytes", 8), ("write", 0)]);
            }
            s.0.extend([("exit", 2), ("vector", 14), ("error code", error), ("rax", 7)]);
            s
        };
        assert!(reads_before_fault(&seen(false, 3), &seen(true, 3)));
        assert!(!reads_before_fault(&seen(true, 3), &seen(false, 3)));
        assert!(!reads_before_fault(&seen(false, 1), &seen(true, 1)));
        assert!(!reads_before_fault(&seen(false, 3), &seen(true, 7)));
    }
}
