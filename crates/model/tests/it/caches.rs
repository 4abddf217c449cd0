// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data caches against the slow reference, to the last miss; and what a sample of them tells.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::cases;
use crate::reference::data_caches::DataCaches;
use crate::reference::{LARGE, Reference, WRITE};
use crate::stream::{NATIVE, Stream, profile as profile_with};
use bifold_model::{CacheMode, Config, Model, Options, Outcome, Paging, Profile};
use bifold_trace::{Event, Generator};
use proptest::prelude::*;

fn run(profile: &Profile, caches: CacheMode, configs: &[Config], cpus: usize, words: &[u64]) -> Outcome {
    let options = Options {
        configs: configs.to_vec(),
        guest_frames: FRAMES,
        vcpus: cpus,
        interval_seconds: 1e-6,
        caches,
        ..Options::default()
    };
    let mut model = Model::new(profile, options);
    model.consume(words).unwrap();
    model.finish()
}

/// A built-in profile with data caches as they are, or so small that lines leave them all the time.
fn profile(which: usize, small: bool, more: &[&str]) -> Profile {
    let with_caches = |name: &&str| Profile::load(name, &[]).unwrap().memory.is_some();
    let names: Vec<&str> = Profile::builtin_names().filter(with_caches).collect();
    let name = names[which % names.len()];
    let mut set: Vec<String> = more.iter().map(|s| s.to_string()).collect();
    if small {
        for (level, sets) in Profile::load(name, &[]).unwrap().cache.iter().zip([2, 4, 64]) {
            set.push(format!("cache.{}.ways=3", level.name));
            set.push(format!("cache.{}.bytes={}", level.name, 3 * 64 * sets));
        }
    }
    Profile::load(name, &set).unwrap()
}

/// Ways in which levels may hold lines, and walks and prefetches may use them.
const KINDS: [&[&str]; 5] = [
    &[],
    &["cache.l2.content=exclusive", "cache.l3.content=exclusive", "memory.page_cross_cycles=100"],
    &["cache.l2.content=inclusive", "cache.l3.content=inclusive", "memory.prefetch_level=0"],
    &["cache.l2.content=exclusive", "cache.l3.content=any", "memory.walk_level=2"],
    &[
        "cache.l2.content=any",
        "cache.l3.content=exclusive",
        "memory.prefetch_level=3",
        "memory.page_cross_cycles=150",
    ],
];

fn equal_to_reference(profile: &Profile, cpus: usize, words: &[u64]) -> Result<(), TestCaseError> {
    let all = run(profile, CacheMode::Exact, &Config::ALL, cpus, words);
    let slowly = |config: Config, walks_use_caches: bool| {
        let mut slow = Reference::new(profile, config, FRAMES, cpus, all.seed);
        slow.data = DataCaches::new(profile, cpus);
        slow.walks_use_caches = walks_use_caches;
        slow.consume(words);
        slow.data.unwrap()
    };
    let ideal = slowly(Config::ALL[0], false);
    for c in all.configs.iter().filter(|c| c.config.mode != Paging::Shadow) {
        let slow = slowly(c.config, true);
        let t = &c.total;
        let misses = [t.l1d_cache_misses, t.l2_cache_misses, t.l3_cache_misses];
        let name = c.config.name();
        prop_assert_eq!(misses, slow.misses, "{} {}", &profile.name, name);
        prop_assert_eq!(t.data_stall_cycles, slow.stall, "{} {}", &profile.name, name);
        prop_assert_eq!(t.walk_cycles, slow.walk_cycles, "{} {}", &profile.name, name);
        prop_assert_eq!(t.ideal_stall_cycles, ideal.stall, "{} {}", &profile.name, name);
        let framed = slowly(c.config, false);
        prop_assert_eq!(t.frames_stall_cycles, framed.stall, "{} {}", &profile.name, name);
        // Frames do not depend on the mode.
        for other in all.configs.iter().filter(|o| o.config.host_page == c.config.host_page) {
            if other.config.mode == Paging::Shadow && c.config.mode == Paging::Nested {
                prop_assert_eq!(other.total.frames_stall_cycles, framed.stall, "{}", &profile.name);
            }
        }
    }
    Ok(())
}

