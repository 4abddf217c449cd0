// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints a storm's outcome as Markdown.

use std::fmt::Write;

use bifold_mmu::Mode;

use super::drive::Outcome;
use super::{Pages, SwitchRecord};

fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

/// Mean and worst value of a figure in nanoseconds, as milliseconds.
fn both(of: &[&SwitchRecord], figure: fn(&SwitchRecord) -> u64) -> String {
    let sum: u64 = of.iter().map(|s| figure(s)).sum();
    let worst = of.iter().map(|s| figure(s)).max().unwrap_or(0);
    format!("{} / {}", ms(sum / of.len().max(1) as u64), ms(worst))
}

fn row(name: &str, of: &[&SwitchRecord]) -> String {
    let two = of.iter().filter(|s| s.figures.vcpus_in_guest >= 2).count();
    let share = 100.0 * two as f64 / of.len().max(1) as f64;
    let stay = of.iter().map(|s| s.stay_us.min(s.ran_us)).min().unwrap_or(0);
    let dropped = of.iter().map(|s| s.figures.shadow_pages_dropped).sum::<u64>() / of.len().max(1) as u64;
    let cells = [
        of.len().to_string(),
        format!("{share:.1} %"),
        both(of, |s| s.figures.quiesce_ns),
        both(of, |s| s.figures.switch_ns),
        both(of, |s| s.figures.resume_ns),
        both(of, |s| s.took_us * 1000),
        format!("{:.2}", stay as f64 / 1e3),
        dropped.to_string(),
    ];
    format!("| {name} | {} |\n", cells.join(" | "))
}

const HEAD: &str = "\
| switched to | switches | switches with 2 or more vCPUs in the guest | quiesce ms, mean / worst \
| switch ms, mean / worst | resume ms, mean / worst | request ms, mean / worst | shortest stay ms \
| shadow pages dropped per switch, mean |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
";

/// The outcome as Markdown.
pub fn table(o: &Outcome) -> String {
    let s = &o.storm;
    let pages = match s.pages {
        Pages::Small => "4 KB pages",
        Pages::Huge => "transparent huge pages",
        Pages::Merged => "4 KB pages under KSM",
    };
    let kpti = if s.kpti { "on" } else { "off" };
    let mut out = format!(
        "Linux {}; guest of {} vCPUs, {} MiB in {pages}, KPTI {kpti}, load {}, seed {}\n",
        o.kernel, s.vcpus, s.memory_mib, s.load, s.seed
    );
    let good: Vec<&SwitchRecord> = o.switches.iter().filter(|s| s.errno == 0).collect();
    if !good.is_empty() {
        out.push('\n');
        out.push_str(HEAD);
        for mode in [Mode::Shadow, Mode::Nested] {
            let of: Vec<&SwitchRecord> = good.iter().copied().filter(|s| s.to == mode).collect();
            out.push_str(&row(mode.name(), &of));
        }
        out.push_str(&row("both", &good));
    }
    out.push('\n');
    if let Some(f) = &o.found {
        let rounds: Vec<String> = f.work.rounds.iter().map(|(k, n)| format!("{k} {n}")).collect();
        let _ = writeln!(
            out,
            "corrupted bytes {}, stale accesses {}, dead processes {}; kernel warnings: guest {}, host {}",
            f.work.corrupted,
            f.work.stale,
            f.work.died,
            f.guest_log.len(),
            f.host_log.len()
        );
        let _ = writeln!(
            out,
            "load ran {:.0} s ({:.1} switches/s), vCPUs ran {:.0} s; faults caught {}; rounds: {}",
            f.seconds,
            good.len() as f64 / f.seconds.max(0.001),
            f.ran_seconds,
            f.work.faults,
            rounds.join(", ")
        );
        let noise: Vec<String> = f.noise.iter().map(|(k, n)| format!("{k} {n}")).collect();
        let _ = writeln!(out, "memory: {}", noise.join(", "));
        if f.migrations > 0 {
            let _ = writeln!(out, "migrations to another QEMU: {}", f.migrations);
        }
    }
    for what in &o.wrong {
        let _ = writeln!(out, "WRONG: {what}");
    }
    out
}
