// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Thinning: makes the sampled stream that the capture would have written of a whole stream.
//!
//! `qemu-plugin/region.c` defines what a sampled stream has between its windows. Thinning a
//! recording or a generator's stream shows how exact sampling is, because one run yields both
//! the whole figures and the estimate. One thing differs: a stream does not tell whether the
//! kernel or user code accessed user memory, so all accesses to user memory are left out
//! between windows.

use crate::TableFormat;
use crate::event::{DecodeError, Event, KIND_SHIFT, decode, gap, head, kind, marker};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The head of a sampled stream is a period divided by this, or, where periods double, multiplied by it.
const HEADS: u64 = 10;
/// Where periods double, a warm-up is at least a period divided by this, and a window a period divided by the
/// next. Rarely missing programs take long to refill a TLB: 1,536 entries at one miss in 10,000 instructions
/// 15 million.
const WARM_UPS: u64 = 20;
const WINDOWS: u64 = 80;
/// How often periods double, at most.
const MOST_DOUBLINGS: u64 = 5;

/// The windows of a sample, in instructions: every `period` has one window, after a warm-up, at a place
/// drawn from `seed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Windows {
    /// Length of a window, the part that is measured. Where periods double, windows become longer with them.
    pub window: u64,
    /// Length of the warm-up before a window, in which caches fill again. Where periods double, the warm-up
    /// becomes longer with them.
    pub warm_up: u64,
    /// Length of a period.
    pub period: u64,
    /// Seed of the places of the windows.
    pub seed: u64,
    /// The period doubles each time after this many periods, five times at most; 0 for a period that stays.
    #[serde(default, skip_serializing_if = "stays")]
    pub doubles: u64,
}

fn stays(doubles: &u64) -> bool {
    *doubles == 0
}

impl Windows {
    /// Windows for a run of unknown length: the head is the first 100 million instructions. Then there are 32
    /// windows each in periods of 10, 20, 40, 80 and 160 million, and after that one in every 320 million.
    pub const DOUBLING: Windows =
        Windows { window: 500_000, warm_up: 2_000_000, period: 10_000_000, seed: 0, doubles: 32 };

    /// Length of the head, in which everything is recorded.
    pub fn head(&self) -> u64 {
        if self.doubles == 0 { self.period / HEADS } else { self.period * HEADS }
    }

    /// The period after so many others, with its window and warm-up.
    fn after(&self, periods: u64) -> Lengths {
        let Windows { window, warm_up, period, doubles, .. } = *self;
        match periods.checked_div(doubles) {
            None => Lengths { window, warm_up, period },
            Some(n) => {
                let period = period.saturating_mul(1 << n.min(MOST_DOUBLINGS));
                Lengths {
                    window: window.max(period / WINDOWS),
                    warm_up: warm_up.max(period / WARM_UPS),
                    period,
                }
            }
        }
    }

    /// How many times its own length the window stands for that comes after so many others. Equal for all
    /// where periods stay.
    pub fn weight(&self, windows: u64) -> u64 {
        // Bounded, as a damaged recording may have any lengths.
        let Lengths { window, period, .. } = self.after(windows);
        (period / window.max(1)).clamp(1, 1 << 20)
    }
}

/// Lengths of a period and its parts, in instructions.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    window: u64,
    warm_up: u64,
    period: u64,
}

/// A window's place, in instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    warm_up_begins: u64,
    measure_begins: u64,
    window: u64,
}

/// Draws the places of windows, from a seed as the plugin does.
#[derive(Debug)]
struct Places {
    windows: Windows,
    dice: u64,
    /// Where the period begins that is drawn from next, and how many were before it.
    period_begins: u64,
    drawn: u64,
}

impl Places {
    fn new(windows: Windows) -> Self {
        let dice = windows.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Places { windows, dice, period_begins: windows.head(), drawn: 0 }
    }

