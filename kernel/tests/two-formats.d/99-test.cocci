// SPDX-License-Identifier: GPL-2.0-only
// Never for use: see kernel/tests/two-formats.
// file: arch/x86/kvm/svm/svm.c
// file: arch/x86/kvm/mmu/spte.c
// expect: 6.1 +3 -0
// expect: 6.12 +3 -0

@@ @@
svm_hardware_setup(...)
{
	<...
	kvm_configure_mmu(...);
+	kvm_spte_formats_test(npt_enabled);
	...>
}

@@ @@
make_spte_of(...)
{
	<...
+	WARN_ONCE(!two_spte_formats() != !tdp_enabled || !(spte & SPTE_EPT_FORMAT) != !kvm_vcpu_tdp(vcpu), "entry %llx has the wrong format", spte);
	*new_spte = spte;
	...>
}
