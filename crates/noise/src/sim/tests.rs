// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator beside closed forms, beside published figures, and beside the slow reference.

use super::*;
use crate::file::Trace;
use proptest::prelude::*;
use std::sync::Arc;

const FREE: LogGp = LogGp { latency: 0.0, overhead: 0.0, gap: 0.0, gap_per_byte: 0.0, bytes: 1 };

fn case(ranks: usize, grain: f64, collective: Collective, noise: Noise, steps: u32) -> NoiseCase {
    NoiseCase {
        ranks,
        grain,
        collective,
        cost: LogGp::default(),
        noise,
        coscheduled: false,
        steps,
        seed: 1,
        until: None,
    }
}

/// Time of one operation of ranks that start together.
fn once(collective: Collective, ranks: usize, cost: LogGp) -> f64 {
    let mut all = Ranks::new(ranks, cost, &Noise::Silent, false, 0);
    collective.run(&mut all);
    all.last()
}

#[test]
fn noiseless_times_are_those_of_the_closed_forms() {
    let cost = LogGp::default();
    let m = cost.message();
    assert_eq!(once(Collective::Dissemination, 4096, cost), 66_000.0);
    for n in [2, 3, 4, 5, 7, 8, 100, 1000, 1024, 4096] {
        let depth = f64::from((n - 1_usize).ilog2() + 1);
        let hops = (n - 1) as f64;
        // The depth of the deepest rank: ones in its number.
        let ones = f64::from((1..n).map(usize::count_ones).max().unwrap());
        let gap = cost.overhead.max(cost.gap);
        assert_eq!(once(Collective::Dissemination, n, cost), depth * m, "{n}");
        let doubling = once(Collective::RecursiveDoubling, n, cost);
        match n.is_power_of_two() {
            true => assert_eq!(doubling, depth * m, "{n}"),
            false => {
                assert!(doubling > (depth - 1.0) * m && doubling <= (depth + 1.0) * m, "{n}: {doubling}")
            }
        }
        assert_eq!(once(Collective::Ring, n, cost), hops * m, "{n}");
        let linear = 4.0 * cost.overhead + 2.0 * cost.latency + 2.0 * (hops - 1.0) * gap;
        assert_eq!(once(Collective::Linear, n, cost), linear, "{n}");
        assert_eq!(once(Collective::Ideal, n, cost), 0.0);
        // A rank may have to send to a nearer child first.
        let broadcast = once(Collective::Broadcast, n, cost);
        assert!(broadcast >= ones * m && broadcast <= depth * m, "{n}: {broadcast}");
        if n.is_power_of_two() {
            assert_eq!(broadcast, depth * m, "{n}");
            assert_eq!(once(Collective::Reduce, n, cost), depth * m, "{n}");
            assert_eq!(once(Collective::Tree, n, cost), 2.0 * depth * m, "{n}");
        }
    }
    for collective in Collective::ALL {
        assert_eq!(once(collective, 1, cost), 0.0);
    }
}

#[test]
fn a_reduction_of_8_ranks_takes_what_loggopsims_readme_says() {
    // "Simple usage example" of LogGOPSim's README: 1024 bytes, a binomial tree.
    let mut ranks = Ranks::new(8, LogGp { bytes: 1024, ..LogGp::default() }, &Noise::Silent, false, 0);
    Collective::Reduce.run(&mut ranks);
    assert_eq!(ranks.time, [34914.0, 24776.0, 13138.0, 13138.0, 1500.0, 1500.0, 1500.0, 1500.0]);
}

#[test]
fn a_limit_ends_a_case_after_a_step_whose_time_is_that_of_all() {
    let whole = case(16, 1000.0, Collective::Tree, Noise::Silent, 50);
    let cut = simulate(&NoiseCase { until: Some(std::time::Instant::now()), ..whole.clone() });
    assert_eq!(cut.steps, 1);
    let whole = simulate(&whole);
    assert_eq!((whole.steps, whole.step_ns), (50, cut.step_ns));
}

