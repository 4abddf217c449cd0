// SPDX-License-Identifier: GPL-2.0-only
/* Two formats of entries at once: see spte_format.h. */
#include <linux/kvm_host.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"

u64 __read_mostly plain_shadow_mmio_value;
u64 __read_mostly plain_shadow_mmio_mask;
u64 __read_mostly plain_shadow_mmio_access_mask;

struct spte_masks ept_masks __read_mostly;

DEFINE_STATIC_KEY_FALSE(kvm_two_spte_formats);

/*
 * A vendor module comes, and the masks are as for all but EPT: one format until it says more. The other one may have been
 * here before.
 */
void kvm_spte_formats_one(void)
{
#define SPTE_MASKS_CHECK(mask, plain) WARN_ON_ONCE(mask != plain_masks.mask);
	SPTE_MASKS(SPTE_MASKS_CHECK)
	static_branch_disable(&kvm_two_spte_formats);
}

/* The masks are about to become EPT's. The plain ones that are not constant have been worked out. */
void kvm_spte_formats_two(void)
{
	plain_shadow_mmio_value = shadow_mmio_value;
	plain_shadow_mmio_mask = shadow_mmio_mask;
	plain_shadow_mmio_access_mask = shadow_mmio_access_mask;
	static_branch_enable(&kvm_two_spte_formats);
}

/* The masks are EPT's. */
void kvm_spte_masks_of_ept(void)
{
	ept_masks.format = SPTE_EPT_FORMAT;
#define SPTE_MASKS_KEEP(mask, plain) ept_masks.mask = mask;
	SPTE_MASKS(SPTE_MASKS_KEEP)
}
