// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::bench::Calm;
use crate::estimate::Estimate;
use crate::rounds::End;
use crate::survey::{Array, Costs, HostPages, Level, Loads, Tlbs};
use crate::told::{ToldCache, ToldTlb};
use bifold_model::Unmeasured;

fn about(median: f64) -> Option<Estimate> {
    Some(Estimate { median, low: median * 0.99, high: median * 1.02, rounds: 15 })
}

/// A machine like the one of development, on a calm day.
fn found() -> Survey {
    let cache = |level: u8, bytes: u64, ways, cycles: f64| Level {
        level,
        bytes,
        reach: Some(Estimate::between(bytes as f64, bytes as f64 * 0.9, bytes as f64 * 1.1, 15)),
        told: Some(ToldCache {
            level,
            bytes,
            ways,
            inclusive: level == 2,
            sharing: if level == 3 { 16 } else { 2 },
        }),
        ways,
        ways_measured: (level == 1).then_some(ways),
        cycles: about(cycles),
    };
    let tlb = |level, entries, ways| ToldTlb { level, data: true, code: false, size: "4K", entries, ways };
    Survey {
        cpu: 1,
        told: Told {
            vendor: "AuthenticAMD".into(),
            family: 0x19,
            model: 0x11,
            stepping: 1,
            name: "AMD EPYC".into(),
            hypervisor: Some("KVMKVMKVM".into()),
            caches: Vec::new(),
            tlbs: vec![tlb(1, 96, 0), tlb(2, 128, 8)],
        },
        rounds: 15,
        most_rounds: 15,
        ended: None,
        not_reached: Vec::new(),
        steal: 0.0,
        busy: None,
        clock: about(3.7e9).unwrap(),
        calm: Calm::default(),
        huge_part: 1.0,
        caches: vec![cache(1, 48 << 10, 12, 4.1), cache(2, 1 << 20, 16, 14.0), cache(3, 32 << 20, 16, 50.0)],
        tlbs: Tlbs {
            l1_4k: Some(Array {
                entries: Estimate::between(96.0, 91.0, 108.0, 15),
                ways: Some(0),
                miss: 7.0,
            }),
            l2_4k: Some(Array {
                entries: Estimate::between(4096.0, 3444.0, 5793.0, 15),
                ways: None,
                miss: 130.0,
            }),
            l1_2m: None,
            host_pages: HostPages::Split,
        },
        kept: None,
        loads: Loads {
            area: 1 << 30,
            memory: about(560.0),
            dependent_2m: about(900.0),
            dependent_4k: about(1500.0),
            independent_2m: about(80.0),
            independent_4k: about(130.0),
            data_overlap: about(15.0),
            walk_overlap: Some(Estimate { median: 12.0, low: 6.0, high: 20.0, rounds: 15 }),
            walk: about(1000.0),
            sequential: about(8.0),
            prefetch_level: 2,
            page_cross: about(290.0),
            streams_stop: false,
        },
        costs: Costs {
            page_fault: about(5000.0),
            page_fault_huge: None,
            first_use_2m: None,
            syscall: about(500.0),
            process_switch: about(6600.0),
            mprotect: about(7600.0),
        },
        warnings: vec!["the machine is busy".into()],
    }
}

