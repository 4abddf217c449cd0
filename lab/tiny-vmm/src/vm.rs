// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM with memory and vCPUs in 64-bit mode. Each vCPU is a thread that runs on request.
//!
//! There is no interrupt controller and no device, so HLT and port I/O return to the VMM. A guest's registers
//! are set as a kernel sets them (paging, write protection, no-execute, global pages), so that KVM's MMU role
//! is that of a running kernel.

use crate::asm::{PORT_MARKER, PORT_VALUE};
use crate::guest::{CR4, Guest};
use crate::memory::{HostPages, Memory};
use crate::numa::pin;
use crate::vendor::{VENDORS, Vendor};
use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// PG, WP, NE, ET, MP, PE.
pub const CR0: u64 = 0x8001_0033;
/// NXE, LMA, LME.
pub const EFER: u64 = 0xd00;

/// Guest-physical address of three pages that kvm-intel uses for guests in real mode, below the BIOS's place.
pub const TSS: usize = 0xfffb_d000;

/// KVM is missing or lacks something: exit status 77.
#[derive(Debug)]
pub struct Unavailable(pub String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

#[derive(Debug)]
struct Vcpu {
    go: Option<Sender<()>>,
    done: Receiver<Result<Vec<u32>>>,
    thread: Option<JoinHandle<()>>,
}

/// Where a VM's threads run, and where its memory lies. The default leaves both to the host.
#[derive(Debug, Clone, Default)]
pub struct Whereabouts {
    /// The CPU of each vCPU.
    pub cpus: Vec<usize>,
    /// Ranges of guest memory, and the nodes that they are bound to.
    pub bound: Vec<(Range<u64>, u32)>,
}

/// A VM with a guest in it.
#[derive(Debug)]
pub struct TinyVm {
    // Dropped in this order: vCPUs, VM, memory.
    vcpus: Vec<Vcpu>,
    fd: VmFd,
    pub memory: Memory,
}

impl TinyVm {
    /// Makes the VM and puts the guest's image into its memory.
    pub fn new(guest: &Guest, backing: HostPages) -> Result<TinyVm> {
        TinyVm::placed(guest, backing, &Whereabouts::default())
    }

    /// [`TinyVm::new`], with threads and memory where they are wanted.
    pub fn placed(guest: &Guest, backing: HostPages, at: &Whereabouts) -> Result<TinyVm> {
        let kvm = Kvm::new().map_err(|e| Unavailable(format!("cannot open /dev/kvm: {e}")))?;
        let fd = kvm.create_vm().map_err(|e| Unavailable(format!("cannot create a VM: {e}")))?;
        let memory = Memory::new(guest.memory, backing).map_err(|e| Unavailable(format!("{e:#}")))?;
        for (range, node) in &at.bound {
            memory.bind(range.clone(), *node)?;
        }
        for (gpa, bytes) in guest.image() {
            memory.write(gpa, &bytes)?;
        }
        // kvm-intel wants room for a task segment of its own before it knows that it needs none.
        if memory.len() <= TSS as u64 {
            fd.set_tss_address(TSS).context("KVM_SET_TSS_ADDR")?;
        }
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.len(),
            userspace_addr: memory.host_address(),
        };
        // SAFETY: the mapping lives as long as the VM: `TinyVm` drops `fd` before `memory`.
        unsafe { fd.set_user_memory_region(region) }.context("cannot give the VM its memory")?;
        let cpuid =
            kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("cannot read the supported CPUID")?;
        let mut vcpus = Vec::new();
        for n in 0..guest.vcpus() {
            let vcpu = fd.create_vcpu(n as u64).context("cannot create a vCPU")?;
            vcpu.set_cpuid2(&cpuid).context("cannot set CPUID")?;
            set_registers(&vcpu, guest, n).with_context(|| format!("cannot set vCPU {n}'s registers"))?;
            vcpus.push(start(vcpu, at.cpus.get(n).copied()));
        }
        Ok(TinyVm { vcpus, fd, memory })
    }

    /// Runs a vCPU until its next marker. Returns the values that the guest sent.
    pub fn run(&self, vcpu: usize) -> Result<Vec<u32>> {
        let v = &self.vcpus[vcpu];
        let gone = "a vCPU's thread ended";
        v.go.as_ref().context(gone)?.send(()).context(gone)?;
        v.done.recv().context(gone)?.with_context(|| format!("vCPU {vcpu}"))
    }

    /// The debugfs directory with this VM's statistics.
    pub fn debugfs(&self) -> PathBuf {
        format!("/sys/kernel/debug/kvm/{}-{}", std::process::id(), self.fd.as_raw_fd()).into()
    }
}

