/* SPDX-License-Identifier: GPL-2.0-only */
/* A paging mode per VM that changes while the guest runs: see paging_mode.c. */
#ifndef __KVM_X86_PAGING_MODE_H
#define __KVM_X86_PAGING_MODE_H

#include <linux/kvm_host.h>

/* Private to this change: far above upstream's arch requests (32 of 56 in 6.1, 35 in 6.12). */
#define KVM_REQ_PAGING_MODE KVM_ARCH_REQ_FLAGS(48, KVM_REQUEST_WAIT)

/* What the vendor modules do for a switch. */
struct kvm_paging_ops {
	/* Hardware help for the APIC needs nested tables (AVIC). */
	bool apicv_needs_nested;
	/* Whether this VM can ever run in that mode: 0 or -EOPNOTSUPP. */
	int (*check_vm)(struct kvm *kvm, bool nested);
	/* Whether this vCPU can now: 0 or -EBUSY. The vCPU is loaded and does not run. */
	int (*check_vcpu)(struct kvm_vcpu *vcpu, bool nested);
	/* Brings what only the hardware's copy holds (CR3, PDPTRs) into vcpu->arch. */
	void (*leave)(struct kvm_vcpu *vcpu);
	/* Sets controls and registers up for the mode that vcpu->arch.paging.nested names. */
	void (*enter)(struct kvm_vcpu *vcpu);
};

/* paging_mode.c. A mode's name and number: 0 shadow, 1 nested, negative for other words. */
extern const char *const kvm_paging_names[2];
int kvm_paging_mode_of(const char *word);
void kvm_paging_register(const struct kvm_paging_ops *ops);
void kvm_paging_init_vm(struct kvm *kvm);
void kvm_paging_init_vcpu(struct kvm_vcpu *vcpu);
int kvm_paging_set_mode(struct kvm *kvm, bool nested);
int kvm_paging_park(struct kvm_vcpu *vcpu);
void kvm_paging_destroy_vm(struct kvm *kvm);
int kvm_paging_check_extension(struct kvm *kvm);
int kvm_paging_enable_cap(struct kvm *kvm, struct kvm_enable_cap *cap);

/* paging_needs.c, beside those in asm/kvm_paging.h */
void kvm_paging_go_nested_work(struct work_struct *work);
bool kvm_paging_wrmsr_needs_nested(struct kvm_vcpu *vcpu, u32 msr, u64 data);

/* paging_debugfs.c */
void kvm_paging_create_debugfs(struct kvm *kvm);

/*
 * Around what write-protects a frame because it becomes a guest table with a shadow page. Under
 * nested paging such tables are a nested guest's, and the hardware's tables are in use.
 */
static inline void kvm_paging_shadowing(struct kvm *kvm, bool on)
{
	lockdep_assert_held_write(&kvm->mmu_lock);
	kvm->arch.paging.shadowing = on && !kvm->arch.paging.nested;
}

/* mmu/paging_mode.h, part of mmu.c for its static functions */
bool kvm_paging_roots_are_tdp(struct kvm_mmu *mmu);
int kvm_paging_mmu_alloc_shadow(struct kvm *kvm);
unsigned long kvm_paging_mmu_retire_shadow(struct kvm *kvm);
bool kvm_paging_mmu_tracked_by_others(struct kvm *kvm);
void kvm_paging_mmu_drop_shadow(struct kvm *kvm);
void kvm_paging_mmu_free_shadow(struct kvm *kvm);
unsigned long kvm_paging_mmu_zap_nested(struct kvm *kvm);
void kvm_paging_mmu_reset(struct kvm_vcpu *vcpu);
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm);

#endif
