// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the model of KSM against this kernel's ksmd, pass by pass, on the same memory.
//!
//! ksmd does one pass at a time ([`Passes`]), and the model does the same passes. The memory is
//! [`Synthetic`], or the memory of all processes with mergeable memory, which is copied to the model with its
//! huge pages and absent pages.
//!
//! KSM's counters are for the whole host. The part of other processes cannot be subtracted: it changes while
//! they run, and the measurement itself splits their huge pages, so that they merge a pass earlier the next
//! time. The check therefore counts the pages of the checked processes by their page tables
//! ([`Ksm::merged`]), and also records the counters for comparison.
//!
//! Other processes can also keep ksmd from merging: a search of the unstable tree ends at a node whose page
//! has gone (`unstable_tree_search_insert`), for example because a huge page of another process was split.
//! One content may then miss a pass. If other processes' mergeable memory appeared, disappeared or was split
//! during a content, that content is checked again, whatever its result.

mod pass;

use bifold_host::ksm::{
    Area, Counter, Counters, Ksm, KsmError, KsmGuard, MergeableArea, Merged, Others, PageState, PassProgress,
    Passes, Settings,
};
use bifold_share::image::PAGE;
use bifold_share::ksm::synthetic::{Synthetic, fill, page};
use bifold_share::ksm::{Counts, Guest, Scanner};
use memmap2::{Advice, MmapMut};
pub use pass::{Counted, KsmCase, KsmPass};
use std::cell::Cell;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time between two reports of what a check waits for.
pub const SAY: Duration = Duration::from_secs(10);
/// Most tries of a content if other processes' memory changes meanwhile.
const MOST_TRIES: u32 = 5;

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// KSM cannot be read or driven.
    #[error(transparent)]
    Ksm(#[from] KsmError),
    /// There is no memory for the check.
    #[error("cannot map {bytes} bytes of memory for the check")]
    Memory {
        /// Bytes that the check needs.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
    /// The process's page tables and KSM's figure for the process contradict each other.
    #[error(
        "{pages} pages of this process are merged by its page tables, and {merging} by its ksm_stat: the kernel was not at rest"
    )]
    NotAtRest {
        /// Merged pages by the page tables.
        pages: u64,
        /// Merged pages by KSM's figure.
        merging: u64,
    },
    /// The user stopped the check.
    #[error("the check was stopped")]
    Stopped,
    /// The check exceeded its time limit.
    #[error(
        "the check did not end within {seconds:.0} s: {at}{}",
        if others.0.is_empty() {
            String::new()
        } else {
            format!(
                "; in every pass ksmd also goes over {} mergeable pages of other programs: {others}; \
                 end them, give them memory that is not mergeable (QEMU: -machine mem-merge=off), or raise --limit",
                others.pages()
            )
        }
    )]
    Limit {
        /// The time limit.
        seconds: f64,
        /// Where the check was.
        at: String,
        /// Other processes whose memory ksmd scanned.
        others: Others,
    },
}

/// How a caller follows a check while it waits for ksmd.
pub struct Watch<'a> {
    /// Returns whether to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// Gets a report of what the check waits for, every [`SAY`].
    pub waits: &'a dyn Fn(&str),
    /// The deadline of the check, and the time from its start to the deadline.
    pub until: (Instant, Duration),
    /// After this time a disturbed content is not checked again.
    pub again_until: Instant,
}

/// A check under way.
pub struct Check<'a> {
    /// KSM's settings, held by this process.
    pub guard: &'a KsmGuard,
    /// Number of passes per run.
    pub passes: u64,
    watch: Watch<'a>,
    said: Cell<Instant>,
    // ksmd does not begin a pass on a host without mergeable memory.
    _one: MmapMut,
}

