// SPDX-License-Identifier: GPL-2.0-only
// Where a VM and its vCPUs meet the switch: creation, KVM_RUN, capability, debugfs.
// file: arch/x86/kvm/x86.c
// file: arch/x86/kvm/debugfs.c
// expect: 6.1 +23 -1
// expect: 6.12 +23 -1
// expect: 7.0 +22 -1
// expect: 7.3 +22 -1

@@ @@
#include "mmu.h"
+#include "paging_mode.h"

@@ @@
kvm_arch_init_vm(...)
{
	<...
	kvm_apicv_init(kvm);
+	kvm_paging_init_vm(kvm);
	...>
}

@@ @@
kvm_arch_pre_destroy_vm(...)
{
	...
+	kvm_paging_destroy_vm(kvm);
	kvm_mmu_pre_destroy_vm(kvm);
	...
}

@@ @@
kvm_arch_vcpu_create(...)
{
	<...
+	kvm_paging_init_vcpu(vcpu);
	r = kvm_mmu_create(vcpu);
	...>
}

@@ @@
kvm_arch_vcpu_postcreate(...)
{
	struct kvm *kvm = vcpu->kvm;
+
+	kvm_paging_vcpu_created(vcpu);
	...
}

// Linux 7: without that declaration.
@@ @@
kvm_arch_vcpu_postcreate(...)
{
+	kvm_paging_vcpu_created(vcpu);
	if (mutex_lock_killable(&vcpu->mutex)) return;
	...
}

// Before a vCPU waits for SIPI, where vcpu_run() is never reached.
@@ @@
kvm_arch_vcpu_ioctl_run(...)
{
	...
	kvm_load_guest_fpu(vcpu);
	kvm_vcpu_srcu_read_lock(vcpu);
+	if (kvm_check_request(KVM_REQ_PAGING_MODE, vcpu)) {
+		r = kvm_paging_park(vcpu);
+		if (r)
+			goto out;
+	}
	...
}

@@ @@
vcpu_run(...)
{
	<...
	vcpu->arch.at_instruction_boundary = false;
+	if (kvm_check_request(KVM_REQ_PAGING_MODE, vcpu)) {
+		r = kvm_paging_park(vcpu);
+		if (r)
+			return r;
+	}
	...>
}

// Shadow paging that gets no memory.
@@ @@
vcpu_run(...)
{
	<...
-	if (r <= 0)
+	if (r <= 0 && kvm_paging_ends_run(vcpu, r))
		break;
	...>
}

@@ @@
kvm_vm_ioctl_check_extension(...)
{
	int r = 0;
+	if (ext == KVM_CAP_BIFOLD_PAGING_MODE)
+		return kvm_paging_check_extension(kvm);
	...
}

@@ @@
kvm_vm_ioctl_enable_cap(...)
{
	...
	if (cap->flags) return -EINVAL;
+	if (cap->cap == KVM_CAP_BIFOLD_PAGING_MODE)
+		return kvm_paging_enable_cap(kvm, cap);
	...
}

@@ @@
kvm_arch_create_vm_debugfs(...)
{
	debugfs_create_file(...);
+	kvm_paging_create_debugfs(kvm);
	...
}
