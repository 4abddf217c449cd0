/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VMX's part of a paging mode per VM. Included in vmx.c, whose static functions it uses.
 * Tested in an emulator (Bochs), not on hardware. docs/design/kernel-intel.md has the reasons
 * for each step, docs/guide/try-on-hardware.md what to check.
 */
#include <asm/hypervisor.h>

#include "../paging_mode.h"
#include "../paging_versions.h"

static enum kvm_paging_refusal vmx_paging_check_vm(struct kvm *kvm, bool nested)
{
	if (nested)
		return KVM_PAGING_FINE;
	/*
	 * Shadow paging needs NX, and KVM's emulator for real mode. The guest's processor trace needs EPT, and Hyper-V's
	 * enlightenments know nothing else.
	 */
	if (!boot_cpu_has(X86_FEATURE_NX) || !emulate_invalid_guest_state || vmx_pt_mode_is_host_guest() ||
	    hypervisor_is_type(X86_HYPER_MS_HYPERV))
		return KVM_PAGING_HOST;
	if (kvm_arch_has_noncoherent_dma(kvm))
		return KVM_PAGING_DMA;
	if (kvm->created_vcpus && !to_kvm_vmx(kvm)->tss_addr)
		return KVM_PAGING_TSS;
	return KVM_PAGING_FINE;
}

/* Whether a vCPU is as it was reset: it has not run, or waits for an INIT or a SIPI. */
static bool vmx_paging_at_reset(struct kvm_vcpu *vcpu)
{
	return vcpu->arch.last_vmentry_cpu == -1 || vcpu->arch.mp_state == KVM_MP_STATE_UNINITIALIZED ||
	       vcpu->arch.mp_state == KVM_MP_STATE_INIT_RECEIVED;
}

static enum kvm_paging_refusal vmx_paging_check_vcpu(struct kvm_vcpu *vcpu, bool nested)
{
	struct vcpu_vmx *vmx = to_vmx(vcpu);

	/* Back to nested paging a vCPU goes just before its VMXON, with CR4.VMXE set. */
	if (is_guest_mode(vcpu) || vmx->nested.vmxon || vmx->nested.smm.vmxon ||
	    (!nested && kvm_read_cr4_bits(vcpu, X86_CR4_VMXE)))
		return KVM_PAGING_HYPERVISOR;
	if (is_smm(vcpu))
		return KVM_PAGING_SMM;
	/*
	 * Under EPT real mode runs by itself, under shadow paging as virtual-8086 mode or in
	 * the emulator. From reset on KVM itself goes either way; in the middle it could,
	 * but the firmware's and boot loader's tricks are not worth it.
	 */
	if (!is_paging(vcpu) && !vmx_paging_at_reset(vcpu))
		return KVM_PAGING_REAL_MODE;
	return KVM_PAGING_FINE;
}

/*
 * Under EPT a guest runs with segments that fail a VM entry without unrestricted guest: such as a guest's selectors of real
 * mode have, until it loads others. Under shadow paging KVM would emulate it until then, and the emulator delivers no
 * exception: KVM_RUN looks for that once, before a vCPU switches (vmx_vcpu_pre_run()).
 */
static enum kvm_paging_refusal vmx_paging_check_loaded(struct kvm_vcpu *vcpu, bool nested)
{
	return !nested && is_protmode(vcpu) && !__vmx_guest_state_valid(vcpu) ? KVM_PAGING_REAL_MODE : KVM_PAGING_FINE;
}

/*
 * Still in the old mode. What the guest may change unseen is only in the VMCS, and which
 * part of it, and where, changes with the mode.
 */
static void vmx_paging_leave(struct kvm_vcpu *vcpu)
{
	kvm_read_cr0(vcpu);
	kvm_read_cr3(vcpu);
	kvm_read_cr4(vcpu);
	if (is_pae_paging(vcpu))
		kvm_pdptr_read(vcpu, 0);
}

