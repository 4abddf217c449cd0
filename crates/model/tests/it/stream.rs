// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Short event streams written by hand: tables first, then what the guest does.

use crate::reference::{ADDRESS, PRESENT, WRITE};
use bifold_mmu::PageSize;
use bifold_model::{Config, ConfigOutcome, Model, Options, Paging, Profile};
use bifold_trace::Event;
use std::collections::BTreeMap;

pub const NATIVE: Config = Config { mode: Paging::Native, host_page: PageSize::Size4K };
pub const NESTED_4K: Config = Config { mode: Paging::Nested, host_page: PageSize::Size4K };
pub const NESTED_2M: Config = Config { mode: Paging::Nested, host_page: PageSize::Size2M };

/// Frames of guest memory; tables take those from 0x100 up.
pub const FRAMES: u64 = 1 << 18;

#[derive(Clone)]
pub struct Stream {
    pub words: Vec<u64>,
    tables: BTreeMap<u64, (u8, Box<[u64; 512]>)>,
}

fn index(va: u64, level: u8) -> usize {
    (va >> (3 + 9 * u32::from(level))) as usize & 511
}

impl Stream {
    pub fn new() -> Stream {
        Stream { words: Vec::new(), tables: BTreeMap::new() }
    }

    pub fn table(&mut self, level: u8) -> u64 {
        let gfn = self.tables.last_key_value().map_or(0x100, |(gfn, _)| gfn + 1);
        self.tables.insert(gfn, (level, Box::new([0; 512])));
        gfn
    }

    /// Makes frame `gfn` a root table.
    pub fn set_root(&mut self, gfn: u64) {
        self.tables.insert(gfn, (4, Box::new([0; 512])));
    }

    /// Maps `va` by an entry of `level` with these bits; returns the entry's address.
    pub fn map(&mut self, root: u64, va: u64, level: u8, entry: u64) -> u64 {
        let mut gfn = root;
        for l in (level + 1..=4).rev() {
            let mut e = self.tables[&gfn].1[index(va, l)];
            if e == 0 {
                e = self.table(l - 1) << 12 | PRESENT | WRITE;
                self.tables.get_mut(&gfn).unwrap().1[index(va, l)] = e;
            }
            gfn = (e & ADDRESS) >> 12;
        }
        self.tables.get_mut(&gfn).unwrap().1[index(va, level)] = entry | PRESENT;
        (gfn << 12) + 8 * index(va, level) as u64
    }

    /// Describes the tables, the lowest first, and loads `root`.
    pub fn start(mut self, root: u64) -> Stream {
        for wanted in 1..=4 {
            for (gfn, (level, entries)) in self.tables.iter().filter(|t| t.1.0 == wanted) {
                Event::Table { gfn: *gfn, level: *level, entries }.encode(&mut self.words);
            }
        }
        self.and(&[Event::Cr3(root << 12)])
    }

    pub fn and(mut self, events: &[Event<'_>]) -> Stream {
        events.iter().for_each(|e| e.encode(&mut self.words));
        self
    }

    pub fn run_all(
        &self,
        profile: &Profile,
        configs: &[Config],
        interval_seconds: f64,
    ) -> bifold_model::Outcome {
        let options = Options {
            configs: configs.to_vec(),
            guest_frames: FRAMES,
            interval_seconds,
            ..Options::default()
        };
        let mut model = Model::new(profile, options);
        model.consume(&self.words).unwrap();
        let outcome = model.finish();
        assert_eq!(outcome.untranslated, 0);
        outcome
    }

    pub fn run(&self, profile: &Profile, config: Config) -> ConfigOutcome {
        self.run_all(profile, &[config], 1.0).configs.remove(0)
    }
}

pub fn profile(name: &str, overrides: &[&str]) -> Profile {
    let overrides: Vec<String> = overrides.iter().map(|s| s.to_string()).collect();
    Profile::load(name, &overrides).unwrap()
}
