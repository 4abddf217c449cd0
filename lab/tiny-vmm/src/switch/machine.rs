// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM for the switch cases, with its mode from debugfs.
//!
//! Guest memory by guest-physical address: routines at 0x1000, words that VMM and guest share at 0x3000,
//! tables from 1 MB, data from [`DATA_GPA`]. The first 32 MB are identity-mapped in 4 KB pages; data is
//! mapped at [`DATA`].

mod paging;
mod vcpu;

pub use vcpu::{pae_mode, real_mode};

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::routines::{Routine, code};
use crate::memory::{HostPages, Memory};
use crate::tables::{DATA as DATA_PTE, LARGE, Tables};
use crate::vm::{TSS, Unavailable};
use vcpu::{Order, Vcpu, set_going, set_registers, start};

pub const CODE_GPA: u64 = 0x1000;
/// Address of the word that ends vCPU n's loop, 8 bytes each.
pub const STOP: u64 = 0x3000;
/// Address of vCPU n's counter.
pub const COUNT: u64 = 0x3100;
/// The error of a KVM_RUN that a signal ended.
const INTERRUPTED: &str = "interrupted";
const TABLES_GFN: u64 = 0x100;
const IDENTITY: u64 = 32 << 20;
pub const DATA_GPA: u64 = IDENTITY;
pub const DATA: u64 = 0x40_0000_0000;
/// Addresses with one page per 2 MB, so that each page has its own leaf table.
pub const SPARSE: u64 = 0x80_0000_0000;
pub const CAP: u32 = 0x42464d;

/// Arguments of a routine.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct Args {
    pub rax: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
}

/// The result of a routine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Number of errors that it counted.
    pub rbx: u64,
    /// Rounds.
    pub rbp: u64,
    /// Guest-physical address of an access without memory behind it.
    pub mmio: Option<u64>,
}

/// A VM. Each vCPU has a thread.
pub struct Machine {
    vcpus: Vec<Vcpu>,
    pub fd: Arc<VmFd>,
    kvm: Kvm,
    pub memory: Arc<Memory>,
    pub root: u64,
    pub tables: Tables,
    keys: bool,
}

/// CPUID.7.ECX: protection keys.
pub const KEYS: u32 = 1 << 3;

/// The CPUID leaf that tells of protection keys, if they are offered.
pub fn keys(cpuid: &mut CpuId) -> Option<&mut kvm_cpuid_entry2> {
    cpuid.as_mut_slice().iter_mut().find(|e| e.function == 7 && e.index == 0 && e.ecx & KEYS != 0)
}

/// How to make a machine.
#[derive(Debug, Clone, Copy)]
pub struct MachineSpec {
    /// 4 KB pages of data.
    pub pages: u64,
    /// Whether the guest maps its data in pages of 2 MB. Tables of 4 KB pages for more than 8 GB do not fit
    /// below the data.
    pub large: bool,
    /// Leaf tables with one page each, at [`SPARSE`].
    pub sparse: u64,
    pub backing: HostPages,
    pub vcpus: usize,
    /// Whether KVM emulates interrupt controllers. A halted vCPU then stays in KVM, and all vCPUs but the
    /// first wait for SIPI.
    pub irqchip: bool,
    /// Sets the mode by the capability before the first vCPU, if set.
    pub nested: Option<bool>,
    /// Whether vCPUs have protection keys, if KVM offers them.
    pub keys: bool,
}

impl Default for MachineSpec {
    fn default() -> MachineSpec {
        MachineSpec {
            pages: 1024,
            large: false,
            sparse: 0,
            backing: HostPages::Small,
            vcpus: 1,
            irqchip: false,
            nested: None,
            keys: false,
        }
    }
}

