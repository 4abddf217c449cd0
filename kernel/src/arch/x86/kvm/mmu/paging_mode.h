/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The MMU's part of a paging mode per VM. Included in mmu.c, whose static functions it
 * uses.
 */
#include "../paging_mode.h"
#include <linux/version.h>

/* Whether nested tables are the TDP MMU's, which a shadow page never touches. */
static bool kvm_paging_tdp_mmu(struct kvm *kvm)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	return is_tdp_mmu_enabled(kvm);
#else
	return tdp_mmu_enabled;
#endif
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 8, 0)
#define KVM_PAGING_ADDRESS_SPACES(kvm) KVM_ADDRESS_SPACE_NUM
#else
#define KVM_PAGING_ADDRESS_SPACES(kvm) kvm_arch_nr_memslot_as_ids(kvm)
#endif

static struct kvm_mmu_page *kvm_paging_root_to_sp(hpa_t root)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	return to_shadow_page(root);
#else
	return root_to_sp(root);
#endif
}

/* Whether the roots of an MMU are the TDP MMU's. All are of one kind: a switch frees all. */
bool kvm_paging_roots_are_tdp(struct kvm_mmu *mmu)
{
	int i;

	for (i = -1; i < KVM_MMU_NUM_PREV_ROOTS; i++) {
		hpa_t root = i < 0 ? mmu->root.hpa : mmu->prev_roots[i].hpa;
		struct kvm_mmu_page *sp = VALID_PAGE(root) ? kvm_paging_root_to_sp(root) : NULL;

		if (sp)
			return is_tdp_mmu_page(sp);
	}
	return false;
}

/* Reverse maps and write tracking, which a VM under nested paging does without. */
int kvm_paging_mmu_alloc_shadow(struct kvm *kvm)
{
	int idx = srcu_read_lock(&kvm->srcu);
	int r = mmu_first_shadow_root_alloc(kvm);

	srcu_read_unlock(&kvm->srcu, idx);
	return r;
}

/*
 * Retires every shadow page and leaves the TDP MMU's tables alone: the first half of kvm_mmu_zap_all_fast()
 * without the invalidation of TDP roots. No vCPU may have a root, so there is none to reload. Their number.
 *
 * slots_lock is kept until kvm_paging_mmu_drop_shadow(): two generations may not retire at once.
 */
unsigned long kvm_paging_mmu_retire_shadow(struct kvm *kvm)
{
	unsigned long pages;

	mutex_lock(&kvm->slots_lock);
	write_lock(&kvm->mmu_lock);
	pages = kvm->arch.n_used_mmu_pages;
	kvm->arch.mmu_valid_gen = kvm->arch.mmu_valid_gen ? 0 : 1;
	WRITE_ONCE(kvm->arch.paging.dropping, true);
	write_unlock(&kvm->mmu_lock);
	return pages;
}

/* Whether someone besides KVM tracks writes (kvmgt). He must not miss any while retired pages are dropped. */
bool kvm_paging_mmu_tracked_by_others(struct kvm *kvm)
{
#ifdef CONFIG_KVM_EXTERNAL_WRITE_TRACKING
	struct hlist_node *first = READ_ONCE(kvm->arch.track_notifier_head.track_notifier_list.first);

	/* Before 6.6 the MMU itself is the first in the list. */
	if (LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0) && first)
		first = READ_ONCE(first->next);
	return first;
#else
	return false;
#endif
}

/* The second half. vCPUs may run, and get mmu_lock in between. */
void kvm_paging_mmu_drop_shadow(struct kvm *kvm)
{
	write_lock(&kvm->mmu_lock);
	kvm_zap_obsolete_pages(kvm);
	WRITE_ONCE(kvm->arch.paging.dropping, false);
	write_unlock(&kvm->mmu_lock);
	mutex_unlock(&kvm->slots_lock);
}

