// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trace T: every count of the fast model equals the slow reference's, for every
//! variant of walk caches and both ways of tagging.

use crate::geometry::run;
use crate::reference::caches::{Caches, Of};
use crate::reference::tlb::{Found, Tlb};
use crate::reference::{Counts, Reference};
use bifold_mmu::PageSize;
use bifold_model::{Config, Paging, Profile};
use bifold_trace::{DecodeError, Event, Generator, decode};
use std::collections::{HashMap, HashSet};

const VARIANTS: [&str; 4] = ["none", "1d", "2d", "2d+ntlb"];

fn compare(profile: &str, variant: &str, tag: &str, spec: &str) {
    let overrides = [format!("walk_cache.variant={variant}"), format!("walk_cache.tag={tag}")];
    let profile = Profile::load(profile, &overrides).unwrap();
    let outcome = run(&profile, spec, &Config::ALL);
    let generator = Generator::parse(spec).unwrap();
    for got in &outcome.configs {
        if got.config.mode == Paging::Shadow {
            let mut slow = ShadowOfT::new(&profile, got.config.host_page);
            generator
                .run::<DecodeError>(&mut |words| {
                    slow.consume(words);
                    Ok(())
                })
                .unwrap();
            assert_eq!(got.total.exits_hidden_fault, slow.faults, "{} {}", profile.name, got.config.name());
            let counts = Counts { backed: 0, ..Counts::of(got) };
            assert_eq!(counts, slow.counts, "{} {} {variant} {tag}", profile.name, got.config.name());
            continue;
        }
        let mut slow = Reference::new(&profile, got.config, generator.guest_frames(), 1, outcome.seed);
        generator
            .run::<DecodeError>(&mut |words| {
                slow.consume(words);
                Ok(())
            })
            .unwrap();
        assert_eq!(Counts::of(got), slow.counts, "{} {} {variant} {tag}", profile.name, got.config.name());
    }
}

/// Shadow paging as far as loads of pages that the guest has mapped need it: an entry is
/// there if its page was faulted in before, a table if some entry below it was. KVM fills
/// the aligned block of 8 as far as the host has pages of its own for it: on a host of
/// 2 MB pages all of it, on one of 4 KB, where loads get the zero page, nothing.
struct ShadowOfT {
    tlb: Tlb,
    caches: Caches,
    /// Where tables lie, in order of creation, by level and the address bits above it.
    tables: HashMap<(u8, u64), u64>,
    pages: HashSet<u64>,
    prefetched: u64,
    faults: u64,
    counts: Counts,
}

impl ShadowOfT {
    fn new(profile: &Profile, host_page: PageSize) -> Self {
        ShadowOfT {
            tlb: Tlb::new(profile),
            caches: Caches::new(profile),
            tables: HashMap::from([((4, 0), (1 << 44) + 4096)]),
            pages: HashSet::new(),
            prefetched: if host_page == PageSize::Size4K { 1 } else { 8 },
            faults: 0,
            // The root's loading.
            counts: Counts { flushes: 1, ..Counts::default() },
        }
    }

    fn consume(&mut self, mut words: &[u64]) {
        while !words.is_empty() {
            let (event, n) = decode(words, 0).unwrap();
            if let Event::Load(va) = event {
                self.load(va);
            }
            words = &words[n..];
        }
    }

    fn load(&mut self, va: u64) {
        let found = self.tlb.look_up(false, va, false);
        self.counts.l1_misses += u64::from(found != Found::Level(1));
        if found != Found::Nowhere {
            return;
        }
        self.counts.misses[0] += 1;
        while !self.walk(va) {
            self.faults += 1;
            for level in 1..4u8 {
                let next = (1 << 44) + 4096 * (self.tables.len() as u64 + 1);
                // Made from the top down.
                let level = 4 - level;
                self.tables.entry((level, va >> (12 + 9 * level))).or_insert(next);
            }
            let first = (va >> 12) / self.prefetched * self.prefetched;
            self.pages.extend(first..first + self.prefetched);
        }
        self.tlb.file(false, (va, va), (PageSize::Size4K, PageSize::Size4K, 12), false, false);
    }

    fn walk(&mut self, va: u64) -> bool {
        self.counts.walks += 1;
        let start = self.caches.first_level(Of::Guest, va, 4);
        for level in (1..=start).rev() {
            let number = va >> (3 + 9 * u32::from(level));
            let at = self.tables[&(level, number >> 9)] + 8 * (number & 511);
            let held = self.caches.holds(Of::Guest, level, at);
            self.counts.refs[usize::from(level)][0] += u64::from(!held);
            if level == 1 {
                return self.pages.contains(&number);
            }
            if !self.tables.contains_key(&(level - 1, number)) {
                return false;
            }
            if !held {
                self.caches.file(Of::Guest, level, va, at);
            }
        }
        unreachable!()
    }
}

#[test]
fn counts_on_trace_t_equal_the_references_at_1_million_accesses() {
    compare("geometry-g", "2d+ntlb", "virtual", "t:1000000");
}

#[test]
fn counts_on_trace_t_equal_the_references_for_every_variant_and_tag() {
    for profile in ["geometry-g", "phenom2-x3-720"] {
        for variant in VARIANTS {
            for tag in ["virtual", "physical"] {
                compare(profile, variant, tag, "t:60000");
            }
        }
    }
}
