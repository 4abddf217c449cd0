// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that take pages back: by age, as a reclaimer does, and wherever a balloon wants. The counts are
//! those of the slow references, which get the same rules in words of their own.

use crate::guest::{FRAMES, Guest, Op, ops};
use crate::random::{cases, formats, has_reference, profile};
use crate::reference::exits::{GuestPage, Vm};
use crate::reference::host::Host;
use crate::reference::{Counts, Reference, Tables, WRITE};
use crate::stream::Stream;
use bifold_mmu::PageSize;
use bifold_model::host::Taking;
use bifold_model::{
    Config, Model, Options, Paging, Placement, PlacementOptions, Sample, Switching, Virtualization,
};
use bifold_trace::Event::{Cr3, Insns, Load, Store, Vcpu};
use proptest::prelude::*;
use std::ops::Range;

/// What the hosts do between two stretches of accesses.
#[derive(Debug, Clone)]
enum Act {
    /// Look, and swap out so many of the oldest pages.
    Reclaim(usize),
    Look,
    Take(Range<u64>, Taking),
}

fn acts() -> impl Strategy<Value = Act> {
    // Tables, the kernel's text, pages and large pages of the guests below.
    let base =
        prop_oneof![Just(0x100u64), Just(0x8000), Just(0x9000), Just(0x1_0000), Just(0x2_0000), Just(0)];
    let frames =
        prop_oneof![4 => 1u64..8, 3 => 1u64..600, 1 => Just(512u64), 1 => Just(1 << 17), 1 => Just(1 << 18)];
    let taking = prop_oneof![Just(Taking::Discard), Just(Taking::Swap)];
    prop_oneof![
        4 => (0usize..12).prop_map(Act::Reclaim),
        1 => Just(Act::Look),
        4 => (base, 0u64..300, frames, taking)
            .prop_map(|(base, offset, frames, taking)| Act::Take(base + offset..base + offset + frames, taking)),
        1 => (0u64..FRAMES, 1u64..3000, Just(Taking::Discard))
            .prop_map(|(start, frames, taking)| Act::Take(start..start + frames, taking)),
    ]
}

fn options(configs: &[Config], cpus: usize, interval_seconds: f64) -> Options {
    Options {
        configs: configs.to_vec(),
        guest_frames: FRAMES,
        vcpus: cpus,
        interval_seconds,
        ..Options::default()
    }
}

/// The model's side of an act, for one host. Returns the pages that a reclaimer took.
fn act_in_model(model: &mut Model, host: usize, act: &Act) -> Vec<Range<u64>> {
    match act {
        Act::Reclaim(most) => {
            model.look(host);
            let oldest = model.oldest(host, *most);
            oldest.iter().for_each(|page| model.take_back(host, page.clone(), Taking::Swap));
            return oldest;
        }
        Act::Look => model.look(host),
        Act::Take(gfns, taking) => model.take_back(host, gfns.clone(), *taking),
    }
    Vec::new()
}

fn act_in_reference(slow: &mut Reference, act: &Act) -> Vec<Range<u64>> {
    match act {
        Act::Reclaim(most) => {
            slow.look();
            let oldest = slow.host.as_ref().map_or_else(Vec::new, |h| h.oldest(*most));
            oldest.iter().for_each(|page| slow.take_back(page.clone(), true));
            return oldest;
        }
        Act::Look => slow.look(),
        Act::Take(gfns, taking) => slow.take_back(gfns.clone(), *taking == Taking::Swap),
    }
    Vec::new()
}

fn act_in_vm(vm: &mut Vm, act: &Act) -> Vec<Range<u64>> {
    match act {
        Act::Reclaim(most) => {
            vm.look();
            let oldest = vm.host.oldest(*most);
            oldest.iter().for_each(|page| vm.take_back(page.clone(), true));
            return oldest;
        }
        Act::Look => vm.look(),
        Act::Take(gfns, taking) => vm.take_back(gfns.clone(), *taking == Taking::Swap),
    }
    Vec::new()
}

/// Stretches of a random guest's stream, each with what the hosts do after it.
fn stretches(cpus: usize, rounds: &[(Vec<Op>, Act)]) -> Vec<(Vec<u64>, Act)> {
    let mut guest = Guest::new(cpus);
    let of = |(ops, act): &(Vec<Op>, Act)| {
        guest.run(ops);
        (std::mem::take(&mut guest.words), act.clone())
    };
    rounds.iter().map(of).collect()
}

