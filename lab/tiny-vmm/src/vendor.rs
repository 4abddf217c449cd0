// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processor vendors as data: everything that the laboratory and the tiny VMM need to know about a vendor's
//! virtualization and about the emulator of its processors.
//!
//! QEMU's TCG emulates AMD's virtualization, and Bochs Intel's.

use bifold_mmu::format::{EPT, Format, X86_64_4_LEVEL};
use kvm_bindings::kvm_sregs;

/// A processor vendor.
#[derive(Debug)]
pub struct Vendor {
    /// Name in messages.
    pub name: &'static str,
    /// Name on command lines.
    pub option: &'static str,
    /// `vendor_id` of /proc/cpuinfo.
    pub cpuid: &'static str,
    /// KVM's module, as /sys/module spells it.
    pub module: &'static str,
    /// Parameters with which the module traces every interrupt that a guest gets (`kvm:kvm_inj_virq`).
    pub traced: &'static [&'static str],
    /// The module's parameter for nested paging.
    pub nested_parameter: &'static str,
    /// The module's function that is patched for shadow paging under the emulator, see
    /// `lab/src/lab/kvm_module.rs`. `None` if the module needs no patch.
    pub shadow_fix: Option<&'static str>,
    /// The emulator of the vendor's processors.
    pub emulator: Emulator,
    /// The profiles' key `cpu.virtualization`: whose rules exits follow.
    pub virtualization: &'static str,
    /// The hardware profile whose TLBs and walks are closest to the emulated CPU's.
    pub profile: &'static str,
    /// Flags of /proc/cpuinfo in which a guest here may differ from the captured guest: those that Linux
    /// derives from MSRs and not from CPUID, and instructions that this vendor's processors lack. None is
    /// about paging.
    pub other_flags: &'static [&'static str],
    /// `exit_reason` of HLT.
    pub halt: u64,
    /// `exit_reason` of a triple fault.
    pub shutdown: u64,
    /// `exit_reason` of CPUID.
    pub cpuid_exit: u64,
    /// `exit_reason`s of a hypervisor that flushes what the processor has of its guest's addresses: INVLPGA;
    /// INVEPT, INVVPID.
    pub nested_flushes: &'static [u64],
    /// `exit_reason`s of a hypervisor that enters its guest: VMRUN, VMLOAD, VMSAVE, STGI, CLGI and accesses
    /// to MSRs; VMLAUNCH and VMRESUME.
    pub nested_entries: &'static [u64],
    /// Reads one exit that concerns paging out of the event `kvm:kvm_exit`; other exits are `None`.
    pub decode: fn(&RawExit) -> Option<PagingExit>,
    /// `exit_reason` by the word that the trace prints for it. Only reasons that `decode` knows.
    pub words: &'static [(&'static str, u64)],
    /// Format of the nested tables.
    pub nested_format: &'static Format,
    /// The kernel function that loads the root of nested or shadow tables, and its argument with the
    /// root as kprobes name it (Documentation/trace/kprobetrace.rst).
    pub load_root: (&'static str, &'static str),
    /// The register bit without which a vCPU cannot be a hypervisor. KVM refuses a switch to shadow paging
    /// while it is set.
    pub hypervisor: HypervisorBit,
    /// Whether a VM can be switched while a vCPU is in real mode or in system management mode.
    pub switches_without_paging: bool,
}

/// An emulator of processors with hardware virtualization.
#[derive(Debug)]
pub enum Emulator {
    /// QEMU's TCG, with these flags of the CPU in addition to those of all guests.
    Qemu {
        #[allow(missing_docs)]
        flags: &'static [&'static str],
    },
    /// Bochs, with this model of CPU (`bochs --help cpu`).
    Bochs {
        #[allow(missing_docs)]
        model: &'static str,
    },
}

