// SPDX-License-Identifier: GPL-2.0-only
// Two formats of entries at once on a host with EPT: see mmu/spte_format.h.
// file: arch/x86/include/asm/kvm_host.h
// file: arch/x86/kvm/mmu/spte.h
// file: arch/x86/kvm/mmu/spte.c
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +69 -47
// expect: 6.12 +69 -47
// expect: 7.0 +69 -43
// expect: 7.3 +73 -53

// What a table's format is. The key is of 73-keys.
@@ @@
union kvm_mmu_page_role {
	...
	struct {
		...
-		unsigned :5;
+		unsigned ept:1;
+		unsigned key:4;
		...
	};
};

// Linux 7 has fewer bits left, and none of smm but the lowest is used.
@@ @@
union kvm_mmu_page_role {
	...
	struct {
		...
-		unsigned :4;
+		unsigned ept:1;
+		unsigned :3;
		...
-		unsigned smm:8;
+		unsigned key:4;
+		unsigned smm:4;
	};
};

@@ @@
union kvm_mmu_page_role {
	...
	struct {
		...
-		unsigned:3;
+		unsigned ept:1;
+		unsigned :2;
		...
-		unsigned smm:8;
+		unsigned key:4;
+		unsigned smm:4;
	};
};

@@ @@
kvm_calc_tdp_mmu_root_page_role(...)
{
	...
	role.ad_disabled = !kvm_ad_enabled();
+	role.ept = two_spte_formats();
	...
}

@@ @@
kvm_calc_tdp_mmu_root_page_role(...)
{
	...
	role.ad_disabled = !kvm_ad_enabled;
+	role.ept = two_spte_formats();
	...
}

@@ @@
kvm_calc_shadow_ept_root_page_role(...)
{
	...
	role.base.ad_disabled = !accessed_dirty;
+	role.base.ept = two_spte_formats();
	...
}

// Who makes an entry marks it, by its table's masks.
@@
parameter list parameters;
@@
+#include "spte_make.h"
+
-make_spte(parameters)
+make_spte_of(const struct spte_masks *masks, parameters)
{
	...
}

@@ @@
make_spte_of(...)
{
	<...
(
-	spte_shadow_accessed_mask(spte)
+	(spte_ad_enabled(spte) ? masks->shadow_accessed_mask : 0)
|
-	spte_shadow_dirty_mask(spte)
+	(spte_ad_enabled(spte) ? masks->shadow_dirty_mask : 0)
)
	...>
}

@@ @@
make_spte_of(...)
{
	...
-	u64 spte = SPTE_MMU_PRESENT_MASK;
+	u64 spte = SPTE_MMU_PRESENT_MASK | masks->format;
	...
}

@@ @@
make_nonleaf_spte(...)
{
+	const struct spte_masks *masks = masks_of_role(sptep_to_sp(child_pt)->role);
-	u64 spte = SPTE_MMU_PRESENT_MASK;
+	u64 spte = SPTE_MMU_PRESENT_MASK | masks->format;
	...
}

// Who reads one goes by its mark.
@@
identifier f =~ "^(is_executable_pte|check_spte_writable_invariants|spte_has_volatile_bits)$";
type T;
@@
T f(u64 spte)
{
+	const struct spte_masks *masks = masks_of_spte(spte);
+
	...
}

@@ @@
make_spte_executable(u64 spte)
{
+	const struct spte_masks *masks = masks_of_spte(spte);
	bool is_access_track = is_access_track_spte(spte);
	...
}

// Linux 7.
@@
identifier f =~ "^(make_spte_executable|make_spte_nonexecutable)$";
type T;
expression list args;
@@
T f(u64 spte)
{
+	const struct spte_masks *masks = masks_of_spte(spte);
+
	return modify_spte_protections(args);
}

@@
identifier f =~ "^(change_spte_executable|spte_permission_fault)$";
@@
f(...)
{
+	const struct spte_masks *masks = masks_of_spte(spte);
	...
}

@@ @@
kvm_rmap_age_gfn_range(...)
{
	<...
-	old_spte & ~shadow_accessed_mask
+	old_spte & ~masks_of_spte(old_spte)->shadow_accessed_mask
	...>
}

// EPT's memory type.
@@ @@
make_spte_of(...)
{
	<...
-	kvm_x86_ops.get_mt_mask
+	kvm_x86_ops.get_mt_mask && masks->format
	...>
}

@@
identifier f =~ "^(is_executable_pte|check_spte_writable_invariants|spte_has_volatile_bits|make_spte_of|make_spte_executable|make_spte_nonexecutable|change_spte_executable|spte_permission_fault|make_nonleaf_spte)$";
identifier mask =~ "^shadow_(user|accessed|dirty|nx|x|xs|xu|present|memtype|acc_track|host_writable|mmu_writable)_mask$";
@@
f(...)
{
	<...
-	mask
+	masks->mask
	...>
}

@@
identifier f =~ "^(spte_shadow_accessed_mask|spte_shadow_dirty_mask|is_access_track_spte|is_ept_ve_possible|is_mmu_writable_spte|restore_acc_track_spte|mark_spte_for_access_track|spte_write_protect|spte_clear_dirty|spte_needs_atomic_update|is_accessed_spte|mmu_spte_age|kvm_rmap_age_gfn_range)$";
identifier mask =~ "^shadow_(accessed|dirty|present|acc_track|mmu_writable)_mask$";
@@
f(...)
{
	<...
-	mask
+	masks_of_spte(spte)->mask
	...>
}

@@
identifier mask =~ "^shadow_(host_writable|mmu_writable)_mask$";
@@
kvm_mmu_changed_pte_notifier_make_spte(...)
{
	<...
-	mask
+	masks_of_spte(new_spte)->mask
	...>
}

// MMIO entries.
@@
expression value;
@@
+#include "spte_format.h"
+
is_mmio_spte(...)
{
	<...
-	(spte & shadow_mmio_mask) == value
+	is_mmio_of_format(spte, value)
	...>
}

@@ @@
make_mmio_spte(...)
{
	<...
(
-	vcpu->kvm->arch.shadow_mmio_value
+	MMIO_VALUE(vcpu, vcpu->kvm->arch.shadow_mmio_value)
|
-	shadow_mmio_value
+	MMIO_MASK(vcpu->arch.mmu->root_role, shadow_mmio_value)
|
-	shadow_mmio_access_mask
+	MMIO_MASK(vcpu->arch.mmu->root_role, shadow_mmio_access_mask)
)
	...>
}

@@ @@
get_mmio_spte_access(...)
{
+	if (mmio_spte_is_plain(spte))
+		return spte & plain_shadow_mmio_access_mask;
	return ...;
}

@@
identifier f =~ "^(handle_abnormal_pfn|kvm_handle_noslot_fault)$";
@@
f(...)
{
	<...
(
-	shadow_mmio_access_mask
+	MMIO_MASK(vcpu->arch.mmu->root_role, shadow_mmio_access_mask)
|
-	enable_mmio_caching
+	vcpu_mmio_caching(vcpu)
)
	...>
}

// For paging_tmpl.h.
@@ @@
+#include "spte_format_tmpl.h"
mark_mmio_spte(...)
{
	...
}

// When the masks are set up.
@@ @@
kvm_mmu_set_ept_masks(...)
{
+	kvm_spte_formats_two();
	...
	kvm_mmu_set_mmio_spte_mask(...);
+	kvm_spte_masks_of_ept();
}

@@ @@
kvm_mmu_reset_all_pte_masks(...)
{
	...
	kvm_mmu_set_mmio_spte_mask(...);
+	kvm_spte_formats_one();
}
