// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups of configurations that share TLBs: how groups start, split and join.

use bifold_mmu::{SHARERS, Tlb};

/// Configurations that share TLBs, because their TLBs have held the same entries so far. Native
/// and nested paging with 4 KB host pages always do. At the start there are as few groups as
/// the bits of a TLB entry allow. A group splits when members hold a page at different sizes, or
/// when a flush concerns only some members. Groups join once their TLBs hold the same again.
#[derive(Debug)]
pub(super) struct Group {
    /// Indices of regimes. A member's place here is its bit in the TLBs' entries.
    pub members: Vec<usize>,
    /// Per vCPU.
    pub tlbs: Vec<Tlb>,
}

impl Group {
    /// Groups of the regimes `0..regimes`, whose TLBs are all empty.
    pub fn start(regimes: usize, tlb: &Tlb, vcpus: usize) -> Vec<Group> {
        let mut groups = Vec::new();
        (0..regimes).for_each(|r| Group::join(&mut groups, r, tlb, vcpus));
        groups
    }

    /// Adds a regime with empty TLBs while those of the others are empty too.
    pub fn join(groups: &mut Vec<Group>, regime: usize, tlb: &Tlb, vcpus: usize) {
        match groups.last_mut() {
            Some(group) if group.members.len() < SHARERS => group.members.push(regime),
            _ => groups.push(Group { members: vec![regime], tlbs: vec![tlb.clone(); vcpus] }),
        }
    }
}

/// Joins the groups whose TLBs hold the same.
pub(super) fn join_equal(groups: &mut Vec<Group>) {
    let mut i = 0;
    while i < groups.len() {
        let (before, rest) = groups.split_at_mut(i);
        let group = &mut rest[0];
        let joins = |other: &mut Group| {
            let mut tlbs = other.tlbs.iter_mut().zip(&mut group.tlbs);
            other.members.len() + group.members.len() <= SHARERS && tlbs.all(|(a, b)| a.holds_same(b))
        };
        let Some(at) = before.iter_mut().position(joins) else {
            i += 1;
            continue;
        };
        let mut group = groups.remove(i);
        let other = &mut groups[at];
        for (ours, theirs) in other.tlbs.iter_mut().zip(&mut group.tlbs) {
            ours.join(theirs, other.members.len());
        }
        other.members.append(&mut group.members);
    }
}

/// Splits each group into those of its members that agree in `class`.
pub(super) fn split_by<T: PartialEq>(groups: Vec<Group>, class: impl Fn(usize) -> T) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for group in groups {
        // Members that agree, and the bits of their places.
        let mut parts: Vec<(Vec<usize>, u8)> = Vec::new();
        for (place, &r) in group.members.iter().enumerate() {
            match parts.iter_mut().find(|(members, _)| class(members[0]) == class(r)) {
                Some((members, places)) => {
                    members.push(r);
                    *places |= 1 << place;
                }
                None => parts.push((vec![r], 1 << place)),
            }
        }
        if parts.len() == 1 {
            out.push(group);
            continue;
        }
        for (members, places) in parts {
            let mut tlbs = group.tlbs.clone();
            tlbs.iter_mut().for_each(|tlb| tlb.keep_sharers(places));
            out.push(Group { members, tlbs });
        }
    }
    out
}
