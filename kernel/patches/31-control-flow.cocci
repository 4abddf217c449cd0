// SPDX-License-Identifier: GPL-2.0-only
// Shadow stacks and indirect branch tracking are offered to no guest: shadow entries cannot mark a page as a shadow stack,
// KVM's emulator of real mode does not track branches, and a guest is told once what it has, for both modes.
// file: arch/x86/kvm/svm/svm.c
// file: arch/x86/kvm/vmx/vmx.c
// expect: 7.0 +4 -0
// expect: 7.3 +4 -0

@@
identifier f =~ "^(svm|vmx)_set_cpu_caps$";
@@
f(...)
{
	<...
+	kvm_cpu_cap_clear(X86_FEATURE_SHSTK);
+	kvm_cpu_cap_clear(X86_FEATURE_IBT);
	kvm_setup_xss_caps();
	...>
}
