// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timelines made by hand or at random.

use bifold_mmu::PageSize;
use bifold_model::ages::Reuse;
use bifold_model::{Sample, SwitchedOutcome, Switching, VmState};
use bifold_policy::timeline::{About, Runs, StaticRun, SwitchCosts};
use bifold_policy::{Mode, Timeline};
use proptest::prelude::*;

/// Cycles of the guest's own work per interval.
pub const IDEAL: u64 = 1_000_000;

pub const COSTS: SwitchCosts =
    SwitchCosts { switch: 10_000, hidden_fault: 2000, violation: 3000, make_page: 500, zap_page: 100 };

/// One interval's costs: `[walk, vmm]` of shadow and of nested, and entries reused.
#[derive(Debug, Clone, Default)]
pub struct Interval {
    pub shadow: [u64; 2],
    pub nested: [u64; 2],
    /// Violations, whose cycles are part of `nested[1]`.
    pub violations: u64,
    pub shadow_pages: [u64; 2],
    pub reuse: [Vec<Reuse>; 2],
}

pub fn reuse(last: u8, made: u8, exits: u32, tables: u32) -> Reuse {
    Reuse { last, made, exits, tables }
}

pub fn timeline(intervals: &[Interval]) -> Timeline {
    let shadow = |i: &Interval| Sample {
        instructions: IDEAL,
        walk_cycles: i.shadow[0],
        vmm_cycles: i.shadow[1],
        shadow_pages_made: i.shadow_pages[0],
        shadow_pages_zapped: i.shadow_pages[1],
        ..Sample::default()
    };
    let nested = |i: &Interval| Sample {
        instructions: IDEAL,
        walk_cycles: i.nested[0],
        vmm_cycles: i.nested[1],
        exits_violation: i.violations,
        ..Sample::default()
    };
    let run = |sample: &dyn Fn(&Interval) -> Sample, mode: usize| StaticRun {
        samples: intervals.iter().map(sample).collect(),
        reuse: intervals.iter().map(|i| i.reuse[mode].clone()).collect(),
    };
    Timeline {
        about: About {
            program: "by hand".into(),
            profile: "none".into(),
            frequency_hz: 100 * IDEAL,
            base_cpi: 1.0,
            vcpus: 1,
            guest_frames: 5120,
            interval_cycles: IDEAL,
            ..About::default()
        },
        costs: COSTS,
        pages: vec![Runs {
            host_page: PageSize::Size4K,
            modes: [(Mode::Shadow, run(&shadow, 0)), (Mode::Nested, run(&nested, 1))].into(),
        }],
        switched: Vec::new(),
    }
}

fn reuses() -> impl Strategy<Value = Vec<Reuse>> {
    let one = (0u8..20, 0u8..20, 0u32..300, 0u32..20);
    proptest::collection::vec(one.prop_map(|(last, made, e, t)| reuse(last, last.max(made), e, t)), 0..5)
}

pub fn interval() -> impl Strategy<Value = Interval> {
    let cost = || (0..IDEAL, 0..IDEAL).prop_map(|(a, b)| [a, b]);
    (cost(), cost(), 0u64..200, (0u64..50, 0u64..50), reuses(), reuses()).prop_map(
        |(shadow, nested, touched, pages, a, b)| Interval {
            shadow,
            nested: [nested[0], nested[1] + touched * 4500],
            violations: touched,
            shadow_pages: [pages.0, pages.1],
            reuse: [a, b],
        },
    )
}

/// Any timeline that can be written, of a VM in any state, with a VM that switched.
pub fn any_timeline() -> impl Strategy<Value = Timeline> {
    let state = proptest::sample::select(VmState::ALL.to_vec());
    (proptest::collection::vec(interval(), 1..40), any::<bool>(), "\\PC{0,12}", state).prop_map(
        |(intervals, switched, program, state)| {
            let mut t = timeline(&intervals);
            t.about.vm = state;
            t.about.program = program;
            if switched {
                t.about.time_scale = Some(12.5);
                t.switched.push(SwitchedOutcome {
                    switching: Switching {
                        name: "toggle".into(),
                        host_page: PageSize::Size4K,
                        start: bifold_model::Paging::Nested,
                        keep_nested: true,
                    },
                    modes: vec![bifold_model::Paging::Shadow; intervals.len()],
                    intervals: t.pages[0].modes[Mode::Shadow].samples.clone(),
                });
            }
            t
        },
    )
}