impl<'a> Check<'a> {
    /// A check with this number of passes per run.
    ///
    /// # Errors
    /// If there is no memory for the check.
    pub fn new(guard: &'a KsmGuard, passes: u64, watch: Watch<'a>) -> Result<Check<'a>, CheckError> {
        let mut one = mergeable(1)?;
        fill(u64::MAX, &mut one);
        Ok(Check { guard, passes, watch, said: Cell::new(Instant::now()), _one: one })
    }

    fn settings(&self, case: &KsmCase) -> Settings {
        let found = self.guard.found();
        let has = case.settings.iter().filter(|(s, _)| found.get(*s).is_some());
        Settings::of(&has.collect::<Vec<_>>())
    }

    /// Checks one content under one case.
    ///
    /// # Errors
    /// If KSM fails, the user stops the check, or the time limit is exceeded.
    pub fn synthetic(
        &self,
        content: Synthetic,
        pages: usize,
        case: &KsmCase,
    ) -> Result<Vec<KsmPass>, CheckError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let before = self.others(case)?;
            let mut rows = self.synthetic_once(content, pages, case)?;
            let disturbed = before != self.others(case)?;
            if disturbed && tries < MOST_TRIES && Instant::now() < self.watch.again_until {
                continue;
            }
            rows.iter_mut().for_each(|r| (r.tries, r.disturbed) = (tries, disturbed));
            return Ok(rows);
        }
    }

    /// Other processes' mergeable areas, with nothing merged.
    fn others(&self, case: &KsmCase) -> Result<Vec<(u32, Vec<MergeableArea>)>, CheckError> {
        Passes::begin(self.guard, &self.settings(case))?;
        let mut all = all_areas(self.guard.ksm())?;
        all.retain(|(pid, _)| *pid != std::process::id());
        Ok(all)
    }

    fn synthetic_once(
        &self,
        content: Synthetic,
        pages: usize,
        case: &KsmCase,
    ) -> Result<Vec<KsmPass>, CheckError> {
        let mut memory = mergeable(pages)?;
        let contents = content.pages(pages);
        memory.chunks_exact_mut(PAGE).zip(&contents).for_each(|(page, c)| fill(*c, page));
        let mut scanner = Scanner::new(case.tuning());
        let all: Vec<(u64, Option<&[u8]>)> = (0..).zip(memory.chunks_exact(PAGE).map(Some)).collect();
        let guest = scanner.add_pages(&all, false);
        let mut passes = Passes::begin(self.guard, &self.settings(case))?;
        let mut rows = Vec::new();
        for pass in 1..=self.passes {
            for (at, c) in content.changes(pages, pass) {
                fill(c, &mut memory[at * PAGE..(at + 1) * PAGE]);
                scanner.write(guest, at, &page(c));
            }
            let name = (content.name(), &*case.name);
            rows.push(self.step(&mut passes, &mut scanner, pass, name, own)?);
        }
        Ok(rows)
    }

    /// Checks the mergeable memory of all processes under one case. The processes must be stopped, because a
    /// running process changes its memory. ksmd visits processes in the order in which they asked for
    /// merging, if its scan was at its start then. The kernel does not show that order, so processes are
    /// taken in the order of their ids.
    ///
    /// # Errors
    /// If KSM fails, the user stops the check, or the time limit is exceeded.
    pub fn processes(&self, case: &KsmCase) -> Result<Vec<KsmPass>, CheckError> {
        let ksm = self.guard.ksm();
        let mut passes = Passes::begin(self.guard, &self.settings(case))?;
        let before = (ksm.collapsed(), places(ksm)?);
        let mut scanner = Scanner::new(case.tuning());
        let mut checked = vec![std::process::id()];
        for pid in ksm.merging_processes()? {
            // One that has ended since has no memory to scan.
            let Ok(areas) = ksm.mergeable(pid) else { continue };
            if add(&mut scanner, &areas).is_some() && pid != checked[0] {
                checked.push(pid);
            }
        }
        let names: Vec<String> = checked[1..].iter().map(u32::to_string).collect();
        let content = format!("process {}", names.join(" "));
        let mut rows = Vec::new();
        for pass in 1..=self.passes {
            let name = (&*content, &*case.name);
            rows.push(self.step(&mut passes, &mut scanner, pass, name, |ksm| Ok(ksm.merged(&checked)?))?);
        }
        // Not repeated, because the first try has split huge pages and so changed the memory.
        let disturbed = (ksm.collapsed(), places(ksm)?) != before;
        rows.iter_mut().for_each(|r| r.disturbed = disturbed);
        Ok(rows)
    }

    /// Reports what the check waits for, and returns whether the wait has to end.
    fn waited(&self, progress: PassProgress, pass: u64, content: &str, case: &str) -> bool {
        if progress.elapsed > SAY && self.said.get().elapsed() > SAY {
            self.said.set(Instant::now());
            (self.watch.waits)(&format!(
                "{}: ksmd has visited {} pages in {:.0} s",
                self.place(pass, content, case),
                progress.visited,
                progress.elapsed.as_secs_f64()
            ));
        }
        (self.watch.stop)() || Instant::now() > self.watch.until.0
    }

    fn place(&self, pass: u64, content: &str, case: &str) -> String {
        format!("pass {pass} of {} over {content} under {case}", self.passes)
    }

    fn too_long(&self, pass: u64, content: &str, case: &str) -> Result<CheckError, CheckError> {
        let others = self.guard.ksm().others(&[std::process::id()])?;
        let at = format!("it was in {}", self.place(pass, content, case));
        Ok(CheckError::Limit { seconds: self.watch.until.1.as_secs_f64(), at, others })
    }

    fn step(
        &self,
        passes: &mut Passes,
        scanner: &mut Scanner,
        pass: u64,
        (content, case): (&str, &str),
        merged: impl Fn(&Ksm) -> Result<Merged, CheckError>,
    ) -> Result<KsmPass, CheckError> {
        let (before, work, cpu) = (Instant::now(), scanner.work(), scanner.cpu());
        scanner.pass();
        let end = match passes.pass(&|progress| self.waited(progress, pass, content, case))? {
            Some(end) => end,
            None if (self.watch.stop)() => return Err(CheckError::Stopped),
            None => return Err(self.too_long(pass, content, case)?),
        };
        let counted = merged(self.guard.ksm())?.into();
        scanner.elapse(before.elapsed());
        Ok(KsmPass {
            content: content.into(),
            case: case.into(),
            pass,
            predicted: scanner.counts(),
            counted,
            host: counts(&end.counters),
            work: scanner.work() - work,
            predicted_cpu: scanner.cpu() - cpu,
            counted_cpu: end.cpu,
            tries: 1,
            disturbed: false,
        })
    }
}

