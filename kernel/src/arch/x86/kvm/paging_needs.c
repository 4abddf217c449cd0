// SPDX-License-Identifier: GPL-2.0-only
/*
 * What only nested paging has: a guest that is a hypervisor (EFER.SVME, VMX operation), protection keys without CR0.WP,
 * a guest with encrypted memory, and a device without coherent DMA. All are offered in either mode. A VM in shadow
 * paging whose guest begins to use them, or whose VMM sets a vCPU's state with them, goes back to nested paging.
 */
#include <linux/kvm_host.h>
#include <linux/version.h>

#include "cpuid.h"
#include "mmu.h"
#include "paging_mode.h"
#include "paging_versions.h"
#include "x86.h"

/* How often a VM is to go back to nested paging for an instruction, or for a call of user space, before that fails. */
#define TRIES 5

/* Back to nested paging, for what the guest does, or as its shadow pages get no memory. */
static int bring_back(struct kvm *kvm, bool for_memory)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	bool was_nested = READ_ONCE(p->nested);
	int r = kvm_paging_set_mode(kvm, true);

	if (!r && !was_nested && for_memory) {
		WRITE_ONCE(p->back_for_memory, p->back_for_memory + 1);
		pr_info_ratelimited("kvm [%d]: no memory for shadow pages (a cgroup's limit?): the VM goes back to nested paging\n",
				    kvm->userspace_pid);
	} else if (!r && !was_nested) {
		WRITE_ONCE(p->by_guest, p->by_guest + 1);
		pr_info_ratelimited("kvm [%d]: the guest begins to use what only nested paging has, and goes back to it\n",
				    kvm->userspace_pid);
	}
	return r;
}

/* The work of those who wait in kvm_paging_await_nested(). */
void kvm_paging_go_nested_work(struct work_struct *work)
{
	struct kvm_paging_vm *p = container_of(work, struct kvm_paging_vm, go_nested);
	bool for_memory = xchg(&p->for_memory, false);
	int r = bring_back(container_of(p, struct kvm, arch.paging), for_memory);

	/* Reverse maps, too. */
	if (!r && for_memory)
		flush_work(&p->tidy);
	spin_lock(&p->lock);
	p->answer = r;
	WRITE_ONCE(p->answers, p->answers + 1);
	spin_unlock(&p->lock);
	wake_up_all(&p->released);
}

/*
 * The guest is about to do what its processor has and shadow paging has not. The vCPU waits where it would enter the
 * guest next, until the VM is in nested paging, and executes its instruction again. If the VM cannot go there, as another
 * vCPU cannot, the instruction fails as on a processor whose firmware has turned the feature off.
 */
int kvm_paging_go_nested(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;

	if (v->gave_up && v->needs_at == kvm_rip_read(vcpu)) {
		v->gave_up = false;
		kvm_inject_gp(vcpu, 0);
		return 1;
	}
	v->needs_nested = true;
	v->needs_at = kvm_rip_read(vcpu);
	kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
	return 1;
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(kvm_paging_go_nested);

/*
 * vcpu_run() is about to leave KVM_RUN with r, and whether it has to. Where shadow paging got no memory, the vCPU waits for
 * nested paging and for what the stay had, and does again what failed. If that fails again in nested paging, it allocates as
 * upstream.
 */
bool kvm_paging_ends_run(struct kvm_vcpu *vcpu, int r)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;

	if (r != -ENOMEM || !v->may_fail || !kvm_paging_have_both())
		return true;
	if (kvm_vcpu_tdp(vcpu) && v->waited) {
		v->waited = false;
		kvm_paging_mmu_may_fail(vcpu, false);
		return false;
	}
	v->needs_memory = true;
	kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
	return false;
}

/* Whether the vCPU has what it needs of the VM's mode. It is loaded. */
static bool satisfied(struct kvm_vcpu *vcpu)
{
	/* The answer says so. */
	if (vcpu->arch.paging.needs_memory)
		return false;
	if (vcpu->arch.paging.needs_nested)
		return kvm_paging_can_nest(vcpu);
	return !tdp_enabled || kvm_vcpu_tdp(vcpu) || !kvm_paging_keys_need_nested(vcpu, kvm_read_cr0(vcpu));
}

/* Whether user space called KVM_RUN to run the guest, and not only to complete what is pending. */
static bool wants_to_run(struct kvm_vcpu *vcpu)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 10, 0)
	return !READ_ONCE(vcpu->run->immediate_exit);
#else
	return vcpu->wants_to_run;
#endif
}

/*
 * In kvm_paging_park(), in the VM's mode and with no switch under way. Returns 0: the vCPU may go on; 1: something
 * changed, look again; -EINTR, -EIO: leave KVM_RUN.
 */
