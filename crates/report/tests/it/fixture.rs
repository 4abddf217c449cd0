// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A comparison made by hand: a compiler in a guest, with round numbers.

use bifold_attribute::{Missing, PlaceRow, View, Where};
use bifold_model::{
    Config, ConfigOutcome, Costs, LockWait, Looked, MOST_REGIONS, Outcome, Paging, Placed, PlacedCycles,
    PlacedFacts, Placement, Profile, RegionOutcome, RegionTotal, Regions, Sample, Several, Split,
};
use bifold_policy::evaluate::{self, Options, evaluate};
use bifold_policy::replay_check::ReplayCheck;
use bifold_policy::timeline::{About, Runs, StaticRun, SwitchCosts};
use bifold_policy::{Named, Scale, Timeline, VmKind};
use bifold_reclaim::{MemoryUse, ReferenceKind};
use bifold_report::{Comparison, Guest, Input, MemoryNeeds, Meta, Places, PolicyComparison, RunPolicies};
use bifold_trace::{Clock, CommandExit, MemoryLook, Stats};
use std::num::NonZeroU64;

const INTERVALS: u64 = 40;
const INTERVAL_CYCLES: u64 = 35_000_000;

fn hardware() -> Profile {
    Profile::load("i5-7600", &["cpu.base_cpi=1.0".into()]).unwrap()
}

/// One interval's sample: work in phases, faults early, table writes throughout.
fn sample(config: Config, i: u64) -> Sample {
    let phase = 1 + (i / 8) % 3;
    let misses = 20_000 * phase;
    let mut s = Sample {
        instructions: INTERVAL_CYCLES,
        accesses: 14_000_000,
        l1_misses: misses * 9,
        tlb_misses_4k: misses,
        tlb_misses_2m: 900,
        walks: misses + 950,
        guest_refs: 2 * misses,
        walk_cycles: misses * 30,
        tlb_flushes: 12,
        guest_page_faults: 300 + 900 / (i + 1),
        ..Sample::default()
    };
    let faults = s.guest_page_faults;
    match config.mode {
        Paging::Nested => {
            let small = config.host_page == bifold_mmu::PageSize::Size4K;
            s.host_refs = misses * if small { 5 } else { 3 };
            s.walk_cycles = misses * if small { 92 } else { 61 };
            s.exits_violation = if small { faults } else { faults / 200 };
            s.cold_exits = 4_000;
            s.cold_cycles = 4_000 * 2_600;
        }
        Paging::Shadow => {
            s.exits_violation = faults / 2;
            s.exits_guest_fault = faults;
            s.exits_hidden_fault = faults + 400;
            s.exits_unsync = 80;
            s.exits_emulated_write = 11 * phase;
            s.exits_cr3_write = 12;
            s.exits_invlpg = 240;
            s.syncs = 44;
            s.shadow_pages_made = 31;
            s.shadow_pages_zapped = 17;
            s.cold_exits = 21_000;
            s.cold_cycles = 21_000 * 2_900;
        }
        // What the others have of their own is in no fixture.
        _ => {}
    }
    let costs = hardware().exit;
    s.vmm_cycles = costs.cycles(&s);
    s.first_touch_cycles = costs.cycles(&s.first_touches());
    s
}

