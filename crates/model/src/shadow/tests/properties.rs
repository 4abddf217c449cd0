// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random guests: the invariants hold after whatever they do.

use super::*;
use crate::host::Taking;
use crate::shadow::World;
use bifold_mmu::format::{PAE, X86_32, X86_64_5_LEVEL};
use proptest::prelude::*;

const SPACES: usize = 6;
/// Pages that operations name: blocks of 12 in each of 4 leaf tables.
const PAGES: u64 = 48;

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
    /// The kernel frees a leaf table, and writes data into its frame.
    Free(u64, AccessKind),
    /// memset of a table, by another kind of instruction.
    Clear(u64, u8),
    Cr3(usize, usize),
    Invlpg(u64, usize),
    Cr4(usize),
    Protection(u64, usize),
    /// The host takes frames back.
    TakeBack(u64, u64, Taking),
    /// The host looks which pages were used.
    Look,
    /// Agile paging: an interval ends, after which one in so many of the tables in nested mode stays there.
    Interval(u64),
}

fn kinds() -> impl Strategy<Value = AccessKind> {
    use AccessKind::*;
    prop_oneof![Just(Read), Just(Write), Just(WriteOther), Just(Fetch)]
}

fn ops() -> impl Strategy<Value = Op> {
    let bits =
        prop_oneof![Just(PAGE), Just(PAGE & !A), Just(PAGE & !D), Just(P | U | A), Just(PAGE | NX), Just(0)];
    prop_oneof![
        30 => (0..PAGES, kinds(), 0..2usize).prop_map(|(p, k, v)| Op::Access(p, k, v)),
        12 => (0..PAGES, 0..64u64, bits).prop_map(|(p, f, b)| Op::Store(p, f, b)),
        1 => (0..PAGES, 0..3u8).prop_map(|(p, w)| Op::StoreUpper(p, w)),
        1 => (16..80u64, kinds()).prop_map(|(f, k)| Op::Direct(f, k)),
        2 => (TABLES..TABLES + 80, kinds()).prop_map(|(f, k)| Op::Direct(f, k)),
        1 => (0..PAGES, kinds()).prop_map(|(p, k)| Op::Free(p, k)),
        1 => (0..PAGES, 1..4u8).prop_map(|(p, l)| Op::Clear(p, l)),
        3 => (0..SPACES, 0..2usize).prop_map(|(s, v)| Op::Cr3(s, v)),
        2 => (0..PAGES, 0..2usize).prop_map(|(p, v)| Op::Invlpg(p, v)),
        1 => (0..2usize).prop_map(Op::Cr4),
        1 => (0..PAGES, 0..2usize).prop_map(|(p, v)| Op::Protection(p, v)),
        2 => (0..100u64, 1..20u64, prop_oneof![Just(Taking::Discard), Just(Taking::Swap)])
            .prop_map(|(f, n, t)| Op::TakeBack(f, n, t)),
        1 => (0..FRAMES, 1..2000u64).prop_map(|(f, n)| Op::TakeBack(f, n, Taking::Discard)),
        1 => Just(Op::Look),
        2 => (1..4u64).prop_map(Op::Interval),
    ]
}

fn gva(page: u64) -> u64 {
    USER + ((page / 12) << 21) + ((page % 12) << 12)
}

struct Random {
    m: Machine,
    spaces: Vec<u64>,
    current: [u64; 2],
    /// Frames of freed tables.
    free: Vec<u64>,
}

impl Random {
    fn new(
        format: &'static Format,
        cold: bool,
        host: PageSize,
        direct: PageSize,
        budget: usize,
        rules: Option<Rules>,
    ) -> Random {
        let direct = if format.is_long() { direct } else { direct.min(PageSize::Size2M) };
        let memory = if cold { HostMemory::new(host, FRAMES, Default::default(), 3) } else { warm(host) };
        let mut m = Machine::with(format, memory, direct);
        let mut spaces = vec![m.root];
        while spaces.len() < SPACES {
            spaces.push(m.space());
        }
        for (n, &root) in spaces.iter().enumerate() {
            if n % 2 == 1 {
                // A KPTI pair: the other root has the same user half, no-execute there.
                m.copy(spaces[n - 1], root, false, if format.is_long() { NX } else { 0 });
                continue;
            }
            for page in 0..PAGES {
                let bits = [PAGE, PAGE & !D, PAGE & !(A | D)][page as usize % 3];
                m.map(root, gva(page), (page + 16) << 12 | bits, PageSize::Size4K);
            }
        }
        if let Some(rules) = rules {
            m.shadow = Shadow::new(format, FRAMES, 2, KvmVersion::default()).with_subtrees(rules);
        }
        m.shadow.pages.max = budget;
        m.start(0);
        m.start(1);
        let current = [m.root; 2];
        Random { m, spaces, current, free: Vec::new() }
    }

