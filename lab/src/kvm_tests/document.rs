// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the results of others' tests as a page of the docs.

use std::fmt::Write;

use super::drive::{Results, Settings, drive};
use super::known::Known;
use super::{KvmTest, Suite, TestResult, UnderKvm, Verdict, worse};
use crate::lab::Lab;

/// A result that is worse than it is held to.
#[derive(Debug)]
pub struct Worse<'a> {
    /// The test.
    pub test: &'a KvmTest,
    /// The KVM.
    pub kvm: &'static UnderKvm,
    /// How it is worse.
    pub how: String,
    /// The known reason.
    pub reason: Option<&'a str>,
    /// Of further runs: how many were not worse, and all.
    pub again: (u64, u64),
}

impl Worse<'_> {
    /// Whether the result has neither a reason nor was a single one.
    pub fn unexplained(&self) -> bool {
        self.reason.is_none() && (self.again.1 == 0 || self.again.0 < self.again.1)
    }

    fn why(&self) -> String {
        let (good, all) = self.again;
        match self.reason {
            Some(reason) => reason.to_owned(),
            None if !self.unexplained() => format!("not seen again in {all} further runs"),
            None if all > 0 => format!("**not explained**; not worse in {good} of {all} further runs"),
            None => "**not explained**".into(),
        }
    }
}

/// The results that a KVM is held to, for a test. `None` if one of these KVMs was left out.
fn held_to<'a>(
    kvm: &UnderKvm,
    test: usize,
    kvms: &[&'static UnderKvm],
    results: &'a Results,
) -> Option<Vec<&'a TestResult>> {
    let of = |name: &&str| results[kvms.iter().position(|k| k.name == *name)?][test].as_ref();
    kvm.held_to.iter().map(of).collect()
}

/// Runs what is worse without a reason `times` more times.
///
/// # Errors
/// If a laboratory does not boot.
pub fn again(
    all: &mut [Worse],
    (ours, results): (&Lab, &Results),
    tests: &[KvmTest],
    (settings, times): (&Settings, u64),
    say: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<()> {
    for w in all.iter_mut().filter(|w| w.reason.is_none()) {
        let number = tests.iter().position(|t| t == w.test).unwrap_or_default();
        let held = held_to(w.kvm, number, &settings.kvms, results).unwrap_or_default();
        let only = Settings { kvms: vec![w.kvm], logs: None, ..settings.clone() };
        for _ in 0..times {
            let one = drive((ours, ours), std::slice::from_ref(w.test), &only, say)?;
            let result = one.first().and_then(|of| of.first()?.as_ref());
            w.again.0 += u64::from(result.is_some_and(|r| worse(r, &held).is_none()));
            w.again.1 += 1;
        }
    }
    Ok(())
}

/// All results that are worse than under the kernel's own KVM.
pub fn all_worse<'a>(
    tests: &'a [KvmTest],
    kvms: &[&'static UnderKvm],
    results: &Results,
    known: &'a [Known],
    lab: &Lab,
) -> Vec<Worse<'a>> {
    let mut out = Vec::new();
    for (i, test) in tests.iter().enumerate() {
        for (k, &kvm) in kvms.iter().enumerate() {
            let Some(held_to) = held_to(kvm, i, kvms, results) else { continue };
            if let Some(how) = results[k][i].as_ref().and_then(|r| worse(r, &held_to)) {
                let reason = known.iter().find(|k| k.fits(test, kvm, lab)).map(|k| &k.reason[..]);
                out.push(Worse { test, kvm, how, reason, again: (0, 0) });
            }
        }
    }
    out
}

fn cell(result: Option<&TestResult>) -> String {
    match result {
        None => "-".into(),
        Some(r) if r.switches > 0 => format!("{} ({})", r.verdict.word(), r.switches),
        Some(r) => r.verdict.word().into(),
    }
}

/// Text inside a cell of a table.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn table(out: &mut String, suite: Suite, tests: &[KvmTest], settings: &Settings, results: &Results) {
    let heads: Vec<&str> = settings.kvms.iter().map(|k| k.about).collect();
    let _ = write!(
        out,
        "| test | {} | last words under the kernel's |\n|---|{}---|\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for (i, test) in tests.iter().enumerate().filter(|(_, t)| t.suite == suite && t.not_here.is_none()) {
        let cells: Vec<String> = results.iter().map(|of| cell(of[i].as_ref())).collect();
        let why = results.first().and_then(|of| of[i].as_ref()).filter(|r| r.verdict != Verdict::Pass);
        let _ = writeln!(
            out,
            "| `{}` | {} | {} |",
            test.name,
            cells.join(" | "),
            plain(why.map_or("", |r| &r.detail))
        );
    }
}

/// The page of one kernel and vendor. `about` says where the tests are from.
pub fn page(
    lab: &Lab,
    tests: &[KvmTest],
    settings: &Settings,
    results: &Results,
    worse: &[Worse],
    about: &[String],
) -> String {
    let mut out = format!(
        "# Others' tests of KVM on {vendor}, Linux {kernel}\n\n\
         Written by `lab kvm-tests`. Laboratory: {emulator}, one CPU, {memory} MiB; kernel: Debian's {kernel};\n\
         VMM of kvm-unit-tests: QEMU {qemu}. Time limit of a test: {seconds} s of the laboratory's time. In the last column of\n\
         KVMs, every VM is switched every {every} ms; the number of switches is in parentheses.\n\n",
        vendor = lab.vendor().name,
        kernel = lab.kernel().version,
        emulator = lab.emulator(),
        qemu = lab.qemu_version(),
        memory = settings.memory_mib,
        seconds = settings.seconds,
        every = settings.switch_every_ms,
    );
    for line in about {
        let _ = writeln!(out, "- {line}");
    }
    for (k, kvm) in settings.kvms.iter().enumerate() {
        let count = |v: Verdict| results[k].iter().flatten().filter(|r| r.verdict == v).count();
        let (switches, refused) = results[k]
            .iter()
            .flatten()
            .fold((0, 0), |(s, r), t| (s + t.switches, r + t.refused.values().sum::<u64>()));
        let _ = write!(
            out,
            "- {}: {} pass, {} skip, {} fail, {} late, {} died",
            kvm.about,
            count(Verdict::Pass),
            count(Verdict::Skip),
            count(Verdict::Fail),
            count(Verdict::Late),
            count(Verdict::Died)
        );
        if kvm.switching {
            let _ = write!(out, "; {switches} switches, {refused} refused");
        }
        out.push('\n');
    }
    let unknown = worse.iter().filter(|w| w.unexplained()).count();
    let _ = write!(
        out,
        "\n## Worse than under the kernel's own KVM\n\n{} results, {unknown} of them not explained.\n",
        worse.len()
    );
    if !worse.is_empty() {
        out.push_str("\n| test | under | how | reason |\n|---|---|---|---|\n");
    }
    for w in worse {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            w.test.name,
            w.kvm.about,
            plain(&w.how),
            plain(&w.why())
        );
    }
    for suite in [Suite::UnitTests, Suite::Selftests] {
        if tests.iter().any(|t| t.suite == suite) {
            let _ = write!(out, "\n## {}\n\n", suite.name());
            table(&mut out, suite, tests, settings, results);
        }
    }
    let not_here: Vec<String> =
        tests.iter().filter_map(|t| Some(format!("`{}` ({})", t.name, t.not_here.as_ref()?))).collect();
    if !not_here.is_empty() {
        let _ = write!(out, "\nNot run: {}.\n", not_here.join(", "));
    }
    out
}
