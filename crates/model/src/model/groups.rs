// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups of configurations that share TLBs.

use crate::regime::Regime;
use bifold_mmu::{ArraySpec, SHARERS, Tlb};

/// Configurations that share TLBs, as many as a TLB entry has bits for. What they hold alike is kept once.
#[derive(Debug)]
pub(super) struct Group {
    /// Indices of regimes. A member's place here is its bit in masks.
    pub members: Vec<usize>,
    /// Per vCPU.
    pub tlbs: Vec<Tlb>,
}

/// The places of a mask's bits.
#[inline(always)]
pub(super) fn places(mut bits: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (place < SHARERS).then_some(place)
    })
}

/// The TLBs that groups have.
#[derive(Debug)]
pub(super) struct Kind {
    pub arrays: Vec<ArraySpec>,
    pub vcpus: usize,
    /// The guest uses PCIDs.
    pub pcid: bool,
}

impl Group {
    fn new(members: Vec<usize>, kind: &Kind) -> Group {
        let tlb = Tlb::new(&kind.arrays, members.len(), !kind.pcid);
        Group { members, tlbs: vec![tlb; kind.vcpus] }
    }

    /// Groups of all regimes, with empty TLBs. TLBs know one current address space: where the guest uses
    /// PCIDs, those whose hypervisor flushes at CR3 writes, and so do not follow the guest's address spaces,
    /// have groups of their own.
    pub fn start(regimes: &[Regime], kind: &Kind) -> Vec<Group> {
        let apart = |r: usize| kind.pcid && regimes[r].flushes_by_exit();
        let (apart, together): (Vec<usize>, Vec<usize>) = (0..regimes.len()).partition(|&r| apart(r));
        let groups = [together, apart];
        let groups = groups.iter().flat_map(|members| members.chunks(SHARERS));
        groups.map(|members| Group::new(members.to_vec(), kind)).collect()
    }

    /// Adds a regime whose mode changes, while all TLBs are empty.
    pub fn add(groups: &mut Vec<Group>, regime: usize, kind: &Kind) {
        match groups.last_mut() {
            Some(group) if group.members.len() < SHARERS && !kind.pcid => {
                let mut members = std::mem::take(&mut group.members);
                members.push(regime);
                *group = Group::new(members, kind);
            }
            _ => groups.push(Group::new(vec![regime], kind)),
        }
    }

    /// The mask of the members of which `such` is true, given the regime's index.
    pub fn mask(&self, mut such: impl FnMut(usize) -> bool) -> u8 {
        self.members.iter().enumerate().fold(0, |bits, (place, &r)| bits | u8::from(such(r)) << place)
    }
}
