// SPDX-License-Identifier: GPL-2.0-only
// The guest's CPU is the same in both modes: no protection keys, which shadow paging cannot give.
// file: arch/x86/kvm/cpuid.c
// expect: 6.1 +1 -2
// expect: 6.12 +1 -2

@@ @@
-	if (!tdp_enabled || !boot_cpu_has(X86_FEATURE_OSPKE))
-		kvm_cpu_cap_clear(X86_FEATURE_PKU);
+	kvm_cpu_cap_clear(X86_FEATURE_PKU);
