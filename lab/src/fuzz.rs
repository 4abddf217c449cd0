// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the tiny VMM's fuzzer of KVM's interface (`tiny-vmm fuzz`) in a laboratory with a paging mode per VM,
//! and judges its findings and the kernel's messages.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use crate::lab::job::Job;
use crate::lab::{Lab, Plan, beside};
use crate::storm::{Random, log};
use crate::{BUSYBOX, TINY_VMM};

/// Messages of KVM that a fuzzed guest or its VMM provokes: refused switches, guests that need nested paging,
/// MSRs that KVM does not know.
const PROVOKED: [&str; 11] = [
    "the paging mode stays",
    "goes back to ",
    "needs nested paging",
    "ignored rdmsr",
    "ignored wrmsr",
    "unimplemented HWCR wrmsr",
    "disabled perfctr",
    // Registers with which no processor enters a guest, and an instruction that KVM's emulator has in part.
    "dump_invalid_vmc",
    "emulating exchange as write",
    "callbacks suppressed",
    "kvm: pic: ",
];

/// What to run, and where.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Seed of the first round.
    pub seed: u64,
    /// Time in the laboratory.
    pub seconds: u64,
    /// Largest number of rounds.
    pub rounds: Option<u64>,
    /// Rounds of one kind only.
    pub kind: Option<String>,
    /// Compare with VMs that stay in shadow paging.
    pub still: bool,
    /// Number of the laboratory's CPUs.
    pub cpus: u32,
    /// Memory of the laboratory in MiB.
    pub memory_mib: u64,
    /// Time for the boot and the end beside `seconds`.
    pub more_seconds: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Release of the laboratory's kernel.
    pub kernel: String,
    /// The vendor whose virtualization is emulated, and the emulator.
    pub vendor: String,
    /// What the modules were built from.
    pub sources: String,
    /// Whether the kernel is one with checks (`--debug-kernel`).
    pub debug: bool,
    /// The program's counts.
    pub counts: Option<Value>,
    /// Differences of VMs, hangs, and other findings.
    pub findings: Vec<Value>,
    /// Messages of the kernel that nothing explains, each with the seed of its round.
    pub messages: Vec<String>,
    /// Parts of the run that ended early: the machine died or hung, or the program failed.
    pub failed: Vec<String>,
}

/// The lines of `build.txt` that tell modules apart, beside the modules.
pub fn sources(modules: Option<&Path>) -> String {
    let text =
        modules.and_then(|dir| std::fs::read_to_string(dir.join("build.txt")).ok()).unwrap_or_default();
    let line = |key: &str| {
        text.lines().find_map(|l| l.strip_prefix(key).map(str::trim)).unwrap_or("unknown").to_owned()
    };
    let sources = line("sources:");
    format!("{}, stamp {}", sources.split(' ').next().unwrap_or_default(), line("stamp:"))
}

/// Length of a part of a run, in seconds, and the number of parts in one boot. If the machine dies, its part
/// is lost and the next boot goes on with the one after.
const PART: u64 = 60;
const PARTS: usize = 3;
/// Boots that may end early.
const DEATHS: usize = 5;

/// The parts of a run: seed and seconds of each.
fn parts(settings: &Settings) -> Vec<(u64, u64)> {
    if settings.rounds.is_some() {
        return vec![(settings.seed, settings.seconds)];
    }
    let n = settings.seconds.div_ceil(PART).max(1);
    let seed = |i| if i == 0 { settings.seed } else { Random(settings.seed ^ i).draw() };
    (0..n).map(|i| (seed(i), PART.min(settings.seconds - i * PART))).collect()
}

