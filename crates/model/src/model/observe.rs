// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What watches a run beside the counts: data caches, local and remote references, and the use of memory. A
//! run without observers has loops and walks of its own, which ask for none.

use super::{Model, Options, Vcpu};
use crate::cache::{self, CachedMemory, Caches, Watch};
use crate::charge::Place;
use crate::memory::Memory;
use crate::page::Page;
use crate::placement::{PlacedReferences, Placement, Places, TableNode};
use crate::regime::Regime;
use crate::swaps::SwapWatch;
use crate::uses::{UseError, UseOptions, Uses};
use bifold_mmu::{Gpa, Gva, Hpa, Side};
use bifold_reclaim::{MemoryUse, MissCurve};

/// The observers of a run.
#[derive(Debug)]
pub(super) struct Observers {
    /// Data caches, if they are simulated.
    pub caches: Option<Box<Caches>>,
    /// Local and remote references, if they are counted.
    pub places: Option<Box<Places>>,
    /// The frames that the guest uses, if they are watched.
    pub uses: Option<Box<Uses>>,
    /// Superfluous swap operations, if they are counted.
    pub swaps: Option<Box<SwapWatch>>,
}

impl Observers {
    /// Are there any?
    pub fn any(&self) -> bool {
        self.caches.is_some() || self.places.is_some() || self.uses.is_some() || self.swaps.is_some()
    }

    /// Does an observer see walks that the caches do not, or ask for frames?
    #[inline]
    pub fn sees_every_walk(&self) -> bool {
        self.places.is_some() || self.uses.is_some() || self.swaps.is_some()
    }

    /// Access number `access` comes next. Returns how many accesses like it the core has under way at once,
    /// at most: see [`Caches::at_once`].
    #[inline]
    pub fn at(&mut self, access: u64, vcpu: usize, side: Side, dependent: bool) -> u64 {
        let Some(caches) = &mut self.caches else { return if dependent { 1 } else { u64::MAX } };
        caches.at(access);
        // Nothing hides the wait for code: the core has no instructions.
        if side == Side::Data { caches.at_once(vcpu, dependent) } else { 1 }
    }

    /// [`Observers::at`] of an access to data that walks. A dependent load goes on with its chain first.
    #[inline]
    pub fn walks(&mut self, access: u64, vcpu: usize, dependent: bool) -> u64 {
        if let (true, Some(caches)) = (dependent, &mut self.caches) {
            caches.watch(vcpu).dependent_load(access);
        }
        self.at(access, vcpu, Side::Data, dependent)
    }

    /// Memory as the walks of configuration `config` see it. `at_once`: of the accesses that they belong to.
    #[inline]
    pub fn memory(&mut self, config: usize, vcpu: usize, at_once: u64) -> Observed<'_> {
        Observed {
            caches: self.caches.as_deref_mut().map(|c| c.walker(config, vcpu, at_once)),
            places: self.places.as_deref_mut().map(|p| p.walker(config, vcpu, at_once == 1)),
            uses: self.uses.as_deref_mut().filter(|uses| uses.has_walks_of(config)),
        }
    }

    /// A host has backed a page, or may have.
    #[inline]
    pub fn backed(&mut self) {
        if let Some(places) = &mut self.places {
            places.forget();
        }
    }
}

/// What watches accesses that a filter answers.
pub(super) trait Watcher {
    /// Notes access number `access` to data. False if more than a note is needed; nothing has changed then.
    fn takes(&mut self, gva: Gva, write: bool, dependent: bool, generation: u64, access: u64) -> bool;

    /// Notes that code of another page runs. False as above.
    #[inline(always)]
    fn fetches(&mut self, _gva: Gva, _generation: u64) -> bool {
        true
    }
}

/// Nothing watches.
impl Watcher for () {
    #[inline(always)]
    fn takes(&mut self, _: Gva, _: bool, _: bool, _: u64, _: u64) -> bool {
        true
    }
}