impl Machine {
    pub fn new(spec: MachineSpec) -> Result<Machine> {
        let kvm = Kvm::new().map_err(|e| Unavailable(format!("cannot open /dev/kvm: {e}")))?;
        let fd = Arc::new(kvm.create_vm().context("cannot create a VM")?);
        fd.set_tss_address(TSS).context("KVM_SET_TSS_ADDR")?;
        if let Some(nested) = spec.nested {
            enable(&fd, nested).context("the capability, before the first vCPU")?;
        }
        let memory = Arc::new(Memory::new(DATA_GPA + (spec.pages << 12), spec.backing)?);
        let mut tables = Tables::new(TABLES_GFN);
        let root = tables.table(4);
        for page in (0..IDENTITY).step_by(4096) {
            tables.map(root, page, 1, page | DATA_PTE);
        }
        let (step, level, flags) = if spec.large { (512, 2, DATA_PTE | LARGE) } else { (1, 1, DATA_PTE) };
        for page in (0..spec.pages).step_by(step) {
            tables.map(root, DATA + (page << 12), level, (DATA_GPA + (page << 12)) | flags);
        }
        for n in 0..spec.sparse {
            let gpa = DATA_GPA + ((n % spec.pages) << 12);
            tables.map(root, SPARSE + (n << 21), 1, gpa | DATA_PTE);
        }
        for (gfn, entries) in tables.iter() {
            ensure!(gfn << 12 < IDENTITY, "the tables do not fit below the data");
            let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_le_bytes()).collect();
            memory.write(gfn << 12, &bytes)?;
        }
        memory.write(CODE_GPA, code())?;
        let machine =
            Machine { vcpus: Vec::new(), fd, kvm, memory, root: root << 12, tables, keys: spec.keys };
        machine.slot(0, 0, machine.memory.len(), machine.memory.host_address(), 0)?;
        if spec.irqchip {
            // The page for virtual 8086 mode that Intel without unrestricted guest wants.
            let _ = machine.fd.set_tss_address(0xfffb_d000);
            machine.fd.create_irq_chip().context("KVM_CREATE_IRQCHIP")?;
        }
        let mut machine = machine;
        for _ in 0..spec.vcpus {
            machine.add_vcpu()?;
        }
        Ok(machine)
    }

    /// Sets a memory slot; size 0 removes it.
    pub fn slot(&self, slot: u32, gpa: u64, size: u64, host: u64, flags: u32) -> Result<()> {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: gpa,
            memory_size: size,
            userspace_addr: host,
        };
        // SAFETY: callers give memory that outlives the VM, or the machine's own.
        unsafe { self.fd.set_user_memory_region(region) }.context("KVM_SET_USER_MEMORY_REGION")
    }

    /// One more vCPU, in 64-bit mode.
    pub fn add_vcpu(&mut self) -> Result<usize> {
        let n = self.vcpus.len();
        let vcpu = self.fd.create_vcpu(n as u64).context("KVM_CREATE_VCPU")?;
        let mut cpuid =
            self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM_GET_SUPPORTED_CPUID")?;
        if !self.keys {
            if let Some(leaf) = keys(&mut cpuid) {
                leaf.ecx &= !KEYS;
            }
        }
        vcpu.set_cpuid2(&cpuid).context("KVM_SET_CPUID2")?;
        set_registers(&vcpu, self.root)?;
        self.vcpus.push(start(vcpu)?);
        Ok(n)
    }

    /// Gives keys to vCPUs that are added from now on, if KVM offers them.
    pub fn give_keys(&mut self) {
        self.keys = true;
    }

    /// Number of vCPUs.
    pub fn len(&self) -> usize {
        self.vcpus.len()
    }

    /// Starts a routine.
    pub fn go(&self, vcpu: usize, routine: Routine, args: Args) -> Result<()> {
        self.order(vcpu, Order::Run(routine, args))
    }

    fn order(&self, vcpu: usize, order: Order) -> Result<()> {
        self.vcpus[vcpu].orders.as_ref().context("no thread")?.send(order).ok().context("its thread ended")
    }

    /// Waits for a routine's end.
    pub fn end(&self, vcpu: usize) -> Result<Left> {
        self.vcpus[vcpu]
            .done
            .recv_timeout(Duration::from_secs(60))
            .with_context(|| format!("vCPU {vcpu} does not come to an end"))?
            .with_context(|| format!("vCPU {vcpu}"))
    }

    /// Runs a routine to its end.
    pub fn run(&self, vcpu: usize, routine: Routine, args: Args) -> Result<Left> {
        self.go(vcpu, routine, args)?;
        self.end(vcpu)
    }

    /// Continues after an interruption or a missing page.
    pub fn resume(&self, vcpu: usize) -> Result<()> {
        self.order(vcpu, Order::Resume)
    }

    /// Calls a function with the file of a vCPU that does not run.
    pub fn with(
        &self,
        vcpu: usize,
        f: impl FnOnce(&mut VcpuFd) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.order(vcpu, Order::With(Box::new(f)))?;
        self.end(vcpu).map(drop)
    }

    /// [`Machine::with`], without waiting for its end.
    pub fn begin_with(
        &self,
        vcpu: usize,
        f: impl FnOnce(&mut VcpuFd) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.order(vcpu, Order::With(Box::new(f)))
    }

    /// Sets a vCPU's registers for a routine that the next KVM_RUN begins.
    pub fn prepare(&self, vcpu: usize, routine: Routine, args: Args) -> Result<()> {
        self.with(vcpu, move |v| set_going(v, routine, args))
    }

    /// Sends a vCPU's thread a signal that does nothing.
    pub fn signal(&self, vcpu: usize) -> Result<()> {
        Ok(self.vcpus[vcpu].thread.as_ref().context("no thread")?.kill(SIGRTMIN())?)
    }

    /// Interrupts a vCPU's KVM_RUN.
    pub fn interrupt(&self, vcpu: usize) -> Result<()> {
        for _ in 0..20_000 {
            self.signal(vcpu)?;
            match self.vcpus[vcpu].done.recv_timeout(Duration::from_millis(1)) {
                Ok(Err(e)) if format!("{e:#}").contains(INTERRUPTED) => return Ok(()),
                Ok(end) => bail!("vCPU {vcpu} came to an end: {end:?}"),
                Err(_) => {}
            }
        }
        bail!("vCPU {vcpu} cannot be interrupted")
    }

    /// Writes to `pages` pages of data.
    pub fn fill(&self, vcpu: usize, at: u64, stride: u64, count: u64, tag: u64) -> Result<()> {
        self.run(vcpu, Routine::Fill, Args { rax: tag, rdi: at, rsi: count, rdx: stride, ..Args::default() })
            .map(drop)
    }

    /// Number of pages that do not hold what [`Machine::fill`] wrote.
    pub fn wrong(&self, vcpu: usize, at: u64, stride: u64, count: u64, tag: u64) -> Result<u64> {
        let args = Args { rax: tag, rdi: at, rsi: count, rdx: stride, ..Args::default() };
        Ok(self.run(vcpu, Routine::Check, args)?.rbx)
    }

    /// Lets a vCPU count until [`Machine::stop`].
    pub fn spin(&self, vcpu: usize) -> Result<()> {
        self.memory.write(STOP + 8 * vcpu as u64, &[0; 8])?;
        let (rdi, rsi) = (STOP + 8 * vcpu as u64, COUNT + 8 * vcpu as u64);
        self.go(vcpu, Routine::Spin, Args { rdi, rsi, ..Args::default() })
    }

    /// A vCPU's counter.
    pub fn count(&self, vcpu: usize) -> Result<u64> {
        self.memory.read(COUNT + 8 * vcpu as u64)
    }

    /// Ends a routine that loops.
    pub fn stop(&self, vcpu: usize) -> Result<Left> {
        self.memory.write(STOP + 8 * vcpu as u64, &1u64.to_le_bytes())?;
        self.end(vcpu)
    }

    /// Makes a vCPU that does not run a hypervisor itself, or no longer.
    pub fn set_hypervisor(&self, vcpu: usize, on: bool) -> Result<()> {
        let bit = &crate::vm::vendor()?.hypervisor;
        self.with(vcpu, move |v| {
            let mut s = v.get_sregs()?;
            (bit.set)(&mut s, on);
            Ok(v.set_sregs(&s)?)
        })
    }

    /// Number of words in the tables that differ from what the VMM wrote, apart from A and D bits.
    pub fn overwritten(&self, except: &[u64]) -> Result<u64> {
        const AD: u64 = 0x60;
        let mut wrong = 0;
        for (gfn, entries) in self.tables.iter() {
            for (i, want) in entries.iter().enumerate() {
                let at = (gfn << 12) | (i as u64) << 3;
                let changed = (self.memory.read(at)? ^ want) & !AD != 0;
                wrong += u64::from(changed && !except.contains(&at));
            }
        }
        Ok(wrong)
    }

    /// Address of the entry for `va` in the table of `level`.
    pub fn entry_at(&self, va: u64, level: u8) -> Result<u64> {
        let table = self.tables.find(self.root >> 12, va, level).context("no such table")?;
        Ok((table << 12) | ((crate::tables::index(va, level) as u64) << 3))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for v in &mut self.vcpus {
            v.orders = None;
        }
        for v in &mut self.vcpus {
            let Some(thread) = v.thread.take() else { continue };
            // Interrupts KVM_RUN, where a halted vCPU would stay for ever.
            while !thread.is_finished() {
                let _ = thread.kill(SIGRTMIN());
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = thread.join();
        }
    }
}

extern "C" fn nothing(_: i32, _: *mut libc::siginfo_t, _: *mut c_void) {}

/// Installs an empty handler, so that the signal only interrupts.
pub fn handle_signal() -> Result<()> {
    register_signal_handler(SIGRTMIN(), nothing).context("a signal's handler")
}

/// Sets the mode by the capability, as a VMM does.
pub fn enable(fd: &VmFd, nested: bool) -> Result<()> {
    let cap =
        kvm_bindings::kvm_enable_cap { cap: CAP, args: [u64::from(nested), 0, 0, 0], ..Default::default() };
    fd.enable_cap(&cap).context("KVM_ENABLE_CAP")
}

/// The result of KVM_CHECK_EXTENSION: bit 0 shadow paging, bit 1 nested paging.
pub fn capability() -> Result<i32> {
    let kvm = Kvm::new().map_err(|e| Unavailable(format!("cannot open /dev/kvm: {e}")))?;
    Ok(kvm.check_extension_raw(u64::from(CAP)))
}
