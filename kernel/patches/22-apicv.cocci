// SPDX-License-Identifier: GPL-2.0-only
// SVM's AVIC needs nested paging: a reason of the switch's own to do without.
// file: arch/x86/kvm/svm/avic.c
// file: arch/x86/kvm/svm/svm.c
// expect: 6.1 +1 -1
// expect: 6.12 +1 -1
// expect: 7.0 +1 -1
// expect: 7.3 +1 -1

@@
expression E;
@@
avic_check_apicv_inhibit_reasons(...)
{
	<...
-	return supported & E;
+	return (supported | BIT(KVM_PAGING_APICV_INHIBIT)) & E;
	...>
}

@@
identifier ops;
@@
struct kvm_x86_ops ops = {
-	.required_apicv_inhibits = AVIC_REQUIRED_APICV_INHIBITS,
+	.required_apicv_inhibits = AVIC_REQUIRED_APICV_INHIBITS | BIT(KVM_PAGING_APICV_INHIBIT),
};
