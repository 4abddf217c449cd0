// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a round, when all is quiet: the VM has to switch, and its vCPUs to run.

use super::Shared;
use crate::fuzz::calls;
use crate::fuzz::kvm::{self, Vcpu};
use crate::fuzz::layout::*;
use crate::fuzz::ops::Code;
use crate::fuzz::tally::{Tally, count};
use crate::fuzz::watch::Watchdog;
use anyhow::Result;
use kvm_bindings::*;
use std::fs;
use std::time::Duration;

/// What would refuse a switch to the other mode, by modules that tell.
fn refusal(s: &Shared) -> String {
    fs::read_to_string(s.vm.debugfs.join("paging_refusal")).unwrap_or_default().trim().to_owned()
}

/// When all is quiet and the vCPUs are as new, the VM has to switch and to run code in either mode.
pub(super) fn last_words(s: &Shared, t: &mut Tally, wrong: &mut Vec<String>) -> Result<()> {
    let vcpus = s.vcpus.lock().map(|v| v.clone()).unwrap_or_default();
    let watchdog = Watchdog::new(Duration::from_secs(10));
    for (n, v) in vcpus.iter().enumerate() {
        // What is pending of an access or a port completes.
        v.set_immediate_exit(true);
        for _ in 0..100 {
            if t.call(kvm::RUN, v.number(kvm::RUN, 0)).is_err() {
                break;
            }
        }
        v.set_immediate_exit(false);
        if !s.offered.amd {
            calls::leave_vmx(v, t);
        }
        let end = calls::settle(v, t).and_then(|()| calls::boot(v, Width::Long, 0, t));
        if let Err(e) = end {
            wrong.push(format!("vCPU {n} cannot be set to its start: {}", kvm::errno_name(e)));
            return Ok(());
        }
    }
    fill(&s.memory)?;
    let mut code = Code::new(Width::Long);
    code.out(PORT_END);
    s.memory.write(CODE, &code.bytes)?;
    for mode in ["nested", "shadow", "nested"] {
        let mut end = fs::write(s.vm.debugfs.join("paging_mode"), mode);
        if end.is_err() && mode == "shadow" && s.offered.amd && refusal(s).starts_with("hypervisor") {
            // What kvm-amd allocates for a hypervisor outlives EFER.SVME if user space ends an SMM that began
            // with it.
            count(
                &mut t.tolerated,
                "memory for a hypervisor that is one no more keeps the VM in nested paging",
            );
            for v in &vcpus {
                let mut r: kvm_sregs = v.get(kvm::GET_SREGS).unwrap_or_default();
                for efer in [EFER | EFER_SVME, EFER] {
                    r.efer = efer;
                    let _ = t.call(kvm::SET_SREGS, v.call(kvm::SET_SREGS, &mut r));
                }
            }
            end = fs::write(s.vm.debugfs.join("paging_mode"), mode);
        }
        t.switch(mode, end.as_ref().map(|_| ()).map_err(|e| e.raw_os_error().unwrap_or(0)));
        if let Err(e) = end {
            wrong.push(format!("the quiet VM does not switch to {mode}: {e}, {}", refusal(s)));
            return Ok(());
        }
        for (n, v) in vcpus.iter().enumerate() {
            watchdog.watch(true);
            let end = runs_to_its_end(v, s.offered.amd, t);
            watchdog.watch(false);
            if let Err(e) = end {
                wrong.push(format!("vCPU {n} does not run code in {mode}: {e}"));
                wrong.append(&mut watchdog.seen());
                return Ok(());
            }
            v.set_immediate_exit(true);
            let _ = t.call(kvm::RUN, v.number(kvm::RUN, 0));
            v.set_immediate_exit(false);
        }
    }
    Ok(())
}

/// Runs code that ends at a port. After an entry that failed, Intel's VMCS still has the event that was to be
/// injected, with which no vCPU is entered that has interrupts off: a few events may come first.
fn runs_to_its_end(v: &Vcpu, amd: bool, t: &mut Tally) -> Result<(), String> {
    const RFLAGS_IF: u64 = 0x200;
    let mut another = false;
    for _ in 0..4 {
        let mut regs = kvm_regs { rip: CODE, rsp: STACK_TOP, rflags: 2 | RFLAGS_IF, ..Default::default() };
        let _ = t.call(kvm::SET_REGS, v.call(kvm::SET_REGS, &mut regs));
        let end = t.call(kvm::RUN, v.number(kvm::RUN, 0));
        let port = (v.exit_reason() == KVM_EXIT_IO).then(|| v.detail::<u16>(2));
        match (end, port) {
            (Ok(_), Some(PORT_END)) => return Ok(()),
            (Ok(_), Some(_)) => {}
            // The other event, with whatever IDT the round left.
            (Ok(_), None) if another && v.exit_reason() == KVM_EXIT_SHUTDOWN => another = false,
            (Ok(_), None) if v.exit_reason() == KVM_EXIT_FAIL_ENTRY && !amd && !another => {
                // kvm-intel leaves an event whose entry failed in the VMCS, until another event takes its
                // place: one that user space gave an error code that its vector has not, for example.
                another = true;
                count(&mut t.tolerated, "an event whose entry failed stays in the VMCS");
                let mut e: kvm_vcpu_events = v.get(kvm::GET_VCPU_EVENTS).unwrap_or_default();
                e.exception = kvm_vcpu_events__bindgen_ty_1 { injected: 1, nr: 3, ..Default::default() };
                let _ = t.call(kvm::SET_VCPU_EVENTS, v.call(kvm::SET_VCPU_EVENTS, &mut e));
            }
            (end, _) => {
                let state = v.get::<kvm_regs>(kvm::GET_REGS);
                return Err(format!("{end:?}, exit {}, {state:x?}", v.exit_reason()));
            }
        }
    }
    Err("one event after the other".into())
}