fn rounds(most: usize) -> impl Strategy<Value = Vec<(Vec<Op>, Act)>> {
    proptest::collection::vec((ops(most), acts()), 1..10)
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn nested_paging_over_a_host_that_takes_pages_back_counts_what_the_reference_counts(
        which in 0..crate::random::PROFILES, variant in 0usize..12, cpus in 1usize..3, rounds in rounds(150)
    ) {
        let profile = profile(which, variant);
        let mut model = Model::new(&profile, options(&Config::KNOWN, cpus, 1e-6));
        let mut slow: Vec<Reference> =
            Config::KNOWN.iter().map(|c| Reference::new(&profile, *c, FRAMES, cpus, 1)).collect();
        let mut alone: Vec<Model> =
            Config::KNOWN.iter().map(|c| Model::new(&profile, options(&[*c], cpus, 1e-6))).collect();
        for (words, act) in stretches(cpus, &rounds) {
            model.consume(&words).unwrap();
            for (host, config) in Config::KNOWN.iter().enumerate() {
                let taken = act_in_model(&mut model, host, &act);
                alone[host].consume(&words).unwrap();
                prop_assert_eq!(&taken, &act_in_model(&mut alone[host], 0, &act), "{} alone", config.name());
                if config.mode == Paging::Nested {
                    slow[host].consume(&words);
                    prop_assert_eq!(&taken, &act_in_reference(&mut slow[host], &act), "{}", config.name());
                    let swapped_in = slow[host].host.as_ref().map_or(0, |h| h.swapped_in);
                    prop_assert_eq!(model.swapped_in(host), swapped_in);
                } else if has_reference(config.mode) {
                    slow[host].consume(&words);
                    prop_assert!(taken.is_empty());
                }
            }
        }
        let outcome = model.finish();
        for (host, (c, alone)) in outcome.configs.iter().zip(alone).enumerate() {
            prop_assert_eq!(&alone.finish().configs[0], c, "{} {}", &profile.name, c.config.name());
            if has_reference(c.config.mode) {
                prop_assert_eq!(&Counts::of(c), &slow[host].counts, "{} {}", &profile.name, c.config.name());
            }
        }
    }
}

/// An address in each kind of table.
fn va(format: Tables) -> u64 {
    if let Tables::Long(_) = format { 0x40_4060_0000 } else { 0x4040_0000 }
}

/// 4 KB pages, in two 2 MB stretches of frames, before the large page.
const SMALL: u64 = 40;

/// A guest with small pages and a large one, all accessed and dirty, and its stream up to the loads of CR3.
/// With 4-byte entries, the second stretch is mapped by the second half of a table, and a page of 4 MB is two
/// pages that have one entry. Walks begin at the entry of level `first`.
fn guest(format: Tables, first: u8, cpus: usize) -> (Stream, Vec<GuestPage>) {
    const BITS: u64 = WRITE | 0x60;
    let mut stream = Stream::of(format);
    let root = stream.table(format.depth());
    let mut pages = Vec::new();
    let (small, large) = (va(format), va(format) + (1 << format.shift(2)));
    for i in 0..=SMALL {
        let (level, gva, gfn) = match i {
            SMALL => (2, large, 0x2_0000),
            20.. if format == Tables::TwoLevels => (1, small + (1 << 21) + (i << 12), 0x1_4000 + i),
            _ => (1, small + (i << 12), 0x1_0000 + i + if i >= 20 { 0x4000 } else { 0 }),
        };
        let bits = if level == 2 { BITS | 1 << 7 } else { BITS };
        stream.map(root, gva, level, gfn << 12 | bits);
        // Tables have the frames from the root's on, in the order of their levels.
        let table = |l: u8| (root + u64::from(format.depth() - l)) << 12;
        let entry = |l: u8| table(l) + format.index(gva, l) * format.entry_bytes();
        let path: Vec<u64> = (level..=first).rev().map(entry).collect();
        pages.push(GuestPage { level, gva, gfn, path });
    }
    if format == Tables::TwoLevels {
        let first = pages[SMALL as usize].clone();
        pages.push(GuestPage { gva: first.gva + (1 << 21), gfn: first.gfn + 512, ..first });
    }
    let mut stream = stream.start(root);
    for cpu in (0..cpus as u64).rev() {
        stream = stream.and(&[Vcpu(cpu), Cr3(root << 12)]);
    }
    (stream, pages)
}

