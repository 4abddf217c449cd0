// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts between two places of a stream, and what the host holds at its start.

use crate::stream::{FRAMES, NATIVE, NESTED_2M, NESTED_4K, Stream};
use bifold_mmu::{Gpa, Gva, PageSize};
use bifold_model::{Config, Exit, Model, Options, Paging, Profile, Sample};
use bifold_trace::event::marker;
use bifold_trace::{Event, Generator, decode};
use std::collections::BTreeMap;

const SHADOW_4K: Config = Config::new(Paging::Shadow, PageSize::Size4K);
const WRITABLE: u64 = 0x3;

fn model(frames: u64) -> Model {
    Model::new(
        &Profile::load("i5-7600", &[]).unwrap(),
        Options { guest_frames: frames, ..Options::default() },
    )
}

/// What each configuration counted between the window's markers, by cutting there.
fn window(words: &[u64], number: u64) -> Vec<(Config, Sample)> {
    let mut model = model(FRAMES);
    let (mut at, mut from, mut begin) = (0, 0, Vec::new());
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        at += n;
        if let Event::Marker(code) = event {
            model.consume(&words[from..at]).unwrap();
            from = at;
            if code == marker::WINDOW_BEGIN + number {
                begin = model.totals();
            } else if code == marker::WINDOW_END + number {
                let since = |(now, was): ((Config, Sample), &(Config, Sample))| (now.0, now.1.since(&was.1));
                return model.totals().into_iter().zip(&begin).map(since).collect();
            }
        }
    }
    panic!("no window {number}");
}

/// Loads of eight pages, then a window of stores to one of them and a page that is new.
fn stream() -> Stream {
    let mut s = Stream::new();
    let root = s.table(4);
    for page in 0..9 {
        s.map(root, page << 12, 1, (0x2000 + page) << 12 | WRITABLE);
    }
    let mut s = s.start(root);
    for page in 0..8 {
        s = s.and(&[Event::Load(page << 12), Event::Insns(10)]);
    }
    s
}

#[test]
fn totals_at_a_window_s_markers_differ_by_what_the_window_cost() {
    let s = stream().and(&[
        Event::Marker(marker::WINDOW_BEGIN + 7),
        Event::Store(3 << 12),
        Event::Store(3 << 12),
        Event::Load(8 << 12),
        Event::Insns(30),
        Event::Marker(marker::WINDOW_END + 7),
        Event::Load(4 << 12),
        Event::Insns(1),
    ]);
    let window = window(&s.words, 7);
    let of = |config| window.iter().find(|w| w.0 == config).unwrap().1;
    for (_, s) in &window {
        assert_eq!((s.instructions, s.accesses), (30, 3));
    }
    assert_eq!(of(NATIVE).all_exits(), 0);
    // The zero page's replacement takes two; the new page takes one.
    assert_eq!((of(NESTED_4K).exits_violation, of(NESTED_4K).frames_backed), (3, 2));
    assert_eq!((of(NESTED_2M).exits_violation, of(NESTED_2M).huge_frames_backed), (0, 0));
    assert!(of(SHADOW_4K).exits_hidden_fault > 1);
}

#[test]
fn totals_at_the_end_are_the_outcome_s_however_the_words_came() {
    let g = Generator::parse("fork-storm:6").unwrap();
    let (mut whole, mut pieces) = (model(g.guest_frames()), model(g.guest_frames()));
    let mut sum: Vec<Sample> = vec![Sample::default(); Config::ALL.len()];
    g.run::<std::convert::Infallible>(&mut |words| {
        whole.consume(words).unwrap();
        let (mut at, mut from) = (0, 0);
        while at < words.len() {
            at += decode(&words[at..], at).unwrap().1;
            if at - from > 997 || at == words.len() {
                let before = pieces.totals();
                pieces.consume(&words[from..at]).unwrap();
                for ((s, now), was) in sum.iter_mut().zip(pieces.totals()).zip(before) {
                    s.add(&now.1.since(&was.1));
                }
                from = at;
            }
        }
        Ok(())
    })
    .unwrap();
    let totals = whole.totals();
    assert_eq!(totals, pieces.totals());
    assert_eq!(totals.iter().map(|t| t.1).collect::<Vec<_>>(), sum);
    for ((config, total), c) in totals.iter().zip(whole.finish().configs) {
        let cold = Sample { cold_exits: c.total.cold_exits, cold_cycles: c.total.cold_cycles, ..*total };
        assert_eq!((*config, cold), (c.config, c.total));
    }
}

