// SPDX-License-Identifier: GPL-2.0-only
// A VM that has left nested paging cannot become one with encrypted memory. Under kvm->lock.
// file: arch/x86/kvm/svm/sev.c
// expect: 6.1 +1 -1
// expect: 6.12 +1 -1

@@
identifier f =~ "^(__sev_guest_init|sev_guest_init)$";
@@
f(...)
{
	<...
-	if (kvm->created_vcpus)
+	if (kvm->created_vcpus || kvm->arch.paging.switching || !kvm->arch.paging.nested)
		return -EINVAL;
	...>
}
