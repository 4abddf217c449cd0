// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random guests: the invariants hold after whatever they do.

use super::*;
use bifold_mmu::format::X86_64_5_LEVEL;
use proptest::prelude::*;

const SPACES: usize = 6;

#[derive(Debug, Clone)]
enum Op {
    /// An access: space-independent page number, kind, vCPU.
    Access(u64, AccessKind, usize),
    /// The kernel stores a leaf entry: which page, which frame, which bits.
    Store(u64, u64, u64),
    /// The kernel stores a level-2 entry: nothing, a 2 MB page, or the leaf table.
    StoreUpper(u64, u8),
    /// The kernel writes anywhere in memory.
    Direct(u64, AccessKind),
    /// memset of a table, by another kind of instruction.
    Clear(u64, u8),
    Cr3(usize, usize),
    Invlpg(u64, usize),
    Cr4(usize),
    Protection(u64, usize),
}

fn kinds() -> impl Strategy<Value = AccessKind> {
    use AccessKind::*;
    prop_oneof![Just(Read), Just(Write), Just(WriteOther), Just(Fetch)]
}

fn ops() -> impl Strategy<Value = Op> {
    let bits =
        prop_oneof![Just(PAGE), Just(PAGE & !A), Just(PAGE & !D), Just(P | U | A), Just(PAGE | NX), Just(0)];
    prop_oneof![
        8 => (0..PAGES, kinds(), 0..2usize).prop_map(|(p, k, v)| Op::Access(p, k, v)),
        4 => (0..PAGES, 0..64u64, bits).prop_map(|(p, f, b)| Op::Store(p, f, b)),
        2 => (0..PAGES, 0..3u8).prop_map(|(p, w)| Op::StoreUpper(p, w)),
        2 => (0..FRAMES, kinds()).prop_map(|(f, k)| Op::Direct(f, k)),
        1 => (0..PAGES, 1..4u8).prop_map(|(p, l)| Op::Clear(p, l)),
        3 => (0..SPACES, 0..2usize).prop_map(|(s, v)| Op::Cr3(s, v)),
        2 => (0..PAGES, 0..2usize).prop_map(|(p, v)| Op::Invlpg(p, v)),
        1 => (0..2usize).prop_map(Op::Cr4),
        1 => (0..PAGES, 0..2usize).prop_map(|(p, v)| Op::Protection(p, v)),
    ]
}

/// Pages that operations name: blocks of 12 in each of 20 leaf tables.
const PAGES: u64 = 240;

fn gva(page: u64) -> u64 {
    USER + ((page / 12) << 21) + ((page % 12) << 12)
}

struct Random {
    m: Machine,
    spaces: Vec<u64>,
    current: [u64; 2],
}

impl Random {
    fn new(five: bool, cold: bool, host: PageSize, direct: PageSize) -> Random {
        let format = if five { &X86_64_5_LEVEL } else { &X86_64_4_LEVEL };
        let memory = if cold { HostMemory::new(host, FRAMES, 3) } else { warm(host) };
        let mut m = Machine::with(format, memory, direct);
        let mut spaces = vec![m.root];
        while spaces.len() < SPACES {
            spaces.push(m.space());
        }
        for (n, &root) in spaces.iter().enumerate() {
            if n % 2 == 1 {
                // A KPTI pair: the other root has the same user half, no-execute there.
                let e = m.guest.read(Gpa(spaces[n - 1] << 12));
                m.guest.store(Gpa(root << 12), e | NX);
                continue;
            }
            for page in (0..PAGES).step_by(12) {
                m.map(root, gva(page), (page % 50 + 16) << 12 | PAGE, PageSize::Size4K);
            }
        }
        m.shadow.pages.max = 64;
        m.shadow.set_initial_cr3(1, m.root << 12);
        let current = [m.root; 2];
        Random { m, spaces, current }
    }

    /// Guest-physical address of the entry of `level` for `gva` in the first vCPU's space.
    fn entry(&self, gva: u64, level: u8) -> Option<u64> {
        let guest = &self.m.guest;
        let mut table = self.current[0] << 12;
        let mut at_level = guest.format().depth();
        loop {
            let at = table + 8 * guest.format().index(at_level, gva);
            let e = guest.read(Gpa(at));
            if at_level == level {
                return Some(at);
            }
            if e & P == 0 || guest.format().is_leaf(at_level, e) {
                return None;
            }
            table = guest.format().target(at_level, e);
            at_level -= 1;
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Access(page, kind, vcpu) => _ = self.m.on(vcpu, gva(page), kind),
            Op::Direct(frame, kind) => _ = self.m.on(0, DIRECT + (frame << 12), kind),
            Op::Store(page, frame, bits) => {
                if let Some(at) = self.entry(gva(page), 1) {
                    self.m.pt_store(at, if bits == 0 { 0 } else { (frame + 16) << 12 | bits });
                }
            }
            Op::StoreUpper(page, what) => {
                let Some(at) = self.entry(gva(page), 2) else { return };
                let new = match what {
                    0 => 0,
                    1 => (page % 8) << 21 | PAGE | PS,
                    _ => self.m.table(1) << 12 | TABLE,
                };
                // Frames for tables are not endless here.
                if self.m.next < FRAMES - 1 {
                    self.m.pt_store(at, new);
                }
            }
            Op::Clear(page, level) => {
                let Some(at) = self.entry(gva(page), level) else { return };
                for i in 0..512 {
                    let at = at & !0xfff | i << 3;
                    self.m.on(0, DIRECT + at, AccessKind::WriteOther);
                    // The kernel's own half and the other tables of the walk stay.
                    if level < 3 {
                        self.m.guest.store(Gpa(at), 0);
                    }
                }
            }
            Op::Cr3(space, vcpu) => {
                let root = self.spaces[space];
                self.current[vcpu] = root;
                self.m.shadow.load_cr3(vcpu, root << 12, &self.m.guest, &mut self.m.out);
            }
            Op::Invlpg(page, vcpu) => {
                self.m.shadow.invlpg(vcpu, Gva(gva(page)), &self.m.guest, &mut self.m.out);
            }
            Op::Cr4(vcpu) => self.m.shadow.write_cr4(vcpu, true, &self.m.guest, &mut self.m.out),
            Op::Protection(page, vcpu) => self.m.shadow.invalidate_gva(vcpu, Gva(gva(page)), &self.m.guest),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn shadow_is_the_composition_of_guest_and_host_and_its_links_are_whole(
        five in any::<bool>(),
        cold in any::<bool>(),
        host in prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M)],
        direct in prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M), Just(PageSize::Size1G)],
        ops in proptest::collection::vec(ops(), 1..250),
    ) {
        let mut r = Random::new(five, cold, host, direct);
        for op in &ops {
            r.apply(op);
            invariants::check(&r.m.shadow, &r.m.guest);
        }
        // All sample counters agree with what is left.
        let out = &r.m.out;
        prop_assert!(out.exits_cr3_write >= out.root_misses);
    }
}
