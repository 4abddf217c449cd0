// SPDX-License-Identifier: GPL-2.0-only
// Later kernels know the TDP MMU's roots by the module-wide mode and "direct", 6.1 by the
// root's page. The vCPU's mode or the page has to say.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.12 +3 -3
// expect: 7.0 +4 -4
// expect: 7.3 +4 -4

@@ @@
is_tdp_mmu_active(...)
{
	return
-	tdp_mmu_enabled
+	tdp_mmu_enabled && kvm_vcpu_tdp(vcpu)
	&& vcpu->arch.mmu->root_role.direct;
}

// Of a guest without paging the shadow pages are direct ones.
@@ @@
kvm_may_have_shadow_mmu_sptes(...)
{
	return
-	!tdp_mmu_enabled
+	!tdp_mmu_enabled || !READ_ONCE(kvm->arch.paging.nested)
	|| READ_ONCE(kvm->arch.indirect_shadow_pages);
}

@@ @@
fast_page_fault(...)
{
	<...
-	if (tdp_mmu_enabled)
+	if (is_tdp_mmu_active(vcpu))
		sptep = kvm_tdp_mmu_fast_pf_get_last_sptep(...);
	else
		sptep = fast_pf_get_last_sptep(...);
	...>
}

@@ @@
kvm_mmu_free_roots(...)
{
	...
	bool is_tdp_mmu =
-		tdp_mmu_enabled && mmu->root_role.direct
+		kvm_paging_roots_are_tdp(mmu)
	;
	...
}
