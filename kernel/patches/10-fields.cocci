// SPDX-License-Identifier: GPL-2.0-only
// The state of a switch in struct kvm_arch, the mode of a vCPU in struct kvm_vcpu_arch.
// file: arch/x86/include/asm/kvm_host.h
// expect: 6.1 +3 -0
// expect: 6.12 +3 -0
// expect: 7.0 +3 -0
// expect: 7.3 +3 -0

@@ @@
#include <asm/kvm_page_track.h>
+#include <asm/kvm_paging.h>

@@ @@
struct kvm_vcpu_arch {
+	struct kvm_paging_vcpu paging;
	...
};

@@ @@
struct kvm_arch {
+	struct kvm_paging_vm paging;
	...
};
