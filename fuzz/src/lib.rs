// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bodies of the fuzz targets, as plain functions, so that a stable
//! compiler can run them too (`cargo test` in this folder).
//!
//! Each takes any bytes as input that someone else wrote, and panics only when
//! Bifold has a bug: a panic of its own, or a promise broken.
//!
//! ```text
//! cargo +nightly fuzz run --features libfuzzer recording
//! ```
#![forbid(unsafe_code)]

use bifold_host::{PagingStats, State, VmId};
use bifold_mmu::PageSize;
use bifold_model::Sample;
use bifold_policy::{Estimator, Log, Mode, Named, Other, Scale, Setup, Timeline, Track, View, VmKind};
use bifold_report::Format;
use bifold_report::diff::{Diff, Side};
use bifold_share::fingerprint::Part;
use bifold_share::image::Image;

/// Event words: what can be read is written back the same.
pub fn events(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    let (mut at, mut again) = (0, Vec::new());
    while let Ok((event, n)) = bifold_trace::decode(&words[at..], at) {
        let start = again.len();
        event.encode(&mut again);
        // Payload bits that an event has no use for (`Cr3Read`) are not kept.
        assert_eq!(again.len() - start, n, "{event:?}");
        let (same, _) =
            bifold_trace::decode(&again[start..], start).expect("what was encoded can be decoded");
        assert_eq!(same, event);
        at += n;
    }
}

/// What a guest's kernel, compilers and files say of addresses: whatever it is, no cost is lost.
pub fn attribution(data: &[u8]) {
    use bifold_attribute::{Attribution, Metric, elf};
    use bifold_mmu::Gva;
    use bifold_model::{Charge, Config, Costs, Place};
    let mut attribution = Attribution::new(&Config::ALL[..1]);
    let cost = Costs { tlb_misses: 1, walk_cycles: 2, exits: 3, vmm_cycles: 4 };
    let mut charged = Costs::default();
    for (i, part) in data.chunks(256).enumerate() {
        let (stream, number) = (1 + i as u64 % 3, i as u64 % 5);
        attribution.take(Charge::Log { stream, number, bytes: part });
        // Addresses that the bytes may have told of.
        for word in part.chunks_exact(8).take(4) {
            let at = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            let place = Place { vcpu: i % 3, code: Gva(at), data: Some(Gva(at.rotate_left(9))), size: None };
            attribution.take(Charge::Cost(place, &[cost]));
            charged.add(&cost);
        }
    }
    let costs = attribution.finish();
    assert_eq!(costs.totals(), [charged]);
    let stacks = costs.folded(0, Metric::Exits);
    let exits =
        stacks.lines().map(|l| l.rsplit_once(' ').expect("a count").1.parse::<u64>().expect("a number"));
    assert_eq!(exits.sum::<u64>(), charged.exits);
    assert!(stacks.lines().all(|l| l.matches(';').count() == 3), "{stacks}");
    let offsets = [0, 0x1000, 0x1234, u64::MAX].into();
    if let Ok(names) = elf::functions_in(data, None, &offsets) {
        assert!(names.keys().all(|o| offsets.contains(o)));
    }
}

/// Event words again, as a whole stream that is thinned to a sample: what is left are events.
pub fn thin(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    let windows = bifold_trace::Windows { window: 5, warm_up: 5, period: 50, seed: words.len() as u64 };
    let mut out = Vec::new();
    if bifold_trace::Thin::new(windows).take(&words, &mut out).is_ok() {
        let mut at = 0;
        while at < out.len() {
            at += bifold_trace::decode(&out[at..], at).expect("whole events are left").1;
        }
    }
}

