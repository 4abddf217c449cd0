// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots a laboratory for a storm, and judges the outcome.

use anyhow::{Context, Result};
use bifold_mmu::Mode;
use serde::Serialize;

use super::{FOUND, Found, KINDS, Noise, SWITCHES, Storm, SwitchRecord};
use crate::lab::job::Job;
use crate::lab::{Lab, LabError, Output, Plan};

/// The laboratory's machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory besides the guest's, for the image (which is in memory twice) and the emulator.
    pub memory_mib: u64,
    /// The guest's first mode.
    pub first: Mode,
    /// Time limit of both boots and the end together.
    pub more_seconds: u64,
    /// Called with progress notes.
    pub notes: fn(&str),
}

impl Default for Machine {
    fn default() -> Self {
        Machine { cpus: 4, memory_mib: 1536, first: Mode::Nested, more_seconds: 900, notes: |_| () }
    }
}

/// The outcome of a storm.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The job.
    pub storm: Storm,
    /// Release of the laboratory's kernel.
    pub kernel: String,
    /// The last findings, even if the machine died.
    pub found: Option<Found>,
    /// All requested switches.
    pub switches: Vec<SwitchRecord>,
    /// Everything that went wrong; empty if the storm passed.
    pub wrong: Vec<String>,
}

fn plan(storm: &Storm, machine: Machine) -> Plan {
    let nested = machine.first == Mode::Nested;
    let swap = storm.noise.contains(&Noise::Swap);
    Plan {
        jobs: vec![Job::Kvm { nested }, Job::Storm(storm.clone())].into(),
        programs: if swap { vec!["/bin/busybox".into()] } else { Vec::new() },
        exact: false,
        cpu_flags: &["+pku"],
        cpus: machine.cpus,
        swap_mib: if swap { 2 * storm.memory_mib } else { 0 },
        notes: machine.notes,
        // During a migration the guest is in memory twice.
        memory_mib: machine.memory_mib + storm.memory_mib * if storm.migrations > 0 { 2 } else { 1 },
        seconds: storm.seconds + machine.more_seconds,
        ..Plan::default()
    }
}

fn read(output: &Output) -> Result<(Option<Found>, Vec<SwitchRecord>)> {
    let found = output.files.get(FOUND).map(|data| serde_json::from_slice(data)).transpose();
    let mut switches = Vec::new();
    // Numbered from 0 without gaps.
    for n in 0.. {
        let Some(data) = output.files.get(&format!("{SWITCHES}{n}")) else { break };
        for line in String::from_utf8_lossy(data).lines() {
            switches.push(serde_json::from_str(line).context("a switch's record")?);
        }
    }
    Ok((found.context(FOUND)?, switches))
}

/// Runs a storm. An error means that this machine cannot; failures of the storm are in the outcome.
pub fn drive(lab: &Lab, storm: &Storm, machine: Machine) -> Result<Outcome> {
    let attempt = lab.attempt(&plan(storm, machine), &mut |_, _| String::new())?;
    if let Some(e) = &attempt.error {
        if e.kind() == bifold_guest::Kind::CannotWorkHere {
            return Err(attempt.error.map_or_else(|| unreachable!(), Into::into));
        }
    }
    let output = attempt.outputs.get(1).unwrap_or(&attempt.rest);
    let (found, switches) = read(output)?;
    let wrong = judge(storm, found.as_ref(), &switches, attempt.error.as_ref());
    Ok(Outcome { storm: storm.clone(), kernel: lab.kernel().version.clone(), found, switches, wrong })
}

/// Everything that went wrong.
fn judge(
    storm: &Storm,
    found: Option<&Found>,
    switches: &[SwitchRecord],
    error: Option<&LabError>,
) -> Vec<String> {
    let mut wrong: Vec<String> = error.iter().map(|e| e.to_string()).collect();
    let mut not = |bad: bool, what: String| {
        if bad {
            wrong.push(what);
        }
    };
    let Some(found) = found else {
        not(error.is_none(), "the laboratory left nothing".into());
        return wrong;
    };
    let work = &found.work;
    for what in &found.trouble {
        not(true, what.clone());
    }
    not(work.corrupted > 0, format!("{} bytes corrupted", work.corrupted));
    not(work.stale > 0, format!("{} accesses through stale translations", work.stale));
    not(work.died > 0, format!("{} processes of the load died", work.died));
    let first = found.complaints.first().cloned().unwrap_or_default();
    not(!first.is_empty(), format!("{} complaints of the load: {first}", found.complaints.len()));
    for (whose, log) in [("guest's", &found.guest_log), ("laboratory's", &found.host_log)] {
        let first = log.first().cloned().unwrap_or_default();
        not(!first.is_empty(), format!("{} lines in the {whose} kernel's log: {first}", log.len()));
    }
    not(found.log_lost, "more was logged than could be kept".into());
    let noise = |name: &str| found.noise.get(name).copied().unwrap_or(0);
    for (kind, counts) in [
        (Noise::Swap, &["pages_swapped_out", "pages_in_swap_now"][..]),
        (Noise::Dirty, &["dirty_logs"]),
        (Noise::Split, &["splits"]),
    ] {
        let none = found.ended && storm.noise.contains(&kind) && counts.iter().all(|c| noise(c) == 0);
        not(none, format!("the noise {kind:?} came to nothing: no {}", counts.join(", no ")));
    }
    let idle: Vec<&str> = work.rounds.iter().filter(|(_, n)| **n > 0.0).map(|(k, _)| k.as_str()).collect();
    // A guest without protection keys leaves them out of "all".
    let wanted = |k: &&str| (storm.load == "all" && *k != "keys") || storm.load.contains(k);
    for kind in KINDS.iter().filter(|k| wanted(k)) {
        not(!idle.contains(kind), format!("the load has no round of {kind}"));
    }
    let moved = found.migrations;
    not(moved < storm.migrations, format!("{moved} migrations of {}", storm.migrations));
    not(!found.ended && error.is_none(), "the load did not come to its end".into());
    judge_all(storm, found, switches, not);
    wrong
}