static void vmx_paging_enter(struct kvm_vcpu *vcpu)
{
	struct vcpu_vmx *vmx = to_vmx(vcpu);
	struct kvm_segment segment;
	int seg;

	/* GUEST_CR3 held the shadow root; the PDPTRs are the hardware's only under EPT. Written by vmx_load_mmu_pgd(). */
	if (kvm_vcpu_tdp(vcpu)) {
		kvm_register_mark_dirty(vcpu, KVM_PAGING_REG(CR3));
		kvm_register_mark_dirty(vcpu, KVM_PAGING_REG(PDPTR));
	}

	/* As vmx_exec_control() sets them up; the others are not the mode's, and some change as the guest runs. */
	if (kvm_vcpu_tdp(vcpu))
		exec_controls_clearbit(vmx, CR3_EXITING_BITS | CPU_BASED_INVLPG_EXITING);
	else
		exec_controls_setbit(vmx, CR3_EXITING_BITS | CPU_BASED_INVLPG_EXITING);
	/* EPT, unrestricted guest, page-modification logging. */
	vmcs_set_secondary_exec_control(vmx, vmx_secondary_exec_control(vmx));

	vcpu->arch.cr0_guest_owned_bits = vmx_l1_guest_owned_cr0_bits(vcpu);
	vmcs_writel(CR0_GUEST_HOST_MASK, ~vcpu->arch.cr0_guest_owned_bits);
	set_cr4_guest_host_mask(vmx);

	/* The processor wants segments marked as accessed, which KVM does for user space's under unrestricted guest alone. */
	if (is_unrestricted_guest(vcpu) && !vmx->rmode.vm86_active) {
		for (seg = VCPU_SREG_ES; seg < VCPU_SREG_LDTR; seg++) {
			vmx_get_segment(vcpu, &segment, seg);
			vmx_set_segment(vcpu, &segment, seg);
		}
	}
	/* Real mode comes out of virtual-8086 mode here, and goes into it in vmx_set_cr0(). */
	if (vmx->rmode.vm86_active && is_unrestricted_guest(vcpu))
		enter_pmode(vcpu);
	/* The setters give the hardware what the mode wants of the guest's values. */
	vmx_set_efer(vcpu, vcpu->arch.efer);
	vmx_set_cr0(vcpu, vcpu->arch.cr0);
	vmx_set_cr4(vcpu, vcpu->arch.cr4);
	vmx_update_exception_bitmap(vcpu);

	/* EPT_POINTER or GUEST_CR3 come with the root, INVEPT or INVVPID with the request to flush all. */
}

/*
 * The base of FS or GS, for its MSR. In virtual-8086 mode, in which real mode runs without unrestricted guest, the hardware
 * takes no base but the selector's: the guest's is in rmode.segs, and its instructions are emulated while the two differ.
 */
static unsigned long vmx_paging_get_base(struct kvm_vcpu *vcpu, int seg)
{
	struct kvm_segment segment;

	if (!to_vmx(vcpu)->rmode.vm86_active)
		return vmcs_readl(seg == VCPU_SREG_FS ? GUEST_FS_BASE : GUEST_GS_BASE);
	vmx_get_segment(vcpu, &segment, seg);
	return segment.base;
}

static void vmx_paging_set_base(struct kvm_vcpu *vcpu, int seg, unsigned long base)
{
	struct kvm_segment segment;

	if (!to_vmx(vcpu)->rmode.vm86_active) {
		vmcs_writel(seg == VCPU_SREG_FS ? GUEST_FS_BASE : GUEST_GS_BASE, base);
		return;
	}
	vmx_get_segment(vcpu, &segment, seg);
	segment.base = base;
	vmx_set_segment(vcpu, &segment, seg);
}

static const struct kvm_paging_ops vmx_paging_ops = {
	.check_vm = vmx_paging_check_vm,
	.check_vcpu = vmx_paging_check_vcpu,
	.check_loaded = vmx_paging_check_loaded,
	.leave = vmx_paging_leave,
	.enter = vmx_paging_enter,
};