#[test]
fn frames_that_the_host_holds_cost_one_violation_and_are_writable_at_once() {
    let window = |resident: &[Event<'_>]| {
        let mut s = Stream::new().and(resident);
        let root = s.table(4);
        s.map(root, 0x5000, 1, 0x2005 << 12 | WRITABLE);
        let events = [
            Event::Marker(marker::BOOT),
            Event::Marker(marker::WINDOW_BEGIN),
            Event::Load(0x5000),
            Event::Store(0x5000),
            Event::Marker(marker::WINDOW_END),
        ];
        window(&s.start(root).and(&events).words, 0)
    };
    let of = |w: &[(Config, Sample)], config| w.iter().find(|w| w.0 == config).unwrap().1;
    let cold = window(&[]);
    let held = window(&[Event::Resident { gfn: 0x2000, frames: 16 }]);
    // Four tables, then the page: read, the zero page's replacement, written.
    assert_eq!((of(&cold, NESTED_4K).exits_violation, of(&cold, NESTED_4K).frames_backed), (7, 6));
    assert_eq!((of(&held, NESTED_4K).exits_violation, of(&held, NESTED_4K).frames_backed), (5, 4));
    assert_eq!((of(&held, NESTED_2M).exits_violation, of(&held, NESTED_2M).huge_frames_backed), (2, 1));
    let shadow = |w| of(w, SHADOW_4K).frames_backed;
    assert_eq!((shadow(&cold), shadow(&held)), (2, 0));
    // Too late: the guest has started.
    let mut s = stream().and(&[Event::Resident { gfn: 0, frames: u64::MAX }, Event::Cr3(0x100 << 12)]);
    s = s.and(&[
        Event::Marker(marker::WINDOW_BEGIN),
        Event::Load(8 << 12),
        Event::Marker(marker::WINDOW_END),
    ]);
    assert_eq!(of(&crate::windows::window(&s.words, 0), NESTED_4K).frames_backed, 1);
}

#[test]
fn the_exit_log_has_every_exit_counted_and_changes_no_count() {
    let g = Generator::parse("fork-storm:6").unwrap();
    let (mut plain, mut logged) = (model(g.guest_frames()), model(g.guest_frames()));
    logged.log_exits();
    g.run(&mut |words| {
        plain.consume(words)?;
        logged.consume(words)
    })
    .unwrap();
    assert_eq!(plain.totals(), logged.totals());
    assert_eq!(plain.take_exit_log(), []);
    let mut found = BTreeMap::new();
    let log = logged.take_exit_log();
    for e in &log {
        *found.entry((e.config, e.reason)).or_insert(0) += 1;
    }
    let counted: BTreeMap<_, _> = logged
        .totals()
        .iter()
        .flat_map(|(config, s)| s.exits().map(|(reason, n)| ((*config, reason), n)).collect::<Vec<_>>())
        .filter(|e| e.1 > 0)
        .collect();
    assert_eq!(found, counted);
    assert!(log.windows(2).all(|w| w[0].config != w[1].config || w[0].instructions <= w[1].instructions));
    assert_eq!(logged.take_exit_log(), []);
}

#[test]
fn the_exit_log_says_what_was_accessed_and_how() {
    let mut s = Stream::new();
    let root = s.table(4);
    let pte = s.map(root, 0x5000, 1, 0x2005 << 12 | WRITABLE);
    s.map(root, 0x6000, 1, 0x2006 << 12 | WRITABLE);
    let s = s.start(root).and(&[
        Event::Load(0x5000),
        Event::Insns(5),
        Event::Store(0x5000),
        Event::Fetch(0x6000),
        Event::Insns(2),
        Event::Fault { gva: 0x7000, error: 6 },
        Event::Fault { gva: 0x5000, error: 7 },
        Event::Invlpg(0x5000),
        Event::Cr3Read,
    ]);
    let mut model = model(FRAMES);
    model.log_exits();
    model.consume(&s.words).unwrap();
    let log = model.take_exit_log();
    let of = |config| -> Vec<Exit> { log.iter().filter(|e| e.config == config).copied().collect() };
    let nested = of(NESTED_4K);
    // The page after its four tables, then the zero page's replacement, then the code's page.
    let [table, page] = [pte, 0x2005 << 12].map(|gpa| Some(Gpa(gpa >> 12 << 12)));
    let exit = |e: &Exit| {
        (e.gva.0, e.gpa.map(|g| Gpa(g.0 >> 12 << 12)), e.write, e.fetch, e.present, e.instructions)
    };
    assert_eq!(exit(&nested[3]), (0x5000, table, true, false, false, 0));
    assert_eq!(exit(&nested[4]), (0x5000, page, false, false, false, 0));
    assert_eq!(exit(&nested[5]), (0x5000, page, true, false, true, 5));
    assert!(nested.iter().all(|e| e.reason == "violation"));
    let last = nested.last().unwrap();
    assert_eq!(exit(last), (0x6000, Some(Gpa(0x2006 << 12)), false, true, false, 5));

    let shadow = of(SHADOW_4K);
    assert!(shadow.iter().all(|e| e.gpa.is_none()));
    assert_eq!(exit(&shadow[0]), (0x5000, None, false, false, false, 0));
    let write = shadow.iter().find(|e| e.write).unwrap();
    assert_eq!(exit(write), (0x5000, None, true, false, true, 5));
    let ends: Vec<_> =
        shadow[shadow.len() - 4..].iter().map(|e| (e.reason, e.gva, e.write, e.present)).collect();
    let expected = [
        ("guest_fault", Gva(0x7000), true, false),
        ("guest_fault", Gva(0x5000), true, true),
        ("invlpg", Gva(0x5000), false, false),
        ("cr3_read", Gva(0), false, false),
    ];
    assert_eq!(ends, expected);
}
