// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM for the switch cases, with its mode from debugfs.
//!
//! Guest memory by guest-physical address: routines at 0x1000, words that VMM and guest share at 0x3000,
//! tables from 1 MB, data from [`DATA_GPA`]. The first 32 MB are identity-mapped in 4 KB pages; data is
//! mapped at [`DATA`].

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bifold_host::{Host, PagingFiles, VmId};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2, kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::routines::{Routine, code};
use crate::asm::PORT_MARKER;
use crate::guest::CR4;
use crate::memory::{HostPages, Memory};
use crate::tables::{DATA as DATA_PTE, LARGE, Tables};
use crate::vm::{CR0, EFER, TSS, Unavailable, long_mode_segments};

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

type VcpuFn = Box<dyn FnOnce(&mut VcpuFd) -> Result<()> + Send>;

enum Order {
    Run(Routine, Args),
    /// A function with the vCPU's file.
    With(VcpuFn),
    /// Continue after an interruption.
    Resume,
}

struct Vcpu {
    orders: Option<Sender<Order>>,
    done: Receiver<Result<Left>>,
    thread: Option<JoinHandle<()>>,
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

    fn id(&self) -> VmId {
        VmId { thread: std::process::id(), fd: self.fd.as_raw_fd() as u32 }
    }

    fn debugfs(&self) -> PathBuf {
        Host::live().vm_dir(self.id())
    }

    fn paging(&self) -> Result<PagingFiles> {
        let lacks =
            || Unavailable(format!("{}: this KVM has no paging mode per VM", self.mode_file().display()));
        Ok(Host::live().paging_files(self.id())?.ok_or_else(lacks)?)
    }

    /// Path of `paging_mode`, for tests that [`PagingFiles`] does not allow: invalid words, other users.
    pub fn mode_file(&self) -> PathBuf {
        self.debugfs().join("paging_mode")
    }

    pub fn mode(&self) -> Result<String> {
        Ok(self.paging()?.state()?.to_string())
    }

    /// Switches the VM. The inner error is the error number of a refusal.
    pub fn try_switch(&self, mode: &str) -> Result<std::result::Result<(), i32>> {
        match fs::write(self.mode_file(), mode) {
            Ok(()) => Ok(Ok(())),
            Err(e) => Ok(Err(e.raw_os_error().context("a write failed without a number")?)),
        }
    }

    pub fn switch(&self, mode: &str) -> Result<()> {
        match self.try_switch(mode)? {
            Ok(()) => Ok(()),
            Err(e) => bail!("switching to {mode}: {}", std::io::Error::from_raw_os_error(e)),
        }
    }