/// A free page of 2 MB that the kernel maps for a program's writes, and entries that are not that.
#[test]
fn a_free_page_of_2_mb_costs_every_configuration_its_first_use() {
    const USER: u64 = 1 << 2;
    const VA: u64 = 0x40_4060_0000;
    let mut stream = Stream::new();
    let root = stream.table(4);
    let at = stream.map(root, VA, 2, 0);
    let leaf = stream.map(root, VA + (1 << 21), 1, 0);
    let stream = stream.start(root);
    let page = 0x200 << 12 | 1 | LARGE;
    let store = |gpa: u64, old: u64, new: u64| Event::PtStore { gpa, old, new };
    let waits = |set: &[&str], caches: CacheMode, events: &[Event<'_>]| {
        let words = stream.clone().and(events).words;
        let out = run(&profile_with("geometry-g", set), caches, &Config::ALL, 1, &words);
        let of = |s: &bifold_model::Sample| {
            [s.data_stall_cycles, s.ideal_stall_cycles, s.frames_stall_cycles].map(|c| c as i64)
        };
        out.configs.iter().map(|c| of(&c.total)).collect::<Vec<_>>()
    };
    let key = ["memory.first_use_2m_cycles=5000"];
    let new = store(at, 0, page | WRITE | USER);
    for caches in [CacheMode::Exact, CacheMode::Sampled] {
        assert!(waits(&key, caches, &[new]).iter().all(|waits| *waits == [5000; 3]));
        let twice = [new, store(at, page | WRITE | USER, 0), new];
        assert!(waits(&key, caches, &twice).iter().all(|waits| *waits == [10_000; 3]));
    }
    for others in [
        store(at, 0, page | USER),
        store(at, 0, page | WRITE),
        store(at, 1 << 8, page | WRITE | USER),
        store(at, 0, (page | WRITE | USER) & !LARGE),
        store(at, 0, (page | WRITE | USER) & !1),
        store(leaf, 0, page | WRITE | USER),
    ] {
        assert!(waits(&key, CacheMode::Exact, &[others]).iter().all(|waits| *waits == [0; 3]), "{others:?}");
    }
    assert!(waits(&[], CacheMode::Exact, &[new]).iter().all(|waits| *waits == [0; 3]));
    let overheads = |set: &[&str]| {
        let words = stream.clone().and(&[new]).words;
        let out = run(&profile_with("geometry-g", set), CacheMode::Exact, &Config::ALL, 1, &words);
        out.configs.iter().map(|c| c.total.data_wait_cycles() + c.total.frame_wait_cycles()).sum::<i64>()
    };
    assert_eq!(overheads(&key), overheads(&[]), "the ideal run waits too");
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn exact_caches_miss_where_the_reference_misses(
        which in 0usize..32, cpus in 1usize..3, ops in ops(1200)
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        equal_to_reference(&profile(which, false, &[]), cpus, &guest.words)?;
    }

    #[test]
    fn so_do_small_caches_of_every_kind(
        which in 0usize..32, kind in 0usize..5, cpus in 1usize..3, ops in ops(1200)
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let p = profile(which, false, &[]);
        prop_assume!(p.cache.len() == 3 && p.cache.iter().all(|c| c.name.len() <= 3));
        equal_to_reference(&profile(which, true, KINDS[kind]), cpus, &guest.words)?;
    }

    #[test]
    fn a_configuration_waits_the_same_alone_and_in_company(
        reorder in any::<bool>(), cpus in 1usize..3, ops in ops(600)
    ) {
        let window = ["cpu.reorder_window=300", "memory.walkers=4", "memory.data_overlap=8.0"];
        let profile = profile(0, true, if reorder { &window } else { &[] });
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        for mode in [CacheMode::Exact, CacheMode::Sampled] {
            let all = run(&profile, mode, &Config::ALL, cpus, &guest.words);
            for (config, in_company) in Config::ALL.into_iter().zip(&all.configs) {
                let alone = run(&profile, mode, &[config], cpus, &guest.words);
                prop_assert_eq!(&alone.configs[0], in_company, "{}", config.name());
            }
        }
    }

    #[test]
    fn counts_without_cycles_are_those_without_caches(ops in ops(600)) {
        let profile = profile(0, false, &[]);
        let mut guest = Guest::new(1);
        guest.run(&ops);
        let off = run(&profile, CacheMode::Off, &Config::ALL, 1, &guest.words);
        let on = run(&profile, CacheMode::Sampled, &Config::ALL, 1, &guest.words);
        for (off, on) in off.configs.iter().zip(&on.configs) {
            prop_assert_eq!(off.refs, on.refs);
            prop_assert_eq!(off.total.tlb_misses(), on.total.tlb_misses());
            prop_assert_eq!(off.total.vmm_cycles, on.total.vmm_cycles);
        }
    }
}

