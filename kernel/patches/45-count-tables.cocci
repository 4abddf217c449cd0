// SPDX-License-Identifier: GPL-2.0-only
// The number of the TDP MMU's tables: 6.1 would have to walk their list under its lock, and 7.0 counts them for its
// own checks alone.
// file: arch/x86/kvm/mmu/tdp_mmu.c
// expect: 6.1 +2 -0
// expect: 7.0 +2 -0
// expect: 7.3 +2 -0

@@ @@
tdp_account_mmu_page(struct kvm *kvm, ...)
{
	...
+	atomic64_inc(&kvm->arch.paging.tdp_tables);
}

@@ @@
tdp_unaccount_mmu_page(struct kvm *kvm, ...)
{
	...
+	atomic64_dec(&kvm->arch.paging.tdp_tables);
}
