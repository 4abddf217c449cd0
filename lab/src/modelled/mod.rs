// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a modelled PMU of the program with phases (`phases/`): what the model says that steps of the program
//! cost stands for hardware counters, which the laboratory lacks.
//!
//! The program is captured with one phase only and three counts of steps. The differences between the first
//! and the last capture are the counts of their steps; what the program does before and after its steps
//! cancels out. The capture between shows whether the counts are proportional to the steps.
//!
//! The captured VM is long-lived.

mod pmu;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use bifold_guest::{CaptureProgress, GuestSpec, Record, Root};
use bifold_mmu::{Mode, PageSize};
use bifold_model::{CacheMode, Config, KvmVersion, Model, Options, Outcome, Profile, Sample, VmState};
use bifold_policy::{Timeline, Track, VmKind, forced};
use bifold_trace::CommandExit;

pub use pmu::{Made, ModelledPmu, PerStep, Phase};

use crate::lab::Lab;

/// The profile that the estimator of the policies was fitted with. Its processor counts walk cycles.
pub const PROFILE: &str = "i5-7600";
/// Workers of the program, and vCPUs of the captured guest.
const WORKERS: u32 = 2;
const MEMORY_MIB: u64 = 256;
/// Words of the stream between self-checks.
const CHECK_EVERY: u64 = 10_000;
/// Length of the intervals in which switches are replayed.
const INTERVAL_S: f64 = 0.002;
const PROGRESS: &str = "/tmp/progress";
/// The phases, with the steps of each worker in three captures: about 200 to 800 million instructions.
const PHASES: [(&str, [u64; 3]); 2] = [("tables", [15, 30, 60]), ("chase", [20, 40, 80])];

/// What to model.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Hardware profile.
    pub profile: String,
    /// Values of the profile to change, `KEY=VALUE`.
    pub set: Vec<String>,
    /// Further arguments of the program.
    pub arguments: Vec<String>,
}

/// A modelled PMU, and how well its counts predict the captures between.
#[derive(Debug)]
pub struct Modelled {
    /// The modelled PMU.
    pub pmu: ModelledPmu,
    /// By phase and mode: errors of the prediction in percent, of the growth of all cycles and of TLB misses.
    pub errors: Vec<(String, Mode, [f64; 2])>,
}

/// The program's command line with one phase; [`Made::command`] is this without phase and steps.
fn command(settings: &Settings, phase: &str, steps: u64) -> Vec<String> {
    let mut words = common(settings);
    words[0] = crate::PHASES.into();
    words.extend(["--phases".into(), phase.into(), "--steps".into(), steps.to_string()]);
    words
}

fn common(settings: &Settings) -> Vec<String> {
    let words = ["phases", "--workers", &WORKERS.to_string(), "--progress", PROGRESS].map(String::from);
    words.into_iter().chain(settings.arguments.iter().cloned()).collect()
}

/// The model's outcome over a capture.
struct Captured {
    outcome: Outcome,
    kernel: String,
}

fn capture(lab: &Lab, settings: &Settings, profile: &Profile, phase: &str, steps: u64) -> Result<Captured> {
    let command = command(settings, phase, steps);
    let kernel = lab.inner();
    let spec = GuestSpec {
        command: command.iter().map(Into::into).collect(),
        root: Root::Initramfs { include: Vec::new() },
        vcpus: WORKERS,
        memory_mib: MEMORY_MIB,
        kernel: Some(kernel.image.clone()),
        modules: kernel.modules.clone(),
        record: Record::Command,
        check_every: CHECK_EVERY,
        ..crate::guest(lab.vendor())
    };
    let page = PageSize::Size4K;
    let configs = Mode::BOTH.map(|mode| Config::new(mode.into(), page)).to_vec();
    let options = Options {
        // The laboratory's VMs have touched their memory when a phase is timed.
        vm: VmState::LongLived,
        interval_seconds: INTERVAL_S,
        configs,
        guest_frames: bifold_guest::guest_frames(&spec),
        vcpus: WORKERS as usize,
        caches: CacheMode::Sampled,
        ..Options::default()
    };
    let mut model = Model::new(profile, options);
    let report =
        bifold_guest::capture(&spec, &AtomicBool::new(false), &mut |_: CaptureProgress| (), &mut |words| {
            model.consume(words).map_err(Into::into)
        })?;
    if report.exit != CommandExit::Code(0) {
        let errors = String::from_utf8_lossy(&report.stderr).into_owned();
        bail!("{}: {}: {errors}", command.join(" "), report.exit.describe());
    }
    let outcome = model.finish();
    let stats = &report.stats;
    let failed = outcome.walk_mismatches + stats.cr3_mismatches + stats.translation_mismatches;
    ensure!(failed == 0, "{failed} self-checks of the capture failed");
    Ok(Captured { outcome, kernel: report.kernel_version })
}

impl Captured {
    /// The counts of a mode.
    fn total(&self, mode: Mode) -> Result<Counts> {
        let all = &self.outcome.configs;
        let config = all.iter().find(|c| c.config.mode == mode.into()).context("a mode was not modelled")?;
        Ok(Counts::of(&config.total, self.outcome.base_cpi))
    }

