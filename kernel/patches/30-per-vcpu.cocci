// SPDX-License-Identifier: GPL-2.0-only
// What asks the module-wide mode about one vCPU asks the vCPU.
// file: arch/x86/kvm/x86.c
// file: arch/x86/kvm/regs.c
// file: arch/x86/kvm/hyperv.c
// file: arch/x86/kvm/mmu.h
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +10 -8
// expect: 6.12 +11 -9
// expect: 7.0 +11 -9
// expect: 7.3 +13 -11

@@
identifier f =~ "^(load_pdptrs|kvm_post_set_cr0|kvm_post_set_cr4|kvm_invalidate_pcid|kvm_vcpu_flush_tlb_guest|kvm_hv_vcpu_flush_tlb|kvm_mmu_refresh_passthrough_bits|kvm_init_mmu|kvm_handle_invpcid|kvm_mmu_invalidate_addr)$";
@@
f(...)
{
	<...
-	tdp_enabled
+	kvm_vcpu_tdp(vcpu)
	...>
}

// The MMU of a vCPU in shadow paging is set up here and nowhere else.
@@ @@
kvm_init_mmu(...)
{
	<...
(
-	init_kvm_softmmu(vcpu, cpu_role);
+	{ init_kvm_softmmu(vcpu, cpu_role); kvm_paging_mmu_ready(vcpu); }
|
-	init_kvm_shadow_mmu(vcpu, cpu_role);
+	{ init_kvm_shadow_mmu(vcpu, cpu_role); kvm_paging_mmu_ready(vcpu); }
)
	...>
}
