// SPDX-License-Identifier: GPL-2.0-only
// SVM: the VMCB of a vCPU follows the vCPU's mode.
// file: arch/x86/kvm/svm/svm.c
// file: arch/x86/kvm/svm/nested.c
// expect: 6.1 +19 -14
// expect: 6.12 +20 -15
// expect: 7.0 +19 -14
// expect: 7.3 +22 -17

@@
identifier f =~ "^(svm_set_efer|svm_set_msr|svm_flush_tlb_gva|svm_vcpu_run|svm_recalc_instruction_intercepts|init_vmcb|svm_set_cr0|svm_set_cr4|svm_handle_exit|svm_load_mmu_pgd|nested_svm_vmrun|__nested_vmcb_check_controls|nested_svm_transition_tlb_flush)$";
@@
f(...)
{
	<...
-	npt_enabled
+	kvm_vcpu_tdp(vcpu)
	...>
}

// Under shadow paging the PDPTRs are there since CR3 was loaded, but for the first time after a
// switch. They must not be read anew later: that could free the root in the middle of a fault.
@@ @@
svm_vcpu_run(...)
{
	<...
(
-	vcpu->arch.regs_avail &= ~SVM_REGS_LAZY_LOAD_SET;
+	if (kvm_vcpu_tdp(vcpu))
+		vcpu->arch.regs_avail &= ~SVM_REGS_LAZY_LOAD_SET;
|
-	kvm_clear_available_registers(vcpu, SVM_REGS_LAZY_LOAD_SET);
+	if (kvm_vcpu_tdp(vcpu))
+		kvm_clear_available_registers(vcpu, SVM_REGS_LAZY_LOAD_SET);
)
	...>
}

@@ @@
svm_cache_reg(...)
{
	<...
-	if (npt_enabled)
		load_pdptrs(vcpu, kvm_read_cr3(vcpu));
	...>
}

// Virtual VMLOAD and VMSAVE, and a trap by the user bit of nested tables (GMET), need nested paging.
@@
identifier f =~ "^(init_vmcb_after_set_cpuid|svm_recalc_instruction_intercepts|init_vmcb)$";
@@
f(...)
{
	<...
(
-	vls
+	vls && kvm_vcpu_tdp(vcpu)
|
-	gmet_enabled
+	gmet_enabled && kvm_vcpu_tdp(vcpu)
)
	...>
}

// RSM restores a hypervisor's guest from memory that the guest writes, and sets EFER without set_efer().
@@ @@
svm_leave_smm(...)
{
	<...
	if (!guest_cpuid_has(vcpu, X86_FEATURE_SVM))
		return 1;
+	if (!kvm_paging_can_nest(vcpu))
+		return 1;
	...>
}

@@ @@
svm_leave_smm(...)
{
	<...
	if (!guest_cpu_cap_has(vcpu, X86_FEATURE_SVM))
		return 1;
+	if (!kvm_paging_can_nest(vcpu))
+		return 1;
	...>
}

@@ @@
+#include "paging_mode.h"
svm_hardware_setup(...)
{
	...
}

@@ @@
svm_hardware_setup(...)
{
	<...
	kvm_configure_mmu(...);
+	if (npt_enabled)
+		kvm_paging_register(&svm_paging_ops);
	...>
}
