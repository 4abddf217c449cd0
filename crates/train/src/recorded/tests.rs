// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::search;
use bifold_policy::{Scale, Setup, replay};
use proptest::prelude::*;

const INSTRUCTIONS: u64 = 1_000_000_000;
/// The law of the made-up host: walk cycles in shadow paging relative to nested paging, and cycles of a page
/// fault and of a flush in shadow paging.
const WALKS: f64 = 0.4;
const FAULT: f64 = 6000.0;
const FLUSH: f64 = 2500.0;

const KNOWN: Counters = Counters::INSTRUCTIONS
    .and(Counters::TLB_MISSES)
    .and(Counters::PAGE_FAULTS)
    .and(Counters::WALK_CYCLES)
    .and(Counters::VMM_CYCLES)
    .and(Counters::of(&["tlb_flushes"]));

/// Values of shadow and nested mode.
fn both<T>([shadow, nested]: [T; 2]) -> PerMode<T> {
    [(Mode::Shadow.into(), shadow), (Mode::Nested.into(), nested)].into()
}

struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn noisy(&mut self, x: f64, share: f64) -> f64 {
        x * (1.0 + share * (2.0 * self.next() - 1.0))
    }
}

/// A host of the law, whose processor hides this share of walks; cycles have this noise.
struct Host {
    hidden: f64,
    noise: f64,
}

impl Host {
    fn pair(&self, random: &mut Random, time: f64, chasing: bool) -> Pair {
        let (misses, faults) =
            if chasing { (5e6 + 1e7 * random.next(), 2000.0) } else { (5e4, 2e4 + 6e4 * random.next()) };
        let walks = misses * (20.0 + 30.0 * random.next());
        let flushes = faults * random.next();
        let nested = Sample {
            instructions: INSTRUCTIONS,
            tlb_misses_4k: misses as u64,
            walk_cycles: walks as u64,
            guest_page_faults: faults as u64,
            tlb_flushes: flushes as u64,
            vmm_cycles: 1_000_000,
            ..Sample::default()
        };
        let shadow = Sample {
            walk_cycles: (walks * WALKS) as u64,
            vmm_cycles: nested.vmm_cycles + (faults * FAULT + flushes * FLUSH) as u64,
            ..nested
        };
        let samples = [shadow, nested];
        let cycles = samples.map(|s| {
            let walks = s.walk_cycles as f64 * (1.0 - self.hidden);
            random.noisy(INSTRUCTIONS as f64 + walks + s.vmm_cycles as f64, self.noise)
        });
        Pair { time, samples: both(samples), known: both([KNOWN; 2]), cycles: both(cycles) }
    }

    /// A VM whose phases alternate, with a try a minute.
    fn vm(&self, name: &str, seed: u64, pairs: usize) -> Vm {
        let mut random = Random(seed);
        let pair = |n: usize| self.pair(&mut random, 60.0 * n as f64, (n / 3 + seed as usize) % 2 == 0);
        Vm { name: name.into(), pairs: (0..pairs).map(pair).collect() }
    }

    fn vms(&self) -> Vec<Vm> {
        [("a", 1), ("b", 2), ("c", 3), ("d", 4)].map(|(name, seed)| self.vm(name, seed, 24)).into()
    }
}

fn lessons(vms: Vec<Vm>) -> Lessons {
    Lessons::of(vms, &estimator_needs()).unwrap()
}

fn learnt(vms: Vec<Vm>) -> Result<Trained, TrainError> {
    estimator(&Lessons::of(vms, &estimator_needs())?, Estimator::fitted(), &|_| ())
}

/// A coefficient of a file.
fn of(toml: &str, mode: &str, counter: &str) -> Option<f64> {
    toml.parse::<toml::Table>().unwrap()[mode]["extra"].get(counter)?.as_float()
}

#[test]
fn the_coefficients_of_a_law_are_found_again_within_5_percent() {
    for noise in [0.0, 0.01] {
        let trained = learnt(Host { hidden: 0.0, noise }.vms()).unwrap();
        for (mode, counter, law) in [
            ("nested", "walk_cycles", WALKS),
            ("nested", "guest_page_faults", FAULT),
            ("nested", "tlb_flushes", FLUSH),
            ("shadow", "walk_cycles", 1.0 / WALKS),
        ] {
            let is =
                of(&trained.toml, mode, counter).unwrap_or_else(|| panic!("{counter}: {}", trained.toml));
            // A flush is worth a hundredth of all cycles, as much as the noise.
            let near = if noise > 0.0 && counter == "tlb_flushes" { 0.25 } else { 0.05 };
            assert!(
                (is / law - 1.0).abs() < near,
                "{mode} {counter} = {is}, {law} is the law: {}",
                trained.toml
            );
        }
        assert!(
            trained.table.contains("right sign of the difference, over all VMs: 100.0 %"),
            "{}",
            trained.table
        );
    }
}

