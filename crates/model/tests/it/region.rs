// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A region that begins within a program.

use crate::stream::{FRAMES, Stream};
use bifold_mmu::PageSize;
use bifold_model::{
    CacheMode, Charge, Config, Model, Options, Outcome, Paging, PlacementOptions, Profile, VmState,
};
use bifold_trace::event::gap;
use bifold_trace::{Event, Generator};

const PAGES: u64 = 64;

fn model(frames: u64) -> Model {
    let options = Options {
        guest_frames: frames,
        configs: Config::ALL.to_vec(),
        caches: CacheMode::Exact,
        placed: Some(PlacementOptions { placements: Vec::new(), host_nodes: 2, guest_nodes: Vec::new() }),
        ..Options::default()
    };
    Model::new(&Profile::load("geometry-g", &[]).unwrap(), options)
}

/// Events that touch all pages, with instructions.
fn touches() -> Vec<Event<'static>> {
    (0..PAGES).flat_map(|page| [Event::Store(page << 12), Event::Insns(10)]).collect()
}

fn outcome(before: &[Event<'static>], region: &[Event<'static>]) -> Outcome {
    let mut s = Stream::new();
    let root = s.table(4);
    for page in 0..PAGES {
        s.map(root, page << 12, 1, (0x2000 + page) << 12 | 7);
    }
    let s = s.start(root).and(before).and(region);
    let mut model = model(FRAMES);
    model.consume(&s.words).unwrap();
    model.finish()
}

#[test]
fn memory_touched_before_the_region_is_backed_in_it_and_counts_only_there() {
    let whole = outcome(&[], &touches());
    let cold: u64 = whole.configs.iter().map(|c| c.total.exits_violation + c.total.exits_hidden_fault).sum();
    assert!(cold > 2 * PAGES && whole.before_region.is_none(), "{cold}");

    for part in [gap::WARM_UP, gap::MEASURE, gap::HEAD] {
        let before = [vec![Event::Gap(part)], touches(), vec![Event::Gap(gap::REGION)]].concat();
        let warm = outcome(&before, &touches());
        assert_eq!(warm.before_region, Some(10 * PAGES));
        assert!(warm.sampling.is_none());
        for c in &warm.configs {
            let t = c.total;
            assert_eq!((t.instructions, t.accesses), (10 * PAGES, PAGES), "{:?}", c.config);
            assert_eq!((t.all_exits(), t.frames_backed, t.vmm_cycles), (0, 0, 0), "{:?}", c.config);
            let sum: u64 = c.intervals.iter().map(|i| i.instructions).sum();
            assert_eq!(sum, 10 * PAGES);
        }
    }
}

#[test]
fn in_a_gap_before_the_region_the_kernel_s_first_touches_back_memory() {
    let touch = |page: u64| Event::Store(page << 12);
    let before: Vec<_> = [Event::Gap(gap::BEGIN)]
        .into_iter()
        .chain((0..PAGES).map(touch))
        .chain([Event::Insns(1000), Event::Gap(gap::REGION)])
        .collect();
    for c in &outcome(&before, &touches()).configs {
        assert_eq!(c.total.all_exits(), 0, "{:?}", c.config);
        assert!(c.config.mode == Paging::Native || c.total.walks > 0, "nothing warmed the TLBs");
    }
}

