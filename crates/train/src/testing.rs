// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Made-up timelines for tests, with phases in which one mode or the other is better.

use crate::Program;
use bifold_mmu::PageSize;
use bifold_model::{Sample, VmState};
use bifold_policy::timeline::{About, Runs, StaticRun, SwitchCosts};
use bifold_policy::{Mode, Timeline};

/// Walk cycles in shadow mode, as a ratio of those in nested mode.
pub const SHADOW_WALKS: f64 = 0.5;
/// Cycles of a guest page fault in shadow mode.
pub const SHADOW_FAULT: u64 = 6000;

/// A program that costs in shadow mode exactly half the walk cycles of nested mode, and [`SHADOW_FAULT`] per
/// fault.
pub fn program(name: &str, seed: u64, intervals: usize) -> Program {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut runs = [StaticRun::default(), StaticRun::default()];
    for j in 0..intervals {
        let faulting = (j / 20 + seed as usize) % 2 == 0;
        let walk = 2 * (1000 + if faulting { next(20_000) } else { 300_000 + next(300_000) });
        let faults = if faulting { 200 + next(100) } else { next(3) };
        let nested = Sample {
            instructions: 10_000_000,
            walk_cycles: walk,
            tlb_misses_4k: walk / 40,
            guest_page_faults: faults,
            ..Sample::default()
        };
        let shadow = Sample {
            walk_cycles: (walk as f64 * SHADOW_WALKS) as u64,
            vmm_cycles: faults * SHADOW_FAULT,
            exits_guest_fault: faults,
            ..nested
        };
        runs[0].samples.push(shadow);
        runs[1].samples.push(nested);
        runs.iter_mut().for_each(|r| r.reuse.push(Vec::new()));
    }
    let about = About {
        program: name.into(),
        guest: String::new(),
        bifold: "0".into(),
        profile: "made-up".into(),
        config_hash: "0".into(),
        input_hash: name.into(),
        frequency_hz: 1_000_000_000,
        base_cpi: 1.0,
        vcpus: 1,
        guest_frames: 1024,
        vm: VmState::LongLived,
        interval_cycles: 10_000_000,
        time_scale: None,
    };
    let costs =
        SwitchCosts { switch: 20_000, hidden_fault: 2800, violation: 2600, make_page: 900, zap_page: 900 };
    let [shadow, nested] = runs;
    let modes = [(Mode::Shadow, shadow), (Mode::Nested, nested)].into();
    let pages = vec![Runs { host_page: PageSize::Size4K, modes }];
    Program { name: name.into(), timeline: Timeline { about, costs, pages, switched: Vec::new() } }
}

/// Four programs.
pub fn programs() -> Vec<Program> {
    [("a", 1), ("b", 2), ("c", 3), ("d", 4)].map(|(n, s)| program(n, s, 200)).into()
}
