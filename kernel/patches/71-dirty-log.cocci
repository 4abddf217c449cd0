// SPDX-License-Identifier: GPL-2.0-only
// Page-modification logging sees what is written under EPT only: under shadow paging pages
// are write-protected to find the dirty ones, as on processors without it.
// file: arch/x86/kvm/x86.c
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +2 -2
// expect: 6.12 +2 -2

@@
identifier f =~ "^(kvm_arch_mmu_enable_log_dirty_pt_masked|kvm_mmu_slot_apply_flags)$";
@@
f(...)
{
	<...
-	kvm_x86_ops.cpu_dirty_log_size
+	kvm_x86_ops.cpu_dirty_log_size && READ_ONCE(kvm->arch.paging.nested)
	...>
}