    /// Cycles of a switch into `mode` in the middle of the run.
    fn switch_cycles(&self, profile: &Profile, mode: Mode) -> Result<f64> {
        let timeline = Timeline::of(&self.outcome, profile, String::new(), String::new());
        let track = Track::new(&timeline, VmKind::default()).context("no timeline")?;
        let half = track.len() / 2;
        ensure!(half > 10, "only {} intervals", track.len());
        let (from, to) = (mode.other().into(), mode.into());
        let modes: Vec<_> = (0..track.len()).map(|j| if j < half { from } else { to }).collect();
        Ok(forced(&track, &modes, from, 1.0).switch_cycles)
    }
}

/// The counts of a modelled PMU over a whole capture, in the order of [`PerStep`]'s fields.
#[derive(Debug, Clone, Copy)]
struct Counts([f64; 9]);

impl Counts {
    fn of(s: &Sample, base_cpi: f64) -> Counts {
        let guest_cycles = s.ideal_cycles(base_cpi) + s.exposed_memory_cycles() as f64;
        let counts = [
            s.vmm_cycles,
            s.instructions,
            s.walk_cycles,
            s.tlb_misses_4k,
            s.tlb_misses_2m,
            s.tlb_misses_1g,
            s.tlb_flushes,
            s.extra_cycles(),
        ];
        let mut all = [guest_cycles; 9];
        all[1..].copy_from_slice(&counts.map(|n| n as f64));
        Counts(all)
    }

    fn cycles(&self) -> f64 {
        self.0[0] + self.0[1]
    }

    fn misses(&self) -> f64 {
        self.0[4..7].iter().sum()
    }

    /// The counts of a step, of so many between two captures. A count that a longer run has less of is noise
    /// of what happens beside the steps: 0.
    fn per_step(&self, before: &Counts, steps: f64, switch_cycles: f64) -> PerStep {
        let mut each = [0.0; 9];
        for (each, (now, then)) in each.iter_mut().zip(self.0.iter().zip(&before.0)) {
            *each = ((now - then) / steps).max(0.0);
        }
        let [
            guest_cycles,
            host_cycles,
            instructions,
            walk_cycles,
            tlb_misses_4k,
            tlb_misses_2m,
            tlb_misses_1g,
            tlb_flushes,
            extra_cycles,
        ] = each;
        PerStep {
            guest_cycles,
            host_cycles,
            instructions,
            walk_cycles,
            tlb_misses_4k,
            tlb_misses_2m,
            tlb_misses_1g,
            tlb_flushes,
            extra_cycles,
            switch_cycles,
        }
    }
}

/// Error in percent of a count of the capture between, if the count grows by the same with each step. It
/// relates to the growth since the first capture.
fn error(of: impl Fn(&Counts) -> f64, [first, between, last]: [&Counts; 3], share: f64) -> f64 {
    let predicted = of(first) + (of(last) - of(first)) * share;
    let growth = of(between) - of(first);
    if growth <= 0.0 { 0.0 } else { (predicted - of(between)).abs() / growth * 100.0 }
}

/// Runs the captures and makes the modelled PMU.
pub fn make(lab: &Lab, settings: &Settings, progress: &dyn Fn(&str)) -> Result<Modelled> {
    let kvm = KvmVersion::of_release(&lab.kernel().version)
        .with_context(|| format!("the model does not know the KVM of Linux {}", lab.kernel().version))?;
    let set = [&[format!("kvm={}", kvm.name())], &settings.set[..]].concat();
    let profile = Profile::load(&settings.profile, &set).context("the profile")?;
    let (mut phases, mut errors, mut about) = (BTreeMap::new(), Vec::new(), None);
    for (name, counts) in PHASES {
        let captures = counts.map(|steps| {
            progress(&format!("a capture of {steps} steps of {name} by each of {WORKERS} workers"));
            capture(lab, settings, &profile, name, steps)
        });
        let [first, between, last] = captures;
        let (first, between, last) = (first?, between?, last?);
        let of_mode = |mode: Mode| -> Result<(PerStep, [f64; 2])> {
            let totals = [first.total(mode)?, between.total(mode)?, last.total(mode)?];
            let steps = (counts[2] - counts[0]) * u64::from(WORKERS);
            let each = totals[2].per_step(&totals[0], steps as f64, last.switch_cycles(&profile, mode)?);
            let share = (counts[1] - counts[0]) as f64 / (counts[2] - counts[0]) as f64;
            let all = [&totals[0], &totals[1], &totals[2]];
            Ok((each, [error(Counts::cycles, all, share), error(Counts::misses, all, share)]))
        };
        let (nested, shadow) = (of_mode(Mode::Nested)?, of_mode(Mode::Shadow)?);
        errors.push((name.to_owned(), Mode::Nested, nested.1));
        errors.push((name.to_owned(), Mode::Shadow, shadow.1));
        phases.insert(name.to_owned(), Phase { nested: nested.0, shadow: shadow.0 });
        about = Some(last);
    }
    let last = about.context("no phases")?;
    let made = Made {
        bifold: bifold_base::version().into(),
        command: common(settings),
        profile: last.outcome.profile.clone(),
        profile_hash: last.outcome.config_hash.clone(),
        kvm: kvm.name().into(),
        guest_kernel: last.kernel,
        vcpus: WORKERS,
        host_page: "4k".into(),
        frequency_hz: last.outcome.frequency_hz,
        captures: PHASES.map(|(name, steps)| (name.to_owned(), steps.to_vec())).into(),
        largest_error_percent: errors.iter().map(|(.., e)| e[0]).fold(0.0, f64::max),
    };
    Ok(Modelled { pmu: ModelledPmu::new(made, phases), errors })
}