/// Ends of a quiet binomial reduction, message by message: an arrival whose receiver is busy comes again when
/// the receiver is free. Nothing of the simulator is used.
fn reduction_by_events(n: usize, cost: LogGp) -> Vec<u64> {
    let [l, o, g, per_byte] = [cost.latency, cost.overhead, cost.gap, cost.gap_per_byte].map(|ns| ns as u64);
    let stream = u64::from(cost.bytes - 1) * per_byte;
    let parent = |r: usize| r - (1 << r.ilog2());
    let (mut cpu, mut port) = (vec![0; n], vec![0; n]);
    let mut missing = vec![0; n];
    (1..n).for_each(|r| missing[parent(r)] += 1);
    // First bytes that arrive: time and receiver.
    let mut events = std::collections::BinaryHeap::new();
    let send = |from: usize, cpu: &mut [u64]| {
        cpu[from] += o;
        std::cmp::Reverse((cpu[from] + l, parent(from)))
    };
    (1..n).filter(|r| missing[*r] == 0).for_each(|r| events.push(send(r, &mut cpu)));
    while let Some(std::cmp::Reverse((now, to))) = events.pop() {
        let free = cpu[to].max(port[to]);
        if now < free {
            events.push(std::cmp::Reverse((free, to)));
            continue;
        }
        (cpu[to], port[to]) = (now + stream + o, now + stream + g);
        missing[to] -= 1;
        if missing[to] == 0 && to > 0 {
            events.push(send(to, &mut cpu));
        }
    }
    cpu
}

#[test]
fn a_reduction_of_any_number_of_ranks_takes_what_its_messages_take() {
    for n in 2..=33 {
        for (o, g) in [(1500, 1000), (1000, 1500), (1000, 1000), (10, 5000), (5000, 10), (0, 700)] {
            // More bytes than fit between o and g, and fewer.
            for bytes in [1, 2, 50, 1024, 100_000] {
                let [overhead, gap] = [o, g].map(f64::from);
                let cost = LogGp { overhead, gap, bytes, ..LogGp::default() };
                let mut ranks = Ranks::new(n, cost, &Noise::Silent, false, 0);
                Collective::Reduce.run(&mut ranks);
                let found: Vec<u64> = ranks.time.iter().map(|t| *t as u64).collect();
                assert_eq!(found, reduction_by_events(n, cost), "{n} ranks, {cost:?}");
            }
        }
    }
}

/// The paper's time of two messages: of many bytes, to a rank that reduces.
#[test]
fn two_messages_to_one_rank_take_what_the_loggp_paper_says() {
    for (overhead, gap) in [(50.0, 20.0), (20.0, 50.0)] {
        for bytes in [1, 5, 1000] {
            let cost = LogGp { latency: 10.0, overhead, gap, gap_per_byte: 1.0, bytes };
            let stream = f64::from(bytes - 1);
            let paper = overhead + stream + gap.max(overhead) + stream + 10.0 + overhead;
            assert_eq!(once(Collective::Reduce, 3, cost), paper, "{overhead} {gap} {bytes}");
        }
    }
}

#[test]
fn a_gap_larger_than_the_overheads_keeps_messages_apart() {
    let cost = LogGp { latency: 1.0, overhead: 10.0, gap: 1000.0, gap_per_byte: 0.0, bytes: 1 };
    // Each round waits for the gap after the former one's send, or receive.
    assert_eq!(once(Collective::Dissemination, 8, cost), 2000.0 + 21.0);
    let linear = 4.0 * 10.0 + 2.0 + 2.0 * 6.0 * 1000.0;
    assert_eq!(once(Collective::Linear, 8, cost), linear);
}

#[test]
fn a_free_barrier_with_rare_extensions_is_the_chance_that_any_rank_is_hit() {
    let d = 1000.0;
    for (n, p, grain, steps) in [
        (1, 0.5, 1000.0, 40_000),
        (64, 0.01, 1000.0, 40_000),
        (4096, 2e-4, 1000.0, 30_000),
        (65_536, 1e-5, 2000.0, 8_000),
        (1 << 20, 1e-6, 5000.0, 1_500),
    ] {
        let noise = Noise::Bernoulli { chance: p, length: d };
        let case = NoiseCase { cost: FREE, ..case(n, grain, Collective::Ideal, noise, steps) };
        let expected = grain + d * (1.0 - (1.0 - p).powi(n as i32));
        let found = simulate(&case).step_ns;
        assert!((found / expected - 1.0).abs() < 0.01, "{n}: {found} beside {expected}");
    }
}

/// The sum 1 + 1/2 + ... + 1/n: the expected maximum of `n` exponential times of mean 1.
fn harmonic(n: usize) -> f64 {
    (1..=n).rev().map(|i| 1.0 / i as f64).sum()
}

