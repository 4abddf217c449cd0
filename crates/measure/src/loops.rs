// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The timed loops, in assembly, so that they are the same instructions in every build.
//!
//! This file and `os.rs` have all unsafe code of the crate. Loops read memory only within a [`Region`], which
//! they borrow.

use crate::os::{PAGE, Region};
use std::arch::asm;

/// A closed chain of addresses in a region: each element's first word is the address of the next.
pub struct Chain<'a> {
    at: u64,
    /// Keeps the memory mapped and the links unchanged.
    _region: &'a mut Region,
}

impl<'a> Chain<'a> {
    /// Links words of a region, given as byte offsets, into a ring in that order. Offsets are used down to a
    /// multiple of 8.
    ///
    /// # Panics
    /// If there is no offset, or one lies outside the region.
    pub fn link(region: &'a mut Region, offsets: &[usize]) -> Chain<'a> {
        let base = region.base() as u64;
        let words = region.words();
        let Some(&first) = offsets.first() else { panic!("a chain has elements") };
        for pair in offsets.windows(2) {
            words[pair[0] / 8] = base + (pair[1] & !7) as u64;
        }
        words[offsets[offsets.len() - 1] / 8] = base + (first & !7) as u64;
        assert!(first / 8 < words.len(), "the first element lies in the region");
        Chain { at: base + (first & !7) as u64, _region: region }
    }

    /// Follows the chain over at least `loads` elements, 8 at a time. Returns the number of loads.
    pub fn follow(&mut self, loads: u64) -> u64 {
        let turns = loads.div_ceil(8).max(1);
        // SAFETY: `at` is the address of an element of the ring, and each element holds the address of
        // another: `link` wrote them, after the slice's bounds checks, and the region is borrowed since.
        unsafe {
            asm!(
                "2:",
                "mov {at}, [{at}]", "mov {at}, [{at}]", "mov {at}, [{at}]", "mov {at}, [{at}]",
                "mov {at}, [{at}]", "mov {at}, [{at}]", "mov {at}, [{at}]", "mov {at}, [{at}]",
                "dec {turns}",
                "jnz 2b",
                at = inout(reg) self.at,
                turns = inout(reg) turns => _,
                options(nostack, readonly),
            );
        }
        turns * 8
    }
}

/// Whether the address of a load depends on the value of the load before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each load waits for the one before.
    Dependent,
    /// All addresses are known without any load.
    Independent,
}

/// Loads from random lines of random pages: a page is drawn, then some lines in it, then the next page.
/// Numbers come from a linear congruential generator (Knuth's MMIX), of which the high bits are used. Both
/// orders have the same instructions, but for one operand.
pub struct RandomLoads<'a> {
    region: &'a Region,
    pages: u64,
    lines_per_page: u64,
    state: u64,
}

/// The generator's constants.
const FACTOR: u64 = 6364136223846793005;
const ADDEND: u64 = 1442695040888963407;

macro_rules! random_loads {
    ($self:ident, $pages:ident, $next:literal) => {
        // SAFETY: each load is from `base + 4096 * page + 64 * line`, with `page` below `pages` as the high
        // word of a product with `pages`, and `line` below 64 as six bits; `new` checked that the region has
        // so many pages, and borrows the region.
        unsafe {
            asm!(
                "2:",
                "mov rax, {state}",
                "mul {pages}",
                "shl rdx, 12",
                "add rdx, {base}",
                "mov {page}, rdx",
                "mov {lines}, {per_page}",
                "3:",
                "imul {state}, {a}",
                "add {state}, {c}",
                "mov rax, {state}",
                "shr rax, 58",
                "shl rax, 6",
                "mov rdx, [{page} + rax]",
                $next,
                "dec {lines}",
                "jnz 3b",
                "dec {n}",
                "jnz 2b",
                state = inout(reg) $self.state,
                pages = in(reg) $self.pages,
                base = in(reg) $self.region.base(),
                per_page = in(reg) $self.lines_per_page,
                page = out(reg) _,
                lines = out(reg) _,
                a = in(reg) FACTOR,
                c = inout(reg) ADDEND => _,
                n = inout(reg) $pages => _,
                out("rax") _,
                out("rdx") _,
                options(nostack, readonly),
            );
        }
    };
}

/// The same with one load a page, and half as many instructions: a core looks ahead over a number of
/// instructions, so with fewer of them between two loads, more loads are under way at once. The number drawn
/// is page and line in one.
macro_rules! single_loads {
    ($self:ident, $loads:ident, $next:literal) => {
        // SAFETY: each load is from `base` plus a number below 4096 * pages, which the caller checked to be a
        // power of two; `new` checked that the region has so many pages, and borrows the region.
        unsafe {
            asm!(
                "2:",
                "imul {state}, {a}",
                "add {state}, {c}",
                "mov rdx, {state}",
                "shr rdx, cl",
                "and rdx, -64",
                "mov rdx, [{base} + rdx]",
                $next,
                "dec {n}",
                "jnz 2b",
                state = inout(reg) $self.state,
                base = in(reg) $self.region.base(),
                a = in(reg) FACTOR,
                c = inout(reg) ADDEND => _,
                n = inout(reg) $loads => _,
                in("rcx") u64::from(64 - ($self.pages * PAGE as u64).ilog2()),
                out("rdx") _,
                options(nostack, readonly),
            );
        }
    };
}