#[derive(Debug, Clone)]
enum Step {
    Access {
        cpu: u64,
        page: u64,
        frame: u64,
        write: bool,
    },
    /// The interval ends, after which VMs switch.
    Interval,
    Act(Act),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // The large page as often as all others.
    let page = prop_oneof![0..SMALL, SMALL..SMALL + 2];
    let step = prop_oneof![
        12 => (0u64..2, page, prop_oneof![0u64..20, 0u64..512], any::<bool>())
            .prop_map(|(cpu, page, frame, write)| Step::Access { cpu, page, frame, write }),
        1 => Just(Step::Interval),
        1 => acts().prop_map(Step::Act),
    ];
    proptest::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn every_mode_and_vms_that_switch_take_the_exits_of_the_reference_after_pages_are_taken_back(
        format in formats(), cpus in 1usize..3, steps in steps(), turns in proptest::collection::vec(any::<bool>(), 0..40),
        which in 0..crate::random::PROFILES, variant in 0usize..12
    ) {
        let profile = profile(which, variant);
        // AMD's walks of nested tables read PAE's root.
        let svm = profile.cpu.virtualization == Virtualization::Svm;
        let first = if svm { format.depth() } else { format.first() };
        let (stream, pages) = guest(format, first, cpus);
        let configs = crate::random::known(crate::random::format(format));
        let options = Options { guest_format: crate::random::format(format), ..options(&configs, cpus, 1e-4) };
        let mut model = Model::new(&profile, options);
        let mut vms: Vec<Option<Vm>> = Vec::new();
        let vm = |page, shadow| Some(Vm::new(Host::new(page, FRAMES, 1), shadow, &pages));
        for c in &configs {
            vms.push(if c.mode.is_offered() && c.host_page != PageSize::Size1G {
                vm(c.host_page, c.mode == Paging::Shadow)
            } else {
                None
            });
        }
        let mut keeps = Vec::new();
        let modes: Vec<bool> = [false].into_iter().chain(turns).collect();
        for host_page in [PageSize::Size4K, PageSize::Size2M] {
            for keep_nested in [false, true] {
                let modes = modes.clone();
                let decide = move |i: usize, _: &Sample, mode| match modes.get(i + 1) {
                    Some(true) => Paging::Shadow,
                    Some(false) => Paging::Nested,
                    None => mode,
                };
                let switching = Switching { name: "test".into(), host_page, start: Paging::Nested, keep_nested };
                model.add_switching(switching, Box::new(decide));
                vms.push(vm(host_page, false));
                keeps.push(keep_nested);
            }
        }
        model.consume(&stream.words).unwrap();
        if format == Tables::Pae && !svm {
            // The first vCPU's second load of CR3 reads the root's entries.
            vms.iter_mut().flatten().for_each(|vm| vm.read_root(stream.root));
        }
        let fixed = configs.len();
        let mut interval = 0;
        for step in &steps {
            let mut words = Vec::new();
            match step {
                Step::Access { cpu, page, frame, write } => {
                    let p = (*page as usize).min(pages.len() - 1);
                    let gva = pages[p].gva + if pages[p].level == 2 { frame << 12 } else { 8 };
                    Vcpu(cpu % cpus as u64).encode(&mut words);
                    if *write { Store(gva) } else { Load(gva) }.encode(&mut words);
                    model.consume(&words).unwrap();
                    vms.iter_mut().flatten().for_each(|vm| vm.access(p, gva, *write));
                }
                Step::Interval => {
                    Insns(100_000_000).encode(&mut words);
                    model.consume(&words).unwrap();
                    interval += 1;
                    for (vm, keep) in vms[fixed..].iter_mut().flatten().zip(&keeps) {
                        if let Some(shadow) = modes.get(interval) {
                            vm.switch(*shadow, *keep);
                        }
                    }
                }
                Step::Act(act) => {
                    for (host, vm) in vms.iter_mut().enumerate() {
                        let taken = act_in_model(&mut model, host, act);
                        if let Some(vm) = vm {
                            prop_assert_eq!(taken, act_in_vm(vm, act), "host {}", host);
                        }
                    }
                }
            }
            for (host, (total, vm)) in model.totals().iter().zip(&vms).enumerate() {
                if let Some(vm) = vm {
                    let got = (Vm::counts_of(&total.1), model.swapped_in(host));
                    prop_assert_eq!(got, (vm.counts(), vm.host.swapped_in), "host {}: {:?}", host, step);
                } else if matches!(total.0.mode, Paging::Native | Paging::Offset) {
                    prop_assert_eq!(total.1.all_exits(), 0, "host {}", host);
                }
            }
        }
    }
}

/// The page lies where vCPU 0 runs. Then the host takes it back, and vCPU 1 touches it first.
#[test]
fn a_page_taken_back_lies_where_the_next_vcpu_that_touches_it_runs() {
    let profile = crate::stream::profile("geometry-g", &[]);
    for (taking, name) in [(None, "kept"), (Some(Taking::Discard), "taken"), (Some(Taking::Swap), "swapped")]
    {
        let (stream, pages) = guest(Tables::Long(4), 4, 2);
        let configs: Vec<Config> = ["nested-4k", "nested-2m", "shadow-4k", "shadow-2m"]
            .map(|name| Config::from_name(name).unwrap())
            .to_vec();
        let placed =
            PlacementOptions { placements: vec![Placement::Smp], host_nodes: 2, guest_nodes: Vec::new() };
        let mut model = Model::new(&profile, Options { placed: Some(placed), ..options(&configs, 2, 1.0) });
        let page = &pages[3];
        model.consume(&stream.and(&[Vcpu(0), Store(page.gva)]).words).unwrap();
        for host in 0..configs.len() {
            if let Some(taking) = taking {
                model.take_back(host, page.gfn..page.gfn + 1, taking);
            }
        }
        let mut words = Vec::new();
        for event in [Vcpu(1), Store(page.gva), Vcpu(0), Load(page.gva), Load(page.gva)] {
            event.encode(&mut words);
        }
        model.consume(&words).unwrap();
        for c in model.finish().configs {
            // vCPU 0 stores once and loads twice, vCPU 1 stores once.
            let remote = if taking.is_some() { 2 } else { 1 };
            assert_eq!(c.placed[0].data.remote, remote, "{}: {name}", c.config.name());
        }
    }
}
