// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a VMM sees of a vCPU, as named numbers, and the comparison of two vCPUs.

use kvm_bindings::*;

use super::kvm::{self, Entries, Errno, Vcpu};
use super::registers::{MSR_EFER, MSRS};
use super::tally::Tally;

/// Named numbers in the order in which they were seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedNumbers(pub Vec<(&'static str, u64)>);

impl NamedNumbers {
    pub fn add(&mut self, name: &'static str, value: u64) {
        self.0.push((name, value));
    }

    /// A call's result: its value, or its error's number as a negative one.
    pub fn result(&mut self, name: &'static str, result: Result<i32, Errno>) {
        self.add(name, result.map_or_else(|e| -i64::from(e) as u64, |v| v as u64));
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }
}

/// The differences of two sequences, in words. `a` is what was never switched.
pub fn differences(a: &NamedNumbers, b: &NamedNumbers) -> Vec<String> {
    let mut out = Vec::new();
    for i in 0..a.0.len().max(b.0.len()) {
        match (a.0.get(i), b.0.get(i)) {
            (Some(x), Some(y)) if x == y => {}
            (Some((n, x)), Some((m, y))) if n == m => out.push(format!("{n}: {x:#x}, switched {y:#x}")),
            _ => {
                // What follows is another sequence.
                let say = |s: &NamedNumbers| {
                    let next = s.0.iter().skip(i).take(8).map(|(n, v)| format!("{n} {v:#x}"));
                    next.collect::<Vec<_>>().join(", ")
                };
                out.push(format!("[{}], switched [{}]", say(a), say(b)));
                break;
            }
        }
    }
    out
}

fn regs(s: &mut NamedNumbers, r: &kvm_regs) {
    for (name, value) in [
        ("rax", r.rax),
        ("rbx", r.rbx),
        ("rcx", r.rcx),
        ("rdx", r.rdx),
        ("rsi", r.rsi),
        ("rdi", r.rdi),
        ("rsp", r.rsp),
        ("rbp", r.rbp),
        ("r8", r.r8),
        ("r9", r.r9),
        ("r10", r.r10),
        ("r11", r.r11),
        ("r12", r.r12),
        ("r13", r.r13),
        ("r14", r.r14),
        ("r15", r.r15),
        ("rip", r.rip),
        ("rflags", r.rflags),
    ] {
        s.add(name, value);
    }
}

