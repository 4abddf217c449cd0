/* SPDX-License-Identifier: GPL-2.0-only */
/* Names that Linux changed without changing what is meant. */
#ifndef __KVM_X86_PAGING_VERSIONS_H
#define __KVM_X86_PAGING_VERSIONS_H

#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#include "kvm_cache_regs.h"
#define KVM_PAGING_REG(name) VCPU_EXREG_##name
#else
#include "regs.h"
#define KVM_PAGING_REG(name) VCPU_REG_##name
#endif

/* What is read of the vCPU's register again when it is needed next. */
static inline void kvm_paging_forget_pdptrs(struct kvm_vcpu *vcpu)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
	__clear_bit(VCPU_EXREG_PDPTR, (unsigned long *)&vcpu->arch.regs_avail);
	__clear_bit(VCPU_EXREG_PDPTR, (unsigned long *)&vcpu->arch.regs_dirty);
#else
	kvm_register_mark_for_reload(vcpu, VCPU_REG_PDPTR);
#endif
}

#endif
