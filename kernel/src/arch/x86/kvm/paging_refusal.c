// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a host, a VM or a vCPU has that keeps a VM from switching its paging mode, and the words for it.
 * docs/reference/kernel-interface.md describes them.
 */
#include <linux/kvm_host.h>

#include "mmu.h"
#include "paging_mode.h"
#include "paging_versions.h"

const char *const kvm_paging_refusal_words[KVM_PAGING_REFUSALS] = {
	[KVM_PAGING_FINE] = "none",
	[KVM_PAGING_HOST] = "host",
	[KVM_PAGING_ENCRYPTED] = "encrypted",
	[KVM_PAGING_DMA] = "dma",
	[KVM_PAGING_TSS] = "tss",
	[KVM_PAGING_HYPERVISOR] = "hypervisor",
	[KVM_PAGING_KEYS] = "keys",
	[KVM_PAGING_SMM] = "smm",
	[KVM_PAGING_REAL_MODE] = "real-mode",
};

static const char *const reasons[KVM_PAGING_REFUSALS] = {
	[KVM_PAGING_HOST] = "this host has one paging mode, by its hardware, a module parameter or Hyper-V",
	[KVM_PAGING_ENCRYPTED] = "the guest has encrypted or private memory",
	[KVM_PAGING_DMA] = "an assigned device needs the guest's memory types, which only EPT can give",
	[KVM_PAGING_TSS] = "real mode under shadow paging needs KVM_SET_TSS_ADDR",
	[KVM_PAGING_HYPERVISOR] = "is a hypervisor itself (EFER.SVME, CR4.VMXE)",
	[KVM_PAGING_KEYS] = "uses protection keys without write protection (CR0.WP)",
	[KVM_PAGING_SMM] = "is in system management mode",
	[KVM_PAGING_REAL_MODE] = "runs without paging, or with segments that only EPT takes",
};

/* Set by the vendor module before there is a VM. Empty where the hardware cannot do nested paging. */
struct kvm_paging_ops kvm_paging_vendor;

void kvm_paging_register(const struct kvm_paging_ops *ops)
{
	kvm_paging_vendor = *ops;
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(kvm_paging_register);

bool kvm_paging_have_both(void)
{
	return tdp_enabled && kvm_paging_vendor.enter;
}

enum kvm_paging_refusal kvm_paging_check_vm(struct kvm *kvm, bool nested)
{
	if (!kvm_paging_have_both())
		return KVM_PAGING_HOST;
#ifdef KVM_X86_DEFAULT_VM
	if (kvm->arch.vm_type != KVM_X86_DEFAULT_VM)
		return KVM_PAGING_ENCRYPTED;
#endif
	return kvm_paging_vendor.check_vm(kvm, nested);
}

/* Whether the vCPU's shadow entries have the keys of its guest's: mmu/spte_keys.h. */
bool kvm_paging_has_keys(struct kvm_vcpu *vcpu, bool long_mode)
{
	return long_mode && !kvm_vcpu_tdp(vcpu) && kvm_paging_guest_has(vcpu, X86_FEATURE_PKU);
}

/*
 * Shadow entries have the guest's protection keys, and the processor applies them. But it runs with CR0.WP set under
 * shadow paging, and a page that a guest without CR0.WP writes as its kernel becomes a kernel's page there, to which no
 * key applies. A guest may change PKRU unseen, so the combination is for nested paging.
 */
bool kvm_paging_keys_need_nested(struct kvm_vcpu *vcpu, unsigned long cr0)
{
	return kvm_read_cr4_bits(vcpu, X86_CR4_PKE) && is_long_mode(vcpu) && (cr0 & X86_CR0_PG) && !(cr0 & X86_CR0_WP);
}

static enum kvm_paging_refusal check_vcpu(struct kvm_vcpu *vcpu, bool nested, unsigned long cr0)
{
	enum kvm_paging_refusal why = kvm_paging_vendor.check_vcpu(vcpu, nested);

	return why == KVM_PAGING_FINE && !nested && kvm_paging_keys_need_nested(vcpu, cr0) ? KVM_PAGING_KEYS : why;
}

/* Whether a vCPU that is loaded and does not run can be in that mode now. */
enum kvm_paging_refusal kvm_paging_check_vcpu(struct kvm_vcpu *vcpu, bool nested)
{
	enum kvm_paging_refusal why = check_vcpu(vcpu, nested, kvm_read_cr0(vcpu));

	if (why == KVM_PAGING_FINE && kvm_paging_vendor.check_loaded)
		why = kvm_paging_vendor.check_loaded(vcpu, nested);
	return why;
}

/*
 * What would refuse a switch now, found while the VM runs: neither stopping its vCPUs nor making anything for the stay.
 * What is missed here is found when they stand.
 */
enum kvm_paging_refusal kvm_paging_forecast(struct kvm *kvm, bool nested, int *vcpu_id)
{
	enum kvm_paging_refusal why = kvm_paging_check_vm(kvm, nested);
	struct kvm_vcpu *vcpu;
	unsigned long i;

	*vcpu_id = -1;
	if (why != KVM_PAGING_FINE)
		return why;
	kvm_for_each_vcpu(i, vcpu, kvm) {
		kvm_paging_window(forecast);
		/* As join(): it has nothing to change. */
		if (READ_ONCE(vcpu->arch.paging.nested) == nested)
			continue;
		/* CR0.WP may be the guest's own under EPT, and what is in memory old. */
		why = data_race(check_vcpu(vcpu, nested, vcpu->arch.cr0));
		if (why != KVM_PAGING_FINE) {
			*vcpu_id = vcpu->vcpu_id;
			return why;
		}
	}
	return KVM_PAGING_FINE;
}

/* Counts a refusal and says it. Under paging.mutex. Returns the error. */
int kvm_paging_refuse(struct kvm *kvm, enum kvm_paging_refusal why, int vcpu_id)
{
	if (why == KVM_PAGING_MEMORY)
		return -ENOMEM;
	WRITE_ONCE(kvm->arch.paging.refused[why], kvm->arch.paging.refused[why] + 1);
	if (why < KVM_PAGING_HYPERVISOR) {
		pr_info_ratelimited("kvm [%d]: %s, the paging mode stays\n", kvm->userspace_pid, reasons[why]);
		return -EOPNOTSUPP;
	}
	pr_info_ratelimited("kvm [%d]: vCPU %d %s, the paging mode stays\n", kvm->userspace_pid, vcpu_id, reasons[why]);
	return -EBUSY;
}