/// The whole comparison.
pub fn comparison() -> Comparison {
    let configs = Config::ALL.map(|config| {
        let intervals: Vec<Sample> = (0..INTERVALS).map(|i| sample(config, i)).collect();
        let mut total = Sample::default();
        intervals.iter().for_each(|s| total.add(s));
        let mut refs = [[0; 6]; 6];
        refs[1][0] = total.guest_refs;
        refs[0][1] = total.host_refs;
        ConfigOutcome {
            config,
            total,
            intervals,
            refs,
            reuse: Vec::new(),
            estimate: None,
            cache_error: None,
            placed: Vec::new(),
        }
    });
    Comparison {
        memory: None,
        baseline: None,
        meta: Meta {
            bifold: "0.0.0-test".into(),
            input: Input::Guest,
            guest: Some(Guest {
                region: None,
                command: ["gcc", "-O2", "-c", "</script><b>a & b</b>.c"].map(String::from).into(),
                timing: Some("exact".into()),
                vcpus: 1,
                nodes: None,
                tables: Default::default(),
                kpti: Some(true),
                thp: Some("madvise".into()),
                hugetlb_mib: None,
                memory_mib: Some(2048),
                root: Some("host".into()),
                kernel: Some("6.1.0-41-amd64".into()),
                qemu: Some("10.0.2".into()),
            }),
            exit: Some(CommandExit::Code(0)),
            partial: None,
            clock: Some(Clock {
                guest_ns: Some(2_900_000_000),
                idle_ns: Some(100_000_000),
                wall_seconds: 12.5,
                vcpu_seconds: 10.0,
                starved_seconds: 1.25,
                in_step: true,
                timer_ticks: Some(700),
                other_interrupts: Some(40),
            }),
            capture_checks: Some(Stats {
                cr3_checks: 481,
                translation_checks: 36_112,
                table_checks: 94_720,
                accesses: 560_000_000,
                instructions: 1_400_000_000,
                ..Stats::default()
            }),
            hardware: hardware(),
        },
        outcome: Outcome {
            placed: None,
            sampling: None,
            caches: None,
            profile: "i5-7600".into(),
            frequency_hz: 3_500_000_000,
            base_cpi: 1.0,
            seed: 1,
            host_frames: Default::default(),
            vm: bifold_model::VmState::Started,
            nested_levels: 4,
            config_hash: "0123456789abcdef".into(),
            input_hash: "fedcba9876543210".into(),
            guest_frames: 524_288,
            vcpus: 1,
            interval_cycles: INTERVAL_CYCLES,
            configs: configs.into(),
            interval_starts: (0..INTERVALS).map(|i| i * INTERVAL_CYCLES).collect(),
            walk_checks: 36_112,
            walk_mismatches: 0,
            untranslated: 0,
            start: None,
            before_region: None,
            regions: None,
            several: None,
            switched: Vec::new(),
        },
        policies: None,
        places: None,
    }
}

/// A guest that runs in a loop over 700 pages and then in one over 300: the first interval writes a quarter
/// of its pages.
pub fn needs(outcome: &Outcome) -> MemoryNeeds {
    let mut uses =
        <MemoryUse>::new(outcome.guest_frames, NonZeroU64::new(1000).expect("not 0"), 1 << 20).expect("few");
    uses.reference(900, ReferenceKind::Code, false);
    for (interval, frames) in [(1, 700u64), (2, 300)] {
        for frame in (0..frames).cycle().take(2000) {
            uses.reference(frame, ReferenceKind::Data, interval == 1 && frame % 4 == 0);
        }
        uses.ran(interval * 1000);
    }
    uses.reference(u64::MAX, ReferenceKind::Data, false);
    uses.end();
    let look = |free| MemoryLook {
        frames: 4000,
        free,
        free_blocks: 512,
        free_held: free / 2,
        free_blocks_held: 300,
        cache_clean: 100,
        cache_dirty: 20,
        anonymous: 3500 - free,
        kernel: 330,
        tables: 50,
        zero: 30,
        same: 40,
        sampled: 64,
        compressed_bytes: 100_000,
    };
    let looked = [(0, 3000), (40_000, 1000), (100_000, 2000)].map(|(instructions, free)| Looked {
        instructions,
        look: look(free),
        held: Vec::new(),
    });
    MemoryNeeds::of(outcome, &uses, &[], 85e-6).with_looks(&looked)
}

