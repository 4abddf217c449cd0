// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of a modelled PMU, and the counts that it gives to an interval.
//!
//! The laboratory counts no TLB misses and no walk cycles. If a guest runs a program that the model has run,
//! and reports its own progress, the progress of an interval times the model's counts of a step stand for
//! what a PMU would have counted. Such counts are called `modelled PMU` wherever they appear.
//!
//! `lab modelled-pmu` writes the files, TOML of schema [`SCHEMA`]:
//!
//! ```toml
//! schema = "bifold.modelled-pmu/1"
//!
//! [made]
//! bifold = "0.1.0"
//! command = ["phases", "--workers", "2"]
//! # ...
//!
//! [phase.chase.nested]
//! guest_cycles = 2562198.4
//! # ...
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bifold_host::Mode as KvmMode;
use bifold_live::hardware::HardwareCounts;
use bifold_live::{HardwareSource, Interval};
use bifold_policy::Mode;
use serde::{Deserialize, Serialize};

/// Name and version of the files' schema.
pub const SCHEMA: &str = "bifold.modelled-pmu/1";
/// What such counts are called wherever they are shown.
pub const LABEL: &str = "modelled PMU";
/// Largest count of a step: an hour at 3 GHz.
const MOST: f64 = 1e13;
/// Largest count of an interval: what a JSON number holds exactly. Progress that would make more is not
/// believed.
const MOST_COUNT: f64 = (1u64 << 53) as f64;

/// What steps of a program cost, by the program's phases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelledPmu {
    schema: String,
    /// What made the counts.
    pub made: Made,
    /// The phases, under the names that the program's progress has.
    #[serde(rename = "phase")]
    pub phases: BTreeMap<String, Phase>,
}

/// What made the counts of a modelled PMU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// Bifold's version.
    pub bifold: String,
    /// The program and those of its arguments that all captures have.
    pub command: Vec<String>,
    /// The hardware profile.
    pub profile: String,
    /// XXH3-64 of the profile as resolved, hexadecimal.
    pub profile_hash: String,
    /// Whose KVM the model followed.
    pub kvm: String,
    /// The captured guest's kernel.
    pub guest_kernel: String,
    /// The captured guest's vCPUs.
    pub vcpus: u32,
    /// Size of the host's pages.
    pub host_page: String,
    /// The profile's frequency in Hz.
    pub frequency_hz: u64,
    /// The largest error with which these counts predict the cycles of the captures between, in percent.
    pub largest_error_percent: f64,
    /// By phase, the steps of each worker in the captures: the counts of a step are the difference between
    /// the first and the last capture.
    pub captures: BTreeMap<String, Vec<u64>>,
}

/// What a step of a phase costs in each mode that KVM switches between.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// In nested paging.
    pub nested: PerStep,
    /// In shadow paging.
    pub shadow: PerStep,
}

impl Phase {
    /// The counts of a mode.
    pub fn of(&self, mode: KvmMode) -> &PerStep {
        match mode {
            KvmMode::Nested => &self.nested,
            KvmMode::Shadow => &self.shadow,
        }
    }
}

