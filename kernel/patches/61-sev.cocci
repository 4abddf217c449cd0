// SPDX-License-Identifier: GPL-2.0-only
// A VM that has left nested paging cannot become one with encrypted memory, by any of the three
// ways. Under kvm->lock.
// file: arch/x86/kvm/svm/sev.c
// expect: 6.1 +3 -3
// expect: 6.12 +3 -3
// expect: 7.0 +3 -3
// expect: 7.3 +3 -3

@@
identifier f =~ "^(__sev_guest_init|sev_guest_init|sev_vm_copy_enc_context_from)$";
@@
f(...)
{
	<...
-	kvm->created_vcpus
+	kvm->created_vcpus || kvm_paging_leaves_nested(kvm)
	...>
}

@@ @@
sev_vm_move_enc_context_from(...)
{
	<...
-	sev_guest(kvm)
+	sev_guest(kvm) || kvm_paging_leaves_nested(kvm)
	...>
}
