// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data caches of all configurations, access by access.

use super::*;
use crate::Paging;
use crate::host::{Frames, HostMemory};
use crate::memory::Memory as _;
use crate::page::Page;
use proptest::prelude::*;

/// An access, whatever answers.
fn see(
    caches: &mut Caches,
    a: Access,
    translate: impl FnOnce() -> Option<(Gpa, PageSize)>,
    place: impl Fn(usize, Gpa) -> Hpa,
) {
    if let Some(seen) = caches.note(a.vcpu, a.gva) {
        caches.access(a, seen, translate, place, |_, _| ());
    }
}

/// Where no placement counts, no walk asks which page it reads.
fn no_page() -> Page {
    unreachable!("data caches ask for no page")
}

/// Pages that share one set of the prefetcher's table, one more than the set holds, and the pages beside
/// them.
fn pages() -> Vec<u64> {
    let shared = (1..).filter(|p| neighbours::set(*p) == neighbours::set(1)).take(neighbours::WAYS + 1);
    shared.flat_map(|page| [page, page + 1]).collect()
}

proptest! {
    /// On one side, [`Watch::takes`] takes what it can.
    #[test]
    fn what_is_taken_without_a_look_at_a_cache_is_what_the_caches_see(
        exact in any::<bool>(), zen4 in any::<bool>(), vcpus in 1usize..3,
        ops in proptest::collection::vec((0u8..40, 0usize..10, 0u64..80, any::<bool>()), 1..800),
    ) {
        let name = if zen4 { "zen4" } else { "geometry-g" };
        let profile = Profile::load(name, &["cache.l1d.ways=2", "cache.l1d.bytes=8192"].map(String::from)).unwrap();
        let mode = if exact { CacheMode::Exact } else { CacheMode::Sampled };
        let draws = Draws { seed: 1, frames: Default::default() };
        let new = || Caches::new(&profile, mode, draws, vcpus, &Config::ALL[1..3]).unwrap();
        let mut both = [new(), new()];
        let (mut generation, pages) = (1, pages());
        for (number, (op, page, line, write)) in ops.into_iter().enumerate() {
            let (number, vcpu) = (number as u64, usize::from(op) % vcpus);
            // The first and the last line are those by which streams enter pages.
            let line = match line { 64..72 => 0, 72.. => 63, line => line };
            let gva = Gva(pages[page] << 12 | line << 6);
            let (dependent, begins) = (line % 3 == 0, line % 7 == 1);
            let size = if pages[page] % 2 == 0 { PageSize::Size4K } else { PageSize::Size2M };
            let place = |config: usize, gpa: Gpa| Hpa(gpa.0 ^ (config as u64) << 13);
            for (caches, all) in both.iter_mut().zip([true, false]) {
                caches.ran(10, number);
                caches.at(number);
                match op {
                    0 => generation += u64::from(all),
                    1 | 2 => {
                        let at_once = caches.at_once(vcpu, dependent);
                        caches.walker(usize::from(op) - 1, vcpu, at_once).touch(1, 0, || Hpa(gva.0), no_page);
                    }
                    _ => {
                        if begins {
                            caches.chain_begins(vcpu, number);
                        }
                        if dependent {
                            caches.watch(vcpu).dependent_load(number);
                        }
                        let at_once = caches.at_once(vcpu, dependent);
                        let access = Access { vcpu, gva, write, at_once, generation };
                        let is_seen = caches.classes.watched >> line & 1 != 0;
                        if is_seen && (all || !caches.watch(vcpu).takes(gva, write, generation, number)) {
                            see(caches, access, || Some((Gpa(gva.0), size)), place);
                        }
                    }
                }
            }
            for config in 0..2 {
                let [a, b] = [0, 1].map(|side| {
                    let mut s = Sample::default();
                    both[side].add_to(config, &mut s);
                    s
                });
                prop_assert_eq!(a, b);
            }
        }
    }
}

const NAMES: [&str; 5] = ["native", "nested-4k", "nested-2m", "shadow-4k", "shadow-2m"];

fn caches(profile: &Profile, frames: Frames) -> Box<Caches> {
    let configs = NAMES.map(|name| Config::from_name(name).unwrap());
    Caches::new(profile, CacheMode::Exact, Draws { seed: 1, frames }, 1, &configs).unwrap()
}