fn segment(s: &mut NamedNumbers, names: [&'static str; 4], g: &kvm_segment) {
    s.add(names[0], g.selector.into());
    s.add(names[1], g.base);
    s.add(names[2], g.limit.into());
    // The type of a segment that is not usable means nothing, and KVM sets its accessed bit with the
    // registers.
    let kind = if g.unusable == 0 { g.type_ } else { 0 };
    let bits = [kind, g.present, g.dpl, g.db, g.s, g.l, g.g, g.avl, g.unusable];
    s.add(names[3], bits.iter().fold(0, |all, b| all << 4 | u64::from(*b)));
}

fn sregs(s: &mut NamedNumbers, r: &kvm_sregs) {
    // Nothing looks at the type of CS in real mode, and what a far jump makes of it differs: Bochs makes it
    // data, KVM's emulator leaves it code. The type stays when the guest enters protected mode.
    const CR0_PG: u64 = 1 << 31;
    const EXECUTABLE: u8 = 8;
    let mut cs = r.cs;
    cs.type_ |= if r.cr0 & CR0_PG == 0 { EXECUTABLE } else { 0 };
    segment(s, ["cs", "cs.base", "cs.limit", "cs.bits"], &cs);
    segment(s, ["ds", "ds.base", "ds.limit", "ds.bits"], &r.ds);
    segment(s, ["es", "es.base", "es.limit", "es.bits"], &r.es);
    segment(s, ["fs", "fs.base", "fs.limit", "fs.bits"], &r.fs);
    segment(s, ["gs", "gs.base", "gs.limit", "gs.bits"], &r.gs);
    segment(s, ["ss", "ss.base", "ss.limit", "ss.bits"], &r.ss);
    segment(s, ["tr", "tr.base", "tr.limit", "tr.bits"], &r.tr);
    segment(s, ["ldt", "ldt.base", "ldt.limit", "ldt.bits"], &r.ldt);
    for (name, value) in [
        ("gdt.base", r.gdt.base),
        ("gdt.limit", r.gdt.limit.into()),
        ("idt.base", r.idt.base),
        ("idt.limit", r.idt.limit.into()),
        ("cr0", r.cr0),
        ("cr2", r.cr2),
        ("cr3", r.cr3),
        ("cr4", r.cr4),
        ("cr8", r.cr8),
        ("efer", r.efer),
        ("apic_base", r.apic_base),
    ] {
        s.add(name, value);
    }
}

fn events(s: &mut NamedNumbers, e: &kvm_vcpu_events) {
    let x = &e.exception;
    // The number and the error code of no exception mean nothing.
    let is = x.injected | x.pending != 0;
    let code = if x.has_error_code != 0 { u64::from(x.error_code) } else { 0 };
    let number = u64::from(x.nr) | u64::from(x.has_error_code) << 8 | u64::from(x.pending) << 16 | code << 32;
    s.add("exception", if is { number | 1 << 24 } else { 0 });
    let i = &e.interrupt;
    s.add("interrupt", if i.injected != 0 { u64::from(i.nr) | 1 << 8 | u64::from(i.soft) << 9 } else { 0 });
    s.add("interrupt shadow", i.shadow.into());
    s.add(
        "nmi",
        [e.nmi.injected, e.nmi.pending, e.nmi.masked].iter().fold(0, |all, b| all << 8 | u64::from(*b)),
    );
    s.add(
        "smi",
        [e.smi.smm, e.smi.pending, e.smi.smm_inside_nmi].iter().fold(0, |all, b| all << 8 | u64::from(*b)),
    );
}

/// Everything that is compared of a vCPU that does not run.
pub fn all(vcpu: &Vcpu, tally: &mut Tally) -> Result<NamedNumbers, Errno> {
    let mut s = NamedNumbers::default();
    regs(&mut s, &tally.call(kvm::GET_REGS, vcpu.get(kvm::GET_REGS))?);
    sregs(&mut s, &tally.call(kvm::GET_SREGS, vcpu.get(kvm::GET_SREGS))?);
    events(&mut s, &tally.call(kvm::GET_VCPU_EVENTS, vcpu.get(kvm::GET_VCPU_EVENTS))?);
    let debug: kvm_debugregs = tally.call(kvm::GET_DEBUGREGS, vcpu.get(kvm::GET_DEBUGREGS))?;
    for (name, value) in ["dr0", "dr1", "dr2", "dr3"].into_iter().zip(debug.db) {
        s.add(name, value);
    }
    s.add("dr6", debug.dr6);
    s.add("dr7", debug.dr7);
    let asked: Vec<(u32, u64)> = MSRS[..MSRS.len() - 1].iter().map(|m| (*m, 0)).collect();
    let mut msrs = Entries::msrs(&asked);
    s.result("number of MSRs", tally.call(kvm::GET_MSRS, vcpu.entries(kvm::GET_MSRS, &mut msrs)));
    const NAMES: [&str; 9] =
        ["PAT", "EFER", "STAR", "LSTAR", "SFMASK", "FS_BASE", "GS_BASE", "KERNEL_GS_BASE", "SYSENTER_CS"];
    debug_assert_eq!(MSRS[1], MSR_EFER);
    for (name, value) in NAMES.into_iter().zip(msrs.values()) {
        s.add(name, value);
    }
    Ok(s)
}

/// The registers of floating point, which change seldom.
pub fn fpu(vcpu: &Vcpu, tally: &mut Tally) -> Result<NamedNumbers, Errno> {
    let f: kvm_fpu = tally.call(kvm::GET_FPU, vcpu.get(kvm::GET_FPU))?;
    let mut s = NamedNumbers::default();
    let bytes = f.xmm.iter().chain(&f.fpr).flatten();
    s.add(
        "xmm and fpr",
        bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)),
    );
    s.add("mxcsr", f.mxcsr.into());
    s.add("fcw and fsw", u64::from(f.fcw) << 16 | u64::from(f.fsw));
    let x: kvm_xcrs = match tally.call(kvm::GET_XCRS, vcpu.get(kvm::GET_XCRS)) {
        Ok(x) => x,
        Err(_) => return Ok(s),
    };
    s.add("xcr0", x.xcrs[0].value);
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_difference_is_found_and_named() {
        let mut a = NamedNumbers::default();
        regs(&mut a, &kvm_regs { rax: 1, rcx: 2, ..Default::default() });
        let mut b = a.clone();
        assert_eq!(differences(&a, &b), Vec::<String>::new());
        b.0[2].1 = 3;
        assert_eq!(differences(&a, &b), ["rcx: 0x2, switched 0x3"]);
        b.add("exit", 8);
        assert_eq!(differences(&a, &b)[1], "[], switched [exit 0x8]");
        let mut s = kvm_sregs { cr3: 0x1000, ..Default::default() };
        let (mut c, mut d) = (NamedNumbers::default(), NamedNumbers::default());
        sregs(&mut c, &s);
        s.ss.dpl = 3;
        sregs(&mut d, &s);
        assert_eq!(differences(&c, &d).len(), 1);
        assert_eq!(d.get("cr3"), Some(0x1000));
    }

    #[test]
    fn an_exception_that_is_not_there_has_no_number() {
        let (mut a, mut b) = (NamedNumbers::default(), NamedNumbers::default());
        let mut e = kvm_vcpu_events::default();
        events(&mut a, &e);
        e.exception.nr = 14;
        events(&mut b, &e);
        assert_eq!(a, b);
        e.exception.pending = 1;
        let mut c = NamedNumbers::default();
        events(&mut c, &e);
        assert_ne!(a, c);
    }
}