    /// The place of the next window.
    fn draw(&mut self) -> Place {
        // Marsaglia's xorshift64*.
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        let Lengths { window, warm_up, period } = self.windows.after(self.drawn);
        let random = u128::from(self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let at = (random * u128::from(period.saturating_sub(window).saturating_add(1))) >> 64;
        let measure_begins = self.period_begins.saturating_add(at as u64);
        self.period_begins = self.period_begins.saturating_add(period);
        self.drawn += 1;
        Place { warm_up_begins: measure_begins.saturating_sub(warm_up), measure_begins, window }
    }
}

/// Makes a sampled stream of a whole stream.
#[derive(Debug)]
pub struct Thin {
    places: Places,
    tables: TableFormat,
    /// `None` until the command starts.
    part: Option<u64>,
    instructions: u64,
    /// Of the window that is measured or comes next.
    place: Place,
    /// Kernel pages accessed in this gap since translations were last changed.
    loaded: HashSet<u64>,
    stored: HashSet<u64>,
    fetched: HashSet<u64>,
    /// A store that goes into the stream if it turns out to be one to a page table.
    store: Option<u64>,
    /// The stream's region begins later, and nothing is thinned until then.
    before: bool,
}

impl Thin {
    /// A thinner for these windows.
    pub fn new(windows: Windows) -> Self {
        Thin {
            places: Places::new(windows),
            tables: TableFormat::default(),
            part: None,
            instructions: 0,
            place: Place::default(),
            loaded: HashSet::new(),
            stored: HashSet::new(),
            fetched: HashSet::new(),
            store: None,
            before: false,
        }
    }

    /// The thinner of a guest with these tables, whose format says which addresses are the kernel's.
    pub fn of(self, tables: TableFormat) -> Thin {
        Thin { tables, ..self }
    }