impl Watcher for Watch<'_> {
    #[inline(always)]
    fn takes(&mut self, gva: Gva, write: bool, dependent: bool, generation: u64, access: u64) -> bool {
        let taken = Watch::takes(self, gva, write, generation, access);
        if taken && dependent {
            self.dependent_load(access);
        }
        taken
    }
}

/// The frames that one vCPU uses.
pub(super) struct Using<'a> {
    pub uses: &'a mut Uses,
    pub vcpu: usize,
}

impl Watcher for Using<'_> {
    #[inline(always)]
    fn takes(&mut self, gva: Gva, write: bool, _: bool, generation: u64, _: u64) -> bool {
        let frame = self.uses.frame(self.vcpu, gva, generation);
        frame.into_iter().for_each(|frame| self.uses.data(frame, write));
        frame.is_some()
    }

    #[inline(always)]
    fn fetches(&mut self, gva: Gva, generation: u64) -> bool {
        let frame = self.uses.frame(self.vcpu, gva, generation);
        frame.into_iter().for_each(|frame| self.uses.fetch(self.vcpu, frame));
        frame.is_some()
    }
}

/// The swap operations that one vCPU's accesses decide on.
pub(super) struct Deciding<'a> {
    pub swaps: &'a SwapWatch,
    pub vcpu: usize,
}

impl Watcher for Deciding<'_> {
    #[inline(always)]
    fn takes(&mut self, gva: Gva, write: bool, _: bool, generation: u64, _: u64) -> bool {
        self.swaps.is_settled(self.vcpu, gva, write, generation)
    }

    #[inline(always)]
    fn fetches(&mut self, gva: Gva, generation: u64) -> bool {
        self.swaps.is_settled(self.vcpu, gva, false, generation)
    }
}

/// Several observers of one vCPU.
pub(super) struct Several<'a> {
    pub watch: Option<Watch<'a>>,
    pub places: Option<&'a mut Places>,
    pub uses: Option<Using<'a>>,
    pub swaps: Option<Deciding<'a>>,
    pub vcpu: usize,
}

impl Watcher for Several<'_> {
    #[inline(always)]
    fn takes(&mut self, gva: Gva, write: bool, dependent: bool, generation: u64, access: u64) -> bool {
        let Several { watch, places, uses, swaps, vcpu } = self;
        let settled = swaps.as_mut().is_none_or(|s| s.takes(gva, write, dependent, generation, access));
        let frame = uses.as_ref().map(|u| u.uses.frame(*vcpu, gva, generation));
        let taken = settled
            && frame != Some(None)
            && places.as_ref().is_none_or(|p| p.knows(*vcpu, gva, generation))
            && watch.as_mut().is_none_or(|w| Watcher::takes(w, gva, write, dependent, generation, access));
        if taken {
            places.iter_mut().for_each(|p| p.count(*vcpu, gva));
            if let (Some(using), Some(frame)) = (uses, frame.flatten()) {
                using.uses.data(frame, write);
            }
        }
        taken
    }

    #[inline(always)]
    fn fetches(&mut self, gva: Gva, generation: u64) -> bool {
        let Several { uses, swaps, .. } = self;
        swaps.as_mut().is_none_or(|s| s.fetches(gva, generation))
            && uses.as_mut().is_none_or(|using| using.fetches(gva, generation))
    }
}

/// Memory as the walks of one configuration see it.
#[derive(Debug)]
pub(super) struct Observed<'a> {
    caches: Option<CachedMemory<'a>>,
    places: Option<PlacedReferences<'a>>,
    uses: Option<&'a mut Uses>,
}

impl Memory for Observed<'_> {
    #[inline]
    fn touch(&mut self, guest: u8, host: u8, at: impl FnOnce() -> Hpa, page: impl FnOnce() -> Page) -> usize {
        let Observed { caches, places, uses } = self;
        if let Some(uses) = uses {
            // Without a hypervisor, the machine's address is the guest's.
            let at = at();
            uses.walk(Gpa(at.0));
            return answer(caches, places, (guest, host), || at, page);
        }
        answer(caches, places, (guest, host), at, page)
    }
}