/// A recording's bytes: any of it, and the contents of a block with the checksum right.
pub fn recording(data: &[u8]) {
    if let Ok(mut reader) = bifold_trace::Reader::from_read("fuzz", std::io::Cursor::new(data.to_vec())) {
        let (mut block, mut blocks) = (Vec::new(), 0);
        while let Ok(true) = reader.next_block(&mut block) {
            blocks += 1;
            assert!(blocks <= data.len() / 24, "a block has a head of 24 bytes");
        }
    }
    if let [low, high, bytes @ ..] = data {
        let count = usize::from(u16::from_le_bytes([*low, *high]));
        if let Some(words) = bifold_trace::codec::decode_any(bytes, count) {
            assert_eq!(words.len(), count);
        }
    }
}

/// A generator's name: an error, or a stream that begins.
pub fn generator(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match bifold_trace::Generator::parse(text) {
        Err(e) => assert!(e.to_string().len() < text.len() * 2 + 200),
        Ok(g) => {
            assert_eq!(bifold_trace::Generator::parse(&g.to_string()), Ok(g));
            let stopped = g.run(&mut |words| if words.is_empty() { Ok(()) } else { Err("enough") });
            assert_eq!(stopped, Err("enough"));
        }
    }
}

/// A hardware profile: an error, or one that is read.
pub fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // What follows a line of dashes are overrides, one a line.
    let (text, overrides) = text.split_once("\n---\n").unwrap_or((text, ""));
    let overrides: Vec<String> = overrides.lines().map(Into::into).collect();
    let _ = bifold_model::Profile::parse(text, "fuzz", &overrides);
}

/// A result: an error that is one line, or a side that does not differ from itself.
pub fn result(data: &[u8]) {
    match Side::from_json("fuzz", data) {
        Err(e) => {
            let text = e.to_string();
            assert!(
                text.starts_with("fuzz") && text.len() < 40_000 && !text.contains(char::is_control),
                "{text}"
            );
        }
        Ok(side) => {
            let diff = Diff::new(side.clone(), side).expect("a side has its own configurations");
            let table = diff.render(Format::Table).expect("a table is only text");
            assert!(table.contains("A and B agree in every counter."), "{table}");
            assert!(!table.chars().any(|c| c.is_control() && c != '\n'));
            diff.render(Format::Json).expect("all values are numbers and texts");
            diff.render_html().expect("the template takes any text");
        }
    }
}

/// A timeline: an error, or one over which policies can be replayed.
pub fn timeline(data: &[u8]) {
    timeline_file(data);
    // Chance does not make the frames of a compressor.
    timeline_file(&zstd::encode_all(data, 1).expect("memory takes what is written"));
}

fn timeline_file(bytes: &[u8]) {
    let Ok(timeline) = Timeline::from_bytes(bytes, std::path::Path::new("fuzz")) else { return };
    // The oracle takes the square of the intervals.
    if timeline.intervals() > 64 {
        return;
    }
    let policies = ["regret", "rpms-dynamic"].map(|n| Named::load(n).expect("it is built in"));
    for host_page in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
        for (long_lived, keep_nested) in [(false, false), (false, true), (true, false), (true, true)] {
            let vm = VmKind { host_page, long_lived, keep_nested };
            let Some(track) = Track::new(&timeline, vm) else { continue };
            for start in Mode::BOTH {
                let best = bifold_policy::oracle(&track, start, 100.0);
                assert_eq!(best.modes.len(), timeline.intervals());
                for (named, estimator) in policies.iter().zip([None, Some(Estimator::fitted())]) {
                    let setup = Setup { start, scale: Scale::both(100.0), estimator };
                    let run = bifold_policy::replay(&track, &named.spec, &setup, true);
                    assert_eq!(run.modes.len(), timeline.intervals());
                }
            }
        }
    }
    let _ = bifold_policy::replay_check::checks(&timeline);
}

