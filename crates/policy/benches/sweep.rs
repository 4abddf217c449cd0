// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long ten thousand settings take over the suite: wall time on all cores (RAYON_NUM_THREADS)
//! and CPU time per interval replayed. Arguments: timelines (default: those of
//! `evidence/timelines`, or 32 made up if there are none), and settings by `--settings N`.

use bifold_mmu::PageSize;
use bifold_model::Sample;
use bifold_model::ages::{Reuse, bucket};
use bifold_policy::sweep::{self, Axis, Prepared};
use bifold_policy::timeline::{About, Runs, StaticRun, SwitchCosts};
use bifold_policy::{Estimator, Mode, Named, Scale, Timeline, Track, VmKind};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// CPU time of the process, in seconds.
fn cpu() -> f64 {
    let ns = |entry: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    std::fs::read_dir("/proc/self/task").expect("Linux").filter_map(ns).sum::<f64>() / 1e9
}

/// A program of two phases by turns, with as many ages as a compiler has.
fn made_up(seed: usize) -> Timeline {
    let n = 150 + 11 * seed;
    let run = |shadow: bool| {
        let sample = |j: usize| {
            let walking = (j / (10 + seed)) % 2 == 0;
            let walk = if walking { 9_000_000 } else { 500_000 };
            Sample {
                instructions: 50_000_000,
                tlb_misses_4k: walk / 30,
                walk_cycles: if shadow { walk / 2 } else { walk },
                guest_page_faults: if walking { 10 } else { 900 },
                exits_guest_fault: u64::from(shadow) * if walking { 10 } else { 900 },
                vmm_cycles: u64::from(shadow) * if walking { 60_000 } else { 6_000_000 },
                shadow_pages_made: u64::from(shadow && j % 50 == 0) * 100,
                ..Sample::default()
            }
        };
        let age = |a: u32| Reuse { last: bucket(a), made: bucket(a), exits: 40 / a + 3, tables: 1 };
        let ages = |j: usize| (1..=j as u32).filter(|a| *a < 9 || a.is_power_of_two()).map(age).collect();
        StaticRun { samples: (0..n).map(sample).collect(), reuse: (0..n).map(ages).collect() }
    };
    Timeline {
        about: About {
            program: format!("made up {seed}"),
            profile: String::new(),
            frequency_hz: 3_500_000_000,
            base_cpi: 0.7,
            vcpus: 1,
            guest_frames: 524_288,
            interval_cycles: 35_000_000,
            ..About::default()
        },
        costs: SwitchCosts {
            switch: 20_000,
            hidden_fault: 2800,
            violation: 2600,
            make_page: 900,
            zap_page: 900,
        },
        pages: vec![Runs {
            host_page: PageSize::Size4K,
            modes: [(Mode::Shadow, run(true)), (Mode::Nested, run(false))].into(),
        }],
        switched: Vec::new(),
    }
}

/// About `n` settings of a policy: as many steps of each of these parameters.
fn grid(policy: &str, ranges: &[(&str, f64, f64)], n: usize) -> Vec<Named> {
    let steps = (n as f64).powf(1.0 / ranges.len() as f64).round().max(2.0) as usize;
    let axis = |(key, from, to): &(&str, f64, f64)| {
        Axis::parse(&format!("{key}={from:?}:{to:?}:{steps}:log")).expect("a range")
    };
    let axes: Vec<Axis> = ranges.iter().map(axis).collect();
    sweep::settings(&Named::load(policy).expect("built in"), &axes).expect("parameters of it").named
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut settings = 10_000;
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--settings" {
            settings = args.next().ok_or("--settings N")?.parse()?;
        } else if !arg.starts_with('-') {
            paths.push(arg.into());
        }
    }
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence/timelines");
    if paths.is_empty() && suite.is_dir() {
        let all = std::fs::read_dir(suite)?.filter_map(|e| Some(e.ok()?.path()));
        paths = all.filter(|p| p.extension().is_some_and(|e| e == "timeline")).collect();
        paths.sort();
    }
    let timelines: Vec<Timeline> = if paths.is_empty() {
        (0..32).map(made_up).collect()
    } else {
        paths.iter().map(|p| Timeline::read(p)).collect::<Result<_, _>>()?
    };
    let scale = Scale::both(100.0);
    let begun = Instant::now();
    let track = |t: &Timeline| Track::new(t, VmKind::default()).ok_or("no 4 KB host pages");
    let programs: Vec<Prepared> = timelines
        .iter()
        .map(|t| Ok(Prepared::new(&t.about.program, track(t)?, scale.switch)))
        .collect::<Result<_, &str>>()?;
    let intervals: usize = programs.iter().map(|p| p.track.len()).sum();
    println!(
        "{} programs{}, {intervals} intervals, oracles in {:.2} s",
        programs.len(),
        if paths.is_empty() { " (made up)" } else { "" },
        begun.elapsed().as_secs_f64()
    );
    let dsp = [
        ("page_fault_upper", 2e-4, 2e-2),
        ("tlb_miss_upper", 1.0, 30.0),
        ("p_to_t_upper", 2e-5, 2e-2),
        ("tlb_miss_lower", 0.01, 0.5),
    ];
    let rpms = [("t_low", 0.5, 4.0), ("t_high", 5.0, 40.0)];
    let work = [("interval_s", 0.5, 20.0), ("switch_factor", 0.3, 10.0)];
    println!(
        "{:<16} {:>9} {:>10} {:>10} {:>12} {:>12}",
        "policy", "settings", "wall s", "CPU s", "ns/interval", "10000 in s"
    );
    for (policy, ranges) in [("dsp", &dsp[..]), ("rpms-shipped", &rpms[..]), ("work-function", &work[..])] {
        let settings = grid(policy, ranges, settings);
        let (begun, cpu_begun) = (Instant::now(), cpu());
        let rows = sweep::sweep(&settings, &programs, scale, Some(Estimator::fitted()), &|_| ());
        let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu() - cpu_begun);
        let steps = (2 * intervals * settings.len()) as f64;
        let best = sweep::best(&rows, None).expect("a setting").total(None);
        println!(
            "{policy:<16} {:>9} {wall:>10.2} {cpu:>10.2} {:>12.1} {:>12.1}   best gap {:.3} %",
            settings.len(),
            1e9 * cpu / steps,
            1e4 * wall / settings.len() as f64,
            best.oracle_gap_percent,
        );
    }
    Ok(())
}
