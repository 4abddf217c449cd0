// SPDX-License-Identifier: GPL-2.0-only
// The MMU of a VM that has both kinds of root, one after the other.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +6 -4
// expect: 6.12 +6 -4

@@ @@
#include "mmu.h"
+#include "../paging_mode.h"

@@ @@
+#include "paging_mode.h"
kvm_mmu_post_init_vm(...) { ... }

// A vCPU born under nested paging needs the PDP table of PAE paging when it leaves it.
// Under memory encryption it is in the clear, since under shadow paging CR3 cannot say
// that it is not; guest_mmu, whose tables only the hardware's nested walk reads, has none
// but what mmu_alloc_special_roots() gives it, together with a PML4.
@@ @@
__kvm_mmu_create(...)
{
	<...
(
-	if (tdp_enabled && kvm_mmu_get_tdp_level(vcpu) > PT32E_ROOT_LEVEL)
+	if (mmu != &vcpu->arch.root_mmu && tdp_enabled && kvm_mmu_get_tdp_level(vcpu) > PT32E_ROOT_LEVEL)
		return 0;
|
-	if (!tdp_enabled)
+	if (mmu == &vcpu->arch.root_mmu)
		set_memory_decrypted(...);
	else WARN_ON_ONCE(...);
)
	...>
}

@@ @@
free_mmu_pages(...)
{
-	if (!tdp_enabled && mmu->pae_root)
+	if (mmu->pae_root && !mmu->pml4_root)
		set_memory_encrypted(...);
	...
}

// A guest without paging has a direct root under shadow paging, too.
@@ @@
mmu_alloc_direct_roots(...)
{
	<...
(
-	is_tdp_mmu_enabled(vcpu->kvm)
+	is_tdp_mmu_enabled(vcpu->kvm) && kvm_vcpu_tdp(vcpu)
|
-	tdp_mmu_enabled
+	is_tdp_mmu_active(vcpu)
)
	...>
}
