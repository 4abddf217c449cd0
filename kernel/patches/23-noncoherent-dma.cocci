// SPDX-License-Identifier: GPL-2.0-only
// A device without coherent DMA that comes to a VM in shadow paging: the VM goes back to nested paging, where alone the
// guest's memory types are.
// file: arch/x86/kvm/x86.c
// expect: 6.1 +1 -0
// expect: 6.12 +1 -0
// expect: 7.0 +1 -0
// expect: 7.3 +1 -0

@@ @@
kvm_arch_register_noncoherent_dma(...)
{
	...
+	kvm_paging_noncoherent_dma(kvm);
}
