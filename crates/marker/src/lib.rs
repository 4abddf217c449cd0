// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Markers for `bifold compare --from-marker -- CMD`: only what a program does between
//! [`bifold_begin`] and [`bifold_end`] counts. A program may have many such pairs: each is a region
//! with figures of its own.
//!
//! Each marker executes one CPUID instruction of a leaf that no processor has. Outside a guest
//! of Bifold's the instruction changes nothing and takes about 100 cycles (1,500 in a virtual
//! machine). On other architectures a marker executes nothing. C programs include
//! `include/bifold.h` instead of this crate.
//!
//! ```
//! let prepared: Vec<u64> = (0..1000).collect();
//! bifold_marker::bifold_begin();
//! let sum: u64 = prepared.iter().sum();
//! bifold_marker::bifold_end();
//! assert_eq!(sum, 499_500);
//! ```
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

/// A region begins here. Within a region the call does nothing.
pub fn bifold_begin() {
    mark(0x100);
}

/// The region ends here, and the command goes on, unless `--regions` has asked for so many. Outside of a
/// region the call does nothing.
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