/// What every configuration counts in the last part of a program is what it counts from the region's begin
/// on.
#[test]
fn a_region_s_counts_are_the_whole_program_s_less_those_before_it() {
    let g = Generator::parse("fork-storm:12").unwrap();
    let mut words = Vec::new();
    g.run(&mut |w| {
        words.extend_from_slice(w);
        Ok::<(), std::io::Error>(())
    })
    .unwrap();
    // Whole events: the region begins between two.
    let (mut at, mut cut) = (0, 0);
    while at < words.len() {
        if at < words.len() / 2 {
            cut = at;
        }
        at += bifold_trace::decode(&words[at..], at).unwrap().1;
    }
    let begin = |code| bifold_trace::event::head(bifold_trace::event::kind::GAP, code);
    let mut plain = model(g.guest_frames());
    let mut region = model(g.guest_frames());
    region.charge(false);
    plain.consume(&words[..cut]).unwrap();
    region.consume(&words[..cut]).unwrap();
    let first = plain.totals();
    region.consume(&[begin(gap::REGION)]).unwrap();
    plain.consume(&words[cut..]).unwrap();
    region.consume(&words[cut..]).unwrap();
    for ((config, total), ((_, first), (_, of_region))) in
        plain.totals().iter().zip(first.iter().zip(region.totals()))
    {
        let mut expected = total.since(first);
        // Of sums that are rounded, the parts may differ by one.
        for (e, r) in [
            (&mut expected.walk_hidden_cycles, of_region.walk_hidden_cycles),
            (&mut expected.data_hidden_cycles, of_region.data_hidden_cycles),
            (&mut expected.ideal_hidden_cycles, of_region.ideal_hidden_cycles),
        ] {
            assert!(e.abs_diff(r) <= 1, "{config:?}");
            *e = r;
        }
        assert_eq!(expected, of_region, "{config:?}");
    }
    // What is charged from the region's begin on is what the region counts.
    let mut sums = vec![0; Config::ALL.len()];
    let mut began = false;
    region.take_charges(&mut |charge| match charge {
        Charge::Restart => {
            began = true;
            sums.fill(0);
        }
        Charge::Cost(_, costs) => sums.iter_mut().zip(costs).for_each(|(s, c)| *s += c.exits),
        Charge::Entry(_) | Charge::Stack { .. } | Charge::Log { .. } => {}
        Charge::Window(..) | Charge::WindowEnd(_) => unreachable!("the stream is whole"),
    });
    assert!(began);
    let exits: Vec<u64> = region.totals().iter().map(|(_, s)| s.all_exits()).collect();
    assert_eq!(sums, exits);
}

#[test]
fn in_a_vm_whose_memory_is_backed_no_first_touch_exits() {
    let run = |vm| {
        let g = Generator::parse("fork-storm:6").unwrap();
        let options = Options {
            guest_frames: g.guest_frames(),
            configs: Config::ALL.to_vec(),
            vm,
            ..Options::default()
        };
        let mut model = Model::new(&Profile::load("i5-7600", &[]).unwrap(), options);
        g.run(&mut |w| model.consume(w)).unwrap();
        model.finish()
    };
    let (fresh, backed) = (run(VmState::Started), run(VmState::LongLived));
    assert_eq!(backed.vm, VmState::LongLived);
    for (f, b) in fresh.configs.iter().zip(&backed.configs) {
        assert_eq!((b.total.first_touch_cycles, b.total.exits_violation), (0, 0), "{:?}", b.config);
        assert_eq!((b.total.frames_backed, b.total.huge_frames_backed), (0, 0), "{:?}", b.config);
        if f.config.mode == Paging::Nested {
            assert!(f.total.first_touch_cycles > 0);
        }
        if f.config.mode == Paging::Nested && f.config.host_page == PageSize::Size2M {
            // Large pages are never the zero page, so each is backed once.
            assert_eq!(b.total.huge_frames_first_used, f.total.huge_frames_backed);
        }
        if f.config.mode == Paging::Nested {
            assert_eq!((f.total.frames_first_used, f.total.huge_frames_first_used), (0, 0));
            let used = b.total.frames_first_used + b.total.huge_frames_first_used;
            assert!(used > 0 && used <= f.total.exits_violation);
        }
        // What a first touch does not cause stays.
        assert_eq!(f.total.guest_page_faults, b.total.guest_page_faults);
        assert_eq!(f.total.exits_cr3_write, b.total.exits_cr3_write);
    }
}