macro_rules! per_step {
    ($( $(#[$doc:meta])* $name:ident ),* $(,)?) => {
        /// The model's counts of a step, and its costs in cycles.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct PerStep {
            $( $(#[$doc])* pub $name: f64, )*
        }

        impl PerStep {
            /// Names and values, in the order of the fields.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, f64)> {
                [ $( (stringify!($name), self.$name) ),* ].into_iter()
            }
        }
    };
}

per_step! {
    /// As [`HardwareCounts::guest_cycles`].
    guest_cycles,
    /// As [`HardwareCounts::host_cycles`]: exits, and the hypervisor's work for them.
    host_cycles,
    /// Guest instructions.
    instructions,
    /// Cycles in page walks.
    walk_cycles,
    /// Misses of all TLB levels on entries of 4 KB.
    tlb_misses_4k,
    /// The same for 2 MB.
    tlb_misses_2m,
    /// The same for 1 GB.
    tlb_misses_1g,
    /// Flushes of the TLB.
    tlb_flushes,
    /// Cycles of the mode beyond the ideal run's: of walks that the core does not hide, and of exits.
    extra_cycles,
    /// Cycles that a switch into this mode costs during this phase, once: the switch, and exits that make
    /// tables again.
    switch_cycles,
}

impl ModelledPmu {
    /// A modelled PMU of these counts.
    pub fn new(made: Made, phases: BTreeMap<String, Phase>) -> ModelledPmu {
        ModelledPmu { schema: SCHEMA.into(), made, phases }
    }

    /// The file's text.
    ///
    /// # Errors
    /// If the counts are not what [`read`](ModelledPmu::read) accepts.
    pub fn to_toml(&self) -> Result<String> {
        self.check()?;
        Ok(toml::to_string(self)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is no modelled PMU.
    pub fn read(path: &Path) -> Result<ModelledPmu> {
        let at = || format!("modelled PMU {}", path.display());
        ModelledPmu::parse(&std::fs::read_to_string(path).with_context(at)?).with_context(at)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// If it is no modelled PMU.
    pub fn parse(text: &str) -> Result<ModelledPmu> {
        // That a file is of another version is reported before its unknown keys.
        let table: toml::Table = text.parse()?;
        match table.get("schema").and_then(toml::Value::as_str) {
            Some(SCHEMA) => {}
            Some(other) => bail!("schema {other} is not {SCHEMA}"),
            None => bail!("it has no schema"),
        }
        let pmu: ModelledPmu = toml::from_str(text)?;
        pmu.check()?;
        Ok(pmu)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.phases.is_empty(), "it has no phase");
        for (name, phase) in &self.phases {
            for mode in KvmMode::BOTH {
                for (counter, value) in phase.of(mode).values() {
                    ensure!(
                        (0.0..=MOST).contains(&value),
                        "phase.{name}.{}.{counter} = {value} is no number from 0 to {MOST:e}",
                        mode.name()
                    );
                }
            }
        }
        Ok(())
    }

    /// The source of hardware counts of a host whose guests all run the modelled program.
    pub fn source(self) -> HardwareSource {
        let count = move |interval: &Interval| {
            let guest = interval.guest.as_ref();
            let counts = guest.and_then(|g| self.counts(interval.mode, &g.progress));
            counts.unwrap_or(HardwareCounts::UNKNOWN)
        };
        HardwareSource::Vm { name: LABEL, count: Box::new(count) }
    }

    /// What a PMU would have counted on all vCPUs in an interval: the interval's mode, and the steps of each
    /// phase in it. `None` is unknown: there is no single mode (the VM was switched), or a phase's steps are
    /// not known, or steps were made of a phase that the file does not have, or so many that no interval can
    /// have them.
    pub fn counts(&self, mode: Option<Mode>, steps: &BTreeMap<String, u64>) -> Option<HardwareCounts> {
        let mode = mode?;
        if !self.phases.keys().all(|name| steps.contains_key(name)) {
            return None;
        }
        let count = |of: fn(&PerStep) -> f64| {
            let sum = self.sum(mode, steps, of)?.round();
            (sum <= MOST_COUNT).then_some(sum as u64)
        };
        Some(HardwareCounts {
            guest_cycles: Some(count(|s| s.guest_cycles)?),
            host_cycles: Some(count(|s| s.host_cycles)?),
            instructions: Some(count(|s| s.instructions)?),
            walk_cycles: Some(count(|s| s.walk_cycles)?),
            tlb_misses_4k: Some(count(|s| s.tlb_misses_4k)?),
            tlb_misses_2m: Some(count(|s| s.tlb_misses_2m)?),
            tlb_misses_1g: Some(count(|s| s.tlb_misses_1g)?),
            tlb_flushes: Some(count(|s| s.tlb_flushes)?),
            // No event took turns with another.
            scheduled: None,
        })
    }

    fn sum(&self, mode: Mode, steps: &BTreeMap<String, u64>, of: fn(&PerStep) -> f64) -> Option<f64> {
        let mode = mode.switchable()?;
        let made = steps.iter().filter(|(_, n)| **n > 0);
        let costs = made.map(|(name, n)| Some(of(self.phases.get(name)?.of(mode)) * *n as f64));
        costs.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_live::reporter::GuestInterval;
    use proptest::prelude::*;

    fn step(base: f64) -> PerStep {
        PerStep {
            guest_cycles: 10.0 * base,
            host_cycles: base,
            instructions: 5.5 * base,
            walk_cycles: 3.0 * base,
            tlb_misses_4k: base / 2.0,
            extra_cycles: 4.0 * base,
            switch_cycles: 100.0,
            ..PerStep::default()
        }
    }

    fn pmu() -> ModelledPmu {
        let made = Made {
            bifold: "0.1.0".into(),
            command: vec!["phases".into(), "--hops".into(), "7".into()],
            profile: "i5-7600".into(),
            profile_hash: "0123456789abcdef".into(),
            kvm: "linux-6.1".into(),
            guest_kernel: "6.1.0".into(),
            vcpus: 2,
            host_page: "4k".into(),
            frequency_hz: 3_500_000_000,
            largest_error_percent: 0.5,
            captures: [("tables".to_owned(), vec![10, 20, 40])].into(),
        };
        let phase = |nested, shadow| Phase { nested: step(nested), shadow: step(shadow) };
        let phases = [("tables", phase(1.0, 1000.0)), ("chase", phase(200.0, 100.0))];
        ModelledPmu::new(made, phases.map(|(n, p)| (n.to_owned(), p)).into())
    }

    fn steps(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect()
    }

    #[test]
    fn counts_are_steps_times_the_models_in_the_mode_of_the_interval() {
        let pmu = pmu();
        let made = steps(&[("tables", 3), ("chase", 2)]);
        let nested = pmu.counts(Some(Mode::Nested), &made).unwrap();
        assert_eq!((nested.guest_cycles, nested.walk_cycles), (Some(4030), Some(1209)));
        // 16.5 + 2200, and 1.5 + 200, rounded.
        assert_eq!((nested.instructions, nested.tlb_misses_4k), (Some(2217), Some(202)));
        assert_eq!((nested.tlb_misses_1g, nested.scheduled), (Some(0), None));
        let shadow = pmu.counts(Some(Mode::Shadow), &made).unwrap();
        assert_eq!((shadow.guest_cycles, shadow.host_cycles), (Some(32_000), Some(3200)));
        let idle = steps(&[("tables", 0), ("chase", 0)]);
        assert_eq!(pmu.counts(Some(Mode::Shadow), &idle), Some(HardwareCounts::ZERO));
    }

    #[test]
    fn what_the_file_does_not_say_is_unknown() {
        let pmu = pmu();
        let both = [("tables", 3), ("chase", 0)];
        assert_eq!(pmu.counts(None, &steps(&both)), None, "it was switched");
        for missing in [&both[..1], &both[1..], &[]] {
            assert_eq!(pmu.counts(Some(Mode::Nested), &steps(missing)), None, "{missing:?}");
        }
        let other = steps(&[both[0], both[1], ("sort", 1)]);
        assert_eq!(pmu.counts(Some(Mode::Nested), &other), None);
        let none = steps(&[both[0], both[1], ("sort", 0)]);
        assert!(pmu.counts(Some(Mode::Nested), &none).is_some(), "no step of the unknown phase");
        let many = steps(&[both[0], ("chase", u64::MAX)]);
        assert_eq!(pmu.counts(Some(Mode::Nested), &many), None, "not believed");
    }

    #[test]
    fn a_file_comes_back_and_mistakes_are_named() {
        let text = pmu().to_toml().unwrap();
        assert_eq!(ModelledPmu::parse(&text).unwrap(), pmu());
        let cases = [
            ("modelled-pmu/1", "modelled-pmu/2", "schema bifold.modelled-pmu/2 is not bifold.modelled-pmu/1"),
            ("schema", "skema", "it has no schema"),
            ("host_cycles = 1.0", "host_cycles = -1.0", "phase.tables.nested.host_cycles = -1 is no number"),
            ("host_cycles = 1.0", "host_cycles = nan", "phase.tables.nested.host_cycles = NaN is no number"),
            ("host_cycles = 1.0", "hust_cycles = 1.0", "unknown field `hust_cycles`"),
        ];
        for (from, to, problem) in cases {
            assert!(text.contains(from), "{from}");
            let e = ModelledPmu::parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(e.contains(problem), "{e}");
        }
        let head = &text[..text.find("[phase").unwrap()];
        let e = ModelledPmu::parse(&format!("{head}[phase]\n")).unwrap_err();
        assert_eq!(e.to_string(), "it has no phase");
        let e = ModelledPmu::read(Path::new("/none/pmu.toml")).unwrap_err();
        assert_eq!(e.to_string(), "modelled PMU /none/pmu.toml");
    }

    #[test]
    fn the_source_counts_what_a_guest_reports_in_one_mode() {
        let HardwareSource::Vm { name, count } = pmu().source() else { panic!("it counts VMs") };
        assert_eq!(name, "modelled PMU");
        let progress = steps(&[("tables", 3), ("chase", 2)]);
        let guest = GuestInterval { progress: progress.clone(), ..GuestInterval::default() };
        let mut interval = Interval { mode: Some(Mode::Nested), guest: Some(guest), ..Interval::default() };
        assert_eq!(Some(count(&interval)), pmu().counts(Some(Mode::Nested), &progress));
        interval.guest = None;
        assert_eq!(count(&interval), HardwareCounts::UNKNOWN, "no report");
    }

    proptest! {
        #[test]
        fn steps_of_two_intervals_cost_what_they_cost_in_one(
            one in (0..1000u64, 0..1000u64),
            two in (0..1000u64, 0..1000u64),
        ) {
            let pmu = pmu();
            let of = |t: u64, c: u64| {
                let counts = pmu.counts(Some(Mode::Shadow), &steps(&[("tables", t), ("chase", c)]));
                counts.and_then(|c| c.guest_cycles).unwrap()
            };
            let apart = of(one.0, one.1) + of(two.0, two.1);
            prop_assert!(apart.abs_diff(of(one.0 + two.0, one.1 + two.1)) <= 1);
        }
    }
}
