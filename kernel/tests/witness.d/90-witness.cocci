// SPDX-License-Identifier: GPL-2.0-only
// Never for use: see kernel/tests/witness.
// file: arch/x86/kvm/svm/svm.c
// expect: 6.1 +4 -0
// expect: 6.12 +4 -0

@@ @@
+#include "witness.h"
shutdown_interception(...)
{ ... }

@@ @@
shutdown_interception(...)
{
	<...
+	witness_shutdown(vcpu);
	clear_page(...);
	...>
}

@@ @@
svm_vcpu_run(...)
{
	<...
+	witness_entry(vcpu);
	svm_vcpu_enter_exit(...);
+	witness_exit(vcpu);
	...>
}