/// A bit of a vCPU's special registers.
#[derive(Debug)]
pub struct HypervisorBit {
    /// For messages.
    pub name: &'static str,
    /// Sets or clears the bit.
    pub set: fn(&mut kvm_sregs, bool),
    /// How a guest's vCPU becomes a hypervisor.
    pub begins: Begins,
}

/// How a guest's vCPU becomes a hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// By this bit of this MSR, which is the bit of `kvm_sregs`.
    Msr(u32, u64),
    /// By VMXON, which the bit of `kvm_sregs` only allows.
    Vmxon,
}

/// The fields of `kvm:kvm_exit`, which are the same for every vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the kernel's own words
pub struct RawExit {
    pub exit_reason: u64,
    pub info1: u64,
    pub info2: u64,
    pub intr_info: u64,
    pub error_code: u64,
}

/// The cause of an exit that concerns paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCause {
    /// A guest's #PF, intercepted because its tables are shadowed.
    PageFault,
    /// A fault of the nested tables: #NPF, an EPT violation or misconfiguration.
    NestedFault,
    /// MOV from this control register.
    ReadCr(u8),
    /// MOV to this control register.
    WriteCr(u8),
    /// INVLPG.
    Invlpg,
}

/// An exit that concerns paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagingExit {
    /// The cause.
    pub cause: ExitCause,
    /// Error code of a fault, in the bits of #PF, with bit 33 for a fault at a guest's table.
    pub error: u64,
    /// Address of a fault: guest-virtual, or guest-physical with nested paging.
    pub address: u64,
}

/// All vendors.
pub const VENDORS: [&Vendor; 2] = [&AMD, &INTEL];

impl Vendor {
    /// The vendor of this machine's processor.
    pub fn of_this_machine() -> Option<&'static Vendor> {
        let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let id = text.lines().find_map(|l| l.strip_prefix("vendor_id")?.split(':').nth(1))?;
        VENDORS.into_iter().find(|v| v.cpuid == id.trim())
    }

    /// The module's file: `kvm-amd.ko`.
    pub fn module_file(&self) -> String {
        self.module.replace('_', "-") + ".ko"
    }

    /// Where the module shows whether paging is nested.
    pub fn nested_parameter_path(&self) -> String {
        format!("/sys/module/{}/parameters/{}", self.module, self.nested_parameter)
    }

    /// The exit's `exit_reason`, by the word that the trace prints. KVM has changed its letters' case
    /// over time.
    pub fn exit_reason(&self, word: &str) -> Option<u64> {
        self.words.iter().find(|(w, _)| w.eq_ignore_ascii_case(word)).map(|(_, reason)| *reason)
    }
}

/// SVM (AMD APM vol. 2: exit codes in appendix C, nested paging in 15.25).
pub static AMD: Vendor = Vendor {
    name: "AMD",
    option: "amd",
    cpuid: "AuthenticAMD",
    module: "kvm_amd",
    // TCG has no AVIC.
    traced: &[],
    nested_parameter: "npt",
    shadow_fix: Some("svm_set_cr0"),
    // TCG also lacks next-RIP save, which our guests, without SVM, do not have anyway.
    emulator: Emulator::Qemu { flags: &["-nrip-save", "+svm", "+npt"] },
    virtualization: "svm",
    profile: "phenom2-x3-720",
    // Linux sets it where LS_CFG can be read (`bsp_init_amd`): TCG reads it as 0, KVM does not.
    other_flags: &["ssbd"],
    halt: 0x78,
    shutdown: 0x7f,
    cpuid_exit: 0x72,
    nested_flushes: &[0x7a],
    nested_entries: &[0x80, 0x82, 0x83, 0x84, 0x85, 0x7c],
    decode: svm_exit,
    words: &[
        ("read_cr0", 0x00),
        ("read_cr3", 0x03),
        ("read_cr4", 0x04),
        ("write_cr0", 0x10),
        ("write_cr3", 0x13),
        ("write_cr4", 0x14),
        ("PF excp", PF_EXCP),
        ("invlpg", INVLPG),
        ("npf", NPF),
    ],
    nested_format: &X86_64_4_LEVEL,
    load_root: ("svm_load_mmu_pgd", "root=%si"),
    hypervisor: HypervisorBit {
        name: "EFER.SVME",
        set: |s, on| if on { s.efer |= EFER_SVME } else { s.efer &= !EFER_SVME },
        begins: Begins::Msr(MSR_EFER, EFER_SVME),
    },
    switches_without_paging: true,
};

