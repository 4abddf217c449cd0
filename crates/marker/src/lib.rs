// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Markers for `bifold compare --from-marker -- CMD`: only what a program does between
//! [`bifold_begin`] and [`bifold_end`] is recorded.
//!
//! Each executes one CPUID instruction of a leaf that no processor has: outside a guest of
//! Bifold's the instruction changes nothing and takes about 100 cycles (1,500 in a virtual
//! machine). On other architectures nothing is executed. C programs have the same in
//! `include/bifold.h`.
#![no_std]

fn mark(code: u32) {
    #[cfg(target_arch = "x86_64")]
    // Older compilers call the instruction unsafe: a processor could lack it.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has CPUID, and an unknown leaf only changes the four
    // registers that the intrinsic names.
    unsafe {
        core::hint::black_box(core::arch::x86_64::__cpuid_count(0x4249_464f, code)); // "BIFO"
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = code;
}

/// Here begins what is recorded. Further calls do nothing.
pub fn bifold_begin() {
    mark(0x100);
}

/// Here it ends, and the command is ended. Without a beginning the call does nothing.
pub fn bifold_end() {
    mark(0x200);
}

#[cfg(test)]
mod tests {
    #[test]
    fn outside_a_guest_the_markers_do_nothing() {
        super::bifold_begin();
        super::bifold_end();
    }
}
