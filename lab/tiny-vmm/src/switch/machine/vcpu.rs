// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine's vCPUs: each has a thread that takes orders, and registers for the modes of the processor.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use kvm_bindings::kvm_segment;
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::{Args, CODE_GPA, INTERRUPTED, Left};
use crate::asm::PORT_MARKER;
use crate::guest::CR4;
use crate::switch::routines::Routine;
use crate::vm::{CR0, EFER, long_mode_segments};

type VcpuFn = Box<dyn FnOnce(&mut VcpuFd) -> Result<()> + Send>;

pub(super) enum Order {
    Run(Routine, Args),
    /// A function with the vCPU's file.
    With(VcpuFn),
    /// Continue after an interruption.
    Resume,
}

pub(super) struct Vcpu {
    pub(super) orders: Option<Sender<Order>>,
    pub(super) done: Receiver<Result<Left>>,
    pub(super) thread: Option<JoinHandle<()>>,
}

/// Starts a vCPU's thread, which waits for orders.
pub(super) fn start(mut vcpu: VcpuFd) -> Result<Vcpu> {
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

/// Sets the registers for a routine that the next KVM_RUN begins.
pub(super) fn set_going(vcpu: &VcpuFd, routine: Routine, args: Args) -> Result<()> {
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
                let mut other = format!("{other:?}");
                let run = vcpu.get_kvm_run();
                if run.exit_reason == kvm_bindings::KVM_EXIT_INTERNAL_ERROR {
                    // SAFETY: the exit's reason says which part of the union is set; it is of plain numbers.
                    let error = unsafe { run.__bindgen_anon_1.internal };
                    let data: Vec<_> = error.data.iter().take(error.ndata as usize).collect();
                    other = format!("{other} {} {data:#x?}", error.suberror);
                }
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

/// Puts a vCPU into 64-bit mode.
pub(super) fn set_registers(vcpu: &VcpuFd, root: u64) -> Result<()> {
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
