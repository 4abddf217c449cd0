// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Costs one by one: they sum to the totals to the last miss, stand where they arose, and change nothing.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::cases;
use crate::reference::WRITE;
use crate::stream::{NESTED_4K, Stream};
use bifold_mmu::{Gva, PageSize};
use bifold_model::{Charge, Config, Costs, Entry, Model, Options, Paging, Place, Profile, Switching};
use bifold_trace::event::{LOG_WORDS, log};
use bifold_trace::{Event, Generator, decode};
use proptest::prelude::*;

/// Takes what there is into sums; how many charges that were.
fn take(model: &mut Model, sums: &mut [Costs]) -> usize {
    let mut n = 0;
    model.take_charges(&mut |charge| {
        if let Charge::Cost(_, costs) = charge {
            assert_eq!(costs.len(), sums.len());
            assert!(costs.iter().any(|c| *c != Costs::default()), "a charge of nothing");
            sums.iter_mut().zip(costs).for_each(|(sum, cost)| sum.add(cost));
            n += 1;
        }
    });
    n
}

/// Of so many configurations; those that switch come last, and are not charged.
fn totals(model: &Model, configs: usize) -> Vec<Costs> {
    let all = model.totals();
    all.iter().take(configs).map(|(_, s)| Costs::of(s)).collect()
}

fn two_models(profile: &Profile, cpus: usize) -> [Model; 2] {
    let options = Options {
        configs: Config::KNOWN.to_vec(),
        guest_frames: FRAMES,
        vcpus: cpus,
        interval_seconds: 1e-5,
        ..Options::default()
    };
    [(); 2].map(|()| {
        let mut model = Model::new(profile, options.clone());
        let switching = Switching {
            name: "x".into(),
            host_page: PageSize::Size4K,
            start: Paging::Shadow,
            keep_nested: true,
        };
        let flip =
            |_: usize, _: &_, mode| if mode == Paging::Shadow { Paging::Nested } else { Paging::Shadow };
        model.add_switching(switching, Box::new(flip));
        model
    })
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn charges_sum_to_the_totals_at_every_cut_and_change_nothing(
        which in 0..Profile::builtin_names().count(), cpus in 1usize..3, ops in ops(800), cut in 1usize..400
    ) {
        let name = Profile::builtin_names().nth(which).unwrap();
        let profile = Profile::load(name, &[]).unwrap();
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let [mut plain, mut charged] = two_models(&profile, cpus);
        plain.consume(&guest.words).unwrap();
        charged.charge(false);
        let mut sums = vec![Costs::default(); Config::KNOWN.len()];
        let (mut from, mut at, mut n) = (0, 0, 0);
        while at < guest.words.len() {
            at += decode(&guest.words[at..], at).unwrap().1;
            n += 1;
            if n % cut == 0 || at == guest.words.len() {
                charged.consume(&guest.words[from..at]).unwrap();
                from = at;
                take(&mut charged, &mut sums);
                prop_assert_eq!(&sums, &totals(&charged, Config::KNOWN.len()));
            }
        }
        prop_assert_eq!(charged.finish(), plain.finish());
    }
}

#[test]
fn a_generated_storm_of_forks_is_charged_whole() {
    let generator = Generator::parse("fork-storm:20").unwrap();
    let profile = Profile::load("phenom2-x3-720", &[]).unwrap();
    let options = Options { guest_frames: generator.guest_frames(), ..Options::default() };
    let mut model = Model::new(&profile, options);
    model.charge(false);
    let (mut sums, mut n) = (vec![Costs::default(); Config::ALL.len()], 0);
    let mut sink = |words: &[u64]| {
        model.consume(words).map_err(|e| e.to_string())?;
        n += take(&mut model, &mut sums);
        Ok::<(), String>(())
    };
    generator.run(&mut sink).unwrap();
    assert_eq!(sums, totals(&model, Config::ALL.len()));
    assert!(sums.iter().all(|s| s.tlb_misses > 0) && sums[3].exits > 0);
    assert!(n > 1000, "{n} charges");
}

/// A charge's place with its misses and exits, or the bytes of a log.
type Charged = (Option<Place>, Vec<(u64, u64)>, Vec<u8>);

fn charges(model: &mut Model) -> Vec<Charged> {
    let mut out = Vec::new();
    model.take_charges(&mut |charge| {
        out.push(match charge {
            Charge::Entry(_) => return,
            Charge::Cost(place, costs) => {
                (Some(place), costs.iter().map(|c| (c.tlb_misses, c.exits)).collect(), Vec::new())
            }
            Charge::Restart | Charge::Window(..) | Charge::WindowEnd(_) | Charge::Stack { .. } => {
                unreachable!("no region begins, the stream is whole, and calls are not asked for")
            }
            Charge::Log { stream, number, bytes } => {
                assert_eq!((stream, number), (log::PERF, 1));
                (None, Vec::new(), bytes.to_vec())
            }
        });
    });
    out
}

