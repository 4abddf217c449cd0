// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator beside the plain C loop of `bench/rounds.c`: rank rounds of a dissemination barrier per CPU
//! second, both in turn. An argument is the path of the compiled loop; without one, the simulator's rate
//! stands alone.

use bifold_noise::sim::{Collective, LogGp, Noise, Ranks};
use std::process::Command;

const GRAIN: f64 = 100_000.0;
const ROUNDS: usize = 7;

fn main() {
    let c_loop = std::env::args().nth(1).filter(|a| !a.starts_with("--"));
    for (ranks, steps) in [(4096, 4000), (65_536, 200), (1 << 20, 8)] {
        for (word, noise) in
            [("quiet", Noise::Silent), ("periodic", Noise::Periodic { period: 1e7, length: 25_000.0 })]
        {
            compare(c_loop.as_deref(), ranks, steps, word, &noise);
        }
    }
}

fn compare(c_loop: Option<&str>, ranks: usize, steps: u32, word: &str, noise: &Noise) {
    let done = ranks as f64 * f64::from(steps) * f64::from(ranks.ilog2());
    let (mut own, mut other): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (seconds, last) = simulate(ranks, steps, noise);
        own.push(done / seconds / 1e6);
        let Some(path) = c_loop else { continue };
        let (seconds, c_last) = run(path, ranks, steps, word);
        other.push(done / seconds / 1e6);
        if word == "quiet" {
            assert_eq!(last, c_last, "both simulate the same");
        }
    }
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let mut ratios: Vec<f64> = own.iter().zip(&other).map(|(a, b)| a / b).collect();
    ratios.sort_by(f64::total_cmp);
    print!("{word:9} {ranks:8} ranks: {:7.0} M rank rounds per CPU second", best(&own));
    match ratios.get(ratios.len() / 2) {
        Some(median) => println!(
            ", C loop {:7.0}: {median:.2} x the C loop, {:.2} to {:.2}",
            best(&other),
            ratios[0],
            ratios[ratios.len() - 1]
        ),
        None => println!(),
    }
}

/// CPU seconds, and the time of the last rank.
fn simulate(n: usize, steps: u32, noise: &Noise) -> (f64, f64) {
    let cost = LogGp { gap: 0.0, ..LogGp::default() };
    let mut ranks = Ranks::new(n, cost, noise, false, 1);
    let begin = cpu_seconds();
    for _ in 0..steps {
        ranks.compute(GRAIN);
        Collective::Dissemination.run(&mut ranks);
    }
    (cpu_seconds() - begin, ranks.last())
}

fn run(path: &str, ranks: usize, steps: u32, word: &str) -> (f64, f64) {
    let arguments = [ranks.to_string(), steps.to_string(), word.into()];
    let output = Command::new(path).args(arguments).output().expect("the C loop runs");
    let text = String::from_utf8(output.stdout).expect("the C loop prints numbers");
    let mut numbers = text.split_whitespace().map(|n| n.parse().expect("a number"));
    (numbers.next().expect("seconds"), numbers.next().expect("a time"))
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