/// What went wrong with switches.
fn judge_all(storm: &Storm, found: &Found, switches: &[SwitchRecord], mut not: impl FnMut(bool, String)) {
    let refused: Vec<&SwitchRecord> = switches.iter().filter(|s| s.errno != 0).collect();
    let errno = refused.first().map_or(0, |s| s.errno);
    not(!refused.is_empty(), format!("{} switches refused, the first with errno {errno}", refused.len()));
    let made = switches.len() as u64 - refused.len() as u64;
    not(made < storm.switches, format!("{made} switches of {}", storm.switches));
    let short = switches.iter().filter(|s| s.stay_us.min(s.ran_us) < storm.stay_us).count();
    not(short > 0, format!("{short} stays shorter than {} us", storm.stay_us));
    if storm.switches > 0 && found.ended {
        let stat = |name: &str| found.paging_stats.get(name).copied().unwrap_or(0);
        let counted = stat("switches_to_shadow") + stat("switches_to_nested");
        let made = made + found.switches_to_move;
        not(counted != made, format!("KVM counted {counted} switches, and {made} were made"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Figures, Pages, Work};
    use super::*;

    fn storm() -> Storm {
        Storm {
            vcpus: 2,
            memory_mib: 256,
            load: "memory,fork".into(),
            seed: 1,
            kpti: false,
            pages: Pages::Small,
            noise: Vec::new(),
            switches: 2,
            stay_us: 10_000,
            seconds: 60,
            migrations: 0,
        }
    }

    fn switch(to: Mode, ran_us: u64, errno: i32) -> SwitchRecord {
        let (at_us, took_us, stay_us) = (0, 0, 20_000);
        SwitchRecord { at_us, to, took_us, stay_us, ran_us, errno, figures: Figures::default() }
    }

    fn good() -> Found {
        let rounds = [("memory".to_owned(), 5.0), ("fork".to_owned(), 1.0), ("huge".to_owned(), 0.0)];
        Found {
            ended: true,
            work: Work { rounds: rounds.into(), ..Work::default() },
            paging_stats: [("switches_to_shadow".into(), 1), ("switches_to_nested".into(), 1)].into(),
            ..Found::default()
        }
    }

    #[test]
    fn all_well_is_no_word() {
        let both = [switch(Mode::Shadow, 10_000, 0), switch(Mode::Nested, 11_000, 0)];
        assert_eq!(judge(&storm(), Some(&good()), &both, None), Vec::<String>::new());
    }

    #[test]
    fn each_wrong_is_named() {
        let mut found = good();
        found.work.corrupted = 3;
        found.work.rounds.insert("fork".into(), 0.0);
        found.noise = [("dirty_logs".into(), 3), ("pages_swapped_out".into(), 0)].into();
        let noisy = Storm { noise: vec![Noise::Dirty, Noise::Swap], ..storm() };
        found.host_log = vec!["BUG: x".into()];
        let bad = [switch(Mode::Shadow, 9_999, 0), switch(Mode::Nested, 11_000, 16)];
        assert_eq!(
            judge(&noisy, Some(&found), &bad, None),
            [
                "3 bytes corrupted",
                "1 lines in the laboratory's kernel's log: BUG: x",
                "the noise Swap came to nothing: no pages_swapped_out, no pages_in_swap_now",
                "the load has no round of fork",
                "1 switches refused, the first with errno 16",
                "1 switches of 2",
                "1 stays shorter than 10000 us",
                "KVM counted 2 switches, and 1 were made",
            ]
        );
        assert_eq!(judge(&storm(), None, &[], None), ["the laboratory left nothing"]);
    }

    #[test]
    fn records_come_back_in_their_order() {
        let one = |n| (format!("{SWITCHES}{n}"), serde_json::to_vec(&switch(Mode::Shadow, n, 0)).unwrap());
        let mut files: std::collections::BTreeMap<_, _> = (0..12).map(one).collect();
        files.insert(FOUND.into(), serde_json::to_vec(&good()).unwrap());
        let (found, switches) = read(&Output { files, ..Output::default() }).unwrap();
        assert_eq!(found, Some(good()));
        assert!(switches.iter().map(|s| s.ran_us).eq(0..12));
    }
}
