// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Short event streams written by hand: tables first, then what the guest does.

use crate::random::format;
use crate::reference::{ADDRESS, PRESENT, Tables};
use bifold_mmu::PageSize;
use bifold_model::{Config, ConfigOutcome, Model, Options, Paging, Profile};
use bifold_trace::Event;
use std::collections::BTreeMap;

pub const NATIVE: Config = Config::new(Paging::Native, PageSize::Size4K);
pub const NESTED_4K: Config = Config::new(Paging::Nested, PageSize::Size4K);
pub const NESTED_2M: Config = Config::new(Paging::Nested, PageSize::Size2M);

/// Frames of guest memory; tables take those from 0x100 up.
pub const FRAMES: u64 = 1 << 18;

#[derive(Clone)]
pub struct Stream {
    pub words: Vec<u64>,
    format: Tables,
    /// Level and entries.
    tables: BTreeMap<u64, (u8, Vec<u64>)>,
    /// Address of the root that [`Stream::start`] loads.
    pub root: u64,
}

impl Stream {
    pub fn new() -> Stream {
        Stream::of(Tables::Long(4))
    }

    /// A guest with tables of this format.
    pub fn of(format: Tables) -> Stream {
        Stream { words: Vec::new(), format, tables: BTreeMap::new(), root: 0 }
    }

    fn empty(&self, level: u8) -> (u8, Vec<u64>) {
        (level, vec![0; 4096 / self.format.entry_bytes() as usize])
    }

    pub fn table(&mut self, level: u8) -> u64 {
        let gfn = self.tables.last_key_value().map_or(0x100, |(gfn, _)| gfn + 1);
        self.tables.insert(gfn, self.empty(level));
        gfn
    }

    /// Makes frame `gfn` a root table.
    pub fn set_root(&mut self, gfn: u64) {
        self.tables.insert(gfn, self.empty(4));
    }

    /// Maps `va` by an entry of `level` with these bits; returns the entry's address.
    pub fn map(&mut self, root: u64, va: u64, level: u8, entry: u64) -> u64 {
        let mut gfn = root;
        let format = self.format;
        let index = |l| format.index(va, l) as usize;
        for l in (level + 1..=format.depth()).rev() {
            let mut e = self.tables[&gfn].1[index(l)];
            if e == 0 {
                e = format.link(self.table(l - 1), l);
                self.tables.get_mut(&gfn).unwrap().1[index(l)] = e;
            }
            gfn = (e & ADDRESS) >> 12;
        }
        self.tables.get_mut(&gfn).unwrap().1[index(level)] = entry | PRESENT;
        (gfn << 12) + format.entry_bytes() * index(level) as u64
    }

    /// The entry of 8 bytes at this address.
    pub fn entry(&self, at: u64) -> u64 {
        self.tables[&(at >> 12)].1[at as usize % 4096 / 8]
    }

    /// Describes the tables, the lowest first, and loads `root`.
    pub fn start(mut self, root: u64) -> Stream {
        for wanted in 1..=self.format.depth() {
            for (gfn, (level, entries)) in self.tables.iter().filter(|t| t.1.0 == wanted) {
                let entries = &self.format.words(entries);
                Event::Table { gfn: *gfn, level: *level, entries }.encode(&mut self.words);
            }
        }
        self.root = root << 12;
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
            guest_format: format(self.format),
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