/// What KSM has merged of this process's memory. The process is at rest, so two sources of the kernel must
/// agree; a page that compaction moves may spoil a single read.
fn own(ksm: &Ksm) -> Result<Merged, CheckError> {
    const LOOKS: usize = 5;
    let mut looks = 0;
    loop {
        let merged = ksm.merged(&[std::process::id()])?;
        looks += 1;
        match merged.merging_pages {
            Some(merging) if merging != merged.pages && looks < LOOKS => sleep(Duration::from_millis(20)),
            Some(merging) if merging != merged.pages => {
                return Err(CheckError::NotAtRest { pages: merged.pages, merging });
            }
            _ => return Ok(merged),
        }
    }
}

/// The mergeable areas of all processes. A process that ends meanwhile has none.
fn all_areas(ksm: &Ksm) -> Result<Vec<(u32, Vec<MergeableArea>)>, KsmError> {
    ksm.merging_processes()?.into_iter().map(|pid| Ok((pid, ksm.mergeable_areas(pid)?))).collect()
}

/// Places of all processes' mergeable memory, without the amounts that merging changes (resident, huge).
fn places(ksm: &Ksm) -> Result<Vec<(u32, u64, u64)>, KsmError> {
    let all = all_areas(ksm)?;
    Ok(all.iter().flat_map(|(pid, areas)| areas.iter().map(|a| (*pid, a.start, a.end))).collect())
}

/// Adds a process's memory to the model.
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