/*
 * Gives back what kvm_paging_mmu_alloc_shadow() made, unless there is a shadow page again: one of the next stay, or
 * one for a nested guest. Else every MMU notifier would go through both kinds of table for as long as the VM lives.
 */
void kvm_paging_mmu_free_shadow(struct kvm *kvm)
{
	struct kvm_memslots *slots;
	struct kvm_memory_slot *slot;
	bool unused;
	int i, bkt;

	/* The older MMU's nested tables have reverse maps, too. */
	if (!kvm_paging_tdp_mmu(kvm))
		return;
	/* No switch, which counts on what it found, is between its beginning and its end. */
	mutex_lock(&kvm->arch.paging.mutex);
	mutex_lock(&kvm->slots_arch_lock);
	write_lock(&kvm->mmu_lock);
	unused = kvm->arch.paging.nested && !kvm->arch.n_used_mmu_pages;
	if (unused)
		kvm->arch.shadow_root_allocated = false;
	write_unlock(&kvm->mmu_lock);
	mutex_unlock(&kvm->slots_arch_lock);
	mutex_unlock(&kvm->arch.paging.mutex);
	if (!unused)
		return;

	/* Who found them there, and does not hold mmu_lock. */
	synchronize_srcu_expedited(&kvm->srcu);

	/* slots_lock: kvm_mmu_rmaps_stat_show() and slots' changes look before they take mmu_lock. */
	mutex_lock(&kvm->slots_lock);
	mutex_lock(&kvm->slots_arch_lock);
	if (!kvm_shadow_root_allocated(kvm)) {
		for (i = 0; i < KVM_PAGING_ADDRESS_SPACES(kvm); i++) {
			slots = __kvm_memslots(kvm, i);
			kvm_for_each_memslot(slot, bkt, slots) {
				int level;

				for (level = 0; level < KVM_NR_PAGE_SIZES; level++) {
					kvfree(slot->arch.rmap[level]);
					slot->arch.rmap[level] = NULL;
				}
				if (!kvm_page_track_write_tracking_enabled(kvm))
					kvm_page_track_free_memslot(slot);
			}
		}
	}
	mutex_unlock(&kvm->slots_arch_lock);
	mutex_unlock(&kvm->slots_lock);
}

/*
 * Before shadow paging begins: nested tables that cannot stay. Those of the TDP MMU stay,
 * also if their entries have a format of their own (spte_format.h); those of the older MMU
 * are found by the same hash and reverse maps as shadow pages and must not be mistaken for
 * them.
 */
unsigned long kvm_paging_mmu_zap_nested(struct kvm *kvm)
{
	unsigned long tables;

	if (kvm_paging_tdp_mmu(kvm))
		return 0;
	tables = kvm_paging_mmu_nested_tables(kvm);
	mutex_lock(&kvm->slots_lock);
	kvm_mmu_zap_all_fast(kvm);
	mutex_unlock(&kvm->slots_lock);
	return tables;
}

/* The MMU anew, in the vCPU's mode: roots go, and no role may look unchanged. */
void kvm_paging_mmu_reset(struct kvm_vcpu *vcpu)
{
	vcpu->arch.root_mmu.root_role.invalid = 1;
	vcpu->arch.root_mmu.cpu_role.ext.valid = 0;
	vcpu->arch.guest_mmu.root_role.invalid = 1;
	vcpu->arch.guest_mmu.cpu_role.ext.valid = 0;
	vcpu->arch.nested_mmu.root_role.invalid = 1;
	vcpu->arch.nested_mmu.cpu_role.ext.valid = 0;
	kvm_init_mmu(vcpu);
}

#ifdef CONFIG_X86_64
/* Table pages of the TDP MMU below its roots. */
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm)
{
	if (!kvm_paging_tdp_mmu(kvm))
		return kvm->arch.n_used_mmu_pages;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	return atomic64_read(&kvm->arch.paging.tdp_tables);
#else
	return atomic64_read(&kvm->arch.tdp_mmu_pages);
#endif
}
#else
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm)
{
	return 0;
}
#endif
