// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs what others test KVM with: kvm-unit-tests (kernels of a few kilobytes that QEMU boots) and the
//! kernel's KVM selftests (programs that open /dev/kvm themselves). Each test runs under the kernel's own KVM
//! and under ours, in each mode and while the mode of every VM is switched ([`KVMS`]). A test that passes
//! under the kernel's own KVM and not under ours needs a reason, which `known.toml` has.

pub mod document;
pub mod drive;
pub mod known;
pub mod run;
pub mod selftests;
pub mod unit_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::lab::job::{Done, TrialEnd};

/// Whose tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// kvm-unit-tests.
    UnitTests,
    /// The kernel's `tools/testing/selftests/kvm`.
    Selftests,
}

impl Suite {
    /// The name in tables and in `known.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Suite::UnitTests => "kvm-unit-tests",
            Suite::Selftests => "selftests",
        }
    }
}

/// A test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvmTest {
    /// Whose.
    pub suite: Suite,
    /// Name in its suite.
    pub name: String,
    /// Program and arguments in the laboratory.
    pub command: Vec<String>,
    /// What the command needs in the laboratory's image: a program, or a kernel for QEMU.
    pub needs: PathBuf,
    /// Why the test is not for this machine, as its suite says.
    pub not_here: Option<String>,
}

/// A KVM that tests run under.
#[derive(Debug, PartialEq, Eq)]
pub struct UnderKvm {
    /// Name in tables, on the command line and in `known.toml`.
    pub name: &'static str,
    /// Head of the table's column.
    pub about: &'static str,
    /// Ours, with a paging mode per VM.
    pub ours: bool,
    /// Whether VMs begin in nested paging.
    pub nested: bool,
    /// Whether every VM is switched all the time.
    pub switching: bool,
    /// The KVMs whose passed tests must pass here.
    pub held_to: &'static [&'static str],
}

/// All KVMs that tests run under.
pub static KVMS: [UnderKvm; 5] = [
    UnderKvm {
        name: "own-nested",
        about: "the kernel's, nested",
        ours: false,
        nested: true,
        switching: false,
        held_to: &[],
    },
    UnderKvm {
        name: "own-shadow",
        about: "the kernel's, shadow",
        ours: false,
        nested: false,
        switching: false,
        held_to: &[],
    },
    UnderKvm {
        name: "nested",
        about: "ours, nested",
        ours: true,
        nested: true,
        switching: false,
        held_to: &["own-nested"],
    },
    // What the kernel's own KVM cannot do in shadow paging either is no fault of ours.
    UnderKvm {
        name: "shadow",
        about: "ours, shadow",
        ours: true,
        nested: false,
        switching: false,
        held_to: &["own-nested", "own-shadow"],
    },
    UnderKvm {
        name: "switching",
        about: "ours, switched",
        ours: true,
        nested: true,
        switching: true,
        held_to: &["own-nested", "own-shadow"],
    },
];

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As its authors want it.
    Pass,
    /// The test says that it cannot run here.
    Skip,
    /// With an error.
    Fail,
    /// The time limit ended the test.
    Late,
    /// The emulator or the laboratory's kernel ended during the test.
    Died,
}

impl Verdict {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Skip => "skip",
            Verdict::Fail => "FAIL",
            Verdict::Late => "LATE",
            Verdict::Died => "DIED",
        }
    }
}

/// A test's result under one KVM.
#[derive(Debug, Clone, PartialEq)]
pub struct TestResult {
    /// How the test ended.
    pub verdict: Verdict,
    /// The test's last words about why, on one line.
    pub detail: String,
    /// Names of failed parts, with numbers blotted out, so that they compare.
    pub failed: BTreeSet<String>,
    /// Switches of the test's VMs.
    pub switches: u64,
    /// Refused switches by error.
    pub refused: BTreeMap<String, u64>,
    /// Errors and warnings of the laboratory's kernel meanwhile.
    pub messages: Vec<String>,
    /// Output, for `--logs`.
    pub output: String,
    /// Wall time.
    pub seconds: f64,
}

impl TestResult {
    /// A result without a run.
    pub fn without_run(verdict: Verdict, detail: String) -> TestResult {
        TestResult {
            verdict,
            detail,
            failed: BTreeSet::new(),
            switches: 0,
            refused: BTreeMap::new(),
            messages: Vec::new(),
            output: String::new(),
            seconds: 0.0,
        }
    }
}