/// Lists of three dependent loads behind a first one, whose pages and table entries lie in lines of their
/// own; ten instructions for each load.
#[test]
fn lists_overlap_where_the_stream_says_that_each_begins_a_chain() {
    let exposed = |first: fn(u64) -> Event<'static>| {
        let mut s = Stream::new();
        let root = s.table(4);
        (0..2000).for_each(|page| _ = s.map(root, page << 15, 1, (0x2000 + page) << 12 | WRITE));
        let list = |n: u64| {
            let at = |i: u64| (4 * n + i) << 15 | (n % 64) << 6;
            [
                first(at(0)),
                Event::LoadDependent(at(1)),
                Event::LoadDependent(at(2)),
                Event::LoadDependent(at(3)),
                Event::Insns(40),
            ]
        };
        let events: Vec<_> = (0..500).flat_map(list).collect();
        let s = s.start(root).and(&events);
        let profile = Profile::load("zen4", &["cpu.reorder_window=320".into()]).unwrap();
        let t = run(&profile, CacheMode::Exact, &[NATIVE], 1, &s.words).configs[0].total;
        let share = |all: u64, hidden: u64| (all - hidden) as f64 / all as f64;
        (share(t.data_stall_cycles, t.data_hidden_cycles), share(t.walk_cycles, t.walk_hidden_cycles))
    };
    // One chain: three of four loads wait in full. Eight lists lie in a window of 320 instructions.
    let (data, walks) = exposed(Event::Load);
    assert!(data > 0.75 && walks > 0.75, "{data} {walks}");
    let (data, walks) = exposed(Event::LoadBeforeChain);
    assert!((0.1..0.2).contains(&data) && (0.1..0.2).contains(&walks), "{data} {walks}");
}

/// Ten rounds over 200 pages, which the second-level TLB holds and the first, of 96 entries, does not.
#[test]
fn a_dependent_load_waits_for_the_second_level_tlb() {
    let stall = |cycles: u64, load: fn(u64) -> Event<'static>| {
        let mut s = Stream::new();
        let root = s.table(4);
        for page in 0..200 {
            s.map(root, page << 12, 1, (0x2000 + page) << 12 | WRITE);
        }
        let loads: Vec<_> = (0..2000).map(|i| load((i % 200) << 12 | (i % 64) << 6)).collect();
        let s = s.start(root).and(&loads);
        let set = [format!("tlb.l1d.miss_cycles={cycles}")];
        let profile = Profile::load("epyc-zen5-guest", &set).unwrap();
        run(&profile, CacheMode::Exact, &[NATIVE], 1, &s.words).configs[0].total.data_stall_cycles
    };
    assert_eq!(stall(17, Event::LoadDependent) - stall(7, Event::LoadDependent), 1800 * 10);
    assert_eq!(stall(17, Event::Load), stall(7, Event::Load));
}

fn generated(what: &str, caches: CacheMode) -> Outcome {
    let generator = Generator::parse(what).unwrap();
    let profile = Profile::load("geometry-g", &[]).unwrap();
    let options = Options { guest_frames: generator.guest_frames(), caches, ..Options::default() };
    let mut model = Model::new(&profile, options);
    generator.run(&mut |words| model.consume(words)).unwrap();
    model.finish()
}

#[test]
fn a_sample_of_sets_tells_the_cycles_within_its_stated_error() {
    let mut within = (0, 0);
    for what in ["t:300000", "t-seq:300000", "t-4m:300000", "pointer-chase:100000", "fork-storm:12"] {
        let (exact, sampled) = (generated(what, CacheMode::Exact), generated(what, CacheMode::Sampled));
        for (e, s) in exact.configs.iter().zip(&sampled.configs) {
            let cycles = |t: &bifold_model::Sample| t.ideal_cycles(0.7) + t.extra_cycles() as f64;
            let off = (cycles(&e.total) - cycles(&s.total)).abs();
            assert!(off <= 0.01 * cycles(&e.total), "{what} {}: {off}", e.config.name());
            let error = s.cache_error.unwrap().half_width_cycles;
            within = (within.0 + usize::from(off <= error + 1.0), within.1 + 1);
        }
    }
    assert!(within.0 * 20 >= within.1 * 18, "{within:?}");
}
