// SPDX-License-Identifier: GPL-2.0-only
// A guest cannot become a hypervisor under shadow paging where it was promised nested paging:
// its VMRUN would fail, and it could not be switched back. As if the firmware had it off.
// file: arch/x86/kvm/x86.c
// expect: 6.1 +2 -0
// expect: 6.12 +2 -0

@@ @@
__kvm_valid_efer(...)
{
+	if (!kvm_paging_allows_efer(vcpu, efer))
+		return false;
	...
}
