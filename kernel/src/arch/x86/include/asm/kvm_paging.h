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
 * The last two differ only while a switch is under way.
 */
#ifndef _ASM_X86_KVM_PAGING_H
#define _ASM_X86_KVM_PAGING_H

#include <linux/atomic.h>
#include <linux/kvm_types.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

/* Outside of what upstream numbers ("BFM"). args[0]: 0 shadow, 1 nested. */
#define KVM_CAP_BIFOLD_PAGING_MODE 0x42464d

/* Far above upstream's reasons to do without AVIC. patches/22-apicv adds it to the vendor's. */
#define KVM_PAGING_APICV_INHIBIT ((enum kvm_apicv_inhibit)31)

/* Why a switch is refused. paging_refusal.c has their words, docs/reference/kernel-interface.md describes them. */
enum kvm_paging_refusal {
	KVM_PAGING_FINE,
	/* This host or VM. */
	KVM_PAGING_HOST, KVM_PAGING_ENCRYPTED, KVM_PAGING_DMA, KVM_PAGING_TSS,
	/* A vCPU, as it is now. */
	KVM_PAGING_HYPERVISOR, KVM_PAGING_KEYS, KVM_PAGING_SMM, KVM_PAGING_REAL_MODE,
	/* For -ENOMEM. No word of paging_refusal, which does not try. */
	KVM_PAGING_MEMORY,
	KVM_PAGING_REFUSALS,
};

/* Of a vCPU's MMU: reverse maps' descriptors, tables, what these shadow, and their headers. */
#define KVM_PAGING_CACHES 4

struct kvm_paging_vcpu {
	/* The mode of this vCPU's MMU and of its VMCB or VMCS. */
	bool nested;
	/* Switches know the vCPU, and it was in the VM's mode when they did. Set once, under the vCPU's mutex. */
	bool known;
	/* The switch for whose end it waits in kvm_paging_park(), by number; 0 for none. Under kvm_paging_vm.lock. */
	u64 parked_in;
	/* Its mutex is held by the switch. Under kvm_paging_vm.mutex. */
	bool held;
	/* The PDP table of PAE paging is in the clear, which shadow paging needs under memory encryption. */
	bool pae_in_clear;
	/* See kvm_paging_mmu_may_fail(). By its own thread or who holds its mutex, as what follows. */
	bool may_fail;
	/* The MMU's caches of nested paging rest while the vCPU is in shadow paging: kvm_paging_mmu_rest(). */
	bool rests;
	struct kvm_mmu_memory_cache resting[KVM_PAGING_CACHES];
	/* The protection key in a guest's entry that a shadow entry has, too: mmu/spte_keys.h. */
	u64 key_mask;
	/*
	 * The instruction that the guest executes next needs nested paging; how often the VM could not go there; and
	 * whether that was often enough: the instruction fails.
	 */
	bool needs_nested;
	u8 failed;
	bool gave_up;
	/* Where that instruction is. */
	unsigned long needs_at;
	/*
	 * An allocation failed: the vCPU waits until the VM is in nested paging and has given back what its stay had; and
	 * whether it has waited so.
	 */
	bool needs_memory, waited;
	/* It has asked for nested paging when there were so many answers. By its own thread. */
	bool asks;
	u64 answers;
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
	/* The VM's mode, and during a switch the one to come. Written under lock. */
	bool nested, target;
	/* Somebody asked for a mode: it is more than the default of new VMs. Under lock. */
	bool chosen;
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
	/* Why a vCPU cannot switch, and which one; the first one counts. */
	enum kvm_paging_refusal refusal;
	int refused_by;
	/* vCPUs that are parked in this round. */
	unsigned int parked;
	/* Parked vCPUs wait here for the end of the switch, the switch for them in arrived. */
	wait_queue_head_t released, arrived;
	u64 released_at;

	/* A guest did what needs nested paging, see kvm_paging_go_nested(); how often this was tried, and how it ended last. */
	struct work_struct go_nested;
	u64 answers;
	int answer;
	/* What is asked for is memory. */
	bool for_memory;
	/* Gives back what only shadow paging needs. */
	struct work_struct tidy;

	/* Tables of the TDP MMU, where upstream has no number of them. */
	atomic64_t tdp_tables;

	u64 to_shadow, to_nested, by_guest, by_guest_failed, back_for_memory, refused[KVM_PAGING_REFUSALS];
	u64 timed_out, interrupted, no_memory;
	u64 in_guest_last, shadow_pages_dropped, tables_dropped;
	struct kvm_paging_time quiesce, work, resume, drop;
};

/* Whether this vCPU runs under nested paging (two-dimensional, "TDP" in KVM's terms). */
#define kvm_vcpu_tdp(vcpu) ((vcpu)->arch.paging.nested)

struct kvm;
struct kvm_vcpu;
bool kvm_paging_leaves_nested(struct kvm *kvm);
void kvm_paging_noncoherent_dma(struct kvm *kvm);
bool kvm_paging_can_nest(struct kvm_vcpu *vcpu);
bool kvm_paging_allows_efer(struct kvm_vcpu *vcpu, u64 efer);
bool kvm_paging_allows_sregs(struct kvm_vcpu *vcpu, u64 efer);
bool kvm_paging_allows_smm(struct kvm_vcpu *vcpu);
void kvm_paging_wants_nothing(struct kvm_vcpu *vcpu);
bool kvm_paging_went_nested(struct kvm_vcpu *vcpu, unsigned int ioctl, int *r);

/* A call that sets state for user space, made again if the VM has gone back to nested paging for it. */
#define kvm_paging_set_state(vcpu, ioctl, call)					\
({										\
	int __r;								\
										\
	kvm_paging_wants_nothing(vcpu);						\
	do {									\
		__r = (call);							\
	} while (kvm_paging_went_nested(vcpu, ioctl, &__r));			\
	__r;									\
})

int kvm_paging_go_nested(struct kvm_vcpu *vcpu);
bool kvm_paging_ends_run(struct kvm_vcpu *vcpu, int r);

#endif
