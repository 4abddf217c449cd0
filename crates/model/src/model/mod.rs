// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model of one VM, which consumes events and costs every configuration in one pass.
//!
//! Every configuration sees the same accesses. Configurations share TLBs: what these hold alike is kept once
//! (`docs/design/model.md#tlbs`). A filter in front of the TLBs ([`Filter`])
//! answers for pages that all of them hold, so most accesses cost one comparison.

mod access;
mod events;
mod groups;
mod limit;
mod looked;
mod miss;
mod observe;
mod reclaim;
mod region;
mod sampled;
mod steady;
mod switched;

use crate::cache::{CacheMode, Caches, Draws};
use crate::charge::{Charge, Charges, Place, Running};
use crate::contention;
use crate::exit_log::ExitLog;
use crate::guest::GuestTables;
use crate::host::Frames;
use crate::paging::Setup;
use crate::pcid::Spaces;
use crate::placement::{PlacementOptions, Places};
use crate::regime::Regime;
use crate::timeline::{Cut, Kept, Shared, Timeline, counts};
use crate::{Config, ConfigOutcome, Exit, Outcome, Profile, RegionTotal, Sample, VmState};
use bifold_mmu::format::{PAE, X86_32, X86_64_4_LEVEL, X86_64_5_LEVEL};
use bifold_mmu::{Filter, Format, Gpa, PageSize, Side, Tlb};
use bifold_trace::{TableFormat, Windows};
use groups::{Group, Kind, places};
use observe::Observers;
use region::Ended;
use sampled::Sampled;
use switched::Switched;
use xxhash_rust::xxh3::Xxh3;

pub use looked::Looked;
pub use region::MOST_REGIONS;
pub use sampled::SoFar;
pub use switched::{Decide, SwitchedOutcome, Switching};

/// Options of a run of the model, beside the profile.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// How long the host has run, which decides how the host's frames lie.
    pub host_frames: Frames,
    /// What the host holds of the guest's memory at the start.
    pub vm: VmState,
    /// Length of an interval in seconds of the profile's clock.
    pub interval_seconds: f64,
    /// Configurations to cost.
    pub configs: Vec<Config>,
    /// 4 KB frames of the guest, windows below 4 GB included.
    pub guest_frames: u64,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// The format of the guest's tables: that of 4 levels, or of 5 (CR4.LA57), or in 32-bit mode that of PAE
    /// or of 2 levels.
    pub guest_format: &'static Format,
    /// The format of nested tables, that of 4 levels or of 5: KVM has 5 levels where the guest's physical
    /// addresses have more than 48 bits (`kvm_mmu_get_tdp_level`).
    pub nested_format: &'static Format,
    /// Which lines go through data caches.
    pub caches: CacheMode,
    /// The placements for which local and remote references are counted.
    pub placed: Option<PlacementOptions>,
    /// The windows of a sampled stream, for what each stands for. Without them, each stands for itself alike.
    pub windows: Option<Windows>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 1,
            host_frames: Frames::default(),
            vm: VmState::Started,
            interval_seconds: 0.01,
            configs: Config::ALL.to_vec(),
            guest_frames: 1 << 18,
            vcpus: 1,
            guest_format: &X86_64_4_LEVEL,
            nested_format: &X86_64_4_LEVEL,
            caches: CacheMode::Off,
            placed: None,
            windows: None,
        }
    }
}

/// The format of the tables of a guest that a recording names.
pub fn format_of(tables: TableFormat) -> &'static Format {
    match tables {
        TableFormat::FourLevel => &X86_64_4_LEVEL,
        TableFormat::FiveLevel => &X86_64_5_LEVEL,
        TableFormat::Pae => &PAE,
        TableFormat::TwoLevel => &X86_32,
    }
}

#[derive(Debug)]
struct Vcpu {
    index: usize,
    root: Gpa,
    started: bool,
    cr4: Option<u64>,
    /// Instructions within what is measured.
    instructions: u64,
    /// A function call of another vCPU has been delivered, and nothing was flushed since.
    called: bool,
    /// The code that runs, if the stream tells it.
    running: Running,
    /// Data and code.
    filters: [Filter; 2],
    /// Accesses and fetches so far: the clock of recency.
    time: u64,
    spaces: Spaces,
    /// A new one begins whenever a translation may have changed.
    generation: u64,
}

