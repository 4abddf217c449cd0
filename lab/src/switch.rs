// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the tiny VMM's switch cases (`tiny-vmm switch`) in a laboratory with a paging mode per VM, and
//! collects its kernel's messages.

use anyhow::{Context, Result, ensure};
use bifold_tiny_vmm::switch::FAILING;

use crate::lab::job::{Job, Jobs};
use crate::lab::{Lab, Plan, beside};
use crate::storm::log;
use crate::{BUSYBOX, TINY_VMM};

/// Kernel messages about refused switches, which some cases provoke.
const REFUSED: &str = "the paging mode stays";
/// The kernel's messages about a guest that needs nested paging, and about shadow pages that got no memory.
const BROUGHT_BACK: &str = "goes back to ";
/// What the kernel says instead of the last if they are many.
const MANY: &str = "callbacks suppressed";
const BEGINS: &str = "switch cases begin";
/// Words of the kernel's messages about errors, which count also then.
const ERRORS: [&str; 6] = ["BUG", "WARNING", "INFO:", "Oops", "general protection", "lockup"];

/// The laboratory's machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Memory in MiB. The case `cost` takes guests of 4 GB from 7000 on, of 16 GB from 19000 on.
    pub memory_mib: u64,
    /// Time limit of the boot.
    pub seconds: u64,
    /// One CPU with exact time (which counts instructions); otherwise two CPUs with a thread each.
    pub exact: bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// A line of JSON for each case.
    pub facts: Vec<String>,
    /// Kernel messages at level warning or worse, and others of KVM that the cases do not provoke.
    pub log: Vec<String>,
    /// The program's exit status and errors, if it failed.
    pub failed: Option<String>,
}

/// Runs cases. If none is named, all except the long ones run.
pub fn run(lab: &Lab, cases: &[String], machine: Machine) -> Result<Outcome> {
    let vmm = beside(TINY_VMM)?;
    let mut command = vec![vmm.to_string_lossy().into_owned(), "switch".into()];
    command.extend(cases.iter().cloned());
    let jobs = vec![
        Job::Kvm { nested: true },
        Job::sh(&format!("echo '{BEGINS}' > /dev/kmsg")),
        Job::Run { command },
        // The file has no end, so reading must not wait for one.
        Job::sh(&format!("{BUSYBOX} timeout -s KILL 1 {BUSYBOX} cat /dev/kmsg; true")),
    ];
    let plan = Plan {
        jobs: Jobs { jobs, huge_pages: 64 },
        programs: vec![BUSYBOX.into(), vmm],
        exact: machine.exact,
        // For the cases of protection keys.
        cpu_flags: &["+pku"],
        cpus: if machine.exact { 1 } else { 2 },
        memory_mib: machine.memory_mib,
        seconds: machine.seconds,
        ..Plan::default()
    };
    let attempt = lab.attempt(&plan, &mut |_, _| String::new())?;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let Some(run) = attempt.outputs.get(2) else {
        return Err(attempt.error.context("the laboratory ended before the cases did")?.into());
    };
    let log = attempt.outputs.get(3).map(|o| lines(&o.done.stdout)).unwrap_or_default();
    let log = log.iter().skip_while(|l| !l.contains(BEGINS)).skip(1).filter_map(|l| log::record(l));
    let log = unprovoked(log);
    let done = &run.done;
    Ok(Outcome {
        facts: lines(&done.stdout),
        log,
        failed: (!matches!(done.status, 0 | 3))
            .then(|| format!("exit status {}: {}", done.status, done.stderr.trim())),
    })
}

/// Messages that no case provokes.
fn unprovoked(log: impl Iterator<Item = String>) -> Vec<String> {
    let [begins, ends] = FAILING;
    let mut failing = false;
    let mut kept = Vec::new();
    for line in log {
        if line.contains(begins) || line.contains(ends) {
            failing = line.contains(begins);
        } else if failing {
            kept.extend(ERRORS.iter().any(|e| line.contains(e)).then_some(line));
        } else if ![REFUSED, BROUGHT_BACK, MANY].iter().any(|m| line.contains(m)) {
            kept.push(line);
        }
    }
    kept
}

/// Fails if a case failed or the kernel logged a warning.
pub fn judge(outcome: &Outcome) -> Result<()> {
    ensure!(outcome.failed.is_none(), "{}", outcome.failed.as_deref().unwrap_or_default());
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for line in &outcome.facts {
        let fact: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("tiny-vmm said {line:?}"))?;
        let skipped = fact["skipped"].is_string();
        if skipped {
            eprintln!("lab: case {} was skipped: {}", fact["case"], fact["skipped"]);
        }
        ran += usize::from(!skipped);
        if fact["agree"] != true && !(skipped && fact["extra"] == serde_json::json!([])) {
            wrong.push(format!("{}: {}", fact["case"], fact["extra"]));
        }
    }
    wrong.extend(outcome.log.iter().map(|l| format!("the kernel's log: {l}")));
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    ensure!(ran > 0, "no case ran: {}", outcome.facts.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_a_case_provokes_are_left_out_and_errors_never() {
        let log = ["a warning", FAILING[0], "vmalloc error", "BUG: KASAN", FAILING[1]];
        let more = ["kvm [1]: VM was busy, the paging mode stays", "another"];
        let log = log.iter().chain(&more).map(|l| l.to_string());
        assert_eq!(unprovoked(log), ["a warning", "BUG: KASAN", "another"]);
    }

    #[test]
    fn what_is_wrong_is_told_and_silence_is_not_success() {
        let said = |facts: &[&str], log: &[&str]| {
            let own = |l: &[&str]| l.iter().map(|s| s.to_string()).collect();
            judge(&Outcome { facts: own(facts), log: own(log), failed: None }).map_err(|e| e.to_string())
        };
        let good = r#"{"case":"cap","agree":true,"extra":[]}"#;
        let bad = r#"{"case":"cap","agree":false,"extra":["x: 1, not 2"]}"#;
        assert_eq!(said(&[good], &[]), Ok(()));
        assert_eq!(said(&[good, bad], &[]), Err(r#""cap": ["x: 1, not 2"]"#.into()));
        assert_eq!(said(&[good], &["[1.0] WARNING"]), Err("the kernel's log: [1.0] WARNING".into()));
        assert_eq!(said(&[], &[]), Err("no case ran: ".into()));
        let skipped = r#"{"case":"keys","agree":false,"skipped":"no keys","extra":[]}"#;
        assert_eq!(said(&[good, skipped], &[]), Ok(()));
        assert!(said(&[skipped], &[]).unwrap_err().starts_with("no case ran"));
        let both = r#"{"case":"keys","agree":false,"skipped":"no keys","extra":["x"]}"#;
        assert_eq!(said(&[good, both], &[]), Err(r#""keys": ["x"]"#.into()));
        assert!(said(&["noise"], &[]).is_err());
    }
}