#[test]
fn a_free_barrier_with_exponential_extensions_grows_with_the_harmonic_number() {
    let mean = 1000.0;
    for (n, steps) in [(1, 100_000), (16, 40_000), (1024, 6000), (65_536, 2000), (1 << 20, 800)] {
        let case =
            NoiseCase { cost: FREE, ..case(n, 0.0, Collective::Ideal, Noise::Exponential { mean }, steps) };
        let expected = mean * harmonic(n);
        let found = simulate(&case).step_ns;
        assert!((found / expected - 1.0).abs() < 0.01, "{n}: {found} beside {expected}");
    }
    assert!((harmonic(1 << 20) - 14.440).abs() < 0.001);
}

#[test]
fn rare_long_interruptions_hurt_and_frequent_short_ones_do_not() {
    // Ferreira, Bridges, Brightwell (SC'08): 2.5 % net noise at 10 Hz and at 10 kHz.
    for collective in [Collective::Ideal, Collective::Dissemination] {
        let noisy = |period, length| {
            let noise = Noise::Periodic { period, length };
            simulate(&case(4096, 100_000.0, collective, noise, 300)).slowdown
        };
        let (frequent, rare) = (noisy(100_000.0, 2500.0), noisy(1e8, 2.5e6));
        assert!((1.02..=1.1).contains(&frequent), "{collective:?}: {frequent}");
        assert!((20.0..=40.0).contains(&rare), "{collective:?}: {rare}");
    }
}

#[test]
fn coscheduled_noise_costs_its_share_and_no_more() {
    let noise = Noise::Periodic { period: 1e6, length: 25_000.0 };
    let alone = case(1024, 100_000.0, Collective::Dissemination, noise, 2000);
    let together = NoiseCase { coscheduled: true, ..alone.clone() };
    let slowdown = simulate(&together).slowdown;
    assert!((1.02..1.04).contains(&slowdown), "{slowdown}");
    assert!(simulate(&alone).slowdown > 1.1);
}

#[test]
fn the_seed_alone_decides() {
    let noise = Noise::Poisson { period: 1e5, length: 2000.0 };
    let case = case(300, 10_000.0, Collective::Tree, noise, 50);
    assert_eq!(simulate(&case), simulate(&case));
    assert_ne!(simulate(&case), simulate(&NoiseCase { seed: 2, ..case.clone() }));
    let done = std::sync::atomic::AtomicUsize::new(0);
    let told = || _ = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(sweep(&[case.clone(), case.clone()], told), [simulate(&case), simulate(&case)]);
    assert_eq!(done.into_inner(), 2);
}

#[test]
fn random_interruptions_take_their_share_of_one_rank() {
    let noise = Noise::Poisson { period: 10_000.0, length: 2500.0 };
    let found = simulate(&case(1, 1e6, Collective::Ideal, noise, 1000));
    assert!((found.slowdown - 1.0 / 0.75).abs() < 0.01, "{found:?}");
}

#[test]
fn the_source_that_delays_most_comes_first_even_if_it_takes_less_time() {
    // Every 20 us: 1 us. Once in 10 ms: 300 us. The first takes 5 %, the second 3 %.
    let mut text = String::new();
    for i in 0..500 {
        text += &format!("{}\t1000\tfrequent\n", i * 20_000);
        if i == 250 {
            text += &format!("{}\t300000\trare\n", i * 20_000 + 2000);
        }
    }
    // The long one covers 15 short ones.
    let lines: Vec<&str> = text.lines().collect();
    let kept: Vec<&str> = lines[..252].iter().chain(&lines[270..]).copied().collect();
    let trace = Trace::read((kept.join("\n") + "\n# duration_ns: 10000000\n").as_bytes()).unwrap();
    let noise = Noise::Recorded(Arc::new(vec![trace]));
    let gains = gains(&case(1024, 50_000.0, Collective::Dissemination, noise, 200));
    let order: Vec<&str> = gains.iter().map(|g| &g.source[..]).collect();
    assert_eq!(order, ["rare", "frequent"]);
    let gain = |i: usize| gains[i].removed.unwrap().gain;
    assert!(gains[0].share < gains[1].share && gain(0) > 0.5 && gain(1) < 0.1, "{gains:?}");
}