#[test]
fn what_is_measured_has_its_spread_and_what_is_not_its_origin() {
    let made = profile(&found(), "mine", "2026-11-22").unwrap();
    assert_eq!(made.base, "zen4");
    assert!(made.text.contains("# Note: the machine is busy.\n"), "{}", made.text);
    let p = Profile::parse(&made.text, "mine", &[]).unwrap();
    assert_eq!((p.name.as_str(), p.cpu.frequency_hz), ("mine", 3_700_000_000));
    assert_eq!(p.processor, [Processor::exactly(&found().told.id())]);
    let tlb = |name: &str| p.tlb.iter().find(|t| t.name == name).unwrap();
    assert_eq!((tlb("l1d").entries, tlb("l1d").ways, tlb("l1d").miss_cycles), (96, 0, Some(7)));
    // CPUID's number of entries contradicts the measurement; its ways stay, and say so.
    assert_eq!((tlb("l2d").entries, tlb("l2d").ways), (4096, 8));
    assert!(tlb("l2d").source.as_ref().unwrap().contains("although CPUID says 128"));
    assert_eq!(tlb("l2d").prior.as_deref(), Some("ways: from CPUID"));
    assert!(tlb("l2i").prior.as_ref().unwrap().starts_with("as zen4's"));
    let m = p.memory.as_ref().unwrap();
    assert_eq!((m.cycles, m.data_overlap, m.prefetch_level), (560, 15.0, 2));
    assert_eq!(m.page_cross_cycles, Some(290));
    assert!(m.source.as_ref().unwrap().contains("cycles 560 (554 to 571)"), "{:?}", m.source);
    // An interval whose ends differ by more than a factor of two is no measurement.
    assert_eq!(m.walk_overlap, 6.0);
    let why =
        "walk_overlap: refused, because the ends of 12.0 (6.0 to 20.0) differ by a factor of 3.3: as zen4's";
    assert!(m.prior.as_ref().unwrap().contains(why), "{:?}", m.prior);
    assert_eq!(p.unmeasured(Unmeasured::Refused), ["memory.walk_overlap"]);
    let shared: Vec<_> = p.cache.iter().map(|c| (c.bytes >> 10, c.cycles, c.shared)).collect();
    assert_eq!(shared, [(48, 4, false), (1024, 14, false), (32768, 50, true)]);
    assert!(p.exit.invlpg.prior.as_ref().unwrap().starts_with("as zen4's, scaled by the clock (1.00): "));
    assert_eq!(p.exit.invlpg.source, None);
}

/// The profile, the keys that were refused and those that were not reached.
fn made(survey: &Survey) -> (Profile, Made, Vec<String>, Vec<String>) {
    let made = profile(survey, "mine", "2026-11-22").unwrap();
    let p = Profile::parse(&made.text, "mine", &[]).unwrap();
    let of = |why| p.unmeasured(why);
    let (refused, not_reached) = (of(Unmeasured::Refused), of(Unmeasured::NotReached));
    let keys = |why| made.unwritten.iter().filter(|u| u.why == why).count();
    let counts = (keys(Unmeasured::Refused), keys(Unmeasured::NotReached));
    assert_eq!((refused.len(), not_reached.len()), counts, "the file says the same: {}", made.text);
    (p, made, refused, not_reached)
}

#[test]
fn a_value_whose_interval_spans_zero_stays_the_base_profile_s() {
    let mut survey = found();
    let zen4 = Profile::load("zen4", &[]).unwrap().memory.unwrap();
    survey.loads.memory = Some(Estimate { median: 568.0, low: -10.0, high: 700.0, rounds: 15 });
    survey.loads.walk_overlap = about(12.0);
    survey.loads.walk = Some(Estimate { median: 1009.0, low: -1976.0, high: 3981.0, rounds: 15 });
    let (p, made, refused, _) = made(&survey);
    let m = p.memory.unwrap();
    assert_eq!((m.cycles, m.walk_overlap, m.data_overlap), (zen4.cycles, zen4.walk_overlap, 15.0));
    assert_eq!(refused, ["memory.cycles", "memory.walk_overlap"]);
    let note = "# Note: memory.cycles was refused, because the interval of 568 (-10 to 700) spans zero; \
                in the profile: as zen4's.\n";
    assert!(made.text.contains(note), "{}", made.text);
    assert!(made.text.contains("for a walk, the interval of 1009 (-1976 to 3981) cycles spans zero"));
}

