/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Two formats of entries at once: EPT's, and that of all other tables ("plain"). Included
 * in spte.h.
 *
 * Upstream has one set of masks, EPT's if EPT is on. Those stay as they are, for EPT
 * tables. On a host with EPT a VM under shadow paging has plain ones beside:
 *  - A table's format is in its role, kvm_mmu_page_role.ept. A child's role is made out of
 *    its parent's, a root's when the vCPU's MMU is set up: no table has both.
 *  - Who makes an entry takes the masks from the table's role, and marks an EPT one.
 *  - Who reads an entry that is shadow-present tells by the mark.
 *  - Either asks once for all masks, since the question is an instruction also where there is one format.
 *  - MMIO entries are told apart without a mark: bits 2:0 are 110b in an EPT one, and bit
 *    0 is set in a plain one.
 * Without EPT, on AMD or by module parameter, there is one format, no mark and no bit in
 * a role, and the plain masks are constants.
 */
#ifndef __KVM_X86_MMU_SPTE_FORMAT_H
#define __KVM_X86_MMU_SPTE_FORMAT_H

#include <linux/jump_label.h>
#include <linux/version.h>
#include <asm/vmx.h>

/*
 * The mark, between the two bits that access tracking saves. Ignored by the processor in EPT entries of all levels, and
 * by KVM; what it has in 62:52 of MMIO entries, a generation, is in entries that are not shadow-present.
 * Plain entries have nothing there, nor in any bit from 52 to 58; from 59 to 62 they have protection keys.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#define SPTE_EPT_FORMAT BIT_ULL(55)
#else
#define SPTE_EPT_FORMAT BIT_ULL(56)
/* Upstream has the kind of A/D tracking in 61:60, where plain entries have keys. */
#undef SPTE_TDP_AD_SHIFT
#define SPTE_TDP_AD_SHIFT 57
static_assert(!(SPTE_TDP_AD_MASK & (EPT_SPTE_HOST_WRITABLE | EPT_SPTE_MMU_WRITABLE)));
static_assert(!(SPTE_TDP_AD_MASK & (SHADOW_ACC_TRACK_SAVED_BITS_MASK << SHADOW_ACC_TRACK_SAVED_BITS_SHIFT)));
#endif

static_assert(!(SPTE_EPT_FORMAT & (GENMASK_ULL(51, 12) | SPTE_TDP_AD_MASK | SPTE_MMU_PRESENT_MASK)));
static_assert(!(SPTE_EPT_FORMAT & (EPT_SPTE_HOST_WRITABLE | EPT_SPTE_MMU_WRITABLE)));
static_assert(!(SPTE_EPT_FORMAT & (SHADOW_ACC_TRACK_SAVED_BITS_MASK << SHADOW_ACC_TRACK_SAVED_BITS_SHIFT)));

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
#define SPTE_MASKS_OF_VERSION(M) M(shadow_x_mask, 0) M(shadow_memtype_mask, 0)
#elif LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#define SPTE_MASKS_OF_VERSION(M) M(shadow_x_mask, 0)
#else
#define SPTE_MASKS_OF_VERSION(M) M(shadow_xs_mask, 0) M(shadow_xu_mask, 0)
#endif

/* The masks of a format, by upstream's names. */
#define SPTE_MASKS(M)									\
	M(shadow_user_mask, PT_USER_MASK)						\
	M(shadow_accessed_mask, PT_ACCESSED_MASK)					\
	M(shadow_dirty_mask, PT_DIRTY_MASK)						\
	M(shadow_nx_mask, PT64_NX_MASK)							\
	SPTE_MASKS_OF_VERSION(M)							\
	M(shadow_present_mask, PT_PRESENT_MASK)						\
	M(shadow_acc_track_mask, 0)							\
	M(shadow_host_writable_mask, DEFAULT_SPTE_HOST_WRITABLE)			\
	M(shadow_mmu_writable_mask, DEFAULT_SPTE_MMU_WRITABLE)

struct spte_masks {
	/* What an entry of the format is marked with. */
	u64 format;
#define SPTE_MASKS_FIELD(mask, plain) u64 mask;
	SPTE_MASKS(SPTE_MASKS_FIELD)
};

/* As kvm_mmu_reset_all_pte_masks() sets them up, which spte_format.c checks. */
static const struct spte_masks plain_masks = {
#define SPTE_MASKS_PLAIN(mask, plain) .mask = plain,
	SPTE_MASKS(SPTE_MASKS_PLAIN)
};

/* EPT's, which depend on the processor. */
extern struct spte_masks ept_masks;

/* The plain ones that depend on the processor, kept before EPT's take their place. */
extern u64 plain_shadow_mmio_value, plain_shadow_mmio_mask, plain_shadow_mmio_access_mask;

/* Whether there are both. */
DECLARE_STATIC_KEY_FALSE(kvm_two_spte_formats);

static inline bool two_spte_formats(void)
{
	return static_branch_unlikely(&kvm_two_spte_formats);
}

/* For entries that are shadow-present. */
static __always_inline const struct spte_masks *masks_of_spte(u64 spte)
{
	return two_spte_formats() && (spte & SPTE_EPT_FORMAT) ? &ept_masks : &plain_masks;
}

static __always_inline const struct spte_masks *masks_of_role(union kvm_mmu_page_role role)
{
	return two_spte_formats() && role.ept ? &ept_masks : &plain_masks;
}

static inline bool role_is_plain(union kvm_mmu_page_role role)
{
	return two_spte_formats() && !role.ept;
}

#define MMIO_VALUE(vcpu, ept) (role_is_plain((vcpu)->arch.mmu->root_role) ? plain_shadow_mmio_value : (ept))
#define MMIO_MASK(role, mask) (role_is_plain(role) ? plain_##mask : mask)

/* An entry of a table whose format is not known. The value is EPT's, or the only one. */
static inline bool is_mmio_of_format(u64 spte, u64 value)
{
	if ((spte & shadow_mmio_mask) == value)
		return true;
	return two_spte_formats() && plain_shadow_mmio_value && (spte & plain_shadow_mmio_mask) == plain_shadow_mmio_value;
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
void kvm_spte_masks_of_ept(void);

#endif
