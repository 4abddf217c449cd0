// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against this kernel's ksmd, pass by pass, on the same memory.
//!
//! ksmd is made to go one pass at a time ([`Passes`]); the model goes the same passes. On
//! [`Synthetic`] memory the kernel's counters are taken less what other processes' memory merges by
//! itself, which is measured first. On processes, the memory of all that have mergeable memory is read
//! and given to the model, huge pages and pages that are not there included.

use super::synthetic::{Synthetic, fill, page};
use super::{Counts, Guest, Scanner, Tuning, Work};
use crate::image::PAGE;
use bifold_host::ksm::{
    Area, Counter, Counters, KsmError, KsmGuard, PageState, PassEnd, Passes, Setting, Settings,
};
use memmap2::{Advice, MmapMut};
use std::io;
use std::time::{Duration, Instant};

/// Settings under a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// What it is called in results.
    pub name: String,
    /// The kernel's; the model takes over those that it knows.
    pub settings: Settings,
}

impl Case {
    /// The three under which every content is checked.
    pub fn built_in() -> Vec<Case> {
        use Setting::{MaxPageSharing as Max, SmartScan as Smart, UseZeroPages as Zero};
        let case = |name: &str, values: &[_]| Case { name: name.into(), settings: Settings::of(values) };
        vec![
            case("default", &[(Max, 256), (Zero, 0), (Smart, 1)]),
            case("max_page_sharing=8", &[(Max, 8), (Zero, 0), (Smart, 1)]),
            case("use_zero_pages=1 smart_scan=0", &[(Max, 100_000), (Zero, 1), (Smart, 0)]),
        ]
    }

    /// The model's tuning, one pass per batch.
    pub fn tuning(&self) -> Tuning {
        let mut tuning = Tuning { pages_to_scan: u64::MAX, sleep: Duration::ZERO, ..Tuning::default() };
        for (setting, value) in self.settings.iter() {
            match setting {
                Setting::MaxPageSharing => tuning.max_page_sharing = value as u32,
                Setting::UseZeroPages => tuning.use_zero_pages = value != 0,
                Setting::SmartScan => tuning.smart_scan = value != 0,
                Setting::ChainsPruneMillisecs => tuning.chains_prune = Duration::from_millis(value),
                _ => {}
            }
        }
        tuning
    }
}

/// A pass as predicted and as counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Which memory.
    pub content: String,
    /// Under which settings.
    pub case: String,
    /// The number of the pass, from 1.
    pub pass: u64,
    /// By the model.
    pub predicted: Counts,
    /// By the kernel, less what others merged by themselves.
    pub counted: Counts,
    /// The model's work in this pass.
    pub work: Work,
    /// CPU time by the model's costs.
    pub predicted_cpu: Duration,
    /// CPU time that ksmd took.
    pub counted_cpu: Option<Duration>,
}