/// Where the comparison's cost is: this many places, the later ones the cheaper.
pub fn places(n: u64) -> Places {
    let names = [
        ["cc1", "cc1", "ggc_internal_alloc", "anonymous, 2M"],
        ["cc1", "kernel", "clear_page_rep", "direct map, 2M"],
        ["as", "libc.so.6", "std::vector<</iframe><script>x>::_M_realloc_insert_with_a_long_name", "heap"],
    ];
    let row = |i: u64| {
        let [process, binary, function, mapping] = names[i as usize % 3].map(String::from);
        let function = if i < 3 { function } else { format!("{function}_{i:04}") };
        let cost = |c: u64| Costs {
            tlb_misses: (1 + c) * 1_000_000 / (i + 1),
            walk_cycles: (1 + c) * 30_000_000 / (i + 1),
            walk_hidden_cycles: 0,
            exits: c * 10_000 / (i + 1),
            vmm_cycles: c * 25_000_000 / (i + 1),
            data_wait_cycles: 1_000_000 / (i + 1) as i64 - 2000,
        };
        PlaceRow { process, binary, function, mapping, costs: (0..5).map(cost).collect() }
    };
    let missing = ["/opt/a/b", "/tmp/x", "/tmp/y", "/tmp/z"]
        .map(|p| Missing { path: p.into(), why: "cannot be read here" });
    let code: Vec<PlaceRow> = (0..n).map(row).collect();
    // The kernel's work is caused by the first place.
    let mut cause: Vec<PlaceRow> = code.iter().filter(|r| r.binary != "kernel").cloned().collect();
    for kernel in code.iter().filter(|r| r.binary == "kernel") {
        cause[0].costs.iter_mut().zip(&kernel.costs).for_each(|(sum, c)| sum.add(c));
    }
    let places = Where { configs: Config::ALL.into(), code, cause, stacks: None, missing: missing.into() };
    Places::new(places, View::Cause, None)
}

/// Two policies over the comparison's 4 KB pair, and a replay that is off.
pub fn policies() -> RunPolicies {
    let options = Options { vm: VmKind::default(), scale: Scale::both(100.0), estimator: None };
    let evaluation = evaluate(&[input("this run")], &named(), &options).unwrap();
    let check = ReplayCheck {
        name: "dsp".into(),
        vm: VmKind::default(),
        start: bifold_policy::Mode::Nested,
        cycles: 1_525_000_000.0,
        switches: 3,
        same_modes_percent: 0.25,
        own_decisions: Some((-2.5, 4)),
    };
    RunPolicies { evaluation: Ok(evaluation), checks: vec![check] }
}

/// The same policies over two programs, of which the second is the first under another name.
pub fn policy_comparison() -> PolicyComparison {
    let options = Options { vm: VmKind::default(), scale: Scale::both(100.0), estimator: None };
    let inputs = [input("one"), input("</script><b>two")];
    PolicyComparison {
        bifold: "0.0.0-test".into(),
        evaluation: evaluate(&inputs, &named(), &options).unwrap(),
        checks: Some(vec![("one".into(), policies().checks), ("two".into(), Vec::new())]),
    }
}

/// The same policies, and one that goes by costs, over the first program with a third mode whose walks cost
/// nothing, and over the second without this mode.
pub fn three_modes() -> PolicyComparison {
    let options = Options { vm: VmKind::default(), scale: Scale::both(100.0), estimator: None };
    let mut inputs = [input("one"), input("two")];
    let modes = &mut inputs[0].timeline.pages[0].modes;
    let mut third = modes[Paging::Nested].clone();
    third.samples.iter_mut().for_each(|s| (s.walk_cycles, s.vmm_cycles) = (0, 0));
    modes.insert(Paging::Offset, third);
    let named: Vec<Named> = named().into_iter().chain([Named::load("work-function").unwrap()]).collect();
    PolicyComparison {
        bifold: "0.0.0-test".into(),
        evaluation: evaluate(&inputs, &named, &options).unwrap(),
        checks: None,
    }
}

/// Parameters given here: built-in ones may be tuned.
fn named() -> Vec<Named> {
    let toggle = Named::parse("toggle", "policy = \"toggle\"\ninterval_s = 3.0").unwrap();
    let nested = Named::load("always-nested").unwrap();
    vec![toggle, nested]
}

