// SPDX-License-Identifier: GPL-2.0-only
/* Two formats of entries at once: see spte_format.h. */
#include <linux/kvm_host.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"

u64 __read_mostly plain_shadow_mmio_value;
u64 __read_mostly plain_shadow_mmio_mask;
u64 __read_mostly plain_shadow_mmio_access_mask;

DEFINE_STATIC_KEY_FALSE(kvm_two_spte_formats);

/* A vendor module comes: one format until it says more. The other one may have been here before. */
void kvm_spte_formats_one(void)
{
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
