// SPDX-License-Identifier: GPL-2.0-only
// User space has a new vCPU's file before switches know the vCPU. Nobody uses the file until they do: as Linux 6.13
// (6e2b2358b3ef). By trylock, which nothing can fail: 6.1 takes kvm->lock within vcpu->mutex elsewhere.
// file: virt/kvm/kvm_main.c
// expect: 6.1 +3 -0
// expect: 6.12 +3 -0

@@ @@
kvm_vm_ioctl_create_vcpu(...)
{
	<...
+	WARN_ON_ONCE(!mutex_trylock(&vcpu->mutex));
	r = create_vcpu_fd(vcpu);
	...>
}

@@ @@
kvm_vm_ioctl_create_vcpu(...)
{
	<...
	atomic_inc(&kvm->online_vcpus);
+	mutex_unlock(&vcpu->mutex);
	...>
}

@@ @@
kvm_vm_ioctl_create_vcpu(...)
{
	<...
+	mutex_unlock(&vcpu->mutex);
	kvm_put_kvm_no_destroy(kvm);
	...>
}
