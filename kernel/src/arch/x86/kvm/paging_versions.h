/* SPDX-License-Identifier: GPL-2.0-only */
/* Names that Linux changed without changing what is meant. */
#ifndef __KVM_X86_PAGING_VERSIONS_H
#define __KVM_X86_PAGING_VERSIONS_H

#include <linux/export.h>
#include <linux/kvm_host.h>
#include <linux/version.h>

#include "cpuid.h"
#include "lapic.h"
#include "x86.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#include "kvm_cache_regs.h"
#define KVM_PAGING_REG(name) VCPU_EXREG_##name
#define kvm_paging_shadow_pages(kvm) ((kvm)->arch.n_used_mmu_pages)
#else
#include "regs.h"
#define KVM_PAGING_REG(name) VCPU_REG_##name
#define kvm_paging_shadow_pages(kvm) ((kvm)->stat.mmu_shadow_pages)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
#define kvm_paging_guest_has(vcpu, feature) guest_cpuid_has(vcpu, feature)
#define KVM_PAGING_WQ system_unbound_wq
#else
#define kvm_paging_guest_has(vcpu, feature) guest_cpu_cap_has(vcpu, feature)
#define KVM_PAGING_WQ system_dfl_wq
#endif

#ifndef EXPORT_SYMBOL_FOR_KVM_INTERNAL
/* In two parts, as KVM's Makefile looks for the whole since Linux 7. */
#define EXPORT_SYMBOL_FOR_KVM_INTERNAL(symbol) __PASTE(EXPORT_SYMBOL_, GPL)(symbol)
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
