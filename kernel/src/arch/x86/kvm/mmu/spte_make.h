/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Included in spte.c before make_spte(), which is make_spte_of() there: one question about the format for all of an entry, and
 * the plain masks as constants. It is the function that runs most where shadow paging costs most.
 */
static __always_inline bool make_spte_of(const struct spte_masks *masks, struct kvm_vcpu *vcpu, struct kvm_mmu_page *sp,
					 const struct kvm_memory_slot *slot, unsigned int pte_access, gfn_t gfn,
					 kvm_pfn_t pfn, u64 old_spte, bool prefetch, bool can_unsync,
					 bool host_writable, u64 *new_spte);

bool make_spte(struct kvm_vcpu *vcpu, struct kvm_mmu_page *sp, const struct kvm_memory_slot *slot, unsigned int pte_access,
	       gfn_t gfn, kvm_pfn_t pfn, u64 old_spte, bool prefetch, bool can_unsync, bool host_writable, u64 *new_spte)
{
	if (two_spte_formats() && sp->role.ept)
		return make_spte_of(&ept_masks, vcpu, sp, slot, pte_access, gfn, pfn, old_spte, prefetch, can_unsync,
				    host_writable, new_spte);
	return make_spte_of(&plain_masks, vcpu, sp, slot, pte_access, gfn, pfn, old_spte, prefetch, can_unsync,
			    host_writable, new_spte);
}
