// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of exit reasons.
//!
//! Numbers are those of Intel's manual, volume 3, appendix C, and AMD's manual, volume 2, appendix C, as KVM
//! lists them in Linux's `arch/x86/include/uapi/asm/vmx.h` and `svm.h`, 6.12. Names are KVM's in lower case.

use crate::Vendor;
use std::borrow::Cow;

/// A vendor's exit reasons, by number.
pub fn reasons(vendor: Vendor) -> &'static [(u32, &'static str)] {
    match vendor {
        Vendor::Intel => INTEL,
        Vendor::Amd => AMD,
    }
}

/// The name of an exit reason; `reason_N` if KVM has none.
///
/// ```
/// use bifold_host::{Vendor, exit_counts::reason_name};
///
/// assert_eq!(reason_name(Vendor::Intel, 48), "ept_violation");
/// assert_eq!(reason_name(Vendor::Amd, 0x400), "npf");
/// assert_eq!(reason_name(Vendor::Intel, 999), "reason_999");
/// ```
pub fn reason_name(vendor: Vendor, number: u64) -> Cow<'static, str> {
    let basic = match vendor {
        // Above the basic reason are flags, such as that of a failed entry (vmx_get_exit_info passes them
        // on).
        Vendor::Intel => number as u32 & 0xffff,
        // KVM holds the code in 32 bits, and newer ones in 64. Codes of failures are negative.
        Vendor::Amd => number as u32,
    };
    match reasons(vendor).iter().find(|(n, _)| *n == basic) {
        Some((_, name)) => Cow::Borrowed(name),
        None => Cow::Owned(format!("reason_{number}")),
    }
}

/// Intel: basic exit reasons.
const INTEL: &[(u32, &str)] = &[
    (0, "exception_nmi"),
    (1, "external_interrupt"),
    (2, "triple_fault"),
    (3, "init_signal"),
    (4, "sipi_signal"),
    (7, "interrupt_window"),
    (8, "nmi_window"),
    (9, "task_switch"),
    (10, "cpuid"),
    (12, "hlt"),
    (13, "invd"),
    (14, "invlpg"),
    (15, "rdpmc"),
    (16, "rdtsc"),
    (18, "vmcall"),
    (19, "vmclear"),
    (20, "vmlaunch"),
    (21, "vmptrld"),
    (22, "vmptrst"),
    (23, "vmread"),
    (24, "vmresume"),
    (25, "vmwrite"),
    (26, "vmoff"),
    (27, "vmon"),
    (28, "cr_access"),
    (29, "dr_access"),
    (30, "io_instruction"),
    (31, "msr_read"),
    (32, "msr_write"),
    (33, "invalid_state"),
    (34, "msr_load_fail"),
    (36, "mwait_instruction"),
    (37, "monitor_trap_flag"),
    (39, "monitor_instruction"),
    (40, "pause_instruction"),
    (41, "mce_during_vmentry"),
    (43, "tpr_below_threshold"),
    (44, "apic_access"),
    (45, "eoi_induced"),
    (46, "gdtr_idtr"),
    (47, "ldtr_tr"),
    (48, "ept_violation"),
    (49, "ept_misconfig"),
    (50, "invept"),
    (51, "rdtscp"),
    (52, "preemption_timer"),
    (53, "invvpid"),
    (54, "wbinvd"),
    (55, "xsetbv"),
    (56, "apic_write"),
    (57, "rdrand"),
    (58, "invpcid"),
    (59, "vmfunc"),
    (60, "encls"),
    (61, "rdseed"),
    (62, "pml_full"),
    (63, "xsaves"),
    (64, "xrstors"),
    (67, "umwait"),
    (68, "tpause"),
    (74, "bus_lock"),
    (75, "notify"),
];

