// SPDX-License-Identifier: GPL-2.0-only
// Faulting memory in before a vCPU runs is for nested paging only; upstream finds out after it has
// built a shadow root, outside of KVM_RUN and so of the rendezvous.
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.12 +1 -1
// expect: 7.0 +1 -1
// expect: 7.3 +1 -1

@@ @@
kvm_arch_vcpu_pre_fault_memory(...)
{
	...
-	if (!vcpu->kvm->arch.pre_fault_allowed)
+	if (!vcpu->kvm->arch.pre_fault_allowed || !kvm_vcpu_tdp(vcpu))
		return -EOPNOTSUPP;
	...
}