fn input(name: &str) -> evaluate::Input {
    let c = comparison();
    let o = &c.outcome;
    let run = |mode| {
        let config = Config::new(mode, bifold_mmu::PageSize::Size4K);
        let samples = o.configs.iter().find(|c| c.config == config).unwrap().intervals.clone();
        StaticRun { reuse: vec![Vec::new(); samples.len()], samples }
    };
    let modes = [Paging::Shadow, Paging::Nested].map(|mode| (mode, run(mode))).into();
    let timeline = Timeline {
        about: About {
            program: c.meta.what(),
            guest: String::new(),
            bifold: "0.0.0-test".into(),
            profile: o.profile.clone(),
            config_hash: o.config_hash.clone(),
            input_hash: o.input_hash.clone(),
            frequency_hz: o.frequency_hz,
            base_cpi: o.base_cpi,
            vcpus: o.vcpus,
            guest_frames: o.guest_frames,
            vm: o.vm,
            interval_cycles: o.interval_cycles,
            time_scale: None,
        },
        costs: SwitchCosts {
            switch: 20_000,
            hidden_fault: 2_900,
            violation: 2_600,
            make_page: 1_000,
            zap_page: 200,
        },
        pages: vec![Runs { host_page: bifold_mmu::PageSize::Size4K, modes }],
        switched: Vec::new(),
    };
    evaluate::Input { name: name.into(), timeline }
}

/// Enters two placements, with the cost of the second.
pub fn place(outcome: &mut Outcome) {
    outcome.placed = Some(PlacedFacts {
        host_nodes: 2,
        guest_nodes: 2,
        local_cycles: Some(325),
        remote_cycles: Some(600),
    });
    let split = |local, remote| Split { local, remote };
    for c in &mut outcome.configs {
        let at = |placement, n: u64| Placed {
            placement,
            guest_tables: split(c.total.guest_refs - n, n),
            host_tables: split(c.total.host_refs - n.min(c.total.host_refs), n.min(c.total.host_refs)),
            data: split(c.total.accesses - n, n),
            cycles: Some(PlacedCycles { walk: 275 * n, data: 137 * n }),
        };
        c.placed = vec![at(Placement::GuestNuma, 100), at(Placement::Smp, 9_000)];
    }
}

/// The outcome is that of two vCPUs, which wait for the lock of shadow work.
pub fn several_vcpus(outcome: &mut Outcome) {
    outcome.vcpus = 2;
    for c in &mut outcome.configs {
        c.total.tlb_shootdowns = 80;
        c.total.exits_ipi = if c.config.mode == Paging::Native { 0 } else { 83 };
    }
    let wait = |c: &ConfigOutcome| match c.config.mode {
        Paging::Shadow => {
            LockWait { locked_cycles: c.total.vmm_cycles / 2, wait_cycles: c.total.vmm_cycles / 50 }
        }
        _ => LockWait::default(),
    };
    outcome.several = Some(Several { at_work: 1.94, waits: outcome.configs.iter().map(wait).collect() });
}

/// Gives the outcome a guest's start, of a tenth of its counts.
pub fn with_start(outcome: &mut Outcome) {
    let tenth = |total: &Sample| Sample::from_values(total.values().map(|v| v / 10));
    let of = |c: &ConfigOutcome| RegionTotal { config: c.config, total: tenth(&c.total) };
    outcome.start = Some(outcome.configs.iter().map(of).collect());
}

/// Makes so many regions of the outcome, whose counts sum to its own.
pub fn several_regions(outcome: &mut Outcome, n: u64) {
    let part = |total: &Sample, number: u64| {
        // The first has what a division leaves over.
        let of = |v: u64| v / n + if number == 1 { v % n } else { 0 };
        Sample::from_values(total.values().map(of))
    };
    let rows = (1..=n.min(MOST_REGIONS as u64)).map(|number| RegionOutcome {
        number,
        before_instructions: 5 * number,
        configs: outcome
            .configs
            .iter()
            .map(|c| RegionTotal { config: c.config, total: part(&c.total, number) })
            .collect(),
    });
    outcome.before_region = Some(5);
    outcome.regions =
        Some(Regions { count: n, between_instructions: 5 * n * (n + 1) / 2 - 5, rows: rows.collect() });
}