impl Drop for TinyVm {
    fn drop(&mut self) {
        for v in &mut self.vcpus {
            v.go = None;
            if let Some(t) = v.thread.take() {
                let _ = t.join();
            }
        }
    }
}

fn start(mut vcpu: VcpuFd, cpu: Option<usize>) -> Vcpu {
    let (go, orders) = channel();
    let (reports, done) = channel();
    let thread = std::thread::spawn(move || {
        if let Some(Err(e)) = cpu.map(pin) {
            let _ = reports.send(Err(e));
            return;
        }
        while orders.recv().is_ok() {
            if reports.send(run_to_marker(&mut vcpu)).is_err() {
                return;
            }
        }
    });
    Vcpu { go: Some(go), done, thread: Some(thread) }
}

fn run_to_marker(vcpu: &mut VcpuFd) -> Result<Vec<u32>> {
    let mut values = Vec::new();
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, _)) if port == u16::from(PORT_MARKER) => return Ok(values),
            Ok(VcpuExit::IoOut(port, data)) if port == u16::from(PORT_VALUE) => {
                let data = data.try_into().context("a value of another size than 4 bytes")?;
                values.push(u32::from_le_bytes(data));
            }
            Ok(other) => {
                let other = format!("{other:?}");
                let rip = vcpu.get_regs().map(|r| r.rip).unwrap_or(0);
                let cr2 = vcpu.get_sregs().map(|s| s.cr2).unwrap_or(0);
                bail!("unexpected exit {other} at {rip:#x}, CR2 {cr2:#x}");
            }
            Err(e) if e.errno() == rustix::io::Errno::INTR.raw_os_error() => {}
            Err(e) => return Err(e).context("KVM_RUN"),
        }
    }
}

/// Flat segments of 64-bit mode.
pub fn long_mode_segments(s: &mut kvm_sregs) {
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: 8,
        type_: 0xb,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 16, type_: 3, db: 1, l: 0, ..code };
    s.cs = code;
    (s.ds, s.es, s.ss, s.fs, s.gs) = (data, data, data, data, data);
    s.tr = kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..Default::default() };
}

fn set_registers(vcpu: &VcpuFd, guest: &Guest, n: usize) -> Result<()> {
    let mut sregs = vcpu.get_sregs()?;
    long_mode_segments(&mut sregs);
    if let Some(s) = guest.system {
        (sregs.gdt.base, sregs.gdt.limit) = (s.gdt, 23);
        (sregs.idt.base, sregs.idt.limit) = (s.idt, 0xfff);
    }
    sregs.cr0 = CR0;
    sregs.cr3 = guest.first_cr3(n);
    sregs.cr4 = CR4;
    sregs.efer = EFER;
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    regs.rip = guest.entry(n);
    regs.rsp = guest.system.map_or(0, |s| s.stack);
    regs.rflags = 2;
    vcpu.set_regs(&regs)?;
    Ok(())
}

/// The vendor of this machine's processor.
pub fn vendor() -> Result<&'static Vendor, Unavailable> {
    let ids = VENDORS.map(|v| v.cpuid).join(", ");
    let missing = || Unavailable(format!("this processor is not one of those in vendor.rs: {ids}"));
    Vendor::of_this_machine().ok_or_else(missing)
}

/// The paging mode of the host's KVM, `nested` or `shadow`, by its module's parameter.
pub fn host_mode(vendor: &Vendor) -> Result<bifold_model::Paging> {
    let text = std::fs::read_to_string(vendor.nested_parameter_path())
        .map_err(|_| Unavailable(format!("{} is not loaded", vendor.module)))?;
    let on = matches!(text.trim(), "Y" | "1");
    Ok(if on { bifold_model::Paging::Nested } else { bifold_model::Paging::Shadow })
}

/// The host kernel's release.
pub fn host_kernel() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("/proc/sys/kernel/osrelease")?;
    ensure!(!text.trim().is_empty(), "the kernel has no release");
    Ok(text.trim().to_owned())
}

/// Whether this host's kernel is one of kernel/debug-kernel, which checks each of its accesses to memory and
/// takes its time.
pub fn has_checks() -> Result<bool> {
    Ok(host_kernel()?.contains("bifold"))
}

/// Whether this host's kernel is one of kernel/debug-kernel --races, in which KCSAN pauses at random for
/// others to come in between.
pub fn pauses_at_random() -> Result<bool> {
    Ok(host_kernel()?.contains("bifold-races"))
}
