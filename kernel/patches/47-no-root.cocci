// SPDX-License-Identifier: GPL-2.0-only
// A switch takes the roots of a vCPU that user space is to complete an access for. Completing it may raise a page fault,
// which invalidates an address: without a root there is nothing to invalidate, and 6.1 warned.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +2 -1

@@ @@
kvm_mmu_invalidate_gva(...)
{
	<...
-	mmu->invlpg(vcpu, gva, mmu->root.hpa);
+	if (VALID_PAGE(mmu->root.hpa))
+		mmu->invlpg(vcpu, gva, mmu->root.hpa);
	...>
}
