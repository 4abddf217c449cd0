// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Views made from a few numbers, for the tests of policies.

use crate::{Log, Named, Other, Policy, View};
use bifold_mmu::Mode;
use bifold_model::Sample;

/// An interval of a million instructions in a million cycles at full load, without any other count.
#[derive(Debug, Clone, Copy)]
pub struct TestInterval {
    pub sample: Sample,
    pub cycles: f64,
    pub load: f64,
    /// The other mode's costs, whichever mode is the other one.
    pub other: Option<Other>,
}

impl Default for TestInterval {
    fn default() -> Self {
        let sample = Sample { instructions: 1_000_000, ..Sample::default() };
        TestInterval { sample, cycles: 1e6, load: 1.0, other: None }
    }
}

impl TestInterval {
    /// TLB misses and page faults, each per 1000 instructions (exact to a billionth).
    pub fn frequencies(tlb: f64, faults: f64) -> TestInterval {
        let n = 1_000_000_000_000u64;
        let count = |f: f64| (f * n as f64 / 1000.0).round() as u64;
        let sample = Sample {
            instructions: n,
            tlb_misses_4k: count(tlb),
            guest_page_faults: count(faults),
            ..Sample::default()
        };
        TestInterval { sample, cycles: n as f64, ..TestInterval::default() }
    }

    /// Percent of cycles in walks and in the hypervisor.
    pub fn percents(walk: f64, vmm: f64) -> TestInterval {
        let mut seen = TestInterval::default();
        seen.sample.walk_cycles = (walk * seen.cycles / 100.0).round() as u64;
        seen.sample.vmm_cycles = (vmm * seen.cycles / 100.0).round() as u64;
        seen
    }

    /// This interval with another number of instructions per cycle.
    pub fn ipc(mut self, ipc: f64) -> TestInterval {
        self.sample.instructions = (ipc * self.cycles).round() as u64;
        self
    }

    /// An interval in which nothing happened.
    pub fn nothing() -> TestInterval {
        TestInterval { sample: Sample::default(), cycles: 0.0, ..TestInterval::default() }
    }

    pub fn view(&mut self, mode: Mode) -> View<'_> {
        self.other.iter_mut().for_each(|other| other.mode = mode.other().into());
        View {
            mode: mode.into(),
            sample: &self.sample,
            cycles: self.cycles,
            load: self.load,
            others: self.other.as_slice(),
        }
    }
}

/// A policy in a VM that follows it, between shadow and nested mode, and its last explanation.
pub struct Run {
    pub policy: Box<dyn Policy>,
    pub mode: Mode,
    pub said: String,
    log: Log,
}

impl Run {
    pub fn new(named: &str, start: Mode) -> Run {
        Run::of(&Named::load(named).unwrap(), start)
    }

    pub fn of(named: &Named, start: Mode) -> Run {
        Run { policy: named.spec.policy(start.into()), mode: start, said: String::new(), log: Log::on() }
    }

    /// One interval; the mode of the next.
    pub fn step(&mut self, mut seen: TestInterval) -> Mode {
        let next = self.policy.decide(&seen.view(self.mode), &mut self.log);
        self.mode = next.switchable().expect("there are two modes");
        self.said = self.log.take();
        assert!(self.said.ends_with('.'), "every decision is explained: {:?}", self.said);
        self.mode
    }

    /// The same interval `n` times; the modes that followed.
    pub fn steps(&mut self, n: usize, seen: TestInterval) -> Vec<Mode> {
        (0..n).map(|_| self.step(seen)).collect()
    }
}

/// The error for a built-in set in which a value was replaced.
pub fn refused(named: &str, key: &str, value: &str) -> String {
    refused_in(crate::spec::BUILT_IN.iter().find(|(n, _)| *n == named).unwrap().1, key, value)
}

/// The error for a set given as text.
pub fn refused_in(text: &str, key: &str, value: &str) -> String {
    let mut table: toml::Table = text.parse().unwrap();
    let new: toml::Table = format!("v = {value}").parse().unwrap();
    let mut at = &mut table;
    let mut keys = key.split('.').peekable();
    while let Some(k) = keys.next() {
        if keys.peek().is_none() {
            at.insert(k.into(), new["v"].clone());
            break;
        }
        at = at[k].as_table_mut().unwrap();
    }
    Named::parse("x", &toml::to_string(&table).unwrap()).unwrap_err().to_string()
}
