// SPDX-License-Identifier: GPL-2.0-only
// A guest that begins to be a hypervisor under shadow paging was promised nested paging by its CPUID: the VM goes back to
// it, and the instruction runs again. So does a VM whose user space sets such state.
// file: virt/kvm/kvm_main.c
// file: arch/x86/kvm/x86.c
// file: arch/x86/kvm/regs.c
// file: arch/x86/kvm/msrs.c
// expect: 6.1 +13 -2
// expect: 6.12 +13 -2
// expect: 7.0 +13 -2
// expect: 7.3 +14 -2

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

// Linux 7: WRMSR with its number in the instruction, too.
@@ @@
__kvm_emulate_wrmsr(...)
{
	int r;
+
+	if (kvm_paging_wrmsr_needs_nested(vcpu, msr, data))
+		return kvm_paging_go_nested(vcpu);
	...
}

@@ @@
#include "msrs.h"
+#include "paging_mode.h"

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
set_efer(...)
{
	...
	if (efer & ~kvm_caps.supported_efer_bits) return 1;
+	if (!kvm_paging_allows_efer(vcpu, efer))
+		return 1;
	...
}

@@ @@
kvm_is_valid_sregs(...)
{
+	if (!kvm_paging_allows_sregs(vcpu, sregs->efer))
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
+ r = kvm_paging_set_state(vcpu, ioctl, kvm_arch_vcpu_ioctl_set_sregs(vcpu, kvm_sregs));

@@ @@
- r = kvm_arch_vcpu_ioctl(filp, ioctl, arg);
+ r = kvm_paging_set_state(vcpu, ioctl, kvm_arch_vcpu_ioctl(filp, ioctl, arg));