/// Runs the fuzzer in a laboratory.
pub fn run(lab: &Lab, settings: &Settings, sources: String, debug: bool) -> Result<Outcome> {
    let vmm = beside(TINY_VMM)?;
    let mut outcome = Outcome {
        kernel: lab.kernel().version.clone(),
        vendor: format!("{} under {}", lab.vendor().name, lab.emulator()),
        sources,
        debug,
        counts: None,
        findings: Vec::new(),
        messages: Vec::new(),
        failed: Vec::new(),
    };
    let parts = parts(settings);
    let mut left = parts.as_slice();
    while !left.is_empty() && outcome.failed.len() < DEATHS {
        let now = &left[..left.len().min(PARTS)];
        let jobs = [Job::Kvm { nested: true }].into_iter();
        let jobs = jobs.chain(now.iter().map(|part| job(&vmm, settings, part)));
        let plan = Plan {
            jobs: jobs.collect::<Vec<_>>().into(),
            programs: vec![BUSYBOX.into(), vmm.clone()],
            // Threads have to meet each other at any place.
            exact: false,
            cpu_flags: &["+pku"],
            cpus: settings.cpus,
            memory_mib: settings.memory_mib,
            seconds: now.iter().map(|p| p.1).sum::<u64>() + settings.more_seconds,
            ..Plan::default()
        };
        let attempt = lab.attempt(&plan, &mut |_, _| String::new())?;
        if attempt.outputs.is_empty() {
            let error = attempt.error.context("the laboratory ended before the fuzzer began")?;
            if outcome.counts.is_none() {
                return Err(error.into());
            }
            // What the parts before counted is not lost.
            outcome.failed.push(format!("before part {}: {error}", parts.len() - left.len() + 1));
            continue;
        }
        let done = &attempt.outputs[1..];
        for output in done {
            if !matches!(output.done.status, 0 | 3) {
                let (status, said) = (output.done.status, output.done.stderr.trim());
                outcome.failed.push(format!("exit status {status}: {said}"));
            }
            take(&mut outcome, &output.done.stdout)?;
        }
        let lost = attempt.error.map(|e| e.to_string());
        left = &left[now.len().min(done.len() + usize::from(lost.is_some()))..];
        outcome.failed.extend(lost.map(|e| format!("part {}: {e}", parts.len() - left.len())));
    }
    Ok(outcome)
}

/// The job of a part.
fn job(vmm: &Path, settings: &Settings, &(seed, seconds): &(u64, u64)) -> Job {
    let mut command = vec![vmm.to_string_lossy().into_owned(), "fuzz".into()];
    for (name, value) in [("--seed", seed), ("--seconds", seconds)] {
        command.extend([name.to_owned(), value.to_string()]);
    }
    command.extend(settings.rounds.iter().flat_map(|n| ["--rounds".to_owned(), n.to_string()]));
    command.extend(settings.still.then(|| "--still".to_owned()));
    command.extend(settings.kind.iter().flat_map(|k| ["--kind".to_owned(), k.clone()]));
    Job::Run { command }
}

/// Adds up the counts of two parts. The seed is the first one's.
fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (name, value) in from {
                match to.get_mut(name) {
                    Some(_) if name == "seed" => {}
                    Some(old) => merge(old, value),
                    None => drop(to.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Bool(to), Value::Bool(from)) => *to &= from,
        (to, from) => match (to.as_u64(), from.as_u64()) {
            (Some(a), Some(b)) => *to = (a + b).into(),
            _ if to.is_number() => *to = (to.as_f64().unwrap_or(0.0) + from.as_f64().unwrap_or(0.0)).into(),
            _ => {}
        },
    }
}

/// Sorts the program's lines.
fn take(outcome: &mut Outcome, lines: &str) -> Result<()> {
    for line in lines.lines() {
        let fact: Value = serde_json::from_str(line).with_context(|| format!("tiny-vmm said {line:?}"))?;
        match fact["fact"].as_str() {
            Some("fuzz") => match &mut outcome.counts {
                Some(counts) => merge(counts, &fact),
                None => outcome.counts = Some(fact),
            },
            Some("fuzz-message") => {
                let message = fact["record"].as_str().and_then(log::record);
                let message = message.filter(|m| !PROVOKED.iter().any(|p| m.contains(p)));
                outcome.messages.extend(message.map(|m| format!("seed {}: {m}", fact["seed"])));
            }
            _ => outcome.findings.push(fact),
        }
    }
    Ok(())
}

impl Outcome {
    /// Whether nothing is wrong.
    pub fn good(&self) -> bool {
        let counted = self.counts.as_ref().is_some_and(|c| c["agree"] == true);
        counted && self.failed.is_empty() && self.findings.is_empty() && self.messages.is_empty()
    }
}

fn sum(of: &Value) -> u64 {
    of.as_object().map_or(0, |o| o.values().map(|v| v.as_u64().unwrap_or_else(|| sum(v))).sum())
}

fn list(of: &Value) -> String {
    let words = of.as_object().into_iter().flatten().map(|(name, n)| format!("{name} {n}"));
    words.collect::<Vec<_>>().join(", ")
}