    /// Guest-physical address of the entry of `level` for `gva` in the first vCPU's space.
    fn entry(&self, gva: u64, level: u8) -> Option<u64> {
        let guest = &self.m.guest;
        let mut table = self.current[0] << 12;
        let mut at_level = guest.format().depth();
        loop {
            let at = table + guest.format().offset(at_level, gva);
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

    /// An empty leaf table, in the frame of a freed one where there is one.
    fn new_table(&mut self) -> u64 {
        let Some(gfn) = self.free.pop() else { return self.m.table(1) };
        self.m.on(0, self.m.direct + (gfn << 12), AccessKind::WriteOther);
        self.m.guest.add(gfn, 1, &[0; 512]);
        gfn
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Access(page, kind, vcpu) => _ = self.m.on(vcpu, gva(page), kind),
            Op::Direct(frame, kind) => _ = self.m.on(0, self.m.direct + (frame << 12), kind),
            Op::Store(page, frame, bits) => {
                if let Some(at) = self.entry(gva(page), 1) {
                    let bits = if self.m.guest.format().entry_shift == 3 { bits } else { bits & !NX };
                    self.m.pt_store(at, if bits == 0 { 0 } else { (frame + 16) << 12 | bits });
                }
            }
            Op::StoreUpper(page, what) => {
                let Some(at) = self.entry(gva(page), 2) else { return };
                let new = match what {
                    0 => 0,
                    1 => (page % 8) << self.m.guest.format().level(2).shift | PAGE | PS,
                    _ => self.new_table() << 12 | TABLE,
                };
                self.m.pt_store(at, new);
            }
            Op::Free(page, kind) => {
                let (Some(at), Some(leaf)) = (self.entry(gva(page), 2), self.entry(gva(page), 1)) else {
                    return;
                };
                self.m.pt_store(at, 0);
                self.m.guest.retire(leaf >> 12);
                self.m.shadow.leave_nested(leaf >> 12);
                self.free.push(leaf >> 12);
                self.m.on(0, self.m.direct + leaf, kind);
            }
            Op::Clear(page, level) => {
                let Some(at) = self.entry(gva(page), level) else { return };
                // PAE's registers keep what they loaded.
                let shift = self.m.guest.format().entry_shift;
                for i in 0..4096 >> shift {
                    let at = at & !0xfff | i << shift;
                    self.m.on(0, self.m.direct + at, AccessKind::WriteOther);
                    // An upper table is filled with what it held: the space lives on.
                    if level == 1 {
                        self.m.guest.store(Gpa(at), 0);
                    }
                }
            }
            Op::Cr3(space, vcpu) => {
                let root = self.spaces[space];
                self.current[vcpu] = root;
                self.m.load_cr3_on(vcpu, root);
            }
            Op::Invlpg(page, vcpu) => {
                self.m.shadow.invlpg(
                    vcpu,
                    Gva(gva(page)),
                    World { guest: &self.m.guest, host: &self.m.host },
                    &mut self.m.out,
                );
            }
            Op::Cr4(vcpu) => self.m.shadow.write_cr4(
                vcpu,
                true,
                World { guest: &self.m.guest, host: &self.m.host },
                &mut self.m.out,
            ),
            Op::TakeBack(frame, frames, taking) => {
                for gfns in self.m.host.take_back(frame..frame + frames, taking) {
                    self.m.shadow.host_unmapped(gfns);
                }
            }
            Op::Look => {
                let Machine { host, shadow, .. } = &mut self.m;
                host.look(|gfns| shadow.clear_young(gfns));
            }
            Op::Interval(one_in) => {
                let stay = self.m.shadow.nested().filter(|gfn| gfn % one_in == 0).collect();
                self.m.shadow.stay_nested(stay);
                for vcpu in 0..2 {
                    self.m.load_cr3_on(vcpu, self.current[vcpu]);
                }
            }
            Op::Protection(page, vcpu) => self.m.shadow.invalidate_gva(
                vcpu,
                Gva(gva(page)),
                World { guest: &self.m.guest, host: &self.m.host },
            ),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn shadow_is_the_composition_of_guest_and_host_and_its_links_are_whole(
        format in prop_oneof![Just(&X86_64_4_LEVEL), Just(&X86_64_5_LEVEL), Just(&PAE), Just(&X86_32)],
        cold in any::<bool>(),
        host in prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M)],
        direct in prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M), Just(PageSize::Size1G)],
        budget in prop_oneof![Just(40), Just(327)],
        ops in proptest::collection::vec(ops(), 1..500),
    ) {
        let mut r = Random::new(format, cold, host, direct, budget, None);
        for op in &ops {
            r.apply(op);
            invariants::check(&r.m.shadow, r.m.world());
        }
    }

    #[test]
    fn so_it_is_beside_subtrees_in_nested_mode_which_the_entries_above_switch_to(
        format in prop_oneof![Just(&X86_64_4_LEVEL), Just(&X86_64_5_LEVEL)],
        cold in any::<bool>(),
        host in prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M)],
        direct in prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M), Just(PageSize::Size1G)],
        budget in prop_oneof![Just(40), Just(327)],
        (writes, sets_both) in (1u32..4, any::<bool>()),
        ops in proptest::collection::vec(ops(), 1..500),
    ) {
        let mut r = Random::new(format, cold, host, direct, budget, Some(Rules { writes, sets_both }));
        for op in &ops {
            r.apply(op);
            invariants::check(&r.m.shadow, r.m.world());
        }
    }
}