impl Vcpu {
    fn forget(&mut self) {
        self.generation += 1;
        self.filters.iter_mut().for_each(Filter::forget);
    }
}

/// What the tables of a configuration are made from.
fn setup<'a>(guest: &'a GuestTables, profile: &'a Profile, options: &Options, placed: bool) -> Setup<'a> {
    Setup {
        guest,
        nested: options.nested_format,
        vcpus: options.vcpus.max(1),
        kvm: profile.kvm,
        virtualization: profile.cpu.virtualization,
        frames: options.host_frames,
        profile,
        placed,
        vm: options.vm,
        outer_page: PageSize::Size4K,
    }
}

/// The model of one VM in every configuration.
#[allow(missing_debug_implementations)]
pub struct Model {
    profile: Profile,
    options: Options,
    /// The guest uses PCIDs, which only 64-bit mode has.
    pcid: bool,
    guest: GuestTables,
    regimes: Vec<Regime>,
    groups: Vec<Group>,
    /// Frames from here on are devices'.
    frames: u64,
    vcpus: Vec<Vcpu>,
    current: usize,
    /// Frames that the host holds from the start, until the guest starts.
    resident: Vec<(u64, u64)>,
    /// VMs whose mode changes.
    switched: Vec<Switched>,
    /// Where the stream is sampled, or its region has not begun.
    sampled: Option<Box<Sampled>>,
    /// What came before the command's own program, once that has begun.
    start: Option<Vec<RegionTotal>>,
    /// Instructions before the region that began first within the stream.
    before_region: Option<u64>,
    /// The regions that have ended.
    ended: Ended,
    has_code: bool,
    common: Sample,
    timeline: Timeline,
    hash: Xxh3,
    words: usize,
    /// Accesses that the filter did not answer.
    misses: u64,
    /// The last access that the filter did not answer missed the TLBs of every group.
    missed_all: bool,
    /// What [`Model::read_ahead`] read: kept so that the reads are not optimised away.
    seen: u64,
    walk_checks: u64,
    walk_mismatches: u64,
    untranslated: u64,
    /// Costs one by one, if they are wanted.
    charges: Option<Box<Charges>>,
    observers: Observers,
    /// What hosts hold at most, if they page out.
    limit: Option<Box<limit::Limit>>,
    looks: looked::Looks,
    /// Some configuration hears of the guest's stores to its tables.
    hears_stores: bool,
}

impl Model {
    /// A model that has seen nothing yet.
    ///
    /// # Panics
    ///
    /// If a configuration does not [serve](crate::Paging::serves) the format of the guest's tables.
    pub fn new(profile: &Profile, options: Options) -> Model {
        let refused = options.configs.iter().find(|c| !c.mode.serves(options.guest_format));
        assert!(
            refused.is_none(),
            "{} is for guests in 64-bit mode",
            refused.map(|c| c.name()).unwrap_or_default()
        );
        let guest = GuestTables::new(options.guest_format);
        let pcid = profile.cpu.pcid && options.guest_format.is_long();
        let vcpus = options.vcpus.max(1);
        let placed = options.placed.is_some();
        let setup = setup(&guest, profile, &options, placed);
        let regimes: Vec<Regime> = options
            .configs
            .iter()
            .map(|&c| Regime::new(c, profile, &setup, options.guest_frames, options.seed))
            .collect();
        let hears_stores = regimes.iter().any(Regime::hears_stores);
        let groups = Group::start(&regimes, &Kind { arrays: profile.tlb_specs(), vcpus, pcid });
        let draws = Draws { seed: options.seed, frames: options.host_frames };
        let interval = (options.interval_seconds * profile.cpu.frequency_hz as f64).max(1.0) as u64;
        Model {
            has_code: Tlb::new(&profile.tlb_specs(), 1, true).has(Side::Code),
            timeline: Timeline::new(interval, regimes.len()),
            // Below 4 GB there are device windows between frames of memory.
            frames: options.guest_frames.max(1 << 20),
            groups,
            regimes,
            vcpus: (0..vcpus)
                .map(|index| Vcpu {
                    index,
                    root: guest.root(index, 0),
                    started: false,
                    cr4: None,
                    instructions: 0,
                    called: false,
                    running: Running::new(),
                    filters: Default::default(),
                    time: 0,
                    spaces: Spaces::new(pcid),
                    generation: 1,
                })
                .collect(),
            current: 0,
            resident: if options.vm == VmState::LongLived {
                vec![(0, options.guest_frames)]
            } else {
                Vec::new()
            },
            switched: Vec::new(),
            sampled: None,
            start: None,
            before_region: None,
            ended: Ended::default(),
            pcid,
            common: Sample::default(),
            hash: Xxh3::new(),
            words: 0,
            misses: 0,
            missed_all: false,
            seen: 0,
            walk_checks: 0,
            walk_mismatches: 0,
            untranslated: 0,
            charges: None,
            limit: None,
            looks: looked::Looks::default(),
            hears_stores,
            observers: Observers {
                caches: Caches::new(profile, options.caches, draws, vcpus, &options.configs),
                places: options.placed.as_ref().map(|p| Places::new(p, vcpus, &options.configs)),
                uses: None,
                swaps: None,
            },
            profile: profile.clone(),
            options,
            guest,
        }
    }

