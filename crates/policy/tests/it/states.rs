// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays beside VMs that really switch inside the model, in every state that a VM may begin in.

use bifold_mmu::PageSize;
use bifold_model::{Config, Model, Options, Paging, Profile, VmState};
use bifold_policy::Timeline;
use bifold_policy::replay_check::{OnLine, checks};
use bifold_trace::Generator;
use std::path::Path;

const INTERVAL_S: f64 = 0.001;
const TIME_SCALE: f64 = 1000.0;

/// The timeline of a storm of forks in a VM of this state, with VMs that switched meanwhile.
fn timeline(vm: VmState) -> Timeline {
    let costs =
        ["exit.file_frame.cycles=4000", "exit.uffd_frame.cycles=20000", "exit.uffd_huge.cycles=400000"];
    let profile = Profile::load("i5-7600", &costs.map(String::from)).unwrap();
    let generator = Generator::parse("fork-storm:300").unwrap();
    let options = Options {
        vm,
        guest_frames: generator.guest_frames(),
        interval_seconds: INTERVAL_S,
        configs: [Paging::Nested, Paging::Shadow].map(|mode| Config::new(mode, PageSize::Size4K)).into(),
        ..Options::default()
    };
    let mut model = Model::new(&profile, options);
    for policy in
        ["toggle", "toggle+shadow", "toggle+dropped", "always-nested+shadow+dropped", "always-shadow"]
    {
        OnLine::parse(policy).unwrap().attach(&mut model, &profile, INTERVAL_S, TIME_SCALE);
    }
    generator.run(&mut |words| model.consume(words)).unwrap();
    let mut timeline = Timeline::of(&model.finish(), &profile, "forks".into(), String::new());
    timeline.about.time_scale = Some(TIME_SCALE);
    timeline
}

#[test]
fn a_replay_is_as_near_in_every_state_of_the_vm() {
    for state in VmState::ALL {
        let timeline = timeline(state);
        let timeline = Timeline::from_bytes(&timeline.to_bytes(), Path::new("forks")).unwrap();
        assert_eq!(timeline.about.vm, state);
        let checks = checks(&timeline);
        assert_eq!(checks.len(), 5);
        // Nested tables taken for dropped, or dropped ones for kept, are 0.15 to 1.3 % off in a long-lived
        // VM.
        let most_percent = if state == VmState::LongLived { 0.1 } else { 0.75 };
        for check in checks {
            assert!(check.passed() && check.switches > 0, "{state:?}: {check:?}");
            assert!(check.same_modes_percent.abs() < most_percent, "{state:?}: {check:?}");
        }
    }
}
