/* SPDX-License-Identifier: GPL-2.0-only */
/* Protection keys under shadow paging: a shadow entry has the key of the guest's leaf entry. Included in spte.h. */
#ifndef __KVM_X86_MMU_SPTE_KEYS_H
#define __KVM_X86_MMU_SPTE_KEYS_H

#include <linux/kvm_host.h>

/*
 * The protection key of a guest's entry travels with the access that the entry allows, above the three bits of ACC_ALL,
 * into shadow entries and the roles of tables that shadow a large page in pieces.
 */
#define KVM_PAGING_KEY_SHIFT 3
#define KVM_PAGING_ACC_KEY (15u << KVM_PAGING_KEY_SHIFT)
#define KVM_PAGING_PTE_KEY_SHIFT 59

static inline unsigned int kvm_paging_key(struct kvm_vcpu *vcpu, u64 gpte)
{
	return !kvm_vcpu_tdp(vcpu) && READ_ONCE(vcpu->kvm->arch.paging.keys) ? (gpte >> KVM_PAGING_PTE_KEY_SHIFT & 15) << KVM_PAGING_KEY_SHIFT : 0;
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
