/* SPDX-License-Identifier: GPL-2.0-only */
/* A paging mode per VM that changes while the guest runs: see paging_mode.c. */
#ifndef __KVM_X86_PAGING_MODE_H
#define __KVM_X86_PAGING_MODE_H

#include <linux/kvm_host.h>

#include "paging_windows.h"

/* Private to this change: far above upstream's arch requests (32 of 56 in 6.1, 35 in 6.12). */
#define KVM_REQ_PAGING_MODE KVM_ARCH_REQ_FLAGS(48, KVM_REQUEST_WAIT)

/* What the vendor modules do for a switch. */
struct kvm_paging_ops {
	/* Hardware help for the APIC needs nested tables (AVIC). */
	bool apicv_needs_nested;
	/* Whether this VM can ever run in that mode. */
	enum kvm_paging_refusal (*check_vm)(struct kvm *kvm, bool nested);
	/* Whether this vCPU can now. Reads memory only, since a forecast asks while the vCPU runs. */
	enum kvm_paging_refusal (*check_vcpu)(struct kvm_vcpu *vcpu, bool nested);
	/* The same of a vCPU that is loaded and does not run, whose hardware's copy may be read. May be NULL. */
	enum kvm_paging_refusal (*check_loaded)(struct kvm_vcpu *vcpu, bool nested);
	/* Brings what only the hardware's copy holds (CR3, PDPTRs) into vcpu->arch. */
	void (*leave)(struct kvm_vcpu *vcpu);
	/* Sets controls and registers up for the mode that vcpu->arch.paging.nested names. */
	void (*enter)(struct kvm_vcpu *vcpu);
};

/* paging_mode.c. A mode's name and number: 0 shadow, 1 nested, negative for other words. */
extern const char *const kvm_paging_names[2];
int kvm_paging_mode_of(const char *word);
void kvm_paging_init_vm(struct kvm *kvm);
void kvm_paging_init_vcpu(struct kvm_vcpu *vcpu);
void kvm_paging_vcpu_created(struct kvm_vcpu *vcpu);
int kvm_paging_set_mode(struct kvm *kvm, bool nested);
int kvm_paging_park(struct kvm_vcpu *vcpu);
void kvm_paging_destroy_vm(struct kvm *kvm);

/* paging_refusal.c */
extern struct kvm_paging_ops kvm_paging_vendor;
void kvm_paging_register(const struct kvm_paging_ops *ops);
bool kvm_paging_have_both(void);
enum kvm_paging_refusal kvm_paging_check_vm(struct kvm *kvm, bool nested);
enum kvm_paging_refusal kvm_paging_check_vcpu(struct kvm_vcpu *vcpu, bool nested);
enum kvm_paging_refusal kvm_paging_forecast(struct kvm *kvm, bool nested, int *vcpu_id);
int kvm_paging_refuse(struct kvm *kvm, enum kvm_paging_refusal why, int vcpu_id);
bool kvm_paging_has_keys(struct kvm_vcpu *vcpu, bool long_mode);
bool kvm_paging_keys_need_nested(struct kvm_vcpu *vcpu, unsigned long cr0);
extern const char *const kvm_paging_refusal_words[KVM_PAGING_REFUSALS];

/* paging_needs.c, beside those in asm/kvm_paging.h */
void kvm_paging_go_nested_work(struct work_struct *work);
int kvm_paging_await_nested(struct kvm_vcpu *vcpu);
bool kvm_paging_wrmsr_needs_nested(struct kvm_vcpu *vcpu, u32 msr, u64 data);

/* paging_user.c: the capability and debugfs. */
int kvm_paging_check_extension(struct kvm *kvm);
int kvm_paging_enable_cap(struct kvm *kvm, struct kvm_enable_cap *cap);
void kvm_paging_create_debugfs(struct kvm *kvm);

/* Whether write tracking is only what is left of a stay in shadow paging. */
static inline bool kvm_paging_tracks_nothing(struct kvm *kvm)
{
	kvm_paging_window_locked(tracked);
	return READ_ONCE(kvm->arch.paging.dropping);
}

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
int kvm_paging_mmu_keep_shadow(struct kvm *kvm);
bool kvm_paging_mmu_trylock(struct kvm *kvm, bool nested);
void kvm_paging_mmu_unlock(struct kvm *kvm);
unsigned long kvm_paging_mmu_retire_shadow(struct kvm *kvm);
bool kvm_paging_mmu_tracked_by_others(struct kvm *kvm);
void kvm_paging_mmu_drop_shadow(struct kvm *kvm);
void kvm_paging_mmu_free_shadow(struct kvm *kvm);
unsigned long kvm_paging_mmu_zap_nested(struct kvm *kvm);
void kvm_paging_mmu_may_fail(struct kvm_vcpu *vcpu, bool may);
bool kvm_paging_mmu_fill(struct kvm_vcpu *vcpu);
void kvm_paging_mmu_rest(struct kvm_vcpu *vcpu);
void kvm_paging_mmu_wake(struct kvm_vcpu *vcpu);
void kvm_paging_mmu_ready(struct kvm_vcpu *vcpu);
void kvm_paging_mmu_reset(struct kvm_vcpu *vcpu);
void kvm_paging_mmu_destroy(struct kvm_vcpu *vcpu);
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm);

#endif
