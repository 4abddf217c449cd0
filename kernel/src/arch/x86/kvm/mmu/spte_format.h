/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Two formats of entries at once: EPT's, and that of all other tables ("plain"). Included
 * in spte.h.
 *
 * Upstream has one set of masks, EPT's if EPT is on. Those stay as they are, for EPT
 * tables. On a host with EPT a VM under shadow paging has plain ones beside:
 *  - A table's format is in its role, kvm_mmu_page_role.ept. A child's role is made out of
 *    its parent's, a root's when the vCPU's MMU is set up: no table has both.
 *  - Who makes an entry takes the format from the table's role, and marks an EPT one.
 *  - Who reads an entry that is shadow-present tells by the mark.
 *  - MMIO entries are told apart without a mark: bits 2:0 are 110b in an EPT one, and bit
 *    0 is set in a plain one.
 * Without EPT, on AMD or by module parameter, there is one format, no mark and no bit in
 * a role, and the masks are used as before.
 */
#ifndef __KVM_X86_MMU_SPTE_FORMAT_H
#define __KVM_X86_MMU_SPTE_FORMAT_H

#include <linux/jump_label.h>
#include <asm/vmx.h>

/*
 * The mark, between the two bits that access tracking saves. Ignored by the processor in EPT entries of all levels, and
 * by KVM; what it has in 62:52 of MMIO entries, a generation, is in entries that are not shadow-present.
 * Plain entries have nothing there, nor in any bit from 52 to 58; from 59 to 62 they have protection keys.
 */
#define SPTE_EPT_FORMAT BIT_ULL(55)

static_assert(!(SPTE_EPT_FORMAT & (GENMASK_ULL(51, 12) | SPTE_TDP_AD_MASK | SPTE_MMU_PRESENT_MASK)));
static_assert(!(SPTE_EPT_FORMAT & (EPT_SPTE_HOST_WRITABLE | EPT_SPTE_MMU_WRITABLE)));
static_assert(!(SPTE_EPT_FORMAT & (SHADOW_ACC_TRACK_SAVED_BITS_MASK << SHADOW_ACC_TRACK_SAVED_BITS_SHIFT)));

/* The plain masks, as kvm_mmu_reset_all_pte_masks() sets them up. */
#define plain_shadow_user_mask PT_USER_MASK
#define plain_shadow_accessed_mask PT_ACCESSED_MASK
#define plain_shadow_dirty_mask PT_DIRTY_MASK
#define plain_shadow_nx_mask PT64_NX_MASK
#define plain_shadow_x_mask 0ull
#define plain_shadow_present_mask PT_PRESENT_MASK
#define plain_shadow_memtype_mask 0ull
#define plain_shadow_acc_track_mask 0ull
#define plain_shadow_host_writable_mask DEFAULT_SPTE_HOST_WRITABLE
#define plain_shadow_mmu_writable_mask DEFAULT_SPTE_MMU_WRITABLE

/* What depends on the processor, kept before EPT's take its place. */
extern u64 plain_shadow_mmio_value, plain_shadow_mmio_mask, plain_shadow_mmio_access_mask;

/* Whether there are both. */
DECLARE_STATIC_KEY_FALSE(kvm_two_spte_formats);

static inline bool two_spte_formats(void)
{
	return static_branch_unlikely(&kvm_two_spte_formats);
}

/* For entries that are shadow-present. */
static inline bool spte_is_plain(u64 spte)
{
	return two_spte_formats() && !(spte & SPTE_EPT_FORMAT);
}

static inline bool role_is_plain(union kvm_mmu_page_role role)
{
	return two_spte_formats() && !role.ept;
}

static inline u64 spte_format_of(union kvm_mmu_page_role role)
{
	return role.ept ? SPTE_EPT_FORMAT : 0;
}

#define SPTE_MASK(spte, mask) (spte_is_plain(spte) ? plain_##mask : mask)
#define ROLE_MASK(role, mask) (role_is_plain(role) ? plain_##mask : mask)

/* An entry of a table whose format is not known, if there are both. */
static inline bool either_is_mmio_spte(u64 spte)
{
	return ((spte & shadow_mmio_mask) == shadow_mmio_value && likely(enable_mmio_caching)) ||
	       (plain_shadow_mmio_value && (spte & plain_shadow_mmio_mask) == plain_shadow_mmio_value);
}

/* An EPT one that can be read causes no misconfiguration. */
static inline bool mmio_spte_is_plain(u64 spte)
{
	return two_spte_formats() && (spte & PT_PRESENT_MASK);
}

static inline bool vcpu_mmio_caching(struct kvm_vcpu *vcpu)
{
	return role_is_plain(vcpu->arch.mmu->root_role) ? plain_shadow_mmio_value : enable_mmio_caching;
}

/* spte_format.c */
void kvm_spte_formats_one(void);
void kvm_spte_formats_two(void);

#endif