#[test]
fn the_time_of_a_pages_first_line_fits_the_times_beside_it_and_stays_where_it_is_unknown() {
    let zen4 = Profile::load("zen4", &[]).unwrap().memory.unwrap();
    let cross = |change: &dyn Fn(&mut Survey)| {
        let mut survey = found();
        change(&mut survey);
        let (p, made, ..) = made(&survey);
        (p.memory.unwrap().page_cross_cycles, made.text)
    };
    // The memory's time is the base profile's, 425, and so is the second level's, 14.
    let (most, _) = cross(&|s| {
        s.loads.memory = Some(Estimate { median: 568.0, low: -10.0, high: 700.0, rounds: 15 });
        s.loads.page_cross = about(450.0);
    });
    assert_eq!(most, Some(zen4.cycles));
    let (least, _) = cross(&|s| {
        s.caches[1].cycles = Some(Estimate { median: 11.0, low: 5.0, high: 20.0, rounds: 15 });
        s.loads.page_cross = about(10.0);
    });
    assert_eq!(least, Some(14));
    let (wide, text) = cross(&|s| {
        s.loads.page_cross = Some(Estimate { median: 290.0, low: 100.0, high: 500.0, rounds: 60 });
    });
    assert_eq!(wide, zen4.page_cross_cycles);
    assert!(text.contains("page_cross_cycles: refused"), "{text}");
    let (unknown, _) = cross(&|s| s.loads.page_cross = None);
    assert_eq!(unknown, zen4.page_cross_cycles);
    let (stop, text) = cross(&|s| (s.loads.page_cross, s.loads.streams_stop) = (None, true));
    assert_eq!(stop, None);
    assert!(text.contains("streams stop at each multiple of 4 KB"), "{text}");
}

#[test]
fn an_overlap_without_an_upper_end_is_refused() {
    let mut survey = found();
    survey.loads.walk_overlap = Some(Estimate { median: 88.0, low: 57.0, high: f64::INFINITY, rounds: 60 });
    let (p, made, refused, _) = made(&survey);
    assert_eq!(
        (p.memory.unwrap().walk_overlap, &refused[..]),
        (6.0, &["memory.walk_overlap".to_string()][..])
    );
    assert!(made.notes[0].contains("88.0 (57.0 to inf) has no upper end"), "{:?}", made.notes);
}

#[test]
fn a_value_whose_ends_differ_by_more_than_two_is_refused_in_every_table() {
    let wide = |median: f64| Some(Estimate { median, low: median * 0.6, high: median * 1.3, rounds: 15 });
    let mut survey = found();
    survey.loads.walk_overlap = about(12.0);
    survey.caches[1].cycles = wide(14.0);
    survey.caches[2].reach = wide(20e6);
    survey.caches[2].bytes = 20 << 20;
    survey.kept = wide(6e6);
    survey.costs.mprotect = wide(7600.0);
    survey.costs.page_fault_huge = wide(3e5);
    survey.tlbs.l1_4k.as_mut().unwrap().entries = wide(96.0).unwrap();
    // CPUID's 128 entries lie outside even the wide interval.
    survey.tlbs.l2_4k.as_mut().unwrap().entries = wide(4096.0).unwrap();
    let (p, _, refused, _) = made(&survey);
    let expected = [
        "tlb.l1d.entries",
        "tlb.l2d.entries",
        "cache.l2.cycles",
        "cache.l3.bytes",
        "system.page_fault_huge",
        "system.mprotect",
    ];
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    assert_eq!(refused, expected);
    let zen4 = Profile::load("zen4", &[]).unwrap();
    let entries = |p: &Profile, name: &str| p.tlb.iter().find(|t| t.name == name).unwrap().entries;
    assert_eq!((entries(&p, "l1d"), entries(&p, "l2d")), (96, entries(&zen4, "l2d")));
    assert_eq!(p.cache[1].cycles, zen4.cache[1].cycles);
    assert_eq!(p.cache[2].bytes, 32 << 20, "CPUID's");
    let system = p.system.unwrap();
    assert_eq!((system.mprotect, system.syscall), (None, Some(500)), "zen4 has no costs of its kernel");
}

