// SPDX-License-Identifier: GPL-2.0-only
// Whether an exit was in the middle of an event's delivery: the type says so only if the valid bit is set (AMD APM vol. 2,
// 15.7.2). QEMU leaves the type of an event that was delivered, so a guest's write to its tables after a fault ended the VM.
// file: arch/x86/kvm/svm/svm.c
// expect: 7.0 +1 -1
// expect: 7.3 +1 -1

@@ @@
svm_check_emulate_instruction(...)
{
	<...
-	svm->vmcb->control.exit_int_info & SVM_EXITINTINFO_TYPE_MASK
+	svm->vmcb->control.exit_int_info & SVM_EXITINTINFO_VALID
	...>
}