/// Ten rounds over the same line of so many pages, and every `walk_every` accesses a walk of each
/// configuration, to other lines.
fn rounds(profile: &Profile, frames: Frames, pages: u64, walk_every: Option<u64>) -> [Sample; 5] {
    let mut caches = caches(profile, frames);
    let hosts = NAMES.map(|name| {
        let config = Config::from_name(name).unwrap();
        let host = HostMemory::new(config.host_page, 1 << 18, frames, 1);
        (config.mode != Paging::Native).then_some(host)
    });
    let place = |config: usize, gpa: Gpa| hosts[config].as_ref().map_or(Hpa(gpa.0), |host| host.hpa(gpa));
    for access in 0..10 * pages {
        caches.at(access);
        let gva = Gva((access % pages) << 12 | 5 << 6);
        // Dependent, so that nothing is hidden.
        let a = Access { vcpu: 0, gva, write: false, at_once: 1, generation: 1 };
        see(&mut caches, a, || Some((Gpa(gva.0), PageSize::Size4K)), place);
        if walk_every.is_some_and(|every| access % every == 0) {
            let at = Hpa((1 << 20 | access) << 12 | 5 << 6);
            (0..NAMES.len()).for_each(|c| _ = caches.walker(c, 0, 1).touch(1, 0, || at, no_page));
        }
    }
    std::array::from_fn(|config| {
        let mut s = Sample::default();
        caches.add_to(config, &mut s);
        s
    })
}

/// As many pages as the second level of geometry-g has ways for the lines of one place in a page.
const FITTING: u64 = 256;

#[test]
fn without_walks_all_waits_beyond_the_ideal_runs_are_those_for_frames() {
    let profile = Profile::load("geometry-g", &["memory.prefetch_level=0".into()]).unwrap();
    let samples = rounds(&profile, Frames::Aged, FITTING, None);
    let waits = samples.map(|s| (s.data_wait_cycles(), s.frame_wait_cycles()));
    // In the ideal run the pages follow each other, and each line stays. Single frames share sets by chance.
    let l2 = profile.cache[1].cycles - profile.cache[0].cycles;
    let first = profile.memory.as_ref().unwrap().cycles - profile.cache[0].cycles;
    assert_eq!(samples[0].ideal_stall_cycles, FITTING * (first + 9 * l2));
    assert_eq!([waits[0], waits[2], waits[4]], [(0, 0); 3]);
    assert!(waits[1].1 > 0 && waits[1].0 == waits[1].1, "{waits:?}");
    assert_eq!(waits[3], waits[1]);
    // A fresh host's frames lie as 2 MB pages do.
    let fresh = rounds(&profile, Frames::Fresh, FITTING, None);
    assert!(fresh.iter().all(|s| s.data_wait_cycles() == 0 && s.frame_wait_cycles() == 0));
}

#[test]
fn walks_push_data_out_and_leave_the_waits_for_frames_as_they_are() {
    let profile = Profile::load("geometry-g", &["memory.prefetch_level=0".into()]).unwrap();
    let [without, with] = [None, Some(4)].map(|every| rounds(&profile, Frames::Aged, FITTING, every));
    for ((name, without), with) in NAMES.iter().zip(without).zip(with) {
        assert_eq!(with.frame_wait_cycles(), without.frame_wait_cycles(), "{name}");
        assert!(with.data_wait_cycles() > with.frame_wait_cycles(), "{name}");
    }
}

/// 2 MB pages lie elsewhere in a level whose sets for the lines of one place in a page are not 512 or a
/// divisor of that.
#[test]
fn frames_have_caches_of_their_own_where_a_level_tells_their_blocks_apart() {
    let sets = |name: &str, frames: Frames| caches(&Profile::load(name, &[]).unwrap(), frames).framed_of;
    let (small, large) = (Some(0), Some(1));
    assert_eq!(sets("zen4", Frames::Aged), [None, small, None, small, None]);
    assert_eq!(sets("zen4", Frames::Fresh), [None; 5]);
    for name in ["sapphire-rapids", "epyc-zen5-guest", "xeon-x5670"] {
        assert_eq!(sets(name, Frames::Aged), [None, small, large, small, large], "{name}");
        assert_eq!(sets(name, Frames::Fresh), [None, small, small, small, small], "{name}");
    }
    // Six blocks of 2 MB fill the third level of 192 sets in 16 ways if they follow each other.
    let profile = Profile::load("xeon-x5670", &["memory.prefetch_level=0".into()]).unwrap();
    let samples = rounds(&profile, Frames::Aged, 6 * 512, None);
    assert!(samples.iter().all(|s| s.data_wait_cycles() == s.frame_wait_cycles()));
    let large = samples[2].frame_wait_cycles();
    assert!(0 < large && large < samples[1].frame_wait_cycles());
    assert_eq!(samples[4].frame_wait_cycles(), large);
}

