// SPDX-License-Identifier: GPL-2.0-only
// Page-modification logging sees what is written under EPT only: under shadow paging pages
// are write-protected to find the dirty ones, as on processors without it.
// file: arch/x86/kvm/x86.c
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +3 -3
// expect: 6.12 +3 -3
// expect: 7.0 +3 -3
// expect: 7.3 +3 -3

@@
identifier f =~ "^(kvm_arch_mmu_enable_log_dirty_pt_masked|kvm_mmu_slot_apply_flags)$";
@@
f(...)
{
	<...
(
-	kvm_x86_ops.cpu_dirty_log_size
+	kvm_x86_ops.cpu_dirty_log_size && READ_ONCE(kvm->arch.paging.nested)
|
-	kvm->arch.cpu_dirty_log_size
+	kvm->arch.cpu_dirty_log_size && READ_ONCE(kvm->arch.paging.nested)
)
	...>
}

// With the TDP MMU only a nested guest's shadow pages were there to be split ahead of time.
// A VM's own are split as they are written to.
@@ @@
shadow_mmu_try_split_huge_pages(...)
{
	<...
-	if (WARN_ON_ONCE(!sp->role.guest_mode))
+	if (!sp->role.guest_mode)
		continue;
	...>
}