/// A policy's parameters: an error, or a policy that decides, whatever it sees.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(named) = Named::parse("fuzz", text) else { return };
    let sample = |n: u64, walk_cycles, vmm_cycles| Sample {
        instructions: n,
        tlb_misses_4k: n / 100,
        guest_page_faults: n / 1000,
        exits_hidden_fault: n / 500,
        walk_cycles,
        vmm_cycles,
        ..Sample::default()
    };
    let most = 1 << 53;
    let samples = [
        sample(1_000_000, 300_000, 0),
        sample(1_000_000, 0, 300_000),
        sample(0, 0, 20_000),
        sample(most, most, 1),
    ];
    let others = [
        None,
        Some(Other { extra_cycles: 0.0, there_cycles: 0.0, back_cycles: 0.0 }),
        Some(Other { extra_cycles: 600_000.0, there_cycles: 20_000.0, back_cycles: f64::INFINITY }),
    ];
    for start in Mode::BOTH {
        let mut policy = named.spec.policy(start);
        let (mut mode, mut log) = (start, Log::on());
        for i in 0..24 {
            let sample = &samples[i / 2 % samples.len()];
            let cycles = (sample.instructions + sample.extra_cycles()) as f64 * ((i + 1) % 8) as f64;
            mode = policy.decide(&View { mode, sample, cycles, load: 1.0, other: others[i % 3] }, &mut log);
            assert!(!log.take().is_empty(), "every decision is explained");
        }
    }
}

/// Coefficients of the estimate: an error, or estimates that are costs.
pub fn estimator(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(estimator) = Estimator::parse(text) else { return };
    for counts in [0, 1, 1 << 53] {
        let sample = Sample::from_values([counts; Sample::COUNTERS.len()]);
        for mode in Mode::BOTH {
            let o = estimator.other(mode, &sample, 100.0);
            assert!(o.extra_cycles >= 0.0 && o.there_cycles >= 0.0 && o.back_cycles >= 0.0, "{o:?}");
        }
    }
}

/// What a live host's files say of a VM: nothing, or what is written back the same.
pub fn host(data: &[u8]) {
    let stats = PagingStats::parse(data);
    let values = stats.values();
    let known = PagingStats::STATS.iter().zip(values).filter_map(|(s, v)| Some((s.name, v?)));
    let text: String = known.map(|(name, value)| format!("{name} {value}\n")).collect();
    assert_eq!(PagingStats::parse(text.as_bytes()), stats);
    // A file that was cut off has no figure that the whole has not.
    for (part, whole) in PagingStats::parse(&data[..data.len() / 2]).values().iter().zip(values) {
        assert!(part.is_none() || *part == whole);
    }
    if let Some(state) = State::parse(data) {
        assert_eq!(State::parse(state.to_string().as_bytes()), Some(state));
    }
    if let Some(id) = std::str::from_utf8(data).ok().and_then(VmId::parse) {
        assert_eq!(id.to_string().as_bytes(), data);
    }
    assert_ne!(bifold_host::guest_name(data), Some(String::new()));
}

/// What KSM's files and the journal of its settings say.
pub fn ksm(data: &[u8]) {
    use bifold_host::ksm::{Journal, ProcessKsm, Setting};
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(journal) = Journal::parse(text) {
        assert!(journal.found.get(Setting::Run).is_some_and(|run| run < 3));
        assert_eq!(Journal::parse(&journal.text()), Ok(journal));
    }
    for setting in Setting::ALL.iter().copied() {
        if let Some(value) = setting.parse(text) {
            assert_eq!(setting.parse(&setting.text(value)), Some(value));
        }
    }
    // A file that was cut within a line may have a shorter number, never another figure's.
    let (whole, first) = (ProcessKsm::parse(text), text.lines().next().unwrap_or_default());
    if text.lines().count() < 2 {
        assert_eq!(ProcessKsm::parse(first), whole);
    }
}