#[test]
fn the_first_use_of_a_huge_page_costs_what_was_measured_and_nothing_where_that_may_be_nothing() {
    let first_use = |e: Option<Estimate>| {
        let mut survey = found();
        survey.costs.first_use_2m = e;
        let (p, _, refused, _) = made(&survey);
        (p.memory.unwrap().first_use_2m_cycles, refused.iter().any(|key| key == "memory.first_use_2m_cycles"))
    };
    assert_eq!(first_use(about(1.6e7)), (Some(16_000_000), false));
    let between = |low, high| Some(Estimate { median: 1.6e7, low, high, rounds: 15 });
    assert_eq!(first_use(between(-1e4, 3e7)), (None, false));
    assert_eq!(first_use(between(1e7, 3e7)), (None, true));
    assert_eq!(first_use(None), (None, false));
}

#[test]
fn a_refused_clock_leaves_the_base_profile_s_and_scales_nothing() {
    let mut survey = found();
    survey.clock = Estimate { median: 3.7e9, low: 1.2e9, high: 3.9e9, rounds: 100 };
    let (p, _, refused, _) = made(&survey);
    let zen4 = Profile::load("zen4", &[]).unwrap();
    assert_eq!((p.cpu.frequency_hz, p.exit.invlpg.cycles), (zen4.cpu.frequency_hz, zen4.exit.invlpg.cycles));
    assert_eq!(refused[0], "cpu.frequency_hz");
}

#[test]
fn a_survey_that_the_limit_ended_keeps_what_is_complete() {
    let mut survey = found();
    survey.ended = Some(End::Limit);
    survey.not_reached = vec![Part::Caches, Part::Loads, Part::Kept];
    (survey.caches, survey.loads, survey.kept) = (Vec::new(), Loads::default(), None);
    let (p, made, refused, not_reached) = made(&survey);
    let zen4 = Profile::load("zen4", &[]).unwrap();
    let times = |p: &Profile| p.cache.iter().map(|c| c.cycles).collect::<Vec<_>>();
    assert_eq!((times(&p), p.memory.as_ref().unwrap().cycles), (times(&zen4), zen4.memory.unwrap().cycles));
    assert!(p.cache.iter().all(|c| c.source.is_none()));
    assert_eq!(p.system.as_ref().unwrap().syscall, Some(500));
    assert!(refused.is_empty());
    let streams = "memory.page_cross_cycles";
    for key in ["cache.l1d.bytes", "cache.l3.cycles", "memory.cycles", "memory.prefetch_level", streams] {
        assert!(not_reached.contains(&key.to_string()), "{not_reached:?}");
    }
    assert!(
        !not_reached.iter().any(|k| k.starts_with("tlb.") || k.starts_with("system.")),
        "{not_reached:?}"
    );
    assert_eq!(made.notes.len(), 1);
    assert!(made.notes[0].starts_with("not reached, because --limit ended the survey"), "{:?}", made.notes);
    // The words for a signal differ from those for the limit, and earlier parts may be missing too.
    survey.ended = Some(End::Stopped);
    survey.not_reached = vec![Part::Tlbs, Part::Caches, Part::Loads, Part::Kept];
    survey.tlbs = Tlbs::default();
    let (p, made, _, not_reached) = self::made(&survey);
    assert!(not_reached.contains(&"tlb.l2d.entries".to_string()), "{not_reached:?}");
    assert_eq!(p.tlb.iter().find(|t| t.name == "l2d").unwrap().entries, 128, "CPUID's");
    assert!(made.notes[0].contains("a signal ended the survey"), "{:?}", made.notes);
}