const PF_EXCP: u64 = 0x4e;
const INVLPG: u64 = 0x79;
const NPF: u64 = 0x400;
const MSR_EFER: u32 = 0xc000_0080;
const EFER_SVME: u64 = 1 << 12;

/// EXITINFO1 of #PF and #NPF is the error code, EXITINFO2 the address.
fn svm_exit(raw: &RawExit) -> Option<PagingExit> {
    let cause = match raw.exit_reason {
        n @ 0x00..=0x0f => ExitCause::ReadCr(n as u8),
        n @ 0x10..=0x1f => ExitCause::WriteCr((n - 0x10) as u8),
        PF_EXCP => ExitCause::PageFault,
        INVLPG => ExitCause::Invlpg,
        NPF => ExitCause::NestedFault,
        _ => return None,
    };
    Some(PagingExit { cause, error: raw.info1, address: raw.info2 })
}

/// VMX (Intel SDM vol. 3: basic exit reasons in appendix C, exit qualifications in 28.2).
pub static INTEL: Vendor = Vendor {
    name: "Intel",
    option: "intel",
    cpuid: "GenuineIntel",
    module: "kvm_intel",
    // With APICv the processor delivers interrupts by itself.
    traced: &["enable_apicv=0"],
    nested_parameter: "ept",
    shadow_fix: None,
    emulator: Emulator::Bochs { model: "corei7_skylake_x" },
    virtualization: "vmx",
    profile: "skylake-sp",
    other_flags: &["cpuid_fault", "cr8_legacy", "mmxext", "sha_ni", "ssbd", "sse4a"],
    halt: 12,
    shutdown: 2,
    cpuid_exit: 10,
    nested_flushes: &[50, 53],
    nested_entries: &[20, 24],
    decode: vmx_exit,
    words: &[
        ("EXCEPTION_NMI", EXCEPTION_NMI),
        ("INVLPG", VMX_INVLPG),
        ("CR_ACCESS", CR_ACCESS),
        ("EPT_VIOLATION", EPT_VIOLATION),
        ("EPT_MISCONFIG", EPT_MISCONFIG),
    ],
    nested_format: &EPT,
    load_root: ("vmx_load_mmu_pgd", "root=%si"),
    hypervisor: HypervisorBit {
        name: "CR4.VMXE",
        set: |s, on| if on { s.cr4 |= CR4_VMXE } else { s.cr4 &= !CR4_VMXE },
        begins: Begins::Vmxon,
    },
    // Under EPT real mode runs by itself, under shadow paging as virtual-8086 mode or in KVM's emulator.
    switches_without_paging: false,
};

const EXCEPTION_NMI: u64 = 0;
const VMX_INVLPG: u64 = 14;
const CR_ACCESS: u64 = 28;
const EPT_VIOLATION: u64 = 48;
const EPT_MISCONFIG: u64 = 49;
const CR4_VMXE: u64 = 1 << 13;
/// Interruption information of a #PF: valid, hardware exception, vector 14.
const PF_INFO: u64 = 0x8000_0300 | 14;