    /// KVM's figures of this VM's switches, by name.
    pub fn stats(&self) -> Result<BTreeMap<&'static str, u64>> {
        Ok(self.paging()?.stats()?.known().collect())
    }

    /// A line of `paging_stats`.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let path = self.debugfs().join("paging_stats");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("{} has no {name}", path.display()))?.parse()?)
    }

    /// The switches for the guest so far. Each is counted when it has ended, and the vCPU may be faster:
    /// waits up to 5 s for as many as are expected.
    pub fn switches_by_guest(&self, expected: u64) -> Result<u64> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let now = self.counter("switches_by_guest")?;
            if now >= expected || Instant::now() >= until {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A statistic of KVM for this VM, summed over all vCPUs.
    pub fn kvm_stat(&self, name: &str) -> Result<u64> {
        let path = self.debugfs().join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().parse()?)
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

    /// Whether the VM has reverse maps, which nested paging does without.
    pub fn has_reverse_maps(&self) -> Result<bool> {
        let path = self.debugfs().join("mmu_rmaps_stat");
        Ok(!fs::read_to_string(&path).with_context(|| path.display().to_string())?.is_empty())
    }

    /// Faults that KVM's MMU has handled: violations under nested paging, page faults under shadow paging.
    pub fn faults(&self) -> Result<u64> {
        self.kvm_stat("pf_taken")
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

fn start(mut vcpu: VcpuFd) -> Result<Vcpu> {
    let (orders, inbox) = channel();
    let (reports, done) = channel();
    let thread = std::thread::Builder::new().spawn(move || {
        while let Ok(order) = inbox.recv() {
            let result = match order {
                Order::Run(routine, args) => set_going(&vcpu, routine, args).and_then(|()| run(&mut vcpu)),
                Order::Resume => run(&mut vcpu),
                Order::With(f) => f(&mut vcpu).map(|()| Left { rbx: 0, rbp: 0, mmio: None }),
            };
            if reports.send(result).is_err() {
                return;
            }
        }
    });
    let thread = thread.context("a vCPU's thread")?;
    Ok(Vcpu { orders: Some(orders), done, thread: Some(thread) })
}

fn set_going(vcpu: &VcpuFd, routine: Routine, args: Args) -> Result<()> {
    let mut r = vcpu.get_regs()?;
    r.rip = CODE_GPA + routine.offset();
    (r.rax, r.rdx, r.rsi, r.rdi) = (args.rax, args.rdx, args.rsi, args.rdi);
    (r.r8, r.r9, r.r10, r.r11, r.r12) = (args.r8, args.r9, args.r10, args.r11, args.r12);
    r.rflags = 2;
    Ok(vcpu.set_regs(&r)?)
}

/// Runs a vCPU until the routine's end, a missing page, or our signal.
fn run(vcpu: &mut VcpuFd) -> Result<Left> {
    let mmio = loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, _)) if port == u16::from(PORT_MARKER) => break None,
            Ok(VcpuExit::MmioRead(at, _) | VcpuExit::MmioWrite(at, _)) => break Some(at),
            Ok(other) => {
                let other = format!("{other:?}");
                let rip = vcpu.get_regs().map(|r| r.rip).unwrap_or(0);
                let cr2 = vcpu.get_sregs().map(|s| s.cr2).unwrap_or(0);
                bail!("unexpected exit {other} at {rip:#x}, CR2 {cr2:#x}");
            }
            Err(e) if e.errno() == rustix::io::Errno::INTR.raw_os_error() => bail!(INTERRUPTED),
            // A vCPU that waited for its start was woken.
            Err(e) if e.errno() == rustix::io::Errno::AGAIN.raw_os_error() => {}
            Err(e) => return Err(e).context("KVM_RUN"),
        }
    };
    let r = vcpu.get_regs()?;
    Ok(Left { rbx: r.rbx, rbp: r.rbp, mmio })
}

fn set_registers(vcpu: &VcpuFd, root: u64) -> Result<()> {
    let mut s = vcpu.get_sregs()?;
    long_mode_segments(&mut s);
    (s.cr0, s.cr3, s.cr4, s.efer) = (CR0, root, CR4, EFER);
    Ok(vcpu.set_sregs(&s)?)
}

/// Puts a vCPU into real mode at a routine, as after its start.
pub fn real_mode(vcpu: &VcpuFd) -> Result<()> {
    let mut s = vcpu.get_sregs()?;
    let segment = kvm_segment { limit: 0xffff, type_: 3, present: 1, s: 1, ..Default::default() };
    s.cs = kvm_segment { type_: 0xb, ..segment };
    (s.ds, s.es, s.ss, s.fs, s.gs) = (segment, segment, segment, segment, segment);
    (s.cr0, s.cr3, s.cr4, s.efer) = (0x10, 0, 0, 0);
    Ok(vcpu.set_sregs(&s)?)
}

/// 32-bit protected mode under PAE paging, with its PDPT at `cr3`.
pub fn pae_mode(vcpu: &VcpuFd, cr3: u64) -> Result<()> {
    let mut s = vcpu.get_sregs()?;
    s.cs = kvm_segment { l: 0, db: 1, ..s.cs };
    (s.cr0, s.cr3, s.cr4, s.efer) = (CR0, cr3, CR4, 0);
    Ok(vcpu.set_sregs(&s)?)
}