    /// Instructions consumed so far.
    pub fn instructions(&self) -> u64 {
        self.common.instructions
    }

    /// Data accesses consumed so far.
    pub fn accesses(&self) -> u64 {
        self.common.accesses
    }

    /// The guest is about to start: what the host holds by now is behind every hypervisor's
    /// empty tables. Where a stream tells of it later, nothing is done.
    fn hold_resident(&mut self) {
        let resident = std::mem::take(&mut self.resident);
        let begun = self.vcpus.iter().any(|v| v.started || v.time > 0) || self.common != Sample::default();
        // What the host holds of a snapshot is in its file.
        let restored = matches!(self.options.vm, VmState::Restored | VmState::RestoredUffd);
        if resident.is_empty() || begun || restored {
            return;
        }
        let placed = self.observers.places.is_some();
        let setup = setup(&self.guest, &self.profile, &self.options, placed);
        for regime in &mut self.regimes {
            let mut host = setup.host(regime.config.host_page, self.options.guest_frames, self.options.seed);
            resident.iter().for_each(|&(gfn, frames)| host.hold(gfn, frames));
            regime.start_over(host, &setup);
            if self.observers.swaps.is_some() {
                regime.note_swapped_in();
            }
            if self.options.vm == VmState::LongLived {
                regime.map_all();
            }
        }
        if self.options.vm == VmState::LongLived {
            self.keep_mapped();
        }
    }

    /// Every configuration's counts since the start. Between two calls of
    /// [`Model::consume`]: what the words in between cost is a [`Sample::since`].
    pub fn totals(&self) -> Vec<(Config, Sample)> {
        let of = |(i, r): (usize, &Regime)| (r.config, counts(i, r, self.shared()));
        self.regimes.iter().enumerate().map(of).collect()
    }

