// SPDX-License-Identifier: GPL-2.0-only
// User space has a new vCPU's file before switches know the vCPU. Nobody uses the file until they do: as Linux 6.13
// (6e2b2358b3ef), whose sources this patch leaves alone. By trylock, which nothing can fail: 6.1 takes kvm->lock within vcpu->mutex elsewhere.
// file: virt/kvm/kvm_main.c
// expect: 6.1 +3 -0
// expect: 6.12 +3 -0

@ held exists @ @@
	mutex_lock(&vcpu->mutex);
	... when != mutex_unlock(&vcpu->mutex);
	r = create_vcpu_fd(vcpu);

@ depends on !held @ @@
kvm_vm_ioctl_create_vcpu(...)
{
	<...
+	WARN_ON_ONCE(!mutex_trylock(&vcpu->mutex));
	r = create_vcpu_fd(vcpu);
	...>
}

@ depends on !held @ @@
kvm_vm_ioctl_create_vcpu(...)
{
	<...
	atomic_inc(&kvm->online_vcpus);
+	mutex_unlock(&vcpu->mutex);
	...>
}

@ depends on !held @ @@
kvm_vm_ioctl_create_vcpu(...)
{
	<...
+	mutex_unlock(&vcpu->mutex);
	kvm_put_kvm_no_destroy(kvm);
	...>
}