#[test]
fn measured_times_that_do_not_fit_the_base_profile_s_are_refused_with_them() {
    let mut survey = found();
    survey.loads.walk_overlap = about(12.0);
    survey.caches[2].cycles = about(900.0);
    survey.loads.memory = Some(Estimate { median: 1500.0, low: 500.0, high: 2000.0, rounds: 15 });
    let (p, made, refused, _) = made(&survey);
    let zen4 = Profile::load("zen4", &[]).unwrap();
    assert_eq!((p.cache[2].cycles, p.cache[0].cycles), (zen4.cache[2].cycles, zen4.cache[0].cycles));
    assert_eq!(refused.iter().filter(|k| k.ends_with(".cycles")).count(), 4, "{refused:?}");
    assert!(made.text.contains("contradicts another value (memory.cycles must exceed"), "{}", made.text);
}

#[test]
fn a_last_level_that_keeps_less_beside_misses_has_what_it_keeps() {
    let l3 = |kept: f64| {
        let mut survey = found();
        survey.kept = about(kept * f64::from(1 << 20));
        let made = profile(&survey, "mine", "2026-11-22").unwrap();
        let l3 = Profile::parse(&made.text, "mine", &[]).unwrap().cache[2].clone();
        (l3.bytes >> 20, l3.source.unwrap())
    };
    // Victims only: what the second level holds is not here.
    let (mib, source) = l3(6.0);
    assert_eq!(mib, 5);
    assert!(
        source.contains("beside memory misses 6144 (6083 to 6267) KB of all levels stay, 5120 KB"),
        "{source}"
    );
    assert_eq!(l3(1.2).0, 1, "no smaller than the second level");
    let (mib, source) = l3(60.0);
    assert!(mib == 32 && !source.contains("beside"), "{source}");
}

#[test]
fn measured_values_that_contradict_each_other_are_refused_with_their_keys() {
    let mut busy = found();
    busy.caches[2].cycles = about(13.0);
    let e = profile(&busy, "mine", "2026-11-22").unwrap_err().to_string();
    assert!(e.contains("cache.l3.cycles must exceed cache.l2.cycles"), "{e}");
    let mut busy = found();
    busy.loads.memory = about(40.0);
    let e = profile(&busy, "mine", "2026-11-22").unwrap_err().to_string();
    assert!(e.contains("memory.cycles must exceed"), "{e}");
}

#[test]
fn every_nearest_profile_exists() {
    let mut told = Told { family: 6, ..Told::default() };
    for vendor in ["GenuineIntel", "AuthenticAMD", ""] {
        told.vendor = vendor.into();
        for model in 0..=0xff {
            told.model = model;
            assert!(Profile::builtin_text(nearest(&told)).is_some(), "{vendor} {model:#x}");
        }
    }
    for (vendor, family, model, expected) in [
        ("AuthenticAMD", 0x19, 0x11, "zen4"),
        ("AuthenticAMD", 0x1a, 2, "zen5"),
        ("AuthenticAMD", 0x17, 0x31, "zen5"),
        ("GenuineIntel", 6, 0xcf, "emerald-rapids"),
        ("GenuineIntel", 6, 0x97, "granite-rapids"),
    ] {
        (told.vendor, told.family, told.model) = (vendor.into(), family, model);
        assert_eq!(nearest(&told), expected, "{vendor} {family:#x} {model:#x}");
    }
}

#[test]
fn every_measured_value_is_a_row() {
    let rows = found().findings();
    let row = |name: &str| rows.iter().find(|r| r.name == name).unwrap();
    assert_eq!(row("memory, load to use").measured.unwrap().median, 560.0);
    assert_eq!(row("page fault, 2 MB").measured, None);
    assert_eq!(row("L2 TLB, 4 KB pages").told, Some(128));
    assert!(found().remarks().iter().any(|r| r.contains("in pages of 4 KB")));
}

#[test]
fn days_have_their_dates() {
    for (days, date) in
        [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (11_016, (2000, 2, 29)), (20_779, (2026, 11, 22))]
    {
        assert_eq!(civil(days), date, "{days}");
    }
}