    /// Takes whole events and appends the events of the sampled stream to `out`.
    ///
    /// # Errors
    /// If the words are no events.
    pub fn take(&mut self, words: &[u64], out: &mut Vec<u64>) -> Result<(), DecodeError> {
        let mut i = 0;
        while i < words.len() {
            let (event, n) = decode(&words[i..], i)?;
            if let Some(store) = self.store.take() {
                out.extend(follows_store(words[i]).then_some(store));
            }
            if self.part.is_none() && !matches!(event, Event::Marker(_) | Event::Table { .. }) {
                // Generators' streams have no marker: the events before the first access set the guest up.
                if !matches!(event, Event::Vcpu(_) | Event::Cr3(_) | Event::Cr4(_)) {
                    self.begin(out);
                }
            }
            if self.wanted(&event, words[i]) {
                out.extend_from_slice(&words[i..i + n]);
            }
            i += n;
            match event {
                Event::Marker(marker::START) if self.part.is_none() => self.begin(out),
                // What came before is no part of the counts.
                Event::Marker(marker::PROGRAM) | Event::Gap(gap::REGION) => {
                    self.before = false;
                    self.instructions = 0;
                    self.places = Places::new(self.places.windows);
                    self.begin(out);
                }
                Event::Gap(_) => self.before = true,
                Event::Insns(n) if !self.before => {
                    self.instructions += n;
                    self.advance(out);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn begin(&mut self, out: &mut Vec<u64>) {
        self.place = self.places.draw();
        self.enter(gap::HEAD, out);
    }

    fn enter(&mut self, part: u64, out: &mut Vec<u64>) {
        self.part = Some(part);
        self.forget();
        out.push(head(kind::GAP, part));
    }

    fn forget(&mut self) {
        [&mut self.loaded, &mut self.stored, &mut self.fetched].into_iter().for_each(HashSet::clear);
    }

    /// Enters the next part when enough instructions have passed.
    fn advance(&mut self, out: &mut Vec<u64>) {
        match self.part {
            Some(gap::BEGIN) if self.instructions >= self.place.warm_up_begins => {
                self.enter(gap::WARM_UP, out)
            }
            Some(gap::WARM_UP) if self.instructions >= self.place.measure_begins => {
                self.place.measure_begins = self.instructions;
                self.enter(gap::MEASURE, out);
            }
            Some(gap::HEAD) if self.instructions >= self.places.windows.head() => self.await_window(out),
            Some(gap::MEASURE) if self.instructions >= self.place.measure_begins + self.place.window => {
                self.place = self.places.draw();
                self.await_window(out);
            }
            _ => {}
        }
    }

    fn await_window(&mut self, out: &mut Vec<u64>) {
        let late = self.place.warm_up_begins <= self.instructions;
        self.enter(if late { gap::WARM_UP } else { gap::BEGIN }, out);
    }

    /// Whether the event stays; `word` is its head. A store may be appended with the next event.
    fn wanted(&mut self, event: &Event<'_>, word: u64) -> bool {
        if self.part != Some(gap::BEGIN) || self.before {
            return true;
        }
        let page = |va: u64| va >> 12;
        let kernel = |va: u64| self.tables.is_kernel(va);
        match *event {
            Event::Load(va) | Event::LoadDependent(va) | Event::LoadBeforeChain(va) => {
                kernel(va) && !self.stored.contains(&page(va)) && self.loaded.insert(page(va))
            }
            Event::Fetch(va) => kernel(va) && self.fetched.insert(page(va)),
            Event::Store(va) | Event::StoreOther(va) => {
                let first = kernel(va) && self.stored.insert(page(va));
                self.store = (kernel(va) && !first).then_some(word);
                first
            }
            _ => {
                if matches!(event, Event::Cr3(_) | Event::Cr4(_) | Event::Invlpg(_) | Event::Table { .. }) {
                    self.forget();
                }
                true
            }
        }
    }
}

/// Whether the head word is of an event that follows the store that caused it.
fn follows_store(word: u64) -> bool {
    matches!(word >> KIND_SHIFT, kind::PT_STORE | kind::TABLE | kind::RETIRE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generator;
    use proptest::prelude::*;

    const W: Windows = Windows { window: 20_000, warm_up: 20_000, period: 500_000, seed: 3, doubles: 0 };

    fn thinned(generator: &str, windows: Windows, piece: usize) -> (Vec<u64>, Vec<u64>) {
        let (mut whole, mut out) = (Vec::new(), Vec::new());
        let mut thin = Thin::new(windows);
        let g = Generator::parse(generator).unwrap();
        g.run::<std::convert::Infallible>(&mut |words| {
            whole.extend_from_slice(words);
            Ok(())
        })
        .unwrap();
        let (mut at, mut from) = (0, 0);
        while at < whole.len() {
            at += decode(&whole[at..], at).unwrap().1;
            if at - from >= piece || at == whole.len() {
                thin.take(&whole[from..at], &mut out).unwrap();
                from = at;
            }
        }
        (whole, out)
    }

    /// Each event's words, with the part of the sample it lies in.
    fn events(words: &[u64]) -> Vec<(Option<u64>, Vec<u64>)> {
        let (mut at, mut part, mut out) = (0, None, Vec::new());
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).unwrap();
            match event {
                Event::Gap(code) => part = Some(code),
                _ => out.push((part, words[at..at + n].to_vec())),
            }
            at += n;
        }
        out
    }

    fn is_access(words: &[u64]) -> bool {
        (kind::LOAD..=kind::LOAD_BEFORE_CHAIN).contains(&(words[0] >> KIND_SHIFT))
    }

    #[test]
    fn all_but_accesses_stays_and_windows_are_whole() {
        let (whole, thin) = thinned("fork-storm:40", W, 1000);
        assert!(thin.len() < whole.len() / 2);
        let (all, kept) = (events(&whole), events(&thin));
        let rest = |v: &[(Option<u64>, Vec<u64>)]| -> Vec<Vec<u64>> {
            v.iter().filter(|e| !is_access(&e.1)).map(|e| e.1.clone()).collect()
        };
        assert_eq!(rest(&all), rest(&kept));
        // What is kept is what was there, in its order, and outside gaps nothing is left out.
        let mut whole = all.iter();
        for e in &kept {
            let skipped: Vec<_> = whole.by_ref().take_while(|w| w.1 != e.1).collect();
            assert!(skipped.is_empty() || e.0 == Some(gap::BEGIN) || e.0 == Some(gap::WARM_UP));
        }
        // A store to a table stays before what it did.
        let stores = kept.windows(2).filter(|w| w[1].1[0] >> KIND_SHIFT == kind::PT_STORE);
        assert!(stores.clone().count() > 100);
        assert!(stores.into_iter().all(|w| {
            let k = w[0].1[0] >> KIND_SHIFT;
            k == kind::STORE || k == kind::STORE_OTHER || follows_store(w[0].1[0])
        }));
    }

    #[test]
    fn what_comes_before_a_region_stays_whole_and_the_sample_begins_with_the_region() {
        let load = head(kind::LOAD, 0x1000);
        let before = [head(kind::GAP, gap::WARM_UP), load, head(kind::INSNS, W.period), load];
        let region = [head(kind::GAP, gap::REGION), load, head(kind::INSNS, W.period / HEADS), load];
        let (mut thin, mut out) = (Thin::new(W), Vec::new());
        thin.take(&[head(kind::MARKER, marker::START)], &mut out).unwrap();
        let begun = out.len();
        thin.take(&before, &mut out).unwrap();
        assert_eq!(out[begun..], before);
        let begun = out.len();
        thin.take(&region, &mut out).unwrap();
        assert_eq!(out[begun..begun + 3], [region[0], head(kind::GAP, gap::HEAD), load]);
        // The head is over after its instructions.
        let parts = &out[begun + 3..];
        assert!(parts.iter().any(|w| [gap::BEGIN, gap::WARM_UP].map(|p| head(kind::GAP, p)).contains(w)));
    }

    #[test]
    fn a_window_of_its_length_lies_in_every_period() {
        let (_, thin) = thinned("t:6000000", W, 4096);
        let (mut at, mut part, mut n, mut lengths) = (0, gap::HEAD, [0u64; 4], Vec::new());
        let (mut passed, mut places) = (0, Vec::new());
        while at < thin.len() {
            let (event, len) = decode(&thin[at..], at).unwrap();
            at += len;
            match event {
                Event::Insns(i) => {
                    n[part as usize] += i;
                    passed += i;
                }
                Event::Gap(code) => {
                    if part == gap::MEASURE {
                        lengths.push(std::mem::take(&mut n[gap::MEASURE as usize]));
                    }
                    if code == gap::MEASURE {
                        places.push((passed - W.period / HEADS) / W.period);
                    }
                    part = code;
                }
                _ => {}
            }
        }
        assert!((11..=12).contains(&places.len()));
        assert!(places.iter().enumerate().all(|(i, p)| *p == i as u64), "{places:?}");
        // The end cuts off the last. Generators tell of instructions 4096 at a time.
        lengths.pop();
        assert!(lengths.iter().all(|l| (W.window..W.window + 8192).contains(l)), "{lengths:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn pieces_of_a_stream_are_thinned_like_the_whole(piece in 1usize..5000, seed in any::<u64>()) {
            let windows = Windows { seed, ..W };
            prop_assert_eq!(thinned("fork-storm:6", windows, piece).1, thinned("fork-storm:6", windows, 1 << 30).1);
        }

    }

    #[test]
    fn a_period_doubles_after_a_number_of_periods() {
        let mut places = Places::new(Windows { doubles: 3, ..W });
        let mut begins = 5_000_000;
        for i in 0..30u64 {
            let period = W.period << (i / 3).min(5);
            let Place { warm_up_begins, measure_begins: at, window } = places.draw();
            assert!(at >= begins && at + window <= begins + period, "{i}: {at}");
            assert_eq!(
                (at - warm_up_begins, window),
                (W.warm_up.max(period / 20), W.window.max(period / 80)),
                "{i}"
            );
            assert_eq!(Windows { doubles: 3, ..W }.weight(i), period / window, "{i}");
            begins += period;
        }
        let json = serde_json::to_string(&W).unwrap();
        assert!(!json.contains("doubles"), "{json}");
        assert_eq!(serde_json::from_str::<Windows>(&json).unwrap(), W);
        assert!(serde_json::to_string(&Windows::DOUBLING).unwrap().contains("\"doubles\":32"));
    }

    proptest! {
        #[test]
        fn any_words_are_thinned_or_refused(words in proptest::collection::vec(any::<u64>(), 0..200)) {
            let _ = Thin::new(W).take(&words, &mut Vec::new());
        }

        #[test]
        fn places_lie_within_their_periods(window in 1u64..1000, more in 0u64..10_000, seed in any::<u64>()) {
            let period = window + more;
            let mut places = Places::new(Windows { window, warm_up: 7, period, seed, doubles: 0 });
            for i in 0..50 {
                let at = places.draw().measure_begins;
                prop_assert!(at >= period / HEADS + i * period && at + window <= period / HEADS + (i + 1) * period);
            }
        }
    }
}