#[test]
fn walks_that_the_processor_hides_count_by_what_they_cost() {
    let trained = learnt(Host { hidden: 0.5, noise: 0.0 }.vms()).unwrap();
    // Shadow paging saves half of what the counters say; the rest stays where the policy sees it.
    let law = 1.0 - 0.5 * (1.0 - WALKS);
    let is = of(&trained.toml, "nested", "walk_cycles").unwrap();
    assert!((is / law - 1.0).abs() < 0.05, "{is} {law}");
}

#[test]
fn what_pairs_do_not_show_is_the_given_estimators() {
    let trained = learnt(Host { hidden: 0.0, noise: 0.01 }.vms()).unwrap();
    let (e, given) = (Estimator::parse(&trained.toml).unwrap(), Estimator::fitted());
    assert_eq!((e.switch, &e.nested.rebuild), (given.switch, &given.nested.rebuild));
    assert_eq!(e.shadow.rebuild, given.shadow.rebuild);
    assert!(trained.toml.contains("the given estimator's"));
}

#[test]
fn an_unknown_counter_has_no_term_and_a_needed_one_takes_its_pairs_away() {
    let mut vms = Host { hidden: 0.0, noise: 0.0 }.vms();
    let unknown = Counters::of(&["tlb_flushes", "guest_page_faults"]);
    let nested = Mode::Nested.into();
    for pair in &mut vms[2].pairs {
        // What an unknown counter's field holds means nothing.
        pair.samples[nested].tlb_flushes = 1 << 43;
        pair.samples[nested].guest_page_faults = 1 << 43;
        pair.known[nested] = KNOWN.less(unknown);
    }
    let trained = learnt(vms.clone()).unwrap();
    let e = Estimator::parse(&trained.toml).unwrap();
    assert_eq!(e.needs_in(Mode::Nested.into()).less(KNOWN.less(unknown)), Counters::NONE, "{}", trained.toml);
    assert!(
        trained.toml.contains("Not known in all pairs: guest_page_faults, tlb_flushes"),
        "{}",
        trained.toml
    );
    assert!(trained.toml.contains("Without guest_page_faults: not known in all pairs"), "{}", trained.toml);

    let dsp = Named::load("dsp").unwrap().spec;
    let left = Lessons::of(vms.clone(), &needs(&dsp, Estimator::fitted())).unwrap();
    assert_eq!(left.vms.len(), 3);
    assert!(left.left_out.contains("24 pairs left out: they lack guest_page_faults in nested paging"));
    assert!(left.left_out.contains("1 VMs left out, with fewer than 3 usable pairs: c"), "{}", left.left_out);
    vms.drain(..2);
    let few = Lessons::of(vms, &needs(&dsp, Estimator::fitted())).unwrap_err().to_string();
    assert!(few.starts_with(
        "found 24 usable pairs of both modes' costs (d has 24), and training takes 10 pairs, of 2 VMs"
    ));
    assert!(few.contains("24 more pairs lack guest_page_faults in nested paging"), "{few}");
}

#[test]
fn too_few_pairs_are_told_with_their_numbers() {
    let host = Host { hidden: 0.0, noise: 0.0 };
    for (pairs, told) in [
        (&[][..], "found 0 usable pairs of both modes' costs, and"),
        (&[2, 50], "(v0 has 2, v1 has 50)"),
        (&[4, 5], "found 9 usable pairs"),
    ] {
        let vms = pairs.iter().enumerate().map(|(n, pairs)| host.vm(&format!("v{n}"), 1, *pairs)).collect();
        let few = learnt(vms).unwrap_err().to_string();
        assert!(few.contains(told) && few.contains("[vm.probe]"), "{few}");
    }
    assert!(learnt(vec![host.vm("a", 1, 5), host.vm("b", 2, 5)]).is_ok());
    let mut cheaper = host.vms();
    cheaper.iter_mut().flat_map(|vm| &mut vm.pairs).for_each(|p| p.cycles = both([1e6, 4e9]));
    assert!(learnt(cheaper).unwrap_err().to_string().contains("no counter of a VM in nested paging tells"));
    let mut same = host.vms();
    same.iter_mut().flat_map(|vm| &mut vm.pairs).for_each(|p| p.cycles = both([5e8; 2]));
    assert!(learnt(same).unwrap_err().to_string().contains("the modes do not differ"));
}

