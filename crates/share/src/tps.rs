// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model of transparent page sharing (TPS) as VMware ESX does it.
//!
//! The model follows Waldspurger, "Memory Resource Management in VMware ESX Server" (OSDI 2002), and VMware's
//! advanced settings. Every guest's pages are visited in random order, all within the scan time
//! (`Mem.ShareScanTime`, 60 minutes) and at most `Mem.ShareRateMax` (1024) a second. A page's hash finds a
//! shared frame or a hint. A hint is another page that had this hash at its visit; it is not write protected,
//! so it is hashed again before the bytes are compared. A pair therefore merges at the visit of its second
//! page, where KSM needs a second pass. Pages in large pages are visited and leave hints, but are never
//! shared. Since 2014 the hash has a salt per guest, so guests share nothing
//! unless their salts are set equal.
//!
//! Left out: the host-wide limit of scanning by processor speed (`Mem.ShareScanGHz`), and the large pages
//! that a host breaks and shares because memory is short.

use crate::image::Image;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;
use rayon::prelude::*;
use std::collections::HashMap;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// Settings of TPS, with VMware's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TpsTuning {
    /// Time in which all pages of a guest are visited.
    pub scan_time: Duration,
    /// Most pages of a guest visited per second.
    pub max_rate: u32,
    /// Seed of the order of visits.
    pub seed: u64,
    /// Nanoseconds to hash a page.
    pub hash_ns: f64,
    /// Nanoseconds to compare two pages.
    pub compare_ns: f64,
}

impl Default for TpsTuning {
    fn default() -> TpsTuning {
        let scan_time = Duration::from_secs(3600);
        TpsTuning { scan_time, max_rate: 1024, seed: 1, hash_ns: 1300.0, compare_ns: 1000.0 }
    }
}

/// Which guests a guest may share with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Salt {
    /// Only itself, the default since 2014.
    Own,
    /// All guests with the same salt.
    Group(u64),
}

/// TPS's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TpsCounts {
    /// Frames that shared pages take.
    pub pages_shared: u64,
    /// Pages that share these frames beyond the first page of each.
    pub pages_sharing: u64,
    /// Visits to pages.
    pub visits: u64,
    /// Pages hashed, including hints that were hashed again.
    pub hashes: u64,
    /// Hints whose page had changed.
    pub stale_hints: u64,
    /// Full compares of two pages.
    pub compares: u64,
    /// Pages that are not shared only because of their large page.
    pub held_by_large: u64,
}

/// A guest, in order of adding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TpsGuest(usize);

#[derive(Debug, Clone, Copy)]
struct Page {
    hash: u128,
    shared: bool,
    /// Part of a large page.
    large: bool,
}

#[derive(Debug)]
struct GuestPages {
    salt: (bool, u64),
    pages: Vec<Page>,
    order: Vec<u32>,
    next: usize,
    /// Visits due, in parts of one by the scan time in nanoseconds.
    due: u128,
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Shared { pages: u64 },
    Hint { guest: usize, page: u32 },
}

type Key = ((bool, u64), u128);

/// TPS with the memory that it scans.
#[derive(Debug)]
pub struct Tps {
    tuning: TpsTuning,
    guests: Vec<GuestPages>,
    table: HashMap<Key, Entry>,
    counts: TpsCounts,
    now: Duration,
    rng: Pcg64,
}

/// Time between two turns of a guest.
const TURN: Duration = Duration::from_secs(1);

impl Tps {
    /// TPS without guests.
    pub fn new(tuning: TpsTuning) -> Tps {
        let rng = Pcg64::seed_from_u64(tuning.seed);
        let (guests, table) = (Vec::new(), HashMap::new());
        Tps { tuning, guests, table, counts: TpsCounts::default(), now: Duration::ZERO, rng }
    }

