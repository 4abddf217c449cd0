// SPDX-License-Identifier: GPL-2.0-only
// The base of FS or GS that WRMSR sets in real mode, which runs as virtual-8086 mode under shadow paging: the entry fails
// where the hardware's base is not the selector's. As KVM_SET_SREGS sets it, and read from where that keeps it.
// file: arch/x86/kvm/vmx/vmx.c
// expect: 6.1 +8 -4
// expect: 6.12 +8 -4
// expect: 7.0 +8 -4
// expect: 7.3 +8 -4

@@ @@
+static unsigned long vmx_paging_get_base(struct kvm_vcpu *vcpu, int seg);
+static void vmx_paging_set_base(struct kvm_vcpu *vcpu, int seg, unsigned long base);
+
vmx_get_msr(...)
{
	...
}

@@ @@
(
-	msr_info->data = vmcs_readl(GUEST_FS_BASE);
+	msr_info->data = vmx_paging_get_base(vcpu, VCPU_SREG_FS);
|
-	msr_info->data = vmcs_readl(GUEST_GS_BASE);
+	msr_info->data = vmx_paging_get_base(vcpu, VCPU_SREG_GS);
|
-	vmcs_writel(GUEST_FS_BASE, data);
+	vmx_paging_set_base(vcpu, VCPU_SREG_FS, data);
|
-	vmcs_writel(GUEST_GS_BASE, data);
+	vmx_paging_set_base(vcpu, VCPU_SREG_GS, data);
)
