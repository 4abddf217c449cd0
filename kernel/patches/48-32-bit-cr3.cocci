// SPDX-License-Identifier: GPL-2.0-only
// CR3 has 32 bits for a walk of tables of 2 levels, also if a value of long mode or of user space has more: with a root by the
// others, the walk finds a table where the root says there is none, and the fault comes again for ever. Under PAE paging the
// PDPT is read by all of CR3, here and in load_pdptrs().
// file: arch/x86/kvm/mmu/mmu.c
// expect: 6.1 +2 -0
// expect: 6.12 +2 -0
// expect: 7.0 +2 -0
// expect: 7.3 +2 -0

@ walks @ @@
	struct kvm_pagewalk *w = mmu->w;

@ depends on walks @ @@
mmu_alloc_shadow_roots(...)
{
	<...
	root_gfn = <+... root_pgd ...+>;
+	if (w->cpu_role.base.level == PT32_ROOT_LEVEL)
+		root_gfn &= GENMASK(31 - PAGE_SHIFT, 0);
	...>
}

@ depends on !walks @ @@
mmu_alloc_shadow_roots(...)
{
	<...
	root_gfn = <+... root_pgd ...+>;
+	if (mmu->cpu_role.base.level == PT32_ROOT_LEVEL)
+		root_gfn &= GENMASK(31 - PAGE_SHIFT, 0);
	...>
}