/// Cycles that the ideal run waits for a dependent load of each line of `pages` neighbouring 4 KB pages, in
/// pages of `size` of the guest.
fn stream(set: &str, size: PageSize, down: bool, pages: u64) -> u64 {
    let set = ["memory.prefetch_level=2", set].map(String::from);
    let mut caches = caches(&Profile::load("zen4", &set).unwrap(), Frames::Fresh);
    for n in 0..64 * pages {
        caches.at(n);
        let line = if down { 64 * (pages + 1) - 1 - n } else { 64 + n };
        let a = Access { vcpu: 0, gva: Gva(line << 6), write: false, at_once: 1, generation: 1 };
        see(&mut caches, a, || Some((Gpa(line << 6), size)), |_, gpa| Hpa(gpa.0));
    }
    let mut s = Sample::default();
    caches.add_to(0, &mut s);
    s.ideal_stall_cycles
}

#[test]
fn a_stream_enters_the_next_page_as_the_size_of_the_guests_pages_allows() {
    let profile = Profile::load("zen4", &[]).unwrap();
    let (memory, l1, l2) =
        (profile.memory.as_ref().unwrap().cycles, profile.cache[0].cycles, profile.cache[1].cycles);
    let pages = 10;
    // The first page is entered from nowhere, and all its other lines were fetched.
    let first = memory - l1 + 63 * (l2 - l1);
    let next = |entry: u64| first + (pages - 1) * (entry - l1 + 63 * (l2 - l1));
    for down in [false, true] {
        let of = |size| stream("memory.page_cross_cycles=200", size, down, pages);
        assert_eq!(of(PageSize::Size4K), next(200));
        assert_eq!((of(PageSize::Size2M), of(PageSize::Size1G)), (next(l2), next(l2)));
    }
}

#[test]
fn without_a_time_for_the_next_page_a_stream_stops_at_each_multiple_of_4_kb() {
    let profile = Profile::load("i5-7600", &[]).unwrap();
    assert_eq!(profile.memory.as_ref().unwrap().page_cross_cycles, None);
    let mut caches = caches(&profile, Frames::Fresh);
    for line in 0..640 {
        let a = Access { vcpu: 0, gva: Gva(line << 6), write: false, at_once: 1, generation: 1 };
        see(&mut caches, a, || Some((Gpa(line << 6), PageSize::Size2M)), |_, gpa| Hpa(gpa.0));
    }
    assert_eq!(caches.ideal.stalls.misses(caches.levels - 1), 10);
}

#[test]
fn lone_stores_overlap_and_lone_loads_do_not() {
    let profile = Profile::load("zen4", &["memory.prefetch_level=0".into()]).unwrap();
    let hidden = |write: bool| {
        let mut caches = caches(&profile, Frames::Fresh);
        for n in 0..1000 {
            caches.ran(3000, n * 1000);
            caches.at(n * 1000);
            let a = Access { vcpu: 0, gva: Gva(n << 12), write, at_once: u64::MAX, generation: 1 };
            see(&mut caches, a, || Some((Gpa(a.gva.0), PageSize::Size4K)), |_, gpa| Hpa(gpa.0));
        }
        let (all, hidden) = caches.ideal.stalls.data_cycles();
        hidden as f64 / all as f64
    };
    let overlap = profile.memory.as_ref().unwrap().data_overlap;
    assert!((hidden(true) - (1.0 - 1.0 / overlap)).abs() < 0.001, "{}", hidden(true));
    // But for the first few, of which nothing is known.
    assert!(hidden(false) < 0.02, "{}", hidden(false));
}

/// A store takes the line from the other vCPU once, and again after the other has read the line.
#[test]
fn a_store_takes_the_line_from_the_other_vcpu_each_time_that_vcpu_has_read_it() {
    let profile = Profile::load("i5-7600", &[]).unwrap();
    let draws = Draws { seed: 1, frames: Frames::Fresh };
    let native = [Config::from_name("native").unwrap()];
    let mut caches = Caches::new(&profile, CacheMode::Exact, draws, 2, &native).unwrap();
    let mut misses = |vcpu: usize, write: bool| {
        let a = Access { vcpu, gva: Gva(0x5000), write, at_once: 1, generation: 1 };
        let before = caches.ideal.stalls.misses(0);
        see(&mut caches, a, || Some((Gpa(a.gva.0), PageSize::Size4K)), |_, gpa| Hpa(gpa.0));
        caches.ideal.stalls.misses(0) - before
    };
    assert_eq!((misses(0, false), misses(1, false)), (1, 1));
    for _ in 0..3 {
        assert_eq!((misses(1, true), misses(1, true)), (0, 0), "the line is here");
        assert_eq!(misses(0, false), 1, "the store has taken the line");
        assert_eq!((misses(1, false), misses(0, false)), (0, 0), "both have it");
        assert_eq!(misses(1, false), 0);
    }
}