/// Share of a VM's intervals in the mode that the law says is cheaper.
fn right(vm: Vm, spec: &Spec) -> f64 {
    let second = Vm { name: "other".into(), ..vm.clone() };
    let programs = programs(&lessons(vec![vm, second]), Estimator::fitted());
    let track = &search::prepare(&programs, &options()).unwrap()[0].track;
    let setup = Setup { start: Mode::Nested.into(), scale: Scale::both(1.0), estimator: options().estimator };
    let run = replay(track, spec, &setup, false);
    let [shadow, nested] = Mode::BOTH.map(bifold_policy::Mode::from);
    let cheaper = |j| if track.extra(shadow, j) < track.extra(nested, j) { shadow } else { nested };
    run.modes.iter().enumerate().filter(|(j, mode)| cheaper(*j) == **mode).count() as f64 / track.len() as f64
}

fn options() -> search::Options<'static> {
    search::Options { scale: Scale::both(1.0), waits: false, ..search::Options::default() }
}

#[test]
fn thresholds_that_were_learnt_decide_as_the_law_says_on_a_vm_left_out() {
    let host = Host { hidden: 0.0, noise: 0.01 };
    let base = Named::load("dsp").unwrap();
    let lessons = Lessons::of(host.vms(), &needs(&base.spec, Estimator::fitted())).unwrap();
    let grid = search::dsp_grid(&base);
    let trained = policy(&lessons, &base, &grid, "dsp RECORDING...", Estimator::fitted(), &|_| ()).unwrap();
    let learnt = Named::parse("dsp", &trained.toml).unwrap();
    for seed in [7, 8, 9] {
        let vm = host.vm("new", seed, 30);
        let (before, after) = (right(vm.clone(), &base.spec), right(vm, &learnt.spec));
        assert!(after > 0.9 && before < 0.8, "{before} before, {after} after: {}", trained.table);
    }
    assert!(
        trained.toml.contains("# From 4 VMs in recordings of this host:\n#   a b c d."),
        "{}",
        trained.toml
    );
}

#[test]
fn timelines_of_pairs_have_all_cycles_and_policies_see_counted_ones() {
    let host = Host { hidden: 0.3, noise: 0.0 };
    let lessons = lessons(host.vms());
    let programs = programs(&lessons, Estimator::fitted());
    let prepared = search::prepare(&programs, &options()).unwrap();
    let (track, vm) = (&prepared[0].track, &lessons.vms[0]);
    assert_eq!((track.len(), track.interval_s, track.waits), (24 * 60, 1.0, false));
    for mode in Mode::BOTH {
        let all = track.ideal[0] + track.extra(mode.into(), 0);
        assert!((all - vm.pairs[0].cycles[mode.into()]).abs() < 2.0, "{all}");
    }
    assert!(track.costs.switch as f64 > Estimator::fitted().switch);
}

#[test]
fn a_pair_stands_for_a_minute_at_most() {
    let mut vm = Host { hidden: 0.0, noise: 0.0 }.vm("a", 1, 4);
    for (pair, time) in vm.pairs.iter_mut().zip([0.0, 10.0, 12.0, 1e300]) {
        pair.time = time;
    }
    assert_eq!(repeats(&vm), [35, 6, 31, 60]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_pairs_teach_or_are_refused(
        all in proptest::collection::vec(
            proptest::collection::vec(
                (0.0..1e300f64, prop_oneof![0..1000u64, 0..=1u64 << 44], 0..=1u64 << 44, 1.0..1.7e13f64, 1.0..1.7e13f64, any::<bool>()),
                0..12,
            ),
            0..4,
        ),
    ) {
        let pair = |(time, a, b, shadow, nested, all): &(f64, u64, u64, f64, f64, bool)| Pair {
            time: *time,
            samples: both([a, b].map(|n| Sample::from_values([*n; Sample::COUNTERS.len()]))),
            known: both([if *all { Counters::ALL } else { KNOWN }; 2]),
            cycles: both([*shadow, *nested]),
        };
        let vms: Vec<Vm> = all.iter().enumerate()
            .map(|(n, pairs)| Vm { name: format!("v{n}"), pairs: pairs.iter().map(pair).collect() })
            .collect();
        if let Ok(trained) = learnt(vms.clone()) {
            prop_assert!(Estimator::parse(&trained.toml).is_ok());
        }
        let base = Named::load("regret").unwrap();
        if let Ok(lessons) = Lessons::of(vms, &needs(&base.spec, Estimator::fitted())) {
            let _ = policy(&lessons, &base, std::slice::from_ref(&base), "regret", Estimator::fitted(), &|_| ());
        }
    }
}