/// The outcome as Markdown.
pub fn table(o: &Outcome) -> String {
    let nothing = Value::Null;
    let c = o.counts.as_ref().unwrap_or(&nothing);
    let switched: u64 = ["to nested", "to shadow"].iter().filter_map(|k| c["switches"][k].as_u64()).sum();
    let mut out = String::from(
        "| kernel | processor | debug kernel | modules | seed | seconds | rounds | calls | switches | findings | kernel's messages |\n\
         |---|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} | {} | {:.0} | {} | {} | {switched} | {} | {} |",
        o.kernel,
        o.vendor,
        if o.debug { "yes" } else { "no" },
        o.sources,
        c["seed"],
        c["seconds"].as_f64().unwrap_or_default(),
        sum(&c["rounds"]),
        sum(&c["calls"]),
        o.findings.len(),
        o.messages.len(),
    );
    out.push('\n');
    for (what, name) in [
        ("Rounds", "rounds"),
        ("Switches", "switches"),
        ("Exits", "exits"),
        ("Guest code", "guest"),
        ("Known differences", "tolerated"),
        ("Notes", "notes"),
    ] {
        let _ = writeln!(out, "- {what}: {}", list(&c[name]));
    }
    for (name, ends) in c["calls"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "- {name}: {}", list(ends));
    }
    for f in &o.findings {
        let _ = writeln!(out, "\n```json\n{}\n```", serde_json::to_string_pretty(f).unwrap_or_default());
    }
    for m in &o.messages {
        let _ = writeln!(out, "\n    {m}");
    }
    for why in &o.failed {
        let _ = writeln!(out, "\nA part ended early: {why}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str]) -> Outcome {
        let mut o = Outcome {
            kernel: "6.1".into(),
            vendor: "AMD".into(),
            sources: String::new(),
            debug: false,
            counts: None,
            findings: Vec::new(),
            messages: Vec::new(),
            failed: Vec::new(),
        };
        take(&mut o, &lines.join("\n")).unwrap();
        o
    }

    const GOOD: &str = r#"{"fact":"fuzz","agree":true,"seed":1,"seconds":2.0,"rounds":{"deterministic":3},
        "calls":{"KVM_RUN":{"ok":5,"EINTR":2}},"switches":{"to nested":4,"to shadow":5,"refused EBUSY":1}}"#;

    #[test]
    fn a_finding_or_a_warning_fails_and_silence_is_not_success() {
        let good = GOOD.replace('\n', " ");
        assert!(outcome(&[&good]).good());
        assert!(!outcome(&[]).good());
        assert!(!outcome(&[&good, r#"{"fact":"fuzz-difference","seed":7}"#]).good());
        let warning = r#"{"fact":"fuzz-message","seed":7,"record":"4,1,2000000,-;WARNING: at mmu.c"}"#;
        assert_eq!(outcome(&[&good, warning]).messages, ["seed 7: [2.000] WARNING: at mmu.c"]);
        let provoked =
            r#"{"fact":"fuzz-message","seed":7,"record":"6,1,2,-;kvm [7]: vCPU 0 x, the paging mode stays"}"#;
        assert!(outcome(&[&good, provoked]).good());
        assert!(table(&outcome(&[&good])).contains("| 3 | 7 | 9 | 0 | 0 |"));
    }

    #[test]
    fn parts_have_seeds_of_their_own_and_add_up() {
        let settings = Settings {
            seed: 9,
            seconds: 150,
            rounds: None,
            kind: None,
            still: false,
            cpus: 2,
            memory_mib: 0,
            more_seconds: 0,
        };
        let all = parts(&settings);
        assert_eq!((all.len(), all[0], all[2].1), (3, (9, 60), 30));
        assert!(all[1].0 != all[2].0);
        assert_eq!(parts(&Settings { rounds: Some(1), ..settings }), [(9, 150)]);
        let good = GOOD.replace('\n', " ");
        let two = outcome(&[&good, &good.replace("true", "false")]);
        let counts = two.counts.as_ref().unwrap();
        assert_eq!((&counts["seed"], &counts["seconds"]), (&Value::from(1), &Value::from(4.0)));
        assert_eq!(
            (&counts["calls"]["KVM_RUN"]["ok"], &counts["agree"]),
            (&Value::from(10), &Value::from(false))
        );
    }
}
