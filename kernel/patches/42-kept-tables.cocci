// SPDX-License-Identifier: GPL-2.0-only
// Nested tables that rest while the VM is in shadow paging keep their write permission to
// what becomes a guest table: no vCPU walks them, and when one does again there is no
// shadow page left. Else each such frame costs a violation after the stay. External write
// tracking (kvmgt) and dirty logging still reach them.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +11 -3
// expect: 6.12 +11 -3
// expect: 7.0 +11 -3
// expect: 7.3 +11 -3

@@ @@
kvm_mmu_slot_gfn_write_protect(...)
{
	<...
(
-	if (is_tdp_mmu_enabled(kvm))
+	if (is_tdp_mmu_enabled(kvm) && !kvm->arch.paging.shadowing)
		write_protected |= kvm_tdp_mmu_write_protect_gfn(...);
|
-	if (tdp_mmu_enabled)
+	if (tdp_mmu_enabled && !kvm->arch.paging.shadowing)
		write_protected |= kvm_tdp_mmu_write_protect_gfn(...);
)
	...>
}

@@
expression list args;
@@
kvm_vcpu_write_protect_gfn(...)
{
+	bool write_protected;
	...
-	return kvm_mmu_slot_gfn_write_protect(args);
+	kvm_paging_shadowing(vcpu->kvm, true);
+	write_protected = kvm_mmu_slot_gfn_write_protect(args);
+	kvm_paging_shadowing(vcpu->kvm, false);
+	return write_protected;
}

@@
expression kvm, sp;
@@
	if (sp_has_gptes(sp))
+	{
+		kvm_paging_shadowing(kvm, true);
		account_shadowed(kvm, sp);
+		kvm_paging_shadowing(kvm, false);
+	}
