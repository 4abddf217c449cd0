// SPDX-License-Identifier: GPL-2.0-only
// Reverse maps and write tracking are given back after a stay in shadow paging. Who makes a shadow root has seen them
// without mmu_lock, and has to look again with it.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +4 -0
// expect: 6.12 +4 -0
// expect: 7.0 +4 -0
// expect: 7.3 +4 -0

@@ @@
mmu_alloc_shadow_roots(...)
{
	<...
	r = mmu_first_shadow_root_alloc(...);
	if (r) return r;
+	kvm_paging_window(first_root);
	write_lock(&vcpu->kvm->mmu_lock);
+	r = kvm_paging_mmu_keep_shadow(vcpu->kvm);
+	if (r)
+		goto out_unlock;
	...>
}
