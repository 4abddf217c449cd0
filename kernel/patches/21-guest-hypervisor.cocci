// SPDX-License-Identifier: GPL-2.0-only
// A guest that begins to be a hypervisor, or to use protection keys, under shadow paging was promised nested paging by
// its CPUID: the VM goes back to it, and the instruction runs again. So does a VM whose user space sets such state.
// file: virt/kvm/kvm_main.c
// file: arch/x86/kvm/x86.c
// file: arch/x86/kvm/regs.c
// file: arch/x86/kvm/emulate.c
// file: arch/x86/kvm/svm/svm.c
// file: arch/x86/kvm/vmx/vmx.c
// expect: 6.1 +28 -3
// expect: 6.12 +28 -3

@@ @@
kvm_emulate_wrmsr(...)
{
	...
	int r;
+
+	if (kvm_paging_wrmsr_needs_nested(vcpu, ecx, data))
+		return kvm_paging_go_nested(vcpu);
	...
}

@@ @@
set_efer(...)
{
	...
	if (efer & efer_reserved_bits) return 1;
+	if (!kvm_paging_allows_efer(vcpu, efer))
+		return 1;
	...
}

@@ @@
kvm_is_valid_cr4(...)
{
-	return __kvm_is_valid_cr4(vcpu, cr4) &&
+	return kvm_paging_allows_cr4(vcpu, cr4) && __kvm_is_valid_cr4(vcpu, cr4) &&
	...;
}

@@ @@
kvm_is_valid_sregs(...)
{
+	if (!kvm_paging_allows_sregs(vcpu, sregs->efer, sregs->cr4))
+		return false;
	...
}

@@ @@
kvm_vcpu_ioctl_x86_set_vcpu_events(...)
{
+	if ((events->flags & KVM_VCPUEVENT_VALID_SMM) && events->smi.smm && !kvm_paging_allows_smm(vcpu))
+		return -EINVAL;
	...
}

@@ @@
- r = kvm_arch_vcpu_ioctl_set_sregs(vcpu, kvm_sregs);
+ r = kvm_arch_vcpu_ioctl_set_sregs(vcpu, kvm_sregs);
+ while (kvm_paging_went_nested(vcpu, ioctl))
+	r = kvm_arch_vcpu_ioctl_set_sregs(vcpu, kvm_sregs);

@@ @@
- r = kvm_arch_vcpu_ioctl(filp, ioctl, arg);
+ r = kvm_arch_vcpu_ioctl(filp, ioctl, arg);
+ while (kvm_paging_went_nested(vcpu, ioctl))
+	r = kvm_arch_vcpu_ioctl(filp, ioctl, arg);

// Where the processor does not tell the operand.
@@ @@
emulator_set_cr(...)
{
	<...
+	if (kvm_paging_cr4_needs_nested(vcpu, val)) {
+		kvm_paging_go_nested(vcpu);
+		return X86EMUL_RETRY_INSTR;
+	}
	res = kvm_set_cr4(...);
	...>
}

@@ @@
em_cr_write(...)
{
	...
	int r;
	...
-	if (ctxt->ops->set_cr(ctxt, cr_num, ctxt->src.val))
+	r = ctxt->ops->set_cr(ctxt, cr_num, ctxt->src.val);
+	if (r == X86EMUL_RETRY_INSTR)
+		return r;
+	if (r)
		return emulate_gp(ctxt, 0);
	...
}

@@
expression E;
@@
cr_interception(...)
{
	<...
+	if (kvm_paging_cr4_needs_nested(vcpu, val))
+		return kvm_paging_go_nested(vcpu);
	E = kvm_set_cr4(...);
	...>
}

@@
expression E;
@@
handle_cr(...)
{
	<...
+	if (kvm_paging_cr4_needs_nested(vcpu, val))
+		return kvm_paging_go_nested(vcpu);
	E = handle_set_cr4(...);
	...>
}
