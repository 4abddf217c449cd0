// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of what shadow paging costs and cannot give: who may choose it, what the host keeps for it, and
//! guests that begin to use what only nested paging has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Notes;
use super::control::EBUSY;
use super::machine::{Args, CAP, DATA, Machine, MachineSpec};
use super::routines::Routine;
use crate::vendor::Begins;

const EPERM: i32 = 1;

/// The right to choose shadow paging: CAP_SYS_ADMIN, as debugfs wants, or `paging_by_vmm`.
pub fn by_vmm(n: &mut Notes) -> Result<()> {
    const ALLOWED: &str = "/sys/module/kvm/parameters/paging_by_vmm";
    n.same(ALLOWED, std::fs::read_to_string(ALLOWED).context(ALLOWED)?.trim(), "N");
    let m = Machine::new(MachineSpec { vcpus: 2, ..MachineSpec::default() })?;
    // A thread of another user: KVM takes the process for the same.
    let as_user = |nested: bool| -> Result<(i32, std::result::Result<(), i32>)> {
        let fd = Arc::clone(&m.fd);
        let thread = std::thread::spawn(move || -> Result<_> {
            use rustix::thread::{set_thread_gid, set_thread_uid};
            set_thread_gid(rustix::process::Gid::from_raw(65534))?;
            set_thread_uid(rustix::process::Uid::from_raw(65534))?;
            let args = [u64::from(nested), 0, 0, 0];
            let cap = kvm_bindings::kvm_enable_cap { cap: CAP, args, ..Default::default() };
            let offered = fd.check_extension_raw(u64::from(CAP));
            Ok((offered, fd.enable_cap(&cap).map_err(|e| e.errno())))
        });
        thread.join().map_err(|_| anyhow::anyhow!("the other user's thread died"))?
    };
    n.same("offered and chosen by a user", as_user(false)?, (2, Err(EPERM)));
    n.same("mode", m.mode()?.as_str(), "nested");
    std::fs::write(ALLOWED, "1")?;
    let end = as_user(false);
    std::fs::write(ALLOWED, "0")?;
    n.same("the same where allowed", end?, (3, Ok(())));
    n.same("mode", m.mode()?.as_str(), "shadow");
    n.same("back, which every user may", as_user(true)?, (2, Ok(())));
    n.same("mode", m.mode()?.as_str(), "nested");
    Ok(())
}

/// Reverse maps and write tracking are there for shadow paging only.
pub fn given_back(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { vcpus: 2, ..MachineSpec::default() })?;
    m.spin(0)?;
    n.same("reverse maps at first", m.has_reverse_maps()?, false);
    for round in 0..5 {
        m.switch("shadow")?;
        m.fill(1, DATA, 4096, 100, round)?;
        n.same("reverse maps in shadow paging", m.has_reverse_maps()?, true);
        m.switch("nested")?;
        without_reverse_maps(n, &m)?;
        n.same("pages wrong", m.wrong(1, DATA, 4096, 100, round)?, 0);
        m.set_hypervisor(1, true)?;
        n.same("with a hypervisor", m.try_switch("shadow")?, Err(EBUSY));
        without_reverse_maps(n, &m)?;
        m.set_hypervisor(1, false)?;
    }
    m.stop(0)?;
    Ok(())
}

pub(super) fn without_reverse_maps(n: &mut Notes, m: &Machine) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while m.has_reverse_maps()? && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    n.same("reverse maps some time after", m.has_reverse_maps()?, false);
    Ok(())
}

/// Runs a routine that only nested paging allows in a VM in shadow paging, one switched and one born so.
/// Returns the word that it left, for the last VM.
fn brings_back(
    n: &mut Notes,
    routine: Routine,
    args: Args,
    prepare: impl Fn(&Machine) -> Result<()>,
) -> Result<u64> {
    const WORD: u64 = 0x3300;
    let mut word = 0;
    for born in [false, true] {
        let nested = born.then_some(false);
        let m = Machine::new(MachineSpec { vcpus: 3, nested, keys: true, ..MachineSpec::default() })?;
        prepare(&m)?;
        m.fill(1, DATA, 4096, 200, 9)?;
        if !born {
            m.switch("shadow")?;
        }
        m.fill(1, DATA, 4096, 100, 9)?;
        m.spin(0)?;
        n.same("mode before", m.mode()?.as_str(), "shadow");
        let to_shadow = m.stats()?["switches_to_shadow"];
        m.run(2, routine, Args { rsi: WORD, ..args })?;
        word = m.memory.read(WORD)?;
        n.same("mode after", m.mode()?.as_str(), "nested");
        m.switches_by_guest(1)?;
        let s = m.stats()?;
        let switches = (s["switches_to_shadow"], s["switches_to_nested"], s["switches_by_guest"]);
        n.same("switches", switches, (to_shadow, 1, 1));
        n.same("to shadow again", m.try_switch("shadow")?, Err(EBUSY));
        let before = m.count(0)?;
        std::thread::sleep(Duration::from_millis(20));
        n.expect(m.count(0)? > before, || "the running vCPU does not run any more".into());
        n.same("pages wrong", m.wrong(1, DATA, 4096, 100, 9)?, 0);
        m.stop(0)?;
    }
    Ok(word)
}

pub fn guest_hypervisor(n: &mut Notes) -> Result<()> {
    match crate::vm::vendor()?.hypervisor.begins {
        Begins::Msr(msr, bit) => {
            let args = Args { r8: msr.into(), r9: bit, ..Args::default() };
            let left = brings_back(n, Routine::Msr, args, |_| Ok(()))?;
            n.expect(left & bit != 0, || format!("MSR {msr:#x} is {left:#x}"));
        }
        Begins::Vmxon => {
            let args = Args { rdi: POINTER, ..Args::default() };
            let left = brings_back(n, Routine::Vmxon, args, allow_vmxon)?;
            n.same("VMXON succeeded", left, 1);
        }
    }
    Ok(())
}

/// Address of the word that has the address of the region for VMXON.
const POINTER: u64 = 0x3308;

/// Makes vCPU 2 one whose firmware allowed VMX, and a region for VMXON.
pub(super) fn allow_vmxon(m: &Machine) -> Result<()> {
    const REGION: u64 = 24 << 20;
    const FEATURE_CONTROL: u32 = 0x3a;
    const VMX_BASIC: u32 = 0x480;
    // Locked, and VMXON outside of SMX allowed.
    const ALLOWED: u64 = 1 | 1 << 2;
    let one = |index, data| {
        let entry = kvm_bindings::kvm_msr_entry { index, data, ..Default::default() };
        kvm_bindings::Msrs::from_entries(&[entry]).map_err(|e| anyhow::anyhow!("{e:?}"))
    };
    let mut basic = one(VMX_BASIC, 0)?;
    let read = kvm_ioctls::Kvm::new()?.get_msrs(&mut basic)?;
    ensure!(read == 1, "KVM does not offer VMX to guests (kvm_intel's parameter nested)");
    let revision = basic.as_slice()[0].data as u32 & 0x7fff_ffff;
    let allowed = one(FEATURE_CONTROL, ALLOWED)?;
    m.with(2, move |v| {
        ensure!(v.set_msrs(&allowed)? == 1, "IA32_FEATURE_CONTROL cannot be set");
        Ok(())
    })?;
    m.memory.write(REGION, &revision.to_le_bytes())?;
    m.memory.write(POINTER, &REGION.to_le_bytes())
}