int kvm_paging_await_nested(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vm *p = &vcpu->kvm->arch.paging;
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	bool answered;
	int answer;

	/* User space may have reset the vCPU while it waited. */
	if (v->needs_nested && v->needs_at != kvm_rip_read(vcpu))
		v->needs_nested = v->gave_up = false;
	if (satisfied(vcpu)) {
		if (kvm_vcpu_tdp(vcpu))
			v->gave_up = false;
		v->needs_nested = v->asks = false;
		v->failed = 0;
		return 0;
	}
	if (v->failed >= TRIES && v->needs_memory) {
		/* Another vCPU is in the way. As upstream, with the OOM killer. */
		v->needs_memory = false;
		v->failed = 0;
		kvm_paging_mmu_may_fail(vcpu, false);
		return 0;
	}
	if (v->failed >= TRIES) {
		WRITE_ONCE(p->by_guest_failed, p->by_guest_failed + 1);
		pr_info_ratelimited("kvm [%d]: vCPU %d needs nested paging and the VM cannot go there: the paging mode stays shadow\n",
				    vcpu->kvm->userspace_pid, vcpu->vcpu_id);
		v->failed = 0;
		if (!v->needs_nested)
			return -EIO;
		/* Its instruction comes again, and fails. */
		v->needs_nested = false;
		v->gave_up = true;
		return 0;
	}
	if (!wants_to_run(vcpu))
		goto interrupted;
	if (!v->asks) {
		v->asks = true;
		v->answers = READ_ONCE(p->answers);
		kvm_paging_window(ask);
		if (v->needs_memory)
			WRITE_ONCE(p->for_memory, true);
		queue_work(KVM_PAGING_WQ, &p->go_nested);
	}
	/* The switch that is asked for wants this vCPU parked, which comes back here when that switch has ended. */
	if (wait_event_interruptible(p->released, READ_ONCE(p->answers) != v->answers || READ_ONCE(p->switching)))
		goto interrupted;
	spin_lock(&p->lock);
	answered = p->answers != v->answers;
	answer = p->answer;
	spin_unlock(&p->lock);
	if (!answered)
		return 1;
	v->asks = false;
	if (!answer) {
		v->waited |= v->needs_memory;
		v->needs_memory = false;
		return 1;
	}
	v->failed++;
	/* Whoever is in the way may be so for a moment, and each try stops all vCPUs. Another's switch must not wait. */
	if (wait_event_interruptible_timeout(p->released, READ_ONCE(p->switching), msecs_to_jiffies(10u << v->failed)) >= 0)
		return 1;
interrupted:
	vcpu->run->exit_reason = KVM_EXIT_INTR;
	++vcpu->stat.signal_exits;
	return -EINTR;
}

/*
 * Whether a vCPU may be a hypervisor now. Not under shadow paging, as its VMRUN or VMLAUNCH would fail, and not before
 * the shadow pages of a stay there are gone, as its own guest's tables have to be write-tracked. The VM's mode counts
 * besides the vCPU's: a vCPU that took nested mode in a switch back goes to shadow paging again if that switch is given up,
 * and nobody asks it then. Neither mode changes during an instruction or a call of user space: for a vCPU that switches
 * know, a switch to shadow paging cannot end without the vCPU's mutex.
 */
