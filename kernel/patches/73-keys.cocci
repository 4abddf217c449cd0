// SPDX-License-Identifier: GPL-2.0-only
// Shadow entries have the protection keys of the guest's entries (mmu/spte_keys.h).
// file: arch/x86/include/asm/kvm_host.h
// file: arch/x86/kvm/mmu/mmu.c
// file: arch/x86/kvm/mmu/paging_tmpl.h
// file: arch/x86/kvm/mmu/spte.h
// file: arch/x86/kvm/mmu/spte.c
// file: arch/x86/kvm/x86.h
// file: arch/x86/kvm/svm/svm.c
// file: arch/x86/kvm/vmx/vmx.c
// expect: 6.1 +20 -9
// expect: 6.12 +20 -9
// expect: 7.0 +20 -9
// expect: 7.3 +20 -9

@@ @@
#include "spte_format.h"
+#include "spte_keys.h"

// A guest's large page may be mapped with several keys, and its pieces are in a table of their own for each: role.key,
// which 72-spte-format makes. A vCPU that has keys shares no table with one that has none: role.keyed.
@@ @@
union kvm_mmu_page_role {
	...
	struct {
		...
-		unsigned smm:8;
+		unsigned keyed:1;
+		unsigned smm:7;
	};
};

@@ @@
union kvm_mmu_page_role {
	...
	struct {
		...
-		unsigned smm:4;
+		unsigned keyed:1;
+		unsigned smm:3;
	};
};

@@ @@
kvm_calc_cpu_role(...)
{
	...
	role.base.efer_nx = ____is_efer_nx(regs);
+	role.base.keyed = kvm_paging_has_keys(vcpu, ____is_efer_lma(regs));
	...
}

@@ @@
kvm_mmu_child_role(...)
{
	<...
	role.access = access;
+	role.key = access >> KVM_PAGING_KEY_SHIFT;
	...>
}

@@ @@
validate_direct_spte(...)
{
	<...
-	child->role.access == direct_access
+	kvm_paging_role_access(child->role) == direct_access
	...>
}

@@
identifier f =~ "^(kvm_mmu_page_get_access|direct_pte_prefetch_many|shadow_mmu_split_huge_page)$";
@@
f(...)
{
	<...
(
-	sp->role.access
+	kvm_paging_role_access(sp->role)
|
-	sp->shadowed_translation[index] & ACC_ALL
+	sp->shadowed_translation[index] & (ACC_ALL | KVM_PAGING_ACC_KEY)
)
	...>
}

@@
typedef u64;
expression pfn;
@@
make_spte_of(...)
{
	<...
	spte |= (u64)pfn << PAGE_SHIFT;
+	spte |= kvm_paging_key_of_spte(pte_access);
	...>
}

// The key of the guest's leaf entry.
@@
expression list args;
@@
FNAME__walk_addr_generic(...)
{
	<...
	errcode = permission_fault(args);
	if (unlikely(errcode))
		goto error;
+	walker->pte_access |= kvm_paging_key(vcpu, pte);
	...>
}

@@
expression A, G;
@@
FNAME__prefetch_gpte(...)
{
	<...
	A = sp->role.access & FNAME__gpte_access(G);
+	A |= kvm_paging_key(vcpu, G);
	...>
}

@@
identifier f =~ "^FNAME__sync_(page|spte)$";
expression A, G;
@@
f(...)
{
	<...
	A &= FNAME__gpte_access(G);
+	A |= kvm_paging_key(vcpu, G);
	...>
}

// A fault by a key that the guest has changed since: the walk of its tables decides.
@@ @@
FNAME__page_fault(...)
{
	<...
-	fault->error_code & ~PFERR_RSVD_MASK
+	fault->error_code & ~(PFERR_RSVD_MASK | PFERR_PK_MASK)
	...>
}

// The cache of the last device access has no key.
@ walks @ @@
#include "regs.h"

@ depends on walks @ @@
vcpu_match_mmio_gva(...)
{
+	if (vcpu->arch.gva_walk.fmt.pkru_mask)
+		return false;
	...
}

@ depends on !walks @ @@
vcpu_match_mmio_gva(...)
{
+	if (vcpu->arch.walk_mmu->pkru_mask)
+		return false;
	...
}

// Without paging the processor runs in no mode that has keys, so that CR4.PKE can stay for WRPKRU and CPUID.
@@ @@
svm_set_cr4(...)
{
	<...
-	cr4 &= ~(X86_CR4_SMEP | X86_CR4_SMAP | X86_CR4_PKE);
+	cr4 &= ~(X86_CR4_SMEP | X86_CR4_SMAP);
	...>
}

@@ @@
vmx_set_cr4(...)
{
	<...
-	hw_cr4 &= ~(X86_CR4_SMEP | X86_CR4_SMAP | X86_CR4_PKE);
+	hw_cr4 &= ~(X86_CR4_SMEP | X86_CR4_SMAP);
	...>
}
