/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A paging mode per VM: what of it lives in struct kvm_arch and struct kvm_vcpu_arch.
 *
 * Three things are told apart that upstream has in one global:
 *  - what the hardware can: tdp_enabled, npt_enabled, enable_ept, as before;
 *  - what a VM wants: kvm->arch.paging.nested, changed only by kvm_paging_set_mode();
 *  - what a vCPU does: vcpu->arch.paging.nested, changed only between guest entries, by
 *    the vCPU itself or by who holds its mutex. Code that builds a VMCB, VMCS or MMU asks
 *    this one, by kvm_vcpu_tdp().
 * The last two differ while a switch is under way, and for a vCPU that has not run since.
 */
#ifndef _ASM_X86_KVM_PAGING_H
#define _ASM_X86_KVM_PAGING_H

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

/* Outside of what upstream numbers ("BFM"). args[0]: 0 shadow, 1 nested. */
#define KVM_CAP_BIFOLD_PAGING_MODE 0x42464d

/* Far above upstream's reasons to do without AVIC. patches/22-apicv adds it to the vendor's. */
#define KVM_PAGING_APICV_INHIBIT ((enum kvm_apicv_inhibit)31)

struct kvm_paging_vcpu {
	/* The mode of this vCPU's MMU and of its VMCB or VMCS. */
	bool nested;
	/* The switch for whose end it waits in kvm_paging_park(), by number; 0 for none. Under kvm_paging_vm.lock. */
	u64 parked_in;
	/* Its mutex is held by the switch. Under kvm_paging_vm.mutex. */
	bool held;
	/*
	 * User space sets state that only nested paging has, and how often the VM went back to it for this call. Under the
	 * vCPU's mutex.
	 */
	bool wants_nested;
	u8 tries;
	/* User space has put the vCPU into SMM at some time: what it used before is not known. */
	bool smm_by_user;
};

struct kvm_paging_time {
	u64 last, worst;
};

struct kvm_paging_vm {
	/* Serialises switches. Taken outside of every other lock of the VM. */
	struct mutex mutex;
	/* The VM's mode, and during a switch the one to come. Written under mutex and lock. */
	bool nested, target;
	/* A switch is under way: vCPUs park instead of entering the guest. */
	bool switching;
	/* A write protection is for a shadow page's sake alone. Under mmu_lock for write. */
	bool shadowing;
	/*
	 * vCPUs run under nested paging again, and the shadow pages of the stay are still being dropped: what they
	 * write-track is not tracked any more. Written under mmu_lock.
	 */
	bool dropping;
	/* Protects what follows, and the flags parked. Innermost, never held while waiting. */
	spinlock_t lock;
	/* Number of the last switch. */
	u64 round;
	/* Why a vCPU cannot switch; the first one counts. */
	int refusal;
	/* vCPUs that are parked in this round. */
	unsigned int parked;
	/* Parked vCPUs wait here for the end of the switch, the switch for them in arrived. */
	wait_queue_head_t released, arrived;
	u64 released_at;

	/* A guest did what needs nested paging, see kvm_paging_go_nested(). */
	struct work_struct go_nested;
	/* Gives back what only shadow paging needs. */
	struct work_struct tidy;

	/* Tables of the TDP MMU, where upstream has no number of them. */
	atomic64_t tdp_tables;

	u64 to_shadow, to_nested, by_guest, refused, rolled_back;
	u64 in_guest_last, shadow_pages_dropped, tables_dropped;
	struct kvm_paging_time quiesce, work, resume, drop;
};

/* Whether this vCPU runs under nested paging (two-dimensional, "TDP" in KVM's terms). */
#define kvm_vcpu_tdp(vcpu) ((vcpu)->arch.paging.nested)

/* Whether a VM is, or may soon be, in shadow paging. Under kvm->lock it stays false. */
#define kvm_paging_leaves_nested(kvm) ((kvm)->arch.paging.switching || !(kvm)->arch.paging.nested)

/* Whether write tracking is only what is left of a stay in shadow paging. */
#define kvm_paging_tracks_nothing(kvm) READ_ONCE((kvm)->arch.paging.dropping)

struct kvm_vcpu;
bool kvm_paging_can_nest(struct kvm_vcpu *vcpu);
bool kvm_paging_allows_efer(struct kvm_vcpu *vcpu, u64 efer);
bool kvm_paging_allows_cr4(struct kvm_vcpu *vcpu, unsigned long cr4);
bool kvm_paging_allows_sregs(struct kvm_vcpu *vcpu, u64 efer, unsigned long cr4);
bool kvm_paging_allows_smm(struct kvm_vcpu *vcpu);
bool kvm_paging_went_nested(struct kvm_vcpu *vcpu, unsigned int ioctl);
bool kvm_paging_cr4_needs_nested(struct kvm_vcpu *vcpu, unsigned long cr4);
int kvm_paging_go_nested(struct kvm_vcpu *vcpu);

#endif