bool kvm_paging_can_nest(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;

	kvm_paging_window(nest);
	return !tdp_enabled || (v->known && kvm_vcpu_tdp(vcpu) && READ_ONCE(vcpu->kvm->arch.paging.nested) &&
				!kvm_paging_tracks_nothing(vcpu->kvm));
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(kvm_paging_can_nest);

/* Whether the vCPU may have this EFER as it is now, whoever writes it. */
bool kvm_paging_allows_efer(struct kvm_vcpu *vcpu, u64 efer)
{
	return !(efer & EFER_SVME) || (vcpu->arch.efer & EFER_SVME) || kvm_paging_can_nest(vcpu);
}

static bool svm_is_offered(struct kvm_vcpu *vcpu)
{
	return kvm_cpu_cap_has(X86_FEATURE_SVM) && kvm_paging_guest_has(vcpu, X86_FEATURE_SVM);
}

/* Whether a guest's write has to wait for nested paging: else it is right now, or wrong in either mode. */
bool kvm_paging_wrmsr_needs_nested(struct kvm_vcpu *vcpu, u32 msr, u64 data)
{
	return msr == MSR_EFER && !kvm_paging_allows_efer(vcpu, data) && svm_is_offered(vcpu);
}

/* The state of a vCPU by user space, such as that of a guest that migrates here. */
bool kvm_paging_allows_sregs(struct kvm_vcpu *vcpu, u64 efer)
{
	bool allowed = kvm_paging_allows_efer(vcpu, efer);

	vcpu->arch.paging.wants_nested = !allowed && svm_is_offered(vcpu);
	return allowed;
}

/* On Intel, user space sets a guest's VMX operation after SMM (KVM_SET_NESTED_STATE), and no vCPU switches in SMM. */
static bool vmx_needs_nested(struct kvm_vcpu *vcpu)
{
	return kvm_cpu_cap_has(X86_FEATURE_VMX) && kvm_paging_guest_has(vcpu, X86_FEATURE_VMX) && !kvm_paging_can_nest(vcpu);
}

/*
 * The same of system management mode, as what the vCPU's EFER is after it is in the guest's memory. A vCPU that is there
 * already went by itself, in shadow paging, so it was no hypervisor.
 */
bool kvm_paging_allows_smm(struct kvm_vcpu *vcpu)
{
	if (vcpu->arch.hflags & HF_SMM_MASK)
		return true;
	vcpu->arch.paging.wants_nested = kvm_paging_wrmsr_needs_nested(vcpu, MSR_EFER, EFER_SVME) ||
					 vmx_needs_nested(vcpu);
	vcpu->arch.paging.smm_by_user |= !vcpu->arch.paging.wants_nested;
	return !vcpu->arch.paging.wants_nested;
}

/* At the begin of a call that kvm_paging_went_nested() ends: what an earlier one wanted counts no more. */
void kvm_paging_wants_nothing(struct kvm_vcpu *vcpu)
{
	vcpu->arch.paging.wants_nested = false;
	vcpu->arch.paging.tries = 0;
}

/*
 * At the end of a call of user space that sets state, which ended with *r: whether the VM went back to nested paging for
 * it, and the call is to be made again. The switch needs the vCPU's mutex; nothing was set yet, so it may be dropped. A
 * VM that somebody always switches is left alone in the end.
 */
bool kvm_paging_went_nested(struct kvm_vcpu *vcpu, unsigned int ioctl, int *r)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	int back;

	if (ioctl != KVM_SET_SREGS && ioctl != KVM_SET_SREGS2 && ioctl != KVM_SET_NESTED_STATE &&
	    ioctl != KVM_SET_VCPU_EVENTS)
		return false;
	if (!v->wants_nested || v->tries >= TRIES)
		return false;
	v->wants_nested = false;
	v->tries++;
	mutex_unlock(&vcpu->mutex);
	back = bring_back(vcpu->kvm, false);
	/* Another thread may run the vCPU meanwhile, for as long as it likes: no hung task. */
	while (!mutex_trylock(&vcpu->mutex))
		schedule_timeout_idle(1);
	if (back)
		/* The call is made again after the signal's handler, which may be a VMM's stray one. */
		*r = back == -EINTR ? -ERESTARTNOINTR : back;
	return !back;
}

/*
 * Under kvm->lock: whether a VM is, or may soon be, in shadow paging. A VM without a vCPU that is there by the default
 * of new VMs alone goes to nested paging here, since it is about to become an encrypted one.
 */
bool kvm_paging_leaves_nested(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	bool went = false, leaves;

	lockdep_assert_held(&kvm->lock);
	spin_lock(&p->lock);
	if (!p->switching && !p->nested && !p->chosen && !kvm->created_vcpus) {
		WRITE_ONCE(p->nested, true);
		p->target = went = true;
	}
	leaves = p->switching || !p->nested;
	spin_unlock(&p->lock);
	if (went) {
		if (kvm_paging_vendor.apicv_needs_nested && enable_apicv)
			kvm_clear_apicv_inhibit(kvm, KVM_PAGING_APICV_INHIBIT);
		queue_work(KVM_PAGING_WQ, &p->tidy);
	}
	return leaves;
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(kvm_paging_leaves_nested);

/*
 * A device without coherent DMA was assigned, and only EPT has the memory types that the guest gives its pages then: a
 * VM in shadow paging goes back. The count of such devices is raised already. A switch to shadow paging that begins
 * later sees it; one under way sees it when its vCPUs stand, or is seen here.
 */
void kvm_paging_noncoherent_dma(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;

	/* Pairs with the locks that a switch takes before it looks. */
	smp_mb();
	kvm_paging_window(dma);
	if (!kvm_paging_have_both() || (READ_ONCE(p->nested) && !READ_ONCE(p->switching)))
		return;
	if (kvm_paging_check_vm(kvm, false) != KVM_PAGING_DMA)
		return;
	queue_work(KVM_PAGING_WQ, &p->go_nested);
	flush_work(&p->go_nested);
	if (!READ_ONCE(p->nested))
		pr_warn_ratelimited("kvm [%d]: the VM stays in shadow paging, which cannot give its new device the guest's memory types\n",
				    kvm->userspace_pid);
}