/// The text of a process's `smaps`: areas of whole pages that have the flag of mergeable memory.
pub fn smaps(data: &[u8]) {
    use bifold_host::ksm::mergeable_areas;
    let text = String::from_utf8_lossy(data);
    let areas = mergeable_areas(&text);
    assert!(areas.len() <= text.matches("VmFlags:").count());
    for a in &areas {
        assert!(a.start < a.end && a.start % 4096 == 0 && a.end % 4096 == 0, "{a:?}");
    }
    // Lines that smaps may get one day change nothing.
    let more: String = text.lines().map(|line| format!("{line}\nNew: 7 kB\n")).collect();
    assert_eq!(mergeable_areas(&more), areas);
}

/// An experiment's file: refused with file and field, or a plan whose guests are as many and as large as
/// the scale makes them.
pub fn experiment(data: &[u8]) {
    use bifold_host::MemInfo;
    use bifold_trial::experiment::{Rate, Spec};
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = (MemInfo::parse(text), Rate::parse(text).map(Rate::value));
    let path = std::path::Path::new("fuzz.toml");
    match Spec::parse(path, text) {
        Err(e) => assert!(e.to_string().starts_with("fuzz.toml: ")),
        Ok(spec) => {
            let guests: u32 = spec.guests.iter().map(|g| g.count).sum();
            if let Ok(plan) = spec.plan(path, Rate { of: 1, parts: 2 }, &[]) {
                assert_eq!(plan.guests.len() as u32, guests);
                assert!(!plan.cases.is_empty());
            }
        }
    }
}

/// A dump of a guest: refused, or runs of whole pages in order of which each is in the file.
pub fn image(data: &[u8]) {
    let Ok(image) = Image::of_content("fuzz", data.to_vec()) else { return };
    let mut next = 0;
    for run in image.runs() {
        assert!(run.gfn >= next && run.pages() > 0 && run.bytes.end <= data.len(), "{run:?}");
        next = run.gfn + run.pages();
    }
    assert_eq!(image.pages().count() as u64, image.len());
    let p = bifold_share::potential::count(&[image], &Default::default()).expect("memory does not change");
    let c = p.small;
    assert_eq!(c.pages, c.zero + c.minimum + c.intra + c.inter);
}

/// A result of `share count`: refused, or written back the same.
pub fn share_part(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(part) = Part::parse(text) else { return };
    assert_eq!(Part::parse(&part.render()).as_ref(), Ok(&part));
    let _ = bifold_share::fingerprint::merge(vec![("fuzz".into(), part)], 5);
}