/// 60 s: 5 us every 4 ms, and 20 ms every 5 s.
fn a_minute() -> Noise {
    let mut text = String::new();
    for i in 0..15_000_u64 {
        if i % 1250 == 600 {
            text += &format!("{}\t20000000\tthread:backup\n", i * 4_000_000 + 1_000_000);
        }
        // Five ticks fall into the backup.
        if !(601..=605).contains(&(i % 1250)) {
            text += &format!("{}\t5000\tirq:timer\n", i * 4_000_000);
        }
    }
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_by_key(|l| l.split('\t').next().unwrap().parse::<u64>().unwrap());
    let text = lines.join("\n") + "\n# duration_ns: 60000000000\n";
    Noise::Recorded(Arc::new(vec![Trace::read(text.as_bytes()).unwrap()]))
}

/// The case with as many steps as see enough of its noise.
fn long_enough(case: NoiseCase) -> NoiseCase {
    NoiseCase { steps: enough_steps(&case), ..case }
}

#[test]
fn enough_steps_see_what_is_rare() {
    let short = case(16, 100_000.0, Collective::Dissemination, a_minute(), 100);
    // 13 ms of 60 s on each rank: what did not come is not ranked.
    let found = gains(&short);
    assert_eq!((&found[1].source[..], found[1].removed), ("thread:backup", None), "{found:?}");
    assert!(simulate(&short).is_short());
    for coscheduled in [false, true] {
        let long = long_enough(NoiseCase { coscheduled, ..short.clone() });
        let cell = simulate(&long);
        assert!(!cell.is_short() && cell.rounds < 1.5 * cell.enough_rounds, "{cell:?}");
        let found = gains(&long);
        assert!(found.iter().all(|g| g.removed.is_some()), "{found:?}");
        if !coscheduled {
            assert_eq!(found[0].source, "thread:backup");
            assert!((0.03..0.1).contains(&found[0].removed.unwrap().gain), "{found:?}");
        }
    }
}

#[test]
fn seeds_agree_on_generated_noise_that_is_rare() {
    let noise = Noise::Periodic { period: 1e8, length: 2.5e6 };
    let slowdown = |coscheduled, seed| {
        let case = case(16, 100_000.0, Collective::Dissemination, noise.clone(), 0);
        simulate(&long_enough(NoiseCase { coscheduled, seed, ..case })).slowdown
    };
    for seed in 1..=9 {
        // The moments of 16 ranks stay what they are, so some overlap.
        assert!((1.4..1.7).contains(&slowdown(false, seed)), "{seed}: {}", slowdown(false, seed));
        assert!((1.02..1.035).contains(&slowdown(true, seed)), "{seed}: {}", slowdown(true, seed));
    }
}

#[test]
fn the_number_of_steps_has_limits() {
    let of = |ranks, noise| enough_steps(&case(ranks, 100_000.0, Collective::Ideal, noise, 0));
    assert_eq!(of(1 << 20, Noise::Bernoulli { chance: 1e-12, length: 1.0 }), 100);
    assert_eq!(of(1 << 16, Noise::Periodic { period: 1e12, length: 1.0 }), 1 << 10);
    assert_eq!(of(4, Noise::Bernoulli { chance: 0.0, length: 1.0 }), 100);
    assert_eq!(of(4, Noise::Silent), 100);
    assert_eq!(of(4, Noise::Bernoulli { chance: 1e-3, length: 1.0 }), 25_000);
    assert_eq!(of(1, Noise::Poisson { period: 1e7, length: 1.0 }), 10_000);
    // Steps that take no time: no number of them is enough.
    let free = NoiseCase {
        grain: 0.0,
        ..case(16, 0.0, Collective::Ideal, Noise::Periodic { period: 1e6, length: 1.0 }, 0)
    };
    assert_eq!(enough_steps(&free), 1 << 22);
}

#[test]
fn coscheduled_ranks_share_one_recording() {
    let trace =
        |at: u64| Trace::read(format!("{at}\t1000000\n# duration_ns: 10000000\n").as_bytes()).unwrap();
    let of =
        |traces| NoiseCase { coscheduled: true, ..case(16, 1e6, Collective::Dissemination, traces, 1000) };
    let one = simulate(&of(Noise::Recorded(Arc::new(vec![trace(0)])))).slowdown;
    let both = simulate(&of(Noise::Recorded(Arc::new(vec![trace(0), trace(5_000_000)])))).slowdown;
    assert!((one - 1.111).abs() < 0.002 && both == one, "{one} and {both}");
}

