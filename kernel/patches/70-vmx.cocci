// SPDX-License-Identifier: GPL-2.0-only
// VMX: the VMCS of a vCPU follows the vCPU's mode. Unrestricted guest needs EPT, so it does as well.
// file: arch/x86/kvm/vmx/vmx.c
// file: arch/x86/kvm/vmx/vmx.h
// file: arch/x86/kvm/vmx/nested.c
// expect: 6.1 +45 -35
// expect: 6.12 +45 -35
// expect: 7.0 +46 -36
// expect: 7.3 +47 -37

@@
identifier f =~ "^(vmx_update_exception_bitmap|vmx_cache_reg|vmx_flush_tlb_all|vmx_flush_tlb_current|vmx_set_cr0|vmx_load_mmu_pgd|vmx_set_cr4|set_cr4_guest_host_mask|vmx_secondary_exec_control|handle_exception_nmi|vmx_handle_page_fault|vmx_need_pf_intercept|vmx_l1_guest_owned_cr0_bits)$";
@@
f(...)
{
	<...
-	enable_ept
+	kvm_vcpu_tdp(vcpu)
	...>
}

@@
identifier f =~ "^(update_transition_efer|vmx_exec_control)$";
@@
f(...)
{
	<...
-	enable_ept
+	kvm_vcpu_tdp(&vmx->vcpu)
	...>
}

// Upstream writes the module's parameter here: a vCPU must not decide for all others. Page-modification logging
// needs EPT, too.
@@ @@
vmx_secondary_exec_control(...)
{
	<...
-	enable_unrestricted_guest = 0;
+	exec_control &= ~SECONDARY_EXEC_ENABLE_PML;
	...>
}

// Linux 7.1: execute permissions by mode need EPT, too, or the VM entry fails.
@@ @@
vmx_secondary_exec_control(...)
{
	<...
-	!enable_mbec
+	!enable_mbec || !kvm_vcpu_tdp(vcpu)
	...>
}

@@
identifier f =~ "^(vmx_set_cr0|vmx_load_mmu_pgd|vmx_set_cr4|vmx_secondary_exec_control|handle_cr|is_unrestricted_guest)$";
@@
f(...)
{
	<...
-	enable_unrestricted_guest
+	vmx_unrestricted(vcpu)
	...>
}

@@
typedef bool;
@@
+static inline bool vmx_unrestricted(struct kvm_vcpu *vcpu)
+{
+	return enable_unrestricted_guest && kvm_vcpu_tdp(vcpu);
+}
+
is_unrestricted_guest(...)
{
	...
}

@@ @@
vmx_update_cpu_dirty_logging(...)
{
	<...
(
-	if (vcpu->kvm->arch.cpu_dirty_logging_count)
+	if (kvm_vcpu_tdp(vcpu) && vcpu->kvm->arch.cpu_dirty_logging_count)
		secondary_exec_controls_setbit(...);
	else secondary_exec_controls_clearbit(...);
|
-	if (atomic_read(&vcpu->kvm->nr_memslots_dirty_logging))
+	if (kvm_vcpu_tdp(vcpu) && atomic_read(&vcpu->kvm->nr_memslots_dirty_logging))
		secondary_exec_controls_setbit(...);
	else secondary_exec_controls_clearbit(...);
)
	...>
}

// CR0.WP is the guest's own only under EPT.
@@ @@
-vmx_l1_guest_owned_cr0_bits(void)
+vmx_l1_guest_owned_cr0_bits(struct kvm_vcpu *vcpu)
{ ... }

@@ @@
init_vmcs(...)
{
	<...
-	vmx_l1_guest_owned_cr0_bits()
+	vmx_l1_guest_owned_cr0_bits(&vmx->vcpu)
	...>
}

@@
identifier f =~ "^(load_vmcs12_host_state|nested_vmx_restore_host_state)$";
@@
f(...)
{
	<...
-	vmx_l1_guest_owned_cr0_bits()
+	vmx_l1_guest_owned_cr0_bits(vcpu)
	...>
}

// A VM that can come to shadow paging needs the TSS of real mode in virtual-8086 mode: also
// one that starts under EPT, since only the VMM's own thread can map it.
@@ @@
vmx_set_tss_addr(...)
{
	...
-	if (enable_unrestricted_guest)
-		return 0;
	...
}

// VMX in the guest only under EPT, for which all of nested.c is then right with the module's
// own mode. A VM under shadow paging goes back to it; 21-guest-hypervisor does the same for SVM.
@@ @@
handle_vmxon(...)
{
	<...
	if ((vmx->msr_ia32_feature_control & VMXON_NEEDED_FEATURES) != VMXON_NEEDED_FEATURES) { ... }
+	if (!kvm_paging_can_nest(vcpu))
+		return kvm_paging_go_nested(vcpu);
	...>
}

@@ @@
vmx_set_nested_state(...)
{
	...
	if (kvm_state->format != KVM_STATE_NESTED_FORMAT_VMX) return -EINVAL;
+	vcpu->arch.paging.wants_nested = kvm_state->hdr.vmx.vmxon_pa != INVALID_GPA && !kvm_paging_can_nest(vcpu);
+	if (vcpu->arch.paging.wants_nested)
+		return -EINVAL;
	...
}

@@
identifier f =~ "^(hardware_setup|vmx_hardware_setup)$";
@@
+#include "paging_mode.h"
f(...)
{
	...
}

@@
identifier f =~ "^(hardware_setup|vmx_hardware_setup)$";
@@
f(...)
{
	<...
	kvm_configure_mmu(...);
+	if (enable_ept) kvm_paging_register(&vmx_paging_ops);
	...>
}
