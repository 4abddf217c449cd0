// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the results of others' tests as a page of the docs.

use std::fmt::Write;

use bifold_base::markdown::table;

use super::drive::{Results, Settings, drive};
use super::known::Known;
use super::{KvmTest, Suite, TestResult, UnderKvm, Verdict, worse};
use crate::lab::Lab;
use crate::vendor::Vendor;

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

/// All results that are worse than under the kernel's own KVM. `here` is the laboratory's vendor and its
/// kernel's release.
pub fn all_worse<'a>(
    tests: &'a [KvmTest],
    kvms: &[&'static UnderKvm],
    results: &Results,
    known: &'a [Known],
    here: (&Vendor, &str),
) -> Vec<Worse<'a>> {
    let mut out = Vec::new();
    for (i, test) in tests.iter().enumerate() {
        for (k, &kvm) in kvms.iter().enumerate() {
            let Some(held_to) = held_to(kvm, i, kvms, results) else { continue };
            if let Some(how) = results[k][i].as_ref().and_then(|r| worse(r, &held_to)) {
                let reason = known.iter().find(|k| k.fits(test, kvm, here)).map(|k| &k.reason[..]);
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

/// The results of a suite's tests under each KVM.
fn all_results(suite: Suite, tests: &[KvmTest], settings: &Settings, results: &Results) -> String {
    type Numbered<'a> = (usize, &'a KvmTest);
    let test = table::<Numbered>().left("test", |(_, test)| format!("`{}`", test.name));
    let kvms = settings.kvms.iter().zip(results);
    let columns = kvms.fold(test, |all, (kvm, of)| all.left(kvm.about, |(i, _)| cell(of[*i].as_ref())));
    let columns = columns.left("last words under the kernel's", |(i, _)| {
        let first = results.first().and_then(|of| of[*i].as_ref());
        plain(first.filter(|r| r.verdict != Verdict::Pass).map_or("", |r| &r.detail))
    });
    let rows = tests.iter().enumerate().filter(|(_, t)| t.suite == suite && t.not_here.is_none());
    columns.of(&rows.collect::<Vec<_>>())
}

/// The line of one KVM: its results, and switches.
fn totals(out: &mut String, kvm: &UnderKvm, results: &[Option<TestResult>]) {
    let count = |v: Verdict| results.iter().flatten().filter(|r| r.verdict == v).count();
    let (switches, refused) = results
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
        "# Others' tests of KVM on {vendor}, Linux {kernel}\n\n{modules}\n\
         Written by `lab kvm-tests`. Laboratory: {emulator}, one CPU, {memory} MiB; kernel: Debian's {kernel};\n\
         VMM of kvm-unit-tests: QEMU {qemu}. Time limit of a test: {seconds} s of the laboratory's time. In the last column of\n\
         KVMs, every VM is switched every {every} ms; the number of switches is in parentheses.\n\n",
        vendor = lab.vendor().name,
        modules = lab.modules_line(),
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
    for (kvm, results) in settings.kvms.iter().zip(results) {
        totals(&mut out, kvm, results);
    }
    let unknown = worse.iter().filter(|w| w.unexplained()).count();
    let _ = write!(
        out,
        "\n## Worse than under the kernel's own KVM\n\n{} results, {unknown} of them not explained.\n",
        worse.len()
    );
    if !worse.is_empty() {
        let columns = table::<Worse>()
            .left("test", |w| format!("`{}`", w.test.name))
            .left("under", |w| w.kvm.about.into())
            .left("how", |w| plain(&w.how))
            .left("reason", |w| plain(&w.why()));
        out += &format!("\n{}", columns.of(worse));
    }
    for suite in [Suite::UnitTests, Suite::Selftests] {
        if tests.iter().any(|t| t.suite == suite) {
            out += &format!("\n## {}\n\n{}", suite.name(), all_results(suite, tests, settings, results));
        }
    }
    let not_here: Vec<String> =
        tests.iter().filter_map(|t| Some(format!("`{}` ({})", t.name, t.not_here.as_ref()?))).collect();
    if !not_here.is_empty() {
        let _ = write!(out, "\nNot run: {}.\n", not_here.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm_tests::KVMS;
    use crate::vendor::{AMD, INTEL};

    fn result(verdict: Verdict) -> Option<TestResult> {
        Some(TestResult::without_run(verdict, "why".into()))
    }

    #[test]
    fn what_is_worse_is_listed_with_its_reason_if_one_is_known() {
        let test = |name: &str| KvmTest {
            suite: Suite::Selftests,
            name: name.into(),
            command: Vec::new(),
            needs: "x".into(),
            not_here: None,
        };
        let tests = [test("a"), test("b")];
        let kvms: Vec<_> = KVMS.iter().collect();
        // Under own-nested, own-shadow, nested, shadow, switching: `a` fails only while it is switched, `b`
        // in shadow paging under either KVM.
        let (pass, fail) = (|| result(Verdict::Pass), || result(Verdict::Fail));
        let results = vec![
            vec![pass(), pass()],
            vec![pass(), fail()],
            vec![pass(), pass()],
            vec![pass(), fail()],
            vec![fail(), fail()],
        ];
        let known: Known = toml::from_str(
            "suite = 'selftests'\ntest = 'a*'\nkvm = 'switching'\nvendor = 'amd'\nseries = '6.1'\nreason = 'r'",
        )
        .unwrap();
        let known = [known];
        let listed = |vendor, release| {
            let all = all_worse(&tests, &kvms, &results, &known, (vendor, release));
            let rows = all.iter().map(|w| (w.test.name.clone(), w.kvm.name, w.unexplained()));
            rows.collect::<Vec<_>>()
        };
        assert_eq!(listed(&AMD, "6.1.0-1"), [("a".into(), "switching", false)]);
        assert_eq!(listed(&AMD, "6.12.0"), [("a".into(), "switching", true)]);
        assert_eq!(listed(&INTEL, "6.1.0-1"), [("a".into(), "switching", true)]);
        // Without what a KVM is held to, nothing is said about it.
        let (kvms, results) = (vec![kvms[0], kvms[4]], vec![results[0].clone(), results[4].clone()]);
        assert!(all_worse(&tests, &kvms, &results, &[], (&AMD, "6.1.0-1")).is_empty());
    }

    #[test]
    fn a_result_that_is_not_seen_again_is_no_unexplained_one() {
        let test = KvmTest {
            suite: Suite::Selftests,
            name: "a".into(),
            command: vec![],
            needs: "x".into(),
            not_here: None,
        };
        let worse = |again| Worse { test: &test, kvm: &KVMS[4], how: "FAIL".into(), reason: None, again };
        assert!(worse((0, 0)).unexplained() && worse((2, 3)).unexplained() && !worse((3, 3)).unexplained());
        assert_eq!(worse((3, 3)).why(), "not seen again in 3 further runs");
    }
}