#[test]
fn a_charge_names_the_block_the_address_and_the_guests_page() {
    const HUGE: u64 = 0x80;
    let mut s = Stream::new();
    let root = s.table(4);
    s.map(root, 0x5000, 1, 0x2000 << 12 | WRITE);
    s.map(root, 0x7000, 1, 0x2001 << 12 | WRITE);
    s.map(root, 0x40_0000, 2, 0x4000 << 12 | WRITE | HUGE);
    let data = [0x6968; LOG_WORDS];
    let logged = Event::Log { stream: log::PERF, number: 1, bytes: 2, data: &data };
    let s = s.start(root).and(&[
        Event::Block(0x1234),
        Event::Load(0x5008),
        logged,
        Event::Load(0x5010),
        Event::Block(0xffff_ffff_8100_0010),
        Event::Load(0x41_0000),
        Event::Fetch(0x7000),
        Event::Block(0x5678),
        Event::Fault { gva: 0x9000, error: 4 },
        Event::Insns(10),
    ]);
    let profile = Profile::load("i5-7600", &[]).unwrap();
    let shadow = Config::new(Paging::Shadow, PageSize::Size4K);
    let mut model = Model::new(&profile, Options { configs: vec![NESTED_4K, shadow], ..Options::default() });
    model.charge(false);
    model.consume(&s.words).unwrap();
    let place = |code, data, size| Some(Place { vcpu: 0, code: Gva(code), data: Some(Gva(data)), size });
    let (small, huge) = (Some(PageSize::Size4K), Some(PageSize::Size2M));
    let got = charges(&mut model);
    let places: Vec<_> = got.iter().map(|(p, ..)| *p).collect();
    assert_eq!(
        places,
        [
            place(0x1234, 0x5008, small),
            None,
            place(0xffff_ffff_8100_0010, 0x41_0000, huge),
            // A fetch is charged to the address fetched: the stream names the block that it begins later.
            place(0x7000, 0x7000, small),
            place(0x5678, 0x9000, None),
        ]
    );
    assert_eq!(got[1].2, b"hi");
    assert_eq!(got[0].1.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 1]);
    // The guest's own fault exits under shadow paging only.
    assert_eq!(got[4].1, [(0, 0), (0, 1)]);
    assert!(charges(&mut model).is_empty());
}

#[test]
fn an_entry_into_the_kernel_is_told_once_before_the_kernels_first_charge_or_log() {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    let mut s = Stream::new();
    let root = s.table(4);
    for n in 0..9 {
        s.map(root, n << 12, 1, (0x2000 + n) << 12 | WRITE);
    }
    let data = [0; LOG_WORDS];
    let s = s.start(root).and(&[
        // The stream has not said yet from where the kernel was entered.
        Event::Block(KERNEL),
        Event::Load(0),
        // A fault of user code, whose handler costs something in its second block only.
        Event::Block(0x1000),
        Event::Fault { gva: 0x5000, error: 4 },
        Event::Block(KERNEL + 0x10),
        Event::Load(0),
        Event::Block(KERNEL + 0x20),
        Event::Load(0x1000),
        Event::Load(0x2000),
        // A call that writes a log. A fault of the kernel's own is no entry.
        Event::Block(0x3000),
        Event::Block(KERNEL + 0x30),
        Event::Log { stream: log::PERF, number: 0, bytes: 1, data: &data },
        Event::Fault { gva: 0x6000, error: 0 },
        Event::Load(0x3000),
        Event::Vcpu(1),
        Event::Cr3(root << 12),
        Event::Block(KERNEL + 0x40),
        Event::Load(0x4000),
    ]);
    let profile = Profile::load("i5-7600", &[]).unwrap();
    let options = Options { configs: vec![NESTED_4K], vcpus: 2, ..Options::default() };
    let mut model = Model::new(&profile, options);
    model.charge(false);
    model.consume(&s.words).unwrap();
    let mut got = Vec::new();
    model.take_charges(&mut |charge| {
        got.push(match charge {
            Charge::Entry(entry) => Ok(entry),
            Charge::Cost(place, _) => Err(place.data.map_or(0, |d| d.0)),
            Charge::Log { .. } => Err(1),
            Charge::Restart | Charge::Window(..) | Charge::WindowEnd(_) | Charge::Stack { .. } => {
                unreachable!("no region begins, the stream is whole, and calls are not asked for")
            }
        });
    });
    let entry = |user, fault: Option<u64>, kernel| {
        Ok(Entry { vcpu: 0, user: Gva(user), fault: fault.map(Gva), kernel: Gva(kernel) })
    };
    let expected = [
        Err(0),
        Err(0x5000),
        entry(0x1000, Some(0x5000), KERNEL + 0x10),
        Err(0x1000),
        Err(0x2000),
        entry(0x3000, None, KERNEL + 0x30),
        Err(1),
        Err(0x6000),
        Err(0x3000),
        Err(0x4000),
    ];
    assert_eq!(got, expected);
}

#[test]
fn calls_and_returns_are_handed_over_if_asked_for() {
    let mut words = Vec::new();
    for event in [Event::Block(0x1000), Event::Call(0x7f8), Event::Block(0x2000), Event::Return(0x7f8)] {
        event.encode(&mut words);
    }
    for asked in [false, true] {
        let profile = Profile::load("i5-7600", &[]).unwrap();
        let mut model =
            Model::new(&profile, Options { configs: Config::ALL[..1].to_vec(), ..Options::default() });
        model.charge(asked);
        model.consume(&words).unwrap();
        let mut got = Vec::new();
        model.take_charges(&mut |charge| match charge {
            Charge::Stack { vcpu, slot, caller } => got.push((vcpu, slot, caller)),
            other => panic!("{other:?}"),
        });
        let calls = [(0, Gva(0x7f8), Some(Gva(0x1000))), (0, Gva(0x7f8), None)];
        assert_eq!(got, if asked { &calls[..] } else { &[] });
    }
}