    /// Adds a guest, backed by large pages or by small ones.
    pub fn add(&mut self, image: &Image, large: bool, salt: Salt) -> TpsGuest {
        let all: Vec<(u64, &[u8])> = image.pages().collect();
        let hashed: Vec<u128> = all.par_iter().map(|(_, page)| xxh3_128(page)).collect();
        let pages = hashed.into_iter().map(|hash| Page { hash, shared: false, large }).collect::<Vec<_>>();
        let number = self.guests.len();
        let salt = match salt {
            Salt::Own => (true, number as u64),
            Salt::Group(salt) => (false, salt),
        };
        let order = (0..pages.len() as u32).collect();
        self.guests.push(GuestPages { salt, pages, order, next: 0, due: 0 });
        TpsGuest(number)
    }

    /// Lets a guest write to its `index`th page, whose new content is `page`.
    ///
    /// # Panics
    /// If the guest has no such page.
    pub fn write(&mut self, guest: TpsGuest, index: usize, page: &[u8]) {
        let of = &mut self.guests[guest.0];
        let at = &mut of.pages[index];
        let key = (of.salt, at.hash);
        at.hash = xxh3_128(page);
        if std::mem::take(&mut at.shared) {
            self.unshare(key);
        }
    }

    fn unshare(&mut self, key: Key) {
        match self.table.get_mut(&key) {
            Some(Entry::Shared { pages: 1 }) => {
                self.table.remove(&key);
                self.counts.pages_shared -= 1;
            }
            Some(Entry::Shared { pages }) => {
                *pages -= 1;
                self.counts.pages_sharing -= 1;
            }
            _ => unreachable!("a shared page is in the table"),
        }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The counters now.
    pub fn counts(&self) -> TpsCounts {
        self.counts
    }

    /// CPU time since the start, by the tuning's costs.
    pub fn cpu(&self) -> Duration {
        let (hashes, compares) = (self.counts.hashes as f64, self.counts.compares as f64);
        Duration::from_nanos((hashes * self.tuning.hash_ns + compares * self.tuning.compare_ns) as u64)
    }

    /// Runs for some time.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let turn = TURN.min(end - self.now);
            self.now += turn;
            for guest in 0..self.guests.len() {
                // Whole numbers: sums of fractions would be a visit late.
                let scan = self.tuning.scan_time.as_nanos();
                let most = u128::from(self.tuning.max_rate) * scan / 1_000_000_000;
                let per_scan = (self.guests[guest].pages.len() as u128).min(most);
                self.guests[guest].due += per_scan * turn.as_nanos();
                while self.guests[guest].due >= scan {
                    self.guests[guest].due -= scan;
                    self.visit_next(guest);
                }
            }
        }
    }

    fn visit_next(&mut self, guest: usize) {
        let of = &mut self.guests[guest];
        if of.next == 0 {
            of.order.shuffle(&mut self.rng);
        }
        let page = of.order[of.next];
        of.next = (of.next + 1) % of.order.len();
        self.visit(guest, page);
    }

    fn visit(&mut self, guest: usize, page: u32) {
        self.counts.visits += 1;
        let at = self.guests[guest].pages[page as usize];
        if at.shared {
            return;
        }
        self.counts.hashes += 1;
        let key = (self.guests[guest].salt, at.hash);
        let hint = Entry::Hint { guest, page };
        match self.table.get(&key).copied() {
            None => {
                self.table.insert(key, hint);
            }
            Some(Entry::Hint { guest: g, page: p }) if (g, p) == (guest, page) => {}
            Some(Entry::Hint { guest: g, page: p }) => {
                self.counts.hashes += 1;
                let other = self.guests[g].pages[p as usize];
                if other.hash != at.hash || other.shared {
                    self.counts.stale_hints += 1;
                    self.table.insert(key, hint);
                } else if at.large || other.large {
                    self.counts.held_by_large += 1;
                    // One that can be shared is the better hint.
                    if other.large {
                        self.table.insert(key, hint);
                    }
                } else {
                    self.counts.compares += 1;
                    self.table.insert(key, Entry::Shared { pages: 2 });
                    self.counts.pages_shared += 1;
                    self.counts.pages_sharing += 1;
                    self.guests[g].pages[p as usize].shared = true;
                    self.guests[guest].pages[page as usize].shared = true;
                }
            }
            Some(Entry::Shared { .. }) if at.large => self.counts.held_by_large += 1,
            Some(Entry::Shared { pages }) => {
                self.counts.compares += 1;
                self.table.insert(key, Entry::Shared { pages: pages + 1 });
                self.counts.pages_sharing += 1;
                self.guests[guest].pages[page as usize].shared = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PAGE;
    use proptest::prelude::*;

    fn image(letters: &[u8]) -> Image {
        Image::of_bytes("guest", letters.iter().flat_map(|l| [*l; PAGE]).collect())
    }

    fn tps(guests: &[&[u8]], large: bool, salt: Salt) -> Tps {
        let mut tps = Tps::new(TpsTuning::default());
        guests.iter().for_each(|g| {
            tps.add(&image(g), large, salt);
        });
        tps
    }

    fn shares(tps: &Tps) -> (u64, u64) {
        (tps.counts().pages_shared, tps.counts().pages_sharing)
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn all_of_a_guest_is_visited_and_shared_within_the_scan_time() {
        let mut tps = tps(&[b"aabbcz", b"ab"], false, Salt::Group(0));
        tps.run(HOUR);
        assert_eq!(shares(&tps), (2, 4));
        assert_eq!(tps.counts().visits, 8);
    }

    #[test]
    fn nothing_is_shared_between_guests_of_different_salts() {
        let mut salted = tps(&[b"aab", b"aab"], false, Salt::Own);
        salted.run(HOUR);
        assert_eq!(shares(&salted), (2, 2));
    }

    #[test]
    fn a_large_guest_is_visited_no_faster_than_the_limit() {
        let mut tps =
            Tps::new(TpsTuning { scan_time: Duration::from_secs(1), max_rate: 3, ..TpsTuning::default() });
        tps.add(&image(&[b'a'; 100]), false, Salt::Own);
        tps.run(Duration::from_secs(10));
        assert_eq!(tps.counts().visits, 30);
    }

    #[test]
    fn large_pages_are_left_alone() {
        let mut tps = tps(&[b"aaaa"], true, Salt::Own);
        tps.run(HOUR);
        assert_eq!(shares(&tps), (0, 0));
        assert_eq!(tps.counts().held_by_large, 3);
    }

    #[test]
    fn a_hint_that_changed_is_hashed_again_and_replaced() {
        let mut tps = tps(&[b"ab"], false, Salt::Own);
        tps.run(HOUR);
        // Both hints are wrong now.
        tps.write(TpsGuest(0), 0, &[b'b'; PAGE]);
        tps.write(TpsGuest(0), 1, &[b'a'; PAGE]);
        tps.run(HOUR);
        assert_eq!(tps.counts().stale_hints, 2);
        assert_eq!(shares(&tps), (0, 0));
        tps.write(TpsGuest(0), 0, &[b'a'; PAGE]);
        tps.run(HOUR);
        assert_eq!(shares(&tps), (1, 1));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_pages_and_end_at_the_distinct_contents(
            a in "[a-d]{1,30}", b in "[a-d]{1,30}",
            writes in proptest::collection::vec((0..60_usize, b'a'..=b'd', 0..2000_u64), 0..30)
        ) {
            let mut tps = tps(&[a.as_bytes(), b.as_bytes()], false, Salt::Group(7));
            let lens = [a.len(), b.len()];
            for (at, letter, seconds) in writes {
                let guest = at % 2;
                tps.write(TpsGuest(guest), at / 2 % lens[guest], &[letter; PAGE]);
                tps.run(Duration::from_secs(seconds));
                let shared = tps.guests.iter().flat_map(|g| &g.pages).filter(|p| p.shared).count() as u64;
                prop_assert_eq!(shares(&tps).0 + shares(&tps).1, shared);
            }
            tps.run(4 * HOUR);
            let mut repeats: HashMap<u128, u64> = HashMap::new();
            tps.guests.iter().flat_map(|g| &g.pages).for_each(|p| *repeats.entry(p.hash).or_default() += 1);
            let all: u64 = repeats.values().map(|n| n - 1).sum();
            prop_assert_eq!(shares(&tps).1, all);
        }
    }
}
