/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SVM's part of a paging mode per VM. Included in svm.c, whose static functions it uses. Nested and shadow tables have the same entries on AMD, so the nested
 * ones stay over a stay in shadow paging.
 */
#include "../paging_mode.h"
#include "../paging_versions.h"

/* Nested paging and what needs it, in the VMCB. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#define SVM_PAGING_CTL nested_ctl
#define SVM_PAGING_NP SVM_NESTED_CTL_NP_ENABLE
#define SVM_PAGING_WITH_NP 0
#define SVM_PAGING_CTL2 virt_ext
#define SVM_PAGING_VLS VIRTUAL_VMLOAD_VMSAVE_ENABLE_MASK
#define svm_paging_encrypted(kvm) sev_guest(kvm)
#else
#define SVM_PAGING_CTL misc_ctl
#define SVM_PAGING_NP SVM_MISC_ENABLE_NP
#define SVM_PAGING_WITH_NP (gmet_enabled ? SVM_MISC_ENABLE_GMET : 0)
#define SVM_PAGING_CTL2 misc_ctl2
#define SVM_PAGING_VLS SVM_MISC2_ENABLE_V_VMLOAD_VMSAVE
#define svm_paging_encrypted(kvm) ____sev_guest(kvm)
#endif

static enum kvm_paging_refusal svm_paging_check_vm(struct kvm *kvm, bool nested)
{
	if (svm_paging_encrypted(kvm))
		return KVM_PAGING_ENCRYPTED;
#if IS_ENABLED(CONFIG_HYPERV)
	/* Its enlightened TLB knows nested paging only. */
	if (ms_hyperv.nested_features & HV_X64_NESTED_ENLIGHTENED_TLB)
		return KVM_PAGING_HOST;
#endif
	return KVM_PAGING_FINE;
}

static enum kvm_paging_refusal svm_paging_check_vcpu(struct kvm_vcpu *vcpu, bool nested)
{
	/*
	 * A hypervisor in the guest has its own two-dimensional tables shadowed in guest_mmu. Its state
	 * outlives EFER.SVME while the vCPU is in SMM. The CPUID is not asked: a forecast would read it while
	 * user space sets it.
	 */
	if (is_guest_mode(vcpu) || (vcpu->arch.efer & EFER_SVME) ||
	    (is_smm(vcpu) && (to_svm(vcpu)->nested.initialized || vcpu->arch.paging.smm_by_user)))
		return KVM_PAGING_HYPERVISOR;
	return KVM_PAGING_FINE;
}

/* What depends on the guest's CPUID besides the mode. */
static void svm_paging_recalc(struct kvm_vcpu *vcpu)
{
	struct vcpu_svm *svm = to_svm(vcpu);

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
	init_vmcb_after_set_cpuid(vcpu);
	svm_recalc_instruction_intercepts(vcpu, svm);
#else
	if (vls && kvm_vcpu_tdp(vcpu))
		svm->vmcb->control.SVM_PAGING_CTL2 |= SVM_PAGING_VLS;
	svm_recalc_instruction_intercepts(vcpu);
#endif
}

static void svm_paging_enter(struct kvm_vcpu *vcpu)
{
	struct vcpu_svm *svm = to_svm(vcpu);
	struct vmcb_control_area *control = &svm->vmcb->control;

	/* What init_vmcb() sets up by mode, both ways. */
	if (kvm_vcpu_tdp(vcpu)) {
		control->SVM_PAGING_CTL |= SVM_PAGING_NP | SVM_PAGING_WITH_NP;
		svm_clr_intercept(svm, INTERCEPT_INVLPG);
		svm_clr_intercept(svm, INTERCEPT_CR3_READ);
		svm_clr_intercept(svm, INTERCEPT_CR3_WRITE);
		clr_exception_intercept(svm, PF_VECTOR);
		svm->vmcb->save.g_pat = vcpu->arch.pat;
	} else {
		control->SVM_PAGING_CTL &= ~(SVM_PAGING_NP | SVM_PAGING_WITH_NP);
		svm_set_intercept(svm, INTERCEPT_INVLPG);
		svm_set_intercept(svm, INTERCEPT_CR3_READ);
		svm_set_intercept(svm, INTERCEPT_CR3_WRITE);
		set_exception_intercept(svm, PF_VECTOR);
		/* Virtual VMLOAD and VMSAVE need nested paging. */
		control->SVM_PAGING_CTL2 &= ~SVM_PAGING_VLS;
		svm_set_intercept(svm, INTERCEPT_VMLOAD);
		svm_set_intercept(svm, INTERCEPT_VMSAVE);
	}
	svm_paging_recalc(vcpu);

	/* The setters give the hardware what the mode wants of the guest's values. */
	svm_set_efer(vcpu, vcpu->arch.efer);
	svm_set_cr0(vcpu, vcpu->arch.cr0);
	svm_set_cr4(vcpu, vcpu->arch.cr4);

	/*
	 * Under nested paging the hardware reads the PDPTEs, so the copy is stale. It is
	 * read again when the vCPU first needs it: not now, as that reads the guest's
	 * memory, which the switch may not be able to reach.
	 */
	kvm_paging_forget_pdptrs(vcpu);

	/* A new ASID, so no translation of the old mode is used again. */
	svm->current_vmcb->asid_generation = 0;
	svm->asid = 0;
	vmcb_mark_all_dirty(svm->vmcb);
}

static const struct kvm_paging_ops svm_paging_ops = {
	.apicv_needs_nested = true,
	.check_vm = svm_paging_check_vm,
	.check_vcpu = svm_paging_check_vcpu,
	.enter = svm_paging_enter,
};
