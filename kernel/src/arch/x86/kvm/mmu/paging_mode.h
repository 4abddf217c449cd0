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

/*
 * Reverse maps and write tracking, which a VM under nested paging does without. From
 * then on they are kept up to date in either mode; they go with the VM.
 */
int kvm_paging_mmu_alloc_shadow(struct kvm *kvm)
{
	int idx = srcu_read_lock(&kvm->srcu);
	int r = mmu_first_shadow_root_alloc(kvm);

	srcu_read_unlock(&kvm->srcu, idx);
	return r;
}

/*
 * Drops every shadow page and leaves the TDP MMU's tables alone: kvm_mmu_zap_all_fast()
 * without the invalidation of TDP roots. No vCPU may have a root, so there is none to
 * reload. The cost is in the shadow pages, not in the guest's memory.
 */
unsigned long kvm_paging_mmu_zap_shadow(struct kvm *kvm)
{
	unsigned long pages;

	mutex_lock(&kvm->slots_lock);
	write_lock(&kvm->mmu_lock);
	pages = kvm->arch.n_used_mmu_pages;
	kvm->arch.mmu_valid_gen = kvm->arch.mmu_valid_gen ? 0 : 1;
	kvm_zap_obsolete_pages(kvm);
	write_unlock(&kvm->mmu_lock);
	mutex_unlock(&kvm->slots_lock);
	return pages;
}

/*
 * Before shadow paging begins: nested tables that cannot stay. Those of the TDP MMU stay
 * unless their entries have a format of their own; those of the older MMU are found by
 * the same hash and reverse maps as shadow pages and must not be mistaken for them.
 */
unsigned long kvm_paging_mmu_zap_nested(struct kvm *kvm, bool own_format)
{
	unsigned long tables;

	if (kvm_paging_tdp_mmu(kvm) && !own_format)
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
/* 6.1 has the TDP MMU's tables in a list, later kernels their number. */
static __maybe_unused unsigned long kvm_paging_count_list(struct kvm *kvm, void *pages)
{
	struct list_head *at;
	unsigned long n = 0;

	/* The list's own lock keeps out only those who hold mmu_lock for read. */
	read_lock(&kvm->mmu_lock);
	spin_lock(&kvm->arch.tdp_mmu_pages_lock);
	list_for_each(at, (struct list_head *)pages)
		n++;
	spin_unlock(&kvm->arch.tdp_mmu_pages_lock);
	read_unlock(&kvm->mmu_lock);
	return n;
}

static __maybe_unused unsigned long kvm_paging_count_atomic(struct kvm *kvm, void *pages)
{
	return atomic64_read((atomic64_t *)pages);
}

/* Table pages of the TDP MMU below its roots. Walks a list in 6.1, so not for the switch itself. */
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm)
{
	if (!kvm_paging_tdp_mmu(kvm))
		return kvm->arch.n_used_mmu_pages;
	return _Generic(&kvm->arch.tdp_mmu_pages,
			struct list_head *: kvm_paging_count_list,
			atomic64_t *: kvm_paging_count_atomic)(kvm, &kvm->arch.tdp_mmu_pages);
}
#else
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm)
{
	return 0;
}
#endif
