// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups of configurations that share TLBs.

use crate::Profile;
use crate::regime::Regime;
use bifold_mmu::{SHARERS, Tlb};

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

impl Group {
    fn new(members: Vec<usize>, profile: &Profile, vcpus: usize) -> Group {
        let tlb = Tlb::new(&profile.tlb_specs(), members.len(), !profile.cpu.pcid);
        Group { members, tlbs: vec![tlb; vcpus] }
    }

    /// Groups of all regimes, with empty TLBs. TLBs know one current address space: where the guest uses PCIDs, those whose
    /// hypervisor flushes at CR3 writes, and so do not follow the guest's address spaces, have groups of their own.
    pub fn start(regimes: &[Regime], profile: &Profile, vcpus: usize) -> Vec<Group> {
        let apart = |r: usize| profile.cpu.pcid && regimes[r].flushes_by_exit();
        let (apart, together): (Vec<usize>, Vec<usize>) = (0..regimes.len()).partition(|&r| apart(r));
        let groups = [together, apart];
        let groups = groups.iter().flat_map(|members| members.chunks(SHARERS));
        groups.map(|members| Group::new(members.to_vec(), profile, vcpus)).collect()
    }

    /// Adds a regime whose mode changes, while all TLBs are empty.
    pub fn add(groups: &mut Vec<Group>, regime: usize, profile: &Profile, vcpus: usize) {
        match groups.last_mut() {
            Some(group) if group.members.len() < SHARERS && !profile.cpu.pcid => {
                let mut members = std::mem::take(&mut group.members);
                members.push(regime);
                *group = Group::new(members, profile, vcpus);
            }
            _ => groups.push(Group::new(vec![regime], profile, vcpus)),
        }
    }

    /// The mask of the members of which `such` is true, given the regime's index.
    pub fn mask(&self, mut such: impl FnMut(usize) -> bool) -> u8 {
        self.members.iter().enumerate().fold(0, |bits, (place, &r)| bits | u8::from(such(r)) << place)
    }
}
