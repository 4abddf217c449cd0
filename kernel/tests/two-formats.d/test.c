// SPDX-License-Identifier: GPL-2.0-only

/*
 * Test: nested tables of AMD with KVM's two bits where EPT has them, the mark, and an
 * MMIO value of their own. In nested tables of four levels the processor ignores 58:52.
 */
void kvm_spte_formats_test(bool nested)
{
	if (!nested)
		return;
	kvm_spte_formats_two();
	shadow_host_writable_mask = EPT_SPTE_HOST_WRITABLE;
	shadow_mmu_writable_mask = EPT_SPTE_MMU_WRITABLE;
	shadow_mmio_value = shadow_mmio_mask = BIT_ULL(50) | PT_PRESENT_MASK;
	kvm_spte_masks_of_ept();
}
EXPORT_SYMBOL_GPL(kvm_spte_formats_test);