/// Passes a walk's reference to data caches and placements: see [`Memory::touch`].
#[inline]
fn answer(
    caches: &mut Option<CachedMemory<'_>>,
    places: &mut Option<PlacedReferences<'_>>,
    (guest, host): (u8, u8),
    at: impl FnOnce() -> Hpa,
    page: impl FnOnce() -> Page,
) -> usize {
    let Some(places) = places else {
        return caches.as_mut().map_or(0, |caches| caches.touch(guest, host, at, page));
    };
    let page = page();
    let answered = caches.as_mut().map_or(0, |caches| caches.touch(guest, host, at, || page));
    places.touch(guest, host, page, answered);
    answered
}

impl Model {
    /// The observers see an access to data, whose translation the TLBs hold.
    #[inline(always)]
    pub(super) fn observe(&mut self, gva: Gva, write: bool, dependent: bool) {
        if self.observers.places.is_some() {
            self.place(gva);
        }
        if self.observers.uses.is_some() {
            if let Some(frame) = self.frame(gva) {
                self.observers.uses.iter_mut().for_each(|uses| uses.data(frame, write));
            }
        }
        if self.observers.swaps.is_some() {
            self.decide_swaps(gva, write);
        }
        let Vcpu { generation, .. } = self.vcpus[self.current];
        let caches = &mut self.observers.caches;
        if caches.as_deref_mut().is_some_and(|c| !c.watch(self.current).is_settled(gva, write, generation)) {
            self.data(gva, write, dependent);
        }
    }

    /// The observers see that code of another page runs.
    pub(super) fn observe_fetch(&mut self, gva: Gva) {
        if self.observers.swaps.is_some() {
            self.decide_swaps(gva, false);
        }
        if self.observers.uses.is_some() {
            if let Some(frame) = self.frame(gva) {
                self.observers.uses.iter_mut().for_each(|uses| uses.fetch(self.current, frame));
            }
        }
    }

    /// An access may decide whether a swap operation was superfluous.
    fn decide_swaps(&mut self, gva: Gva, write: bool) {
        let Model { observers, guest, vcpus, current, frames, regimes, .. } = self;
        let Some(swaps) = &mut observers.swaps else { return };
        let Vcpu { root, generation, .. } = vcpus[*current];
        let gpa = match swaps.known().get(*current, gva, generation) {
            Some(frame) => Gpa(frame << 12 | (gva.0 & 0xfff)),
            None => {
                let Ok(leaf) = guest.lookup(root, gva) else { return };
                let gpa = leaf.gpa(gva);
                swaps.known().note(*current, gva, generation, gpa.frame());
                gpa
            }
        };
        if gpa.frame() < *frames {
            let mut back = Vec::new();
            let came = regimes
                .iter_mut()
                .enumerate()
                .filter_map(|(host, r)| r.came_back(gpa.frame()).then_some(host));
            back.extend(came);
            swaps.access(gpa, write, back.into_iter());
        }
    }

    /// The frame that the guest's tables map at `gva`, noted for [`Uses::frame`]. None without a translation.
    #[inline]
    fn frame(&mut self, gva: Gva) -> Option<u64> {
        let Model { observers, guest, vcpus, current, .. } = self;
        let uses = observers.uses.as_deref_mut()?;
        let Vcpu { root, generation, .. } = vcpus[*current];
        uses.frame(*current, gva, generation).or_else(|| {
            let gpa = guest.lookup(root, gva).ok()?.gpa(gva);
            uses.file(*current, gva, generation, gpa);
            Some(gpa.frame())
        })
    }

    /// From now on, counts swap operations and which of them are superfluous: see [`Model::swaps`]. VMs that
    /// switch are to be added before.
    pub fn watch_swaps(&mut self) {
        if self.observers.swaps.is_none() {
            let watch = SwapWatch::new(self.options.guest_frames, self.vcpus.len());
            self.observers.swaps = Some(Box::new(watch));
            self.regimes.iter_mut().for_each(Regime::note_swapped_in);
        }
    }