impl<'a> RandomLoads<'a> {
    /// Loads from the first `bytes` of a region, so many from each page that is drawn.
    ///
    /// # Panics
    /// If the region is smaller, `bytes` is less than a page, or no line is asked for.
    pub fn new(region: &'a Region, bytes: usize, lines_per_page: u64, seed: u64) -> RandomLoads<'a> {
        assert!((PAGE..=region.len()).contains(&bytes) && lines_per_page > 0, "the loads lie in the region");
        RandomLoads { region, pages: (bytes / PAGE) as u64, lines_per_page, state: seed }
    }

    /// The next load waits for the last one of `other`.
    pub fn wait_for(&mut self, other: &RandomLoads<'_>) {
        self.state = self.state.wrapping_add(other.state);
    }

    /// Does at least so many loads, and returns their number.
    pub fn run(&mut self, order: Order, loads: u64) -> u64 {
        if self.lines_per_page == 1 && self.pages.is_power_of_two() {
            let n = loads.max(1);
            match order {
                Order::Dependent => single_loads!(self, n, "add {state}, rdx"),
                Order::Independent => single_loads!(self, n, "add {c}, 2"),
            }
            return n;
        }
        let pages = loads.div_ceil(self.lines_per_page).max(1);
        match order {
            Order::Dependent => random_loads!(self, pages, "add {state}, rdx"),
            // A register that no load writes. The constant grows, which the generator does not mind.
            Order::Independent => random_loads!(self, pages, "add {c}, 2"),
        }
        pages * self.lines_per_page
    }
}

/// A chain of `n` additions, each of which waits for the one before: a cycle each on every x86-64 core.
pub fn add_chain(n: u64) {
    let turns = (n / 16).max(1);
    // SAFETY: only the named registers change.
    unsafe {
        asm!(
            "2:",
            "add {x}, {y}", "add {x}, {y}", "add {x}, {y}", "add {x}, {y}",
            "add {x}, {y}", "add {x}, {y}", "add {x}, {y}", "add {x}, {y}",
            "add {x}, {y}", "add {x}, {y}", "add {x}, {y}", "add {x}, {y}",
            "add {x}, {y}", "add {x}, {y}", "add {x}, {y}", "add {x}, {y}",
            "dec {turns}",
            "jnz 2b",
            x = inout(reg) 1_u64 => _,
            // A register: some cores do additions of constants at renaming, without a cycle.
            y = in(reg) turns,
            turns = inout(reg) turns => _,
            options(nostack, nomem),
        );
    }
}

/// The registers EAX, EBX, ECX, EDX of a CPUID leaf.
pub fn cpuid(leaf: u32, sub: u32) -> [u32; 4] {
    // Older compilers call the instruction unsafe: a processor could lack it.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has CPUID; a leaf that the processor lacks gives other values only.
    let r = unsafe { std::arch::x86_64::__cpuid_count(leaf, sub) };
    [r.eax, r.ebx, r.ecx, r.edx]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Pages;

    #[test]
    fn a_chain_visits_its_elements_in_order_and_closes() {
        let mut region = Region::new(1 << 16, Pages::Small).unwrap();
        let base = region.base() as u64;
        let mut chain = Chain::link(&mut region, &[0, 640, 64]);
        assert_eq!(chain.follow(1), 8);
        assert_eq!(chain.at, base + 64, "8 = 2 modulo 3 elements on");
        chain.follow(8);
        assert_eq!(chain.at, base + 640);
    }

    #[test]
    #[should_panic]
    fn a_chain_does_not_leave_its_region() {
        let mut region = Region::new(1 << 16, Pages::Small).unwrap();
        let end = region.len();
        Chain::link(&mut region, &[0, end]).follow(8);
    }

    #[test]
    fn random_loads_depend_on_what_they_read_or_do_not() {
        let mut region = Region::new(1 << 16, Pages::Small).unwrap();
        let end = |region: &Region, order, per_page, done| {
            let mut loads = RandomLoads::new(region, 1 << 16, per_page, 7);
            assert_eq!(loads.run(order, 100), done);
            loads.state
        };
        for (per_page, done) in [(3, 102), (1, 100)] {
            let ends = |r: &Region| {
                [Order::Dependent, Order::Independent].map(|order| end(r, order, per_page, done))
            };
            region.words().fill(0);
            let zeros = ends(&region);
            region.words().fill(1);
            let ones = ends(&region);
            assert_ne!(zeros[0], ones[0]);
            assert_eq!(zeros[1], ones[1]);
        }
    }
}
