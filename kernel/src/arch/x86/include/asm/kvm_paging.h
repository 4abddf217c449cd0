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

#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

/* Outside of what upstream numbers ("BFM"). args[0]: 0 shadow, 1 nested. */
#define KVM_CAP_BIFOLD_PAGING_MODE 0x42464d

struct kvm_paging_vcpu {
	/* The mode of this vCPU's MMU and of its VMCB or VMCS. */
	bool nested;
	/* Waits in kvm_paging_park(). Under kvm_paging_vm.lock. */
	bool parked;
	/* Its mutex is held by the switch. Under kvm_paging_vm.mutex. */
	bool held;
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
	/* Protects what follows, and the flags parked. Innermost, never held while waiting. */
	spinlock_t lock;
	/* Why a vCPU cannot switch; the first one counts. */
	int refusal;
	unsigned int parked;
	/* Parked vCPUs wait here for the end of the switch, the switch for them in arrived. */
	wait_queue_head_t released, arrived;
	u64 released_at;

	u64 to_shadow, to_nested, refused, rolled_back;
	u64 in_guest_last, shadow_pages_dropped, tables_dropped;
	struct kvm_paging_time quiesce, work, resume;
};

/* Whether this vCPU runs under nested paging (two-dimensional, "TDP" in KVM's terms). */
#define kvm_vcpu_tdp(vcpu) ((vcpu)->arch.paging.nested)

/* Whether a VM is, or may soon be, in shadow paging. Under kvm->lock it stays false. */
#define kvm_paging_leaves_nested(kvm) ((kvm)->arch.paging.switching || !(kvm)->arch.paging.nested)

#endif