    /// From now on, keeps which frames the guest uses, until [`Model::take_uses`]. Accesses that a sampled
    /// stream leaves out are left out here too.
    ///
    /// # Errors
    ///
    /// The guest is larger than can be followed, or native paging is not among the configurations.
    pub fn watch_uses(&mut self, options: UseOptions) -> Result<(), UseError> {
        let Options { guest_frames, ref configs, .. } = self.options;
        let uses = Uses::new(guest_frames, self.vcpus.len(), configs, options)?;
        self.observers.uses = Some(Box::new(uses));
        Ok(())
    }

    /// The misses, so far, of LRU memories with the frames that the guest uses: see [`Model::watch_uses`].
    pub fn use_curve(&self) -> Option<MissCurve> {
        self.observers.uses.as_ref().map(|uses| uses.curve())
    }

    /// The frames that the guest has used since [`Model::watch_uses`], or since the region began; none if
    /// they were not watched.
    pub fn take_uses(&mut self) -> Option<MemoryUse> {
        self.observers.uses.take().map(|uses| uses.finish())
    }

    /// An access to data that changes the data caches.
    #[inline(never)]
    fn data(&mut self, gva: Gva, write: bool, dependent: bool) {
        let Model {
            observers: Observers { caches, places, .. }, regimes, guest, vcpus, frames, current, ..
        } = self;
        let Some(caches) = caches else { return };
        let Some(seen) = caches.note(*current, gva) else { return };
        caches.at(self.common.accesses);
        let Vcpu { root, generation, .. } = vcpus[*current];
        let at_once = caches.at_once(*current, dependent);
        let access = cache::Access { vcpu: *current, gva, write, at_once, generation };
        let translate = || {
            let leaf = guest.lookup(root, gva).ok()?;
            let gpa = leaf.gpa(gva);
            (gpa.frame() < *frames).then_some((gpa, leaf.size))
        };
        let from_memory = |config, weight| {
            if let Some(places) = places {
                places.data_from_memory(config, *current, gva, weight, at_once == 1);
            }
        };
        caches.access(access, seen, translate, |config, gpa| regimes[config].hpa(gpa), from_memory);
        self.charge_waits(gva);
    }

    /// Charges what the access to `gva` waited for data.
    pub(super) fn charge_waits(&mut self, gva: Gva) {
        let Model { observers, charges: Some(charges), guest, vcpus, current, .. } = self else { return };
        let Some(caches) = &observers.caches else { return };
        let Vcpu { root, running, .. } = &mut vcpus[*current];
        let place = |code| {
            let size = guest.lookup(*root, gva).ok().map(|leaf| leaf.size);
            Place { vcpu: *current, code, data: Some(gva), size }
        };
        charges.charge_waits(caches, place, running);
    }

    /// Counts an access to data as local or remote.
    fn place(&mut self, gva: Gva) {
        let Model { observers, regimes, guest, vcpus, frames, current, .. } = self;
        let Some(places) = &mut observers.places else { return };
        let Vcpu { root, generation, .. } = vcpus[*current];
        if places.knows(*current, gva, generation) {
            places.count(*current, gva);
            return;
        }
        let gpa = guest.lookup(root, gva).ok().map(|leaf| leaf.gpa(gva)).filter(|gpa| gpa.frame() < *frames);
        if let Some(gpa) = gpa {
            places.access(*current, gva, generation, |config| regimes[config].page(gpa));
        }
    }

    /// Where a placement has the nested tables that configuration number `config` has made so far. None
    /// without [`Options::placed`](super::Options::placed) and in other modes. A host tells the same by
    /// `SecPageTables` of each node.
    pub fn nested_tables(&self, config: usize, placement: Placement) -> Vec<TableNode> {
        let (Some(places), Some(regime)) = (&self.observers.places, self.regimes.get(config)) else {
            return Vec::new();
        };
        places.nested_tables(placement, regime.nested_tables())
    }
}