#[cfg(test)]
mod tests {
    use bifold_mmu::PageSize;
    use bifold_model::ages::Reuse;
    use bifold_model::{Sample, SwitchedOutcome, Switching};
    use bifold_policy::Timeline;
    use bifold_policy::timeline::{About, Pair, StaticRun, SwitchCosts};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        // Small kinds and levels more often than chance would have them.
        let word = prop_oneof![
            any::<u64>(),
            (0u64..24, any::<u64>()).prop_map(|(k, p)| k << 57 | p >> 7),
            (0u64..64).prop_map(|p| 16 << 57 | p),
        ];
        proptest::collection::vec(word, 0..1200)
            .prop_map(|words| words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    proptest! {
        #[test]
        fn any_words_are_events_or_refused(data in bytes()) {
            super::events(&data);
        }

        #[test]
        fn any_bytes_are_attributed_whole(data in bytes(), at in 0usize..20_000, value: u8) {
            super::attribution(&data);
            // A program with one byte changed and its end cut off.
            let mut program = std::fs::read("/proc/self/exe").unwrap();
            program.truncate(1 << 16);
            program[at] = value;
            super::attribution(&program);
        }

        #[test]
        fn any_words_are_thinned_or_refused(data in bytes()) {
            super::thin(&data);
        }

        #[test]
        fn any_bytes_are_a_recording_or_refused(data in bytes()) {
            super::recording(&data);
            let mut with_magic = bifold_trace::file::MAGIC.to_vec();
            with_magic.extend(bifold_trace::file::VERSION.to_le_bytes());
            with_magic.extend(data);
            super::recording(&with_magic);
        }

        #[test]
        fn any_text_is_a_generator_or_refused(text in "(t|t-seq|t-4m|fork-storm|[a-z-]{0,9}):?[0-9kmgKMG.+-]{0,30}") {
            super::generator(text.as_bytes());
        }

        #[test]
        fn any_text_is_a_profile_or_refused(text in "\\PC{0,200}", value in "\\PC{0,30}", line in 0usize..400) {
            super::profile(text.as_bytes());
            for (_, good) in PROFILES {
                let mut lines: Vec<&str> = good.lines().collect();
                let at = line % lines.len();
                let changed = lines[at].split_once('=').map_or(value.clone(), |(k, _)| format!("{k}= {value}"));
                lines[at] = &changed;
                super::profile(lines.join("\n").as_bytes());
                let cut = good.char_indices().map(|c| c.0).nth(line * 7).unwrap_or(0);
                super::profile(&good.as_bytes()[..cut]);
                super::profile(format!("{good}\n---\n{changed}\n").as_bytes());
            }
        }
    }

    const EXPERIMENTS: [&str; 4] = [
        include_str!("../../experiments/share/database.toml"),
        include_str!("../../experiments/share/ksm-settings.toml"),
        include_str!("../../experiments/share/mixed.toml"),
        include_str!("../../experiments/share/synthetic.toml"),
    ];

    proptest! {
        #[test]
        fn any_text_is_an_experiment_or_refused(
            text in "\\PC{0,200}", value in "(\\PC{0,30}|-?[0-9]{1,20}|1/[0-9]{1,5}|\"[a-z]{0,9}\")", line in 0usize..400,
        ) {
            super::experiment(text.as_bytes());
            super::experiment(value.as_bytes());
            for good in EXPERIMENTS {
                super::experiment(good.as_bytes());
                let mut lines: Vec<&str> = good.lines().collect();
                let at = line % lines.len();
                let changed = lines[at].split_once('=').map_or(value.clone(), |(k, _)| format!("{k}= {value}"));
                lines[at] = &changed;
                super::experiment(lines.join("\n").as_bytes());
            }
        }
    }

    /// An ELF core of one segment, whose header a number can change.
    fn core(pages: usize) -> Vec<u8> {
        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        out.extend([4u16, 62].iter().flat_map(|h| h.to_le_bytes()));
        out.extend(1u32.to_le_bytes());
        out.extend([0u64, 64, 0].iter().flat_map(|w| w.to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend([64u16, 56, 1, 0, 0, 0].iter().flat_map(|h| h.to_le_bytes()));
        out.extend([1u32, 0].iter().flat_map(|w| w.to_le_bytes()));
        let size = 4096 * pages as u64;
        out.extend([120, 0, 0x3000, size, size, 0u64].iter().flat_map(|w| w.to_le_bytes()));
        out.resize(120 + size as usize, 9);
        out
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_guests_memory_or_refused(
            data in bytes(), magic in prop::sample::select(vec![&b"\x7fELF"[..], b"KDUMP   ", b"\x1f\x8b", b"PAR1", b""]),
            changes in prop::collection::vec((0usize..120, number()), 0..4), cut in any::<prop::sample::Index>(),
        ) {
            let mut with_magic = magic.to_vec();
            with_magic.extend(&data);
            super::image(&with_magic);
            super::image(&vec![3; data.len() / 64 * 4096]);
            let mut core = core(2);
            super::image(&core);
            for (at, value) in changes {
                for (byte, new) in core[at..120].iter_mut().zip(value.as_u64().unwrap_or(7).to_le_bytes()) {
                    *byte = new;
                }
            }
            super::image(&core);
            super::image(&core[..cut.index(core.len())]);
        }

        #[test]
        fn any_text_is_a_part_of_a_count_or_refused(
            text in "\\PC{0,200}", changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 0..4),
        ) {
            super::share_part(text.as_bytes());
            let mut part: Value = serde_json::from_str(PART).unwrap();
            super::share_part(PART.as_bytes());
            assert!(bifold_share::fingerprint::Part::parse(PART).is_ok());
            for (at, new) in changes {
                let mut all = leaves(&mut part);
                let i = at.index(all.len());
                *all[i] = new;
            }
            super::share_part(part.to_string().as_bytes());
        }
    }

    const PART: &str = r#"{"schema":"bifold.share-count/1","version":1,"key_id":"unkeyed","bits":128,"parts":1,
        "part":0,"guests":[{"guest":"a","pages_4k":{"pages":3,"zero":1,"minimum":1,"intra":1,"inter":0},
        "pages_2m":{"pages":0,"zero":0,"minimum":0,"intra":0,"inter":0},"contents":1,"contents_with_others":0}],
        "most_repeated":[{"fingerprint":"0011","pages":2,"guests":1}],"contents_in_common":[[1]]}"#;

    /// A timeline with all that one can have, and little of it.
    fn small_timeline() -> Vec<u8> {
        let sample = |i: u64| Sample {
            instructions: 1_000_000,
            tlb_misses_4k: 10_000 * (i % 3),
            guest_page_faults: 100 * (i % 2),
            walk_cycles: 300_000 * (i % 3),
            vmm_cycles: 200_000 * (i % 2),
            shadow_pages_made: 8,
            shadow_pages_zapped: 4,
            exits_violation: 9,
            first_touch_cycles: 20_000 * (i % 2),
            ..Sample::default()
        };
        let run = || StaticRun {
            samples: (0..12).map(sample).collect(),
            reuse: (0..12).map(|i| vec![Reuse { last: i, made: i + 1, exits: 40, tables: 2 }; 2]).collect(),
        };
        let switching = Switching {
            name: "toggle".into(),
            host_page: PageSize::Size4K,
            start: bifold_model::Paging::Nested,
            keep_nested: true,
        };
        let timeline = Timeline {
            about: About {
                program: "small".into(),
                guest: String::new(),
                bifold: "0".into(),
                profile: "none".into(),
                config_hash: "0".into(),
                input_hash: "0".into(),
                frequency_hz: 100_000_000,
                base_cpi: 1.0,
                vcpus: 1,
                guest_frames: 5120,
                interval_cycles: 1_000_000,
                time_scale: Some(100.0),
            },
            costs: SwitchCosts {
                switch: 9000,
                hidden_fault: 2000,
                violation: 3000,
                make_page: 500,
                zap_page: 90,
            },
            pairs: [PageSize::Size4K, PageSize::Size2M]
                .map(|host_page| Pair { host_page, runs: [run(), run()] })
                .into(),
            switched: vec![SwitchedOutcome {
                switching,
                modes: vec![bifold_model::Paging::Shadow; 12],
                intervals: (0..12).map(sample).collect(),
            }],
        };
        let bytes = timeline.to_bytes();
        assert_eq!(Timeline::from_bytes(&bytes, "small".as_ref()).unwrap(), timeline);
        zstd::decode_all(&bytes[..]).unwrap()
    }

    /// What a diff reads of a result, of one run or of two.
    fn small_result(several: bool) -> Value {
        let total: serde_json::Map<String, Value> = Sample::COUNTERS
            .iter()
            .enumerate()
            .map(|(i, c)| (c.name.into(), (1000 * i + 7).into()))
            .collect();
        let config = |mode: &str| json!({ "name": mode, "mode": mode, "host_page": "4K", "total": total });
        let one = json!({
            "schema": "bifold.compare/1", "bifold": "0", "input": { "kind": "guest" }, "partial": null,
            "guest": { "command": ["a", "b c"], "timing": "exact", "vcpus": 1, "kpti": true, "thp": "never",
                       "memory_mib": 256, "root": "host", "kernel": "6.1", "qemu": "10" },
            "checks": { "made": 3, "failed": 0 },
            "outcome": { "profile": "p", "frequency_hz": 1_000_000_000, "base_cpi": 0.7, "seed": 1,
                         "config_hash": "1", "input_hash": "2", "interval_cycles": 1000,
                         "configs": [config("native"), config("nested")] },
        });
        if several { json!({ "schema": "bifold.runs/1", "runs": [one, one] }) } else { one }
    }

    /// All values of a document that have none within.
    fn leaves(value: &mut Value) -> Vec<&mut Value> {
        if value.as_array().is_some_and(|a| !a.is_empty()) {
            value.as_array_mut().unwrap().iter_mut().flat_map(leaves).collect()
        } else if value.as_object().is_some_and(|o| !o.is_empty()) {
            value.as_object_mut().unwrap().values_mut().flat_map(leaves).collect()
        } else {
            vec![value]
        }
    }

    /// A number, mostly at some edge.
    fn number() -> impl Strategy<Value = Value> {
        let whole =
            prop_oneof![Just(0), 0u64..300, (0u32..64).prop_map(|b| 1 << b), Just(1 << 53), Just(u64::MAX)];
        let real = prop_oneof![any::<f64>(), Just(-1.0), Just(0.5), Just(1e308), Just(1e-308)];
        prop_oneof![3 => whole.prop_map(Value::from), 1 => real.prop_map(Value::from)]
    }

    /// What may stand behind a `=` in TOML, and what may not.
    fn toml_value() -> impl Strategy<Value = String> {
        let edge = prop::sample::select(vec![
            "0.0", "-1.0", "1.0", "nan", "inf", "-inf", "1e308", "1e-308", "[]", "{}",
        ]);
        prop_oneof![
            4 => edge.prop_map(String::from),
            2 => any::<f64>().prop_map(|x| format!("{x:?}")),
            2 => (0u64..2000).prop_map(|x| x.to_string()),
            1 => any::<i64>().prop_map(|x| x.to_string()),
            1 => "\\PC{0,30}",
        ]
    }

    /// A good text in which a line's value is another, a line is left out, or the rest is.
    fn changed_lines(good: &str, line: usize, value: &str, then: impl Fn(&[u8])) {
        let lines: Vec<&str> = good.lines().collect();
        // Comments are of no interest.
        let with_values: Vec<usize> = (0..lines.len()).filter(|i| !lines[*i].starts_with('#')).collect();
        let at = with_values[line % with_values.len()];
        let changed = lines[at].split_once('=').map_or(value.into(), |(k, _)| format!("{k}= {value}"));
        let with = |new: Option<&str>, rest: &[&str]| {
            let all: Vec<&str> = lines[..at].iter().copied().chain(new).chain(rest.iter().copied()).collect();
            then(all.join("\n").as_bytes());
        };
        with(Some(&changed), &lines[at + 1..]);
        with(None, &lines[at + 1..]);
        with(None, &[]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_timeline_or_refused(data in bytes(), text in "\\PC{0,200}") {
            super::timeline(&data);
            super::timeline(text.as_bytes());
        }

        #[test]
        fn a_timeline_with_values_changed_is_replayed_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..4),
            part in prop::sample::select(vec!["", "cycles", "exits", "instructions", "pages"]),
            every in number(), cost in number(),
            at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let good = small_timeline();
            let mut document: Value = serde_json::from_slice(&good).unwrap();
            for (at, new) in changes {
                let mut all = leaves(&mut document);
                let i = at.index(all.len());
                *all[i] = new;
            }
            super::timeline(&serde_json::to_vec(&document).unwrap());
            let mut document: Value = serde_json::from_slice(&good).unwrap();
            // All of a kind: sums overflow before single numbers do.
            for (key, value) in document["pairs"][0]["shadow"]["counters"]["values"].as_object_mut().unwrap() {
                if key.contains(part) {
                    leaves(value).into_iter().for_each(|v| *v = every.clone());
                }
            }
            leaves(&mut document["costs"]).into_iter().for_each(|v| *v = cost.clone());
            super::timeline(&serde_json::to_vec(&document).unwrap());
            let mut bytes = good;
            let i = at.index(bytes.len());
            bytes[i] = byte;
            super::timeline(&bytes);
            super::timeline(&bytes[..i]);
        }

        #[test]
        fn any_bytes_are_a_result_or_refused(
            data in bytes(), text in "\\PC{0,200}",
            changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..4),
            word in "\\PC{0,20}|\u{1b}\\[31m", at in any::<prop::sample::Index>(), byte in any::<u8>(),
            several in any::<bool>(),
        ) {
            super::result(&data);
            super::result(text.as_bytes());
            let good = small_result(several);
            assert!(super::Side::from_json("good", good.to_string().as_bytes()).is_ok());
            let mut document = good.clone();
            for (at, new) in changes {
                let mut all = leaves(&mut document);
                let i = at.index(all.len());
                *all[i] = if new.as_u64() == Some(0) { word.clone().into() } else { new };
            }
            super::result(document.to_string().as_bytes());
            let mut bytes = good.to_string().into_bytes();
            let i = at.index(bytes.len());
            bytes[i] = byte;
            super::result(&bytes);
            super::result(&bytes[..i]);
        }