#[test]
fn noise_that_leaves_no_time_is_refused() {
    let recorded = |text: &str| Noise::Recorded(Arc::new(vec![Trace::read(text.as_bytes()).unwrap()]));
    for (noise, why) in [
        (Noise::Periodic { period: 10_000.0, length: 9900.0 }, "99 % of the time"),
        (Noise::Poisson { period: 10.0, length: 1.0 }, "at least 1000 ns"),
        (Noise::Periodic { period: f64::NAN, length: 1.0 }, "the period NaN"),
        (Noise::Bernoulli { chance: 1.5, length: 1.0 }, "the chance 1.5"),
        (Noise::Exponential { mean: -1.0 }, "the mean -1"),
        (recorded("0 1000\n"), "100 % of the time"),
        (recorded("0 1\n200 1\n"), "at least 1000 ns"),
        (Noise::Recorded(Arc::new(Vec::new())), "no recording"),
    ] {
        let found = noise.check().unwrap_err().to_string();
        assert!(found.contains(why), "{found}");
    }
}

#[test]
fn no_work_is_not_interrupted() {
    let noise = Noise::Periodic { period: 1000.0, length: 900.0 };
    let mut ranks = Ranks::new(64, LogGp::default(), &noise, false, 1);
    ranks.compute(0.0);
    assert_eq!(ranks.time, [0.0; 64]);
}

/// Whole nanoseconds, so that the reference is exact.
fn costs() -> impl Strategy<Value = LogGp> {
    (0u32..300, 1u32..200, 0u32..700, 0u32..5, 1u32..20).prop_map(|(l, o, g, per_byte, bytes)| LogGp {
        latency: l.into(),
        overhead: o.into(),
        gap: g.into(),
        gap_per_byte: per_byte.into(),
        bytes,
    })
}

fn times(all: &mut Ranks, grain: u64, collective: Collective, steps: u32) -> Vec<u64> {
    for _ in 0..steps {
        all.compute(grain as f64);
        collective.run(all);
    }
    all.time.iter().map(|t| *t as u64).collect()
}

proptest! {
    #[test]
    fn periodic_noise_is_that_of_the_reference(
        n in prop_oneof![1usize..20, 250usize..260], grain in 0u64..800, which in 0usize..8, cost in costs(),
        period in 100u64..3000, share in 0u64..60, seed: u64, coscheduled: bool,
    ) {
        let length = period * share / 100;
        let noise = Noise::Periodic { period: period as f64, length: length as f64 };
        let collective = Collective::ALL[which];
        let mut fast = Ranks::new(n, cost, &noise, coscheduled, seed);
        let starts = fast.schedule().starts.clone();
        let noisy = |r: usize, t: u64| (t as i64 - starts[r] as i64).rem_euclid(period as i64) < length as i64;
        let found = times(&mut fast, grain, collective, 3);
        prop_assert_eq!(found, reference::simulate(n, grain, collective, cost, &noisy, 3));
    }

    #[test]
    fn recorded_noise_is_that_of_the_reference(
        n in 1usize..20, grain in 0u64..3000, which in 0usize..8, cost in costs(), seed: u64, steps in 1u32..5,
        gaps in prop::collection::vec(prop::collection::vec((100u64..900, 1u64..700), 0..6), 1..3),
    ) {
        let mut traces = Vec::new();
        let mut taken = Vec::new();
        for gaps in gaps {
            let (mut text, mut now, mut by_ns) = (String::new(), 0, Vec::new());
            for (gap, length) in gaps {
                text += &format!("{}\t{length}\n", now + gap);
                by_ns.extend((0..gap).map(|_| false).chain((0..length).map(|_| true)));
                now += gap + length;
            }
            by_ns.extend([false; 100]);
            text += &format!("# duration_ns: {}\n", now + 100);
            traces.push(Trace::read(text.as_bytes()).unwrap());
            taken.push(by_ns);
        }
        let noise = Noise::Recorded(Arc::new(traces.clone()));
        let collective = Collective::ALL[which];
        let mut fast = Ranks::new(n, cost, &noise, false, seed);
        let places = fast.schedule().places();
        let noisy = |r: usize, t: u64| {
            let recording = &taken[r % taken.len()];
            !places.is_empty() && recording[(t as i64 - places[r] as i64).rem_euclid(recording.len() as i64) as usize]
        };
        let found = times(&mut fast, grain, collective, steps);
        prop_assert_eq!(found, reference::simulate(n, grain, collective, cost, &noisy, steps));
    }
}