/// Text without its numbers, so that lines compare that differ in addresses and counts only.
fn blot(line: &str) -> String {
    let mut out = String::new();
    for c in line.trim().chars().filter(|c| !c.is_control()) {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// The result of a test that ran.
pub fn judge(suite: Suite, done: &Done, end: &TrialEnd, seconds: f64) -> TestResult {
    let output = format!("{}\n--- stderr ---\n{}", done.stdout, done.stderr);
    let (verdict, detail) = if end.late {
        (Verdict::Late, last_words(&done.stdout))
    } else {
        match suite {
            Suite::UnitTests => unit_tests::verdict(done),
            Suite::Selftests => selftests::verdict(done),
        }
    };
    let failed = done.stdout.lines().filter_map(|l| l.trim_end().strip_prefix("FAIL: ")).map(blot).collect();
    TestResult {
        verdict,
        detail,
        failed,
        switches: end.switches,
        refused: end.refused.clone(),
        messages: end.messages.clone(),
        output,
        seconds,
    }
}

/// The last line that says something.
fn last_words(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|l| !l.is_empty()).unwrap_or("no output");
    line.chars().filter(|c| !c.is_control()).take(160).collect()
}

/// How a result is worse than the results of the KVMs that it is held to: `None` if it is not. A test counts
/// if it passes under all of them; if it fails under all of them, its failed parts do.
pub fn worse(result: &TestResult, held_to: &[&TestResult]) -> Option<String> {
    let all = |v: Verdict| !held_to.is_empty() && held_to.iter().all(|r| r.verdict == v);
    if all(Verdict::Pass) && result.verdict != Verdict::Pass {
        return Some(format!("{}: {}", result.verdict.word(), result.detail));
    }
    let new: Vec<&str> = result
        .failed
        .iter()
        .filter(|f| !held_to.iter().any(|r| r.failed.contains(*f)))
        .map(String::as_str)
        .collect();
    if all(Verdict::Fail) && !new.is_empty() {
        return Some(format!("{} parts more fail, the first: {}", new.len(), new[0]));
    }
    let messages = |r: &TestResult| r.messages.len();
    if !held_to.is_empty() && messages(result) > 0 && held_to.iter().all(|r| messages(r) == 0) {
        return Some(format!("the kernel says: {}", result.messages[0]));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(verdict: Verdict, failed: &[&str]) -> TestResult {
        TestResult {
            failed: failed.iter().map(|s| (*s).to_owned()).collect(),
            ..TestResult::without_run(verdict, "why".into())
        }
    }

    #[test]
    fn a_result_is_worse_only_than_what_passes_everywhere_it_is_held_to() {
        let (pass, fail) = (result(Verdict::Pass, &[]), result(Verdict::Fail, &["a"]));
        assert_eq!(worse(&fail, &[&pass]).unwrap(), "FAIL: why");
        assert_eq!(worse(&result(Verdict::Skip, &[]), &[&pass]).unwrap(), "skip: why");
        assert_eq!(worse(&fail, &[&pass, &fail]), None, "fails in shadow paging anyway");
        assert_eq!(worse(&fail, &[&fail]), None);
        assert_eq!(worse(&pass, &[&fail]), None);
        let more = result(Verdict::Fail, &["a", "b"]);
        assert_eq!(worse(&more, &[&fail]).unwrap(), "1 parts more fail, the first: b");
        assert_eq!(worse(&fail, &[]), None, "held to nothing");
        let warns = TestResult { messages: vec!["WARNING: x".into()], ..pass.clone() };
        assert_eq!(worse(&warns, &[&pass]).unwrap(), "the kernel says: WARNING: x");
        assert_eq!(worse(&warns, &[&warns]), None);
    }

    #[test]
    fn every_kvm_is_held_to_kvms_of_the_list() {
        for kvm in &KVMS {
            assert!(kvm.held_to.iter().all(|n| KVMS.iter().any(|k| k.name == *n && !k.ours)), "{}", kvm.name);
            assert_eq!(kvm.ours, !kvm.held_to.is_empty());
        }
    }

    #[test]
    fn lines_compare_without_their_numbers() {
        assert_eq!(blot("npt_rsvd: 0x12ab at 77\r"), "npt_rsvd: #x#ab at #");
    }
}