        #[test]
        fn any_bytes_are_a_hosts_files_or_say_nothing(
            data in bytes(), text in "\\PC{0,200}",
            lines in "((switches_to_(shadow|nested)|vcpus|quiesce_ns_(last|worst)|x) [0-9]{0,22}[ x]?\n?){0,20}",
            state in "(nested|shadow| -> |\n){0,4}", id in "[0-9+]{0,11}-[0-9]{0,3}",
            cmdline in "(-name|--name|guest=|a|,|=|\0){0,12}",
        ) {
            super::host(&data);
            for text in [text, lines, state, id, cmdline] {
                super::host(text.as_bytes());
            }
        }

        #[test]
        fn any_text_is_what_ksm_says_or_nothing(
            journal in "(bifold-ksm 1\n)?(pid [0-9]{1,4}\n|run [0-4]\n|advisor_mode [a-z-]{1,9}\n|end\n){0,6}",
            figures in "(ksm_[a-z_]{1,14}:? (yes|no|-?[0-9]{1,21})\n){0,4}",
            areas in "(([1-4]000-[2-5]00[01] rw-p 0 0:0 0|Rss: [0-9]{0,21} kB|AnonHugePages: 4 kB|VmFlags: rd( mg)?)\n){0,9}",
            data in bytes(),
        ) {
            super::ksm(&data);
            super::ksm(journal.as_bytes());
            super::ksm(figures.as_bytes());
            super::smaps(&data);
            super::smaps(areas.as_bytes());
        }

        #[test]
        fn any_text_is_a_policy_or_refused(text in "\\PC{0,200}", value in toml_value(), line in 0usize..400) {
            super::policy(text.as_bytes());
            for (_, good) in bifold_policy::spec::BUILT_IN {
                super::policy(good.as_bytes());
                changed_lines(good, line, &value, super::policy);
            }
        }

        #[test]
        fn any_text_is_an_estimator_or_refused(text in "\\PC{0,200}", value in toml_value(), line in 0usize..400) {
            super::estimator(text.as_bytes());
            super::estimator(ESTIMATOR.as_bytes());
            changed_lines(ESTIMATOR, line, &value, super::estimator);
        }
    }

    const ESTIMATOR: &str = include_str!("../../crates/policy/params/estimator.toml");
    const PROFILES: [(&str, &str); 2] = [
        ("i5-7600", include_str!("../../profiles/i5-7600.toml")),
        ("geometry-g", include_str!("../../profiles/geometry-g.toml")),
    ];
}
