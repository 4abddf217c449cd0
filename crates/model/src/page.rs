// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What decides on which node of a host a page lies: the guest-physical address, the vCPU that touched the
//! page first, or the vCPU that made a table. [`crate::placement`] turns that into a node.

use bifold_mmu::Gpa;

/// A page, with what decides on which node it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// Memory of a machine without a hypervisor.
    Machine(Gpa),
    /// Guest memory in a contiguous region of the host's for each guest node.
    Region(Gpa),
    /// Guest memory in a host page.
    Host {
        /// The guest-physical address.
        gpa: Gpa,
        /// The number of the host page within the guest's memory.
        number: u64,
        /// The vCPU for which the host backed it.
        first: u8,
    },
    /// A table of the hypervisor's.
    Table(Made),
}

/// The vCPU that made a table, and how many tables it had made before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Made {
    /// The vCPU.
    pub vcpu: u8,
    /// The number among its tables.
    pub number: u32,
}

/// The makers of tables, by level and number.
#[derive(Debug, Clone, Default)]
pub struct Makers {
    /// By level; a table that was never made has none.
    tables: [Vec<Option<Made>>; 6],
    /// Tables made so far, per vCPU.
    made: Vec<u32>,
}

impl Makers {
    /// The first vCPU has made the root, of this level.
    pub fn of_root(level: u8) -> Makers {
        let mut makers = Makers::default();
        makers.make(level, 0, 0);
        makers
    }

    /// The maker of a table. The first vCPU made those of which nothing is known.
    pub fn of(&self, level: u8, number: u64) -> Made {
        self.tables[usize::from(level)].get(number as usize).copied().flatten().unwrap_or_default()
    }

    /// `vcpu` needs the table, and makes it unless it is there.
    pub fn made(&mut self, level: u8, number: u64, vcpu: usize) {
        if self.tables[usize::from(level)].get(number as usize).copied().flatten().is_none() {
            self.make(level, number, vcpu);
        }
    }

    /// `vcpu` makes a table of level 1 in place of one that is gone.
    pub fn replaced(&mut self, number: u64, vcpu: usize) {
        self.make(1, number, vcpu);
    }

    /// Every table that was made: level, number, maker.
    pub fn all(&self) -> impl Iterator<Item = (u8, u64, Made)> + '_ {
        let of = |(level, tables): (usize, &'_ Vec<Option<Made>>)| {
            let made = tables.iter().enumerate().filter_map(|(number, made)| Some((number as u64, (*made)?)));
            made.map(|(number, made)| (level as u8, number, made)).collect::<Vec<_>>()
        };
        self.tables.iter().enumerate().flat_map(of)
    }

    fn make(&mut self, level: u8, number: u64, vcpu: usize) {
        let (tables, number) = (&mut self.tables[usize::from(level)], number as usize);
        if tables.len() <= number {
            tables.resize((number + 1).next_power_of_two(), None);
        }
        if self.made.len() <= vcpu {
            self.made.resize(vcpu + 1, 0);
        }
        tables[number] = Some(Made { vcpu: vcpu as u8, number: self.made[vcpu] });
        self.made[vcpu] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_made_once_and_its_maker_counts_its_own() {
        let mut makers = Makers::default();
        makers.made(2, 0, 1);
        makers.made(2, 0, 0);
        makers.made(1, 7, 1);
        makers.made(1, 8, 0);
        assert_eq!(makers.of(2, 0), Made { vcpu: 1, number: 0 });
        assert_eq!(makers.of(1, 7), Made { vcpu: 1, number: 1 });
        assert_eq!(makers.of(1, 8), Made { vcpu: 0, number: 0 });
        makers.replaced(7, 0);
        assert_eq!(makers.of(1, 7), Made { vcpu: 0, number: 1 });
        let all: Vec<_> = makers.all().map(|(level, number, made)| (level, number, made.vcpu)).collect();
        assert_eq!(all, [(1, 7, 0), (1, 8, 0), (2, 0, 1)]);
    }
}
