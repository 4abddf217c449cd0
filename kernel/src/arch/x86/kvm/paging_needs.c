// SPDX-License-Identifier: GPL-2.0-only
/*
 * What only nested paging has: a guest that is a hypervisor (EFER.SVME, VMX operation), and protection keys. Both are
 * offered in either mode. A VM in shadow paging whose guest begins to use them, or whose VMM sets a vCPU's state with
 * them, goes back to nested paging.
 */
#include <linux/delay.h>
#include <linux/kvm_host.h>

#include "cpuid.h"
#include "kvm_cache_regs.h"
#include "mmu.h"
#include "paging_mode.h"

/* The guest does what only nested paging has. */
static int bring_back(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	bool was_nested = READ_ONCE(p->nested);
	int r = kvm_paging_set_mode(kvm, true);

	if (!r && !was_nested) {
		p->by_guest++;
		pr_info_ratelimited("kvm [%d]: the guest begins to use what only nested paging has, and goes back to it\n",
				    kvm->userspace_pid);
	}
	return r;
}

/* The work of kvm_paging_go_nested(). */
void kvm_paging_go_nested_work(struct work_struct *work)
{
	struct kvm_paging_vm *p = container_of(work, struct kvm_paging_vm, go_nested);

	/* The guest asks again at once. A vCPU that cannot switch now soon can. */
	if (bring_back(container_of(p, struct kvm, arch.paging)))
		msleep(20);
}

/*
 * The guest is about to do what its processor has and shadow paging has not. The VM goes back to
 * nested paging, and the vCPU executes its instruction again, until it is there.
 */
int kvm_paging_go_nested(struct kvm_vcpu *vcpu)
{
	queue_work(system_unbound_wq, &vcpu->kvm->arch.paging.go_nested);
	cond_resched();
	return 1;
}
EXPORT_SYMBOL_GPL(kvm_paging_go_nested);

/*
 * Whether a vCPU may be a hypervisor now. Not under shadow paging, as its VMRUN or VMLAUNCH would fail, and not before
 * the shadow pages of a stay there are gone, as its own guest's tables have to be write-tracked.
 */
bool kvm_paging_can_nest(struct kvm_vcpu *vcpu)
{
	return !tdp_enabled || (kvm_vcpu_tdp(vcpu) && !kvm_paging_tracks_nothing(vcpu->kvm));
}
EXPORT_SYMBOL_GPL(kvm_paging_can_nest);

/* Whether the vCPU may have this EFER as it is now, whoever writes it. */
bool kvm_paging_allows_efer(struct kvm_vcpu *vcpu, u64 efer)
{
	return !(efer & EFER_SVME) || (vcpu->arch.efer & EFER_SVME) || kvm_paging_can_nest(vcpu);
}

/* The same of CR4: shadow tables have no protection keys. */
bool kvm_paging_allows_cr4(struct kvm_vcpu *vcpu, unsigned long cr4)
{
	return !(cr4 & X86_CR4_PKE) || !tdp_enabled || kvm_vcpu_tdp(vcpu);
}

/* Whether a guest's write has to wait for nested paging: else it is right now, or wrong in either mode. */
bool kvm_paging_wrmsr_needs_nested(struct kvm_vcpu *vcpu, u32 msr, u64 data)
{
	return msr == MSR_EFER && !kvm_paging_allows_efer(vcpu, data) && kvm_cpu_cap_has(X86_FEATURE_SVM) &&
	       guest_cpuid_has(vcpu, X86_FEATURE_SVM);
}

bool kvm_paging_cr4_needs_nested(struct kvm_vcpu *vcpu, unsigned long cr4)
{
	return !kvm_paging_allows_cr4(vcpu, cr4) && kvm_cpu_cap_has(X86_FEATURE_PKU) &&
	       guest_cpuid_has(vcpu, X86_FEATURE_PKU);
}
EXPORT_SYMBOL_GPL(kvm_paging_cr4_needs_nested);

/* The state of a vCPU by user space, such as that of a guest that migrates here. */
bool kvm_paging_allows_sregs(struct kvm_vcpu *vcpu, u64 efer, unsigned long cr4)
{
	vcpu->arch.paging.wants_nested = kvm_paging_wrmsr_needs_nested(vcpu, MSR_EFER, efer) ||
					 kvm_paging_cr4_needs_nested(vcpu, cr4);
	return kvm_paging_allows_efer(vcpu, efer) && kvm_paging_allows_cr4(vcpu, cr4);
}

/*
 * On Intel, user space sets a guest's VMX operation after SMM (KVM_SET_NESTED_STATE), and no vCPU switches in SMM. A vCPU
 * that is there already went by itself, in shadow paging, so it was no hypervisor.
 */
static bool vmx_needs_nested(struct kvm_vcpu *vcpu)
{
	return kvm_cpu_cap_has(X86_FEATURE_VMX) && guest_cpuid_has(vcpu, X86_FEATURE_VMX) &&
	       !(vcpu->arch.hflags & HF_SMM_MASK) && !kvm_paging_can_nest(vcpu);
}

/* The same of system management mode. What EFER and CR4 are after it is in the guest's memory. */
bool kvm_paging_allows_smm(struct kvm_vcpu *vcpu)
{
	vcpu->arch.paging.wants_nested = kvm_paging_wrmsr_needs_nested(vcpu, MSR_EFER, EFER_SVME) ||
					 vmx_needs_nested(vcpu) ||
					 kvm_paging_cr4_needs_nested(vcpu, X86_CR4_PKE);
	vcpu->arch.paging.smm_by_user |= !vcpu->arch.paging.wants_nested;
	return !vcpu->arch.paging.wants_nested;
}

/*
 * At the end of a call of user space that sets state: whether the VM went back to nested paging for it, and the call is to be
 * made again. The switch needs the vCPU's mutex; nothing was set yet, so it may be dropped. A VM that somebody always
 * switches is left alone in the end.
 */
bool kvm_paging_went_nested(struct kvm_vcpu *vcpu, unsigned int ioctl)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	bool wants = v->wants_nested && v->tries < 3;
	int r;

	if (ioctl != KVM_SET_SREGS && ioctl != KVM_SET_SREGS2 && ioctl != KVM_SET_NESTED_STATE &&
	    ioctl != KVM_SET_VCPU_EVENTS)
		return false;
	v->wants_nested = false;
	v->tries = wants ? v->tries + 1 : 0;
	if (!wants)
		return false;
	mutex_unlock(&vcpu->mutex);
	r = bring_back(vcpu->kvm);
	mutex_lock(&vcpu->mutex);
	return !r;
}
