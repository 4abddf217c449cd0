// SPDX-License-Identifier: GPL-2.0-only
// The MMU of a VM that has both kinds of root, one after the other.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +6 -3
// expect: 6.12 +6 -3
// expect: 7.0 +6 -3
// expect: 7.3 +6 -3

@@ @@
#include "mmu.h"
+#include "../paging_mode.h"

@@ @@
+#include "paging_mode.h"
kvm_mmu_post_init_vm(...) { ... }

// A vCPU born under nested paging needs the PDP table of PAE paging when it leaves it.
// Under memory encryption the table has to be in the clear then, since under shadow paging
// CR3 cannot say that it is not: kvm_paging_mmu_ready() sees to that. guest_mmu, whose tables
// only the hardware's nested walk reads, has none but what mmu_alloc_special_roots() gives it.
@@ @@
__kvm_mmu_create(...)
{
	<...
(
-	if (tdp_enabled && kvm_mmu_get_tdp_level(vcpu) > PT32E_ROOT_LEVEL)
+	if (mmu != &vcpu->arch.root_mmu && tdp_enabled && kvm_mmu_get_tdp_level(vcpu) > PT32E_ROOT_LEVEL)
		return 0;
|
-	WARN_ON_ONCE(shadow_me_value)
+	WARN_ON_ONCE(shadow_me_value && mmu != &vcpu->arch.root_mmu)
)
	...>
}

@@ @@
kvm_mmu_destroy(...)
{
	kvm_mmu_unload(vcpu);
+	kvm_paging_mmu_destroy(vcpu);
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