/// `info1` is the exit's qualification. The address of an EPT violation is not in the event.
fn vmx_exit(raw: &RawExit) -> Option<PagingExit> {
    let q = raw.info1;
    let bit = |from: u32, to: u32| (q >> from & 1) << to;
    let (cause, error, address) = match raw.exit_reason {
        // Bits beside type and vector say that there is an error code and what unblocked NMIs.
        EXCEPTION_NMI if raw.intr_info & 0x8000_07ff == PF_INFO => (ExitCause::PageFault, raw.error_code, q),
        VMX_INVLPG => (ExitCause::Invlpg, 0, q),
        CR_ACCESS => match (q >> 4 & 3, (q & 15) as u8) {
            (1, register) => (ExitCause::ReadCr(register), 0, 0),
            // CLTS and LMSW write CR0.
            (_, register) => (ExitCause::WriteCr(register), 0, 0),
        },
        // As KVM's `handle_ept_violation` makes an error code of it.
        EPT_VIOLATION => {
            let present = u64::from(q & 0b11_1000 != 0);
            let table = bit(7, 33) & !bit(8, 33);
            (ExitCause::NestedFault, present | bit(1, 1) | bit(0, 2) | bit(2, 4) | table, 0)
        }
        EPT_MISCONFIG => (ExitCause::NestedFault, 1 << 3, 0),
        _ => return None,
    };
    Some(PagingExit { cause, error, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_trace_is_an_exit_that_is_decoded() {
        for vendor in VENDORS {
            for (word, exit_reason) in vendor.words {
                // Under VMX all exceptions have one reason.
                let raw = RawExit { exit_reason: *exit_reason, intr_info: PF_INFO, ..RawExit::default() };
                assert!((vendor.decode)(&raw).is_some(), "{word}");
                assert_eq!(vendor.exit_reason(&word.to_uppercase()), Some(*exit_reason));
            }
            for other in [vendor.halt, vendor.shutdown] {
                assert_eq!((vendor.decode)(&RawExit { exit_reason: other, ..RawExit::default() }), None);
            }
        }
    }

    #[test]
    fn svms_faults_carry_error_code_and_address() {
        let raw = RawExit { exit_reason: NPF, info1: 0x1_0000_0006, info2: 0x5000, ..RawExit::default() };
        let exit = (AMD.decode)(&raw).unwrap();
        assert_eq!((exit.cause, exit.error, exit.address), (ExitCause::NestedFault, 0x1_0000_0006, 0x5000));
        let raw = RawExit { exit_reason: 0x13, ..RawExit::default() };
        assert_eq!((AMD.decode)(&raw).unwrap().cause, ExitCause::WriteCr(3));
    }

    #[test]
    fn vmx_exits_are_read_from_their_qualification() {
        let exit = |exit_reason, info1, intr_info, error_code| {
            let raw = RawExit { exit_reason, info1, intr_info, error_code, ..RawExit::default() };
            (INTEL.decode)(&raw).map(|e| (e.cause, e.error, e.address))
        };
        assert_eq!(exit(EXCEPTION_NMI, 0x5008, 0x8000_0b0e, 7), Some((ExitCause::PageFault, 7, 0x5008)));
        // A #GP, and an NMI.
        assert_eq!(exit(EXCEPTION_NMI, 0, 0x8000_0b0d, 0), None);
        assert_eq!(exit(EXCEPTION_NMI, 0, 0x8000_0202, 0), None);
        // A write to an unmapped page; a fetch from a present one; a read at a guest's table.
        assert_eq!(exit(EPT_VIOLATION, 0x182, 0, 0).unwrap().1, 0b10);
        assert_eq!(exit(EPT_VIOLATION, 0x18c, 0, 0).unwrap().1, 0b1_0001);
        assert_eq!(exit(EPT_VIOLATION, 0x81, 0, 0).unwrap().1, 1 << 33 | 0b100);
        assert_eq!(exit(CR_ACCESS, 0x003, 0, 0).unwrap().0, ExitCause::WriteCr(3));
        assert_eq!(exit(CR_ACCESS, 0x013, 0, 0).unwrap().0, ExitCause::ReadCr(3));
        assert_eq!(exit(CR_ACCESS, 0x004, 0, 0).unwrap().0, ExitCause::WriteCr(4));
        assert_eq!(exit(12, 0, 0, 0), None);
    }
}
