/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every place where a switch, or what waits for one, looks at shared state outside of the lock that protects this
 * state, and why the look is safe there. docs/design/kernel.md lists the same.
 *
 * No window is at these looks, of which each is safe for as long as it takes:
 *  - patches/71-dirty-log looks at paging.nested under slots_lock: entries of a stay in shadow paging are made after its
 *    begin, and mark their pages dirty when they are made;
 *  - kvm_paging_shadowing() looks at paging.nested under mmu_lock: a vCPU that makes a shadow page runs in the mode that
 *    was published before its release;
 *  - kvm_paging_mmu_tracked_by_others() looks at the list of trackers under slots_lock, which a new tracker takes, too;
 *  - vmx_paging_check_vm() looks at created_vcpus and tss_addr: a refusal may be missed, with the state of ept=0;
 *  - the files in debugfs look at counters and modes, for their text only.
 *
 * kernel/tests/windows builds modules in which each window can be widened by a parameter of kvm.ko, window_NAME, in
 * microseconds. In all other builds a window is nothing.
 */
#ifndef __KVM_X86_PAGING_WINDOWS_H
#define __KVM_X86_PAGING_WINDOWS_H

#define KVM_PAGING_WINDOWS(W)											\
	W(first_root, "shadow_root_allocated, before mmu_lock: looked at again under it, until it is set")	\
	W(tidy, "the VM's mode, before the work that gives back begins: it looks under paging.mutex")		\
	W(free, "shadow_root_allocated, between its end and the reverse maps': looked at again under "		\
		"slots_arch_lock, where alone it is set; readers without a lock are waited for by SRCU")		\
	W(birth, "the VM's mode, when a vCPU is made: looked at again when switches know the vCPU")		\
	W(created, "switching, before a new vCPU's mutex: looked at again with it, which a switch needs")	\
	W(park, "the VM's mode, before a parking vCPU takes it: looked at again under paging.lock")		\
	W(parked, "the modes agree, before the vCPU counts as parked: decided under paging.lock")		\
	W(woken, "the switch has ended, before the vCPU says that it leaves: it says of which switch")		\
	W(hold, "a vCPU is not parked, before its mutex is tried: it parks, or leaves KVM_RUN, or is held")	\
	W(stopped, "all vCPUs stand, before slots_lock: none can go before the release")			\
	W(checked, "the VM may switch, before its vCPUs are stopped: checked again when they stand")		\
	W(release, "held vCPUs are in the mode to be, before the others are released: nobody else sets it")	\
	W(dropping, "retired pages track nothing, between batches of their drop: the flag is under mmu_lock")	\
	W(tracked, "dropping, by those who ask whether a frame is tracked: a frame of a retired page is not, "	\
		"before and after")										\
	W(nest, "dropping, before a vCPU becomes a hypervisor: only a switch sets it, and this vCPU runs")	\
	W(ask, "the VM cannot nest yet, before its vCPU waits for that: the number of the answer tells")		\
	W(forecast, "the vCPUs' registers, while they run: a refusal too many or too few, checked again when "	\
		"they stand")											\
	W(dma, "the VM's mode, after a device's DMA began: a switch checks the device when its vCPUs stand")

/* 1 in kernel/tests/windows. */
#define KVM_PAGING_WIDE 0

#if KVM_PAGING_WIDE
#define KVM_PAGING_WINDOW_ID(name, why) KVM_PAGING_WINDOW_##name,
enum kvm_paging_window { KVM_PAGING_WINDOWS(KVM_PAGING_WINDOW_ID) KVM_PAGING_WINDOW_COUNT };
void kvm_paging_wait(enum kvm_paging_window window, bool may_sleep);
#define kvm_paging_window(name) kvm_paging_wait(KVM_PAGING_WINDOW_##name, true)
#define kvm_paging_window_locked(name) kvm_paging_wait(KVM_PAGING_WINDOW_##name, false)
#else
#define kvm_paging_window(name) do { } while (0)
#define kvm_paging_window_locked(name) do { } while (0)
#endif

#endif