/// AMD: exit codes. Those from 0x8000_0001 on are of SEV-ES guests.
const AMD: &[(u32, &str)] = &[
    (0x0, "read_cr0"),
    (0x2, "read_cr2"),
    (0x3, "read_cr3"),
    (0x4, "read_cr4"),
    (0x8, "read_cr8"),
    (0x10, "write_cr0"),
    (0x12, "write_cr2"),
    (0x13, "write_cr3"),
    (0x14, "write_cr4"),
    (0x18, "write_cr8"),
    (0x20, "read_dr0"),
    (0x21, "read_dr1"),
    (0x22, "read_dr2"),
    (0x23, "read_dr3"),
    (0x24, "read_dr4"),
    (0x25, "read_dr5"),
    (0x26, "read_dr6"),
    (0x27, "read_dr7"),
    (0x30, "write_dr0"),
    (0x31, "write_dr1"),
    (0x32, "write_dr2"),
    (0x33, "write_dr3"),
    (0x34, "write_dr4"),
    (0x35, "write_dr5"),
    (0x36, "write_dr6"),
    (0x37, "write_dr7"),
    (0x40, "de_exception"),
    (0x41, "db_exception"),
    (0x43, "bp_exception"),
    (0x44, "of_exception"),
    (0x45, "br_exception"),
    (0x46, "ud_exception"),
    (0x47, "nm_exception"),
    (0x48, "df_exception"),
    (0x4a, "ts_exception"),
    (0x4b, "np_exception"),
    (0x4c, "ss_exception"),
    (0x4d, "gp_exception"),
    (0x4e, "pf_exception"),
    (0x50, "mf_exception"),
    (0x51, "ac_exception"),
    (0x52, "mc_exception"),
    (0x53, "xf_exception"),
    (0x60, "interrupt"),
    (0x61, "nmi"),
    (0x62, "smi"),
    (0x63, "init"),
    (0x64, "vintr"),
    (0x65, "cr0_sel_write"),
    (0x66, "read_idtr"),
    (0x67, "read_gdtr"),
    (0x68, "read_ldtr"),
    (0x69, "read_tr"),
    (0x6a, "write_idtr"),
    (0x6b, "write_gdtr"),
    (0x6c, "write_ldtr"),
    (0x6d, "write_tr"),
    (0x6e, "rdtsc"),
    (0x6f, "rdpmc"),
    (0x70, "pushf"),
    (0x71, "popf"),
    (0x72, "cpuid"),
    (0x73, "rsm"),
    (0x74, "iret"),
    (0x75, "swint"),
    (0x76, "invd"),
    (0x77, "pause"),
    (0x78, "hlt"),
    (0x79, "invlpg"),
    (0x7a, "invlpga"),
    (0x7b, "io"),
    (0x7c, "msr"),
    (0x7d, "task_switch"),
    (0x7e, "ferr_freeze"),
    (0x7f, "shutdown"),
    (0x80, "vmrun"),
    (0x81, "hypercall"),
    (0x82, "vmload"),
    (0x83, "vmsave"),
    (0x84, "stgi"),
    (0x85, "clgi"),
    (0x86, "skinit"),
    (0x87, "rdtscp"),
    (0x88, "icebp"),
    (0x89, "wbinvd"),
    (0x8a, "monitor"),
    (0x8b, "mwait"),
    (0x8d, "xsetbv"),
    (0x8f, "write_efer_trap"),
    (0x90, "write_cr0_trap"),
    (0x94, "write_cr4_trap"),
    (0x98, "write_cr8_trap"),
    (0xa2, "invpcid"),
    (0x400, "npf"),
    (0x401, "avic_incomplete_ipi"),
    (0x402, "avic_unaccelerated_access"),
    (0x403, "vmgexit"),
    (0x8000_0001, "vmgexit_mmio_read"),
    (0x8000_0002, "vmgexit_mmio_write"),
    (0x8000_0003, "vmgexit_nmi_complete"),
    (0x8000_0004, "vmgexit_ap_hlt_loop"),
    (0x8000_0005, "vmgexit_ap_jump_table"),
    (0x8000_0010, "vmgexit_page_state_change"),
    (0x8000_0011, "vmgexit_guest_request"),
    (0x8000_0012, "vmgexit_ext_guest_request"),
    (0x8000_0013, "vmgexit_ap_creation"),
    (0x8000_fffd, "vmgexit_hypervisor_feature"),
    (0xffff_ffff, "invalid_guest_state"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_snake_case() {
        for names in [INTEL, AMD] {
            let snake =
                |n: &str| n.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            assert!(names.iter().all(|(_, name)| snake(name)));
            for (place, (number, name)) in names.iter().enumerate() {
                assert!(names[..place].iter().all(|(n, other)| n != number && other != name), "{name}");
            }
        }
    }

    #[test]
    fn flags_of_intel_and_negative_codes_of_amd_do_not_hide_the_reason() {
        assert_eq!(reason_name(Vendor::Intel, 0x8000_0021), "invalid_state");
        assert_eq!(reason_name(Vendor::Intel, 0x0400_0001), "external_interrupt");
        for number in [u64::from(u32::MAX), u64::MAX] {
            assert_eq!(reason_name(Vendor::Amd, number), "invalid_guest_state");
        }
        let amd = [0x4e, 0x60, 0x78, 0x7b, 0x7c, 0x401].map(|n| reason_name(Vendor::Amd, n));
        assert_eq!(amd, ["pf_exception", "interrupt", "hlt", "io", "msr", "avic_incomplete_ipi"]);
        assert_eq!(reason_name(Vendor::Amd, 0xf000_0000), "reason_4026531840");
    }
}