    fn shared(&self) -> Shared<'_> {
        let caches = self.observers.caches.as_deref();
        Shared { common: &self.common, profile: &self.profile, caches }
    }

    /// From now on, logs every exit of every configuration: see [`Model::take_exit_log`].
    pub fn log_exits(&mut self) {
        let instructions = self.common.instructions;
        for r in self.regimes.iter_mut().filter(|r| r.counts.log.is_none()) {
            r.counts.log = Some(Box::new(ExitLog::new(r.config, &r.counts.now, instructions)));
        }
    }

    /// The exits since [`Model::log_exits`] or the last call: configuration by configuration,
    /// each in the order in which they came.
    pub fn take_exit_log(&mut self) -> Vec<Exit> {
        self.regimes.iter_mut().filter_map(|r| r.counts.log.as_mut()).flat_map(|log| log.take()).collect()
    }

    /// From now on, keeps what every access and instruction cost in every configuration: see
    /// [`Model::take_charges`]. With `calls`, hands over calls and returns, too, if the stream has them.
    pub fn charge(&mut self, calls: bool) {
        let regimes = &self.regimes[..self.options.configs.len()];
        self.charges = Some(Box::new(Charges::new(&self.profile, regimes, calls)));
    }

    /// Hands over what was charged since [`Model::charge`] or the last call, in the order of the
    /// events. After it, a configuration's charges so far sum to its [`Model::totals`]. To be
    /// called after every [`Model::consume`]: charges take memory until they are taken.
    pub fn take_charges(&mut self, sink: &mut dyn FnMut(Charge<'_>)) {
        self.charge_rest();
        if let Some(charges) = &mut self.charges {
            charges.take(sink);
        }
    }

    /// Charges what no access and no instruction brought; the model knows of nothing such.
    fn charge_rest(&mut self) {
        let v = &mut self.vcpus[self.current];
        let rest = Place { vcpu: v.index, code: v.running.code, data: None, size: None };
        if let Some(charges) = &mut self.charges {
            charges.charge(&self.regimes, self.observers.caches.as_deref(), rest, true, &mut v.running);
        }
    }

    fn ideal_cycles(&self) -> u64 {
        let waits = self.observers.caches.as_ref().map_or(0, |c| c.ideal_cycles());
        self.common.executing_cycles(self.profile.cpu.base_cpi) as u64 + waits
    }

    fn cut(&mut self, ideal: u64, why: Cut) {
        for group in &mut self.groups {
            for (tlb, v) in group.tlbs.iter_mut().zip(&self.vcpus) {
                for (page, holders) in tlb.pages() {
                    for place in places(holders) {
                        self.regimes[group.members[place]].use_page(v.index, v.root, page, &self.guest);
                    }
                }
            }
        }
        let caches = self.observers.caches.as_deref();
        let shared = Shared { common: &self.common, profile: &self.profile, caches };
        self.timeline.cut(ideal, why, &mut self.regimes, shared);
        self.cut_switched(why);
    }

    /// Ends the run.
    pub fn finish(mut self) -> Outcome {
        let sampled = self.end_sampled().filter(|_| self.ended.is_first());
        if !self.between_regions() {
            self.put_by(Cut::Run);
        }
        let interval_cycles = self.timeline.interval();
        let left_out = self.timeline.is_left_out();
        let (interval_starts, timelines) = self.timeline.finish();
        let Observers { caches, places, .. } = &self.observers;
        let base_cpi = self.profile.cpu.base_cpi;
        let mut ended = self.ended;
        let sums = std::mem::take(&mut ended.sum).into_iter().zip(timelines).zip(&self.regimes).enumerate();
        let configs = sums.map(|(i, ((sum, Kept { intervals, reuse }), regime))| {
            let mut total = sum.total;
            if left_out {
                (total.cold_exits, total.cold_cycles) = (0, 0);
            }
            let overhead = total.extra_cycles() as f64 / total.ideal_cycles(base_cpi).max(1.0);
            ConfigOutcome {
                config: regime.config,
                total,
                intervals: if left_out { vec![total] } else { intervals },
                reuse,
                refs: sum.refs,
                estimate: None,
                cache_error: caches.as_ref().map(|c| c.error(&ended.estimates, i, overhead)),
                placed: sum.placed,
            }
        });
        let configs = configs.collect();
        let mut outcome = Outcome {
            profile: self.profile.name.clone(),
            frequency_hz: self.profile.cpu.frequency_hz,
            base_cpi,
            caches: caches.as_ref().map(|c| c.facts()),
            placed: places.as_ref().map(|p| p.facts(&self.profile)),
            seed: self.options.seed,
            host_frames: self.options.host_frames,
            vm: self.options.vm,
            nested_levels: self.options.nested_format.depth(),
            config_hash: self.profile.hash(),
            input_hash: format!("{:016x}", self.hash.digest()),
            guest_frames: self.options.guest_frames,
            vcpus: self.vcpus.len() as u64,
            interval_cycles,
            configs,
            switched: self.switched.into_iter().map(Switched::outcome).collect(),
            interval_starts: if left_out { vec![0] } else { interval_starts },
            walk_checks: self.walk_checks,
            walk_mismatches: self.walk_mismatches,
            untranslated: self.untranslated,
            start: self.start,
            before_region: self.before_region,
            regions: ended.regions(),
            several: None,
            sampling: None,
        };
        if let Some(sampled) = sampled {
            sampled.estimate(&mut outcome);
        }
        if self.vcpus.len() > 1 {
            let at_work = contention::at_work(self.vcpus.iter().map(|v| v.instructions));
            let rows = outcome.configs.iter().map(|c| (c.config, c.total, c.total.ideal_cycles(base_cpi)));
            outcome.several = Some(contention::several(at_work, rows, &self.profile.exit));
        }
        outcome
    }
}
