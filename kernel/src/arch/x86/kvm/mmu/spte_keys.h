/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Protection keys under shadow paging: a shadow entry has the key of the guest's leaf entry. Included in spte.h.
 *
 * Entries have keys where the guest's processor has them in its CPUID, not where CR4.PKE is set: vCPUs with CR4.PKE and
 * without it share shadow pages, and the processor ignores keys without it. A vCPU whose CPUID has no keys, or that is not
 * in long mode, uses these bits otherwise or not at all, and shares none: kvm_mmu_page_role.keyed.
 */
#ifndef __KVM_X86_MMU_SPTE_KEYS_H
#define __KVM_X86_MMU_SPTE_KEYS_H

#include <linux/kvm_host.h>

/*
 * The protection key of a guest's entry travels with the access that the entry allows, above the bits of ACC_ALL, into
 * shadow entries, shadowed_translation and the roles of tables that shadow a large page in pieces.
 */
#define KVM_PAGING_KEY_SHIFT const_ilog2(ACC_ALL + 1)
#define KVM_PAGING_ACC_KEY (15u << KVM_PAGING_KEY_SHIFT)
#define KVM_PAGING_PTE_KEY_SHIFT 59
#define KVM_PAGING_PTE_KEY_MASK (15ull << KVM_PAGING_PTE_KEY_SHIFT)

static_assert(!(ACC_ALL & (ACC_ALL + 1)));
static_assert(!(ACC_ALL & KVM_PAGING_ACC_KEY));
/* shadowed_translation has the frame from PAGE_SHIFT on. */
static_assert(KVM_PAGING_ACC_KEY < PAGE_SIZE);
static_assert(sizeof(union kvm_mmu_page_role) == sizeof_field(union kvm_mmu_page_role, word));
/* Plain entries have nothing of their own where the key is. */
static_assert(!(KVM_PAGING_PTE_KEY_MASK & (GENMASK_ULL(51, 12) | PT64_NX_MASK | SPTE_TDP_AD_MASK | SPTE_MMU_PRESENT_MASK)));
static_assert(!(KVM_PAGING_PTE_KEY_MASK & (DEFAULT_SPTE_HOST_WRITABLE | DEFAULT_SPTE_MMU_WRITABLE)));

static inline unsigned int kvm_paging_key(struct kvm_vcpu *vcpu, u64 gpte)
{
	return (gpte & vcpu->arch.paging.key_mask) >> (KVM_PAGING_PTE_KEY_SHIFT - KVM_PAGING_KEY_SHIFT);
}

static inline u64 kvm_paging_key_of_spte(unsigned int access)
{
	return (u64)(access & KVM_PAGING_ACC_KEY) << (KVM_PAGING_PTE_KEY_SHIFT - KVM_PAGING_KEY_SHIFT);
}

static inline unsigned int kvm_paging_role_access(union kvm_mmu_page_role role)
{
	return role.access | role.key << KVM_PAGING_KEY_SHIFT;
}

#endif