impl Row {
    /// The figures that have to agree: name, predicted, counted.
    pub fn figures(&self) -> [(&'static str, u64, u64); 3] {
        let (p, c) = (&self.predicted, &self.counted);
        [
            ("pages_shared", p.pages_shared, c.pages_shared),
            ("pages_sharing", p.pages_sharing, c.pages_sharing),
            ("ksm_zero_pages", p.ksm_zero_pages, c.ksm_zero_pages),
        ]
    }

    /// The worst difference of a figure, as a share of what was counted.
    pub fn difference(&self) -> f64 {
        let off =
            |(_, p, c): (_, u64, u64)| if p == c { 0.0 } else { p.abs_diff(c) as f64 / c.max(1) as f64 };
        self.figures().into_iter().map(off).fold(0.0, f64::max)
    }
}

/// What can go wrong in a check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// KSM.
    #[error(transparent)]
    Ksm(#[from] KsmError),
    /// No memory for it.
    #[error("cannot map {bytes} bytes of memory for the check")]
    Memory {
        /// How much.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
    /// Stopped by the user.
    #[error("the check was stopped")]
    Stopped,
}

/// A check under way.
pub struct Check<'a> {
    /// KSM in our hands.
    pub guard: &'a KsmGuard,
    /// Passes of each run.
    pub passes: u64,
    /// Says when to stop.
    pub stop: &'a dyn Fn() -> bool,
    // ksmd does not begin a pass on a host without mergeable memory.
    _one: MmapMut,
}

impl<'a> Check<'a> {
    /// A check of so many passes per run.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(
        guard: &'a KsmGuard,
        passes: u64,
        stop: &'a dyn Fn() -> bool,
    ) -> Result<Check<'a>, CheckError> {
        let mut one = mergeable(1)?;
        fill(u64::MAX, &mut one);
        Ok(Check { guard, passes, stop, _one: one })
    }

    fn settings(&self, case: &Case) -> Settings {
        let found = self.guard.found();
        let has = case.settings.iter().filter(|(s, _)| found.get(*s).is_some());
        Settings::of(&has.collect::<Vec<_>>())
    }

    fn pass(&self, passes: &mut Passes) -> Result<PassEnd, CheckError> {
        passes.pass(self.stop)?.ok_or(CheckError::Stopped)
    }

    /// What the rest of the host merges under these settings, after each pass.
    ///
    /// # Errors
    /// As all of the kernel's.
    pub fn others(&self, case: &Case) -> Result<Vec<Counts>, CheckError> {
        let mut passes = Passes::begin(self.guard, &self.settings(case))?;
        (0..self.passes).map(|_| Ok(counts(&self.pass(&mut passes)?.counters))).collect()
    }

    /// One content under one case.
    ///
    /// # Errors
    /// As all of the kernel's.
    pub fn synthetic(
        &self,
        content: Synthetic,
        pages: usize,
        case: &Case,
        others: &[Counts],
    ) -> Result<Vec<Row>, CheckError> {
        let mut memory = mergeable(pages)?;
        let contents = content.pages(pages);
        memory.chunks_exact_mut(PAGE).zip(&contents).for_each(|(page, c)| fill(*c, page));
        let mut scanner = Scanner::new(case.tuning());
        let all: Vec<(u64, Option<&[u8]>)> = (0..).zip(memory.chunks_exact(PAGE).map(Some)).collect();
        let guest = scanner.add_pages(&all, false);
        let mut passes = Passes::begin(self.guard, &self.settings(case))?;
        let mut rows = Vec::new();
        for (pass, others) in (1..=self.passes).zip(others) {
            for (at, c) in content.changes(pages, pass) {
                fill(c, &mut memory[at * PAGE..(at + 1) * PAGE]);
                scanner.write(guest, at, &page(c));
            }
            let row = self.step(&mut passes, &mut scanner, pass)?;
            let counted = less(row.counted, others);
            rows.push(Row { content: content.name().into(), case: case.name.clone(), counted, ..row });
        }
        Ok(rows)
    }

    /// All processes' mergeable memory under one case. Processes that go on running change it: stop them.
    ///
    /// # Errors
    /// As all of the kernel's.
    pub fn processes(&self, case: &Case) -> Result<Vec<Row>, CheckError> {
        let ksm = self.guard.ksm();
        let mut passes = Passes::begin(self.guard, &self.settings(case))?;
        let mut scanner = Scanner::new(case.tuning());
        let mut names = Vec::new();
        for pid in ksm.merging_processes()? {
            // One that has ended since has no memory to scan.
            let Ok(areas) = ksm.mergeable(pid) else { continue };
            if add(&mut scanner, &areas).is_some() && pid != std::process::id() {
                names.push(pid.to_string());
            }
        }
        let content = format!("process {}", names.join(" "));
        let mut rows = Vec::new();
        for pass in 1..=self.passes {
            let row = self.step(&mut passes, &mut scanner, pass)?;
            rows.push(Row { content: content.clone(), case: case.name.clone(), ..row });
        }
        Ok(rows)
    }

    fn step(&self, passes: &mut Passes, scanner: &mut Scanner, pass: u64) -> Result<Row, CheckError> {
        let (before, work, cpu) = (Instant::now(), scanner.work(), scanner.cpu());
        scanner.pass();
        let end = self.pass(passes)?;
        scanner.elapse(before.elapsed());
        Ok(Row {
            content: String::new(),
            case: String::new(),
            pass,
            predicted: scanner.counts(),
            counted: counts(&end.counters),
            work: scanner.work() - work,
            predicted_cpu: scanner.cpu() - cpu,
            counted_cpu: end.cpu,
        })
    }
}

/// Gives a process's memory to the model.
fn add(scanner: &mut Scanner, areas: &[Area]) -> Option<Guest> {
    let mut pages: Vec<(u64, Option<&[u8]>, bool)> = Vec::new();
    for area in areas {
        let bytes = area.bytes.chunks_exact(PAGE);
        for (number, (state, bytes)) in (area.first..).zip(area.pages.iter().zip(bytes)) {
            let there = (*state != PageState::None).then_some(bytes);
            pages.push((number, there, *state == PageState::Huge));
        }
    }
    let some = pages.iter().any(|p| p.1.is_some());
    some.then(|| scanner.add_mixed(&pages))
}

/// Anonymous memory in small pages that ksmd scans.
fn mergeable(pages: usize) -> Result<MmapMut, CheckError> {
    let bytes = pages * PAGE;
    let map = || {
        let map = MmapMut::map_anon(bytes)?;
        map.advise(Advice::NoHugePage)?;
        map.advise(Advice::Mergeable)?;
        Ok(map)
    };
    map().map_err(|source| CheckError::Memory { bytes, source })
}

fn counts(counters: &Counters) -> Counts {
    let of = |c: Counter| counters.get(c).unwrap_or(0).max(0) as u64;
    Counts {
        full_scans: of(Counter::FullScans),
        pages_shared: of(Counter::PagesShared),
        pages_sharing: of(Counter::PagesSharing),
        pages_unshared: of(Counter::PagesUnshared),
        pages_volatile: of(Counter::PagesVolatile),
        pages_scanned: of(Counter::PagesScanned),
        pages_skipped: of(Counter::PagesSkipped),
        ksm_zero_pages: of(Counter::KsmZeroPages),
        stable_node_chains: of(Counter::StableNodeChains),
        stable_node_dups: of(Counter::StableNodeDups),
    }
}

/// Gauges without others' part.
fn less(all: Counts, others: &Counts) -> Counts {
    Counts {
        pages_shared: all.pages_shared.saturating_sub(others.pages_shared),
        pages_sharing: all.pages_sharing.saturating_sub(others.pages_sharing),
        pages_unshared: all.pages_unshared.saturating_sub(others.pages_unshared),
        pages_volatile: all.pages_volatile.saturating_sub(others.pages_volatile),
        ksm_zero_pages: all.ksm_zero_pages.saturating_sub(others.ksm_zero_pages),
        stable_node_chains: all.stable_node_chains.saturating_sub(others.stable_node_chains),
        stable_node_dups: all.stable_node_dups.saturating_sub(others.stable_node_dups),
        ..all
    }
}
