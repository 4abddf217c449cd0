// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kvm-unit-tests: reads `x86/unittests.cfg` of a built checkout and makes QEMU's command line of each test,
//! as its `x86/run` does. Values of the file are words of a shell, which the laboratory's shell reads.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{KvmTest, Suite, Verdict, last_words};
use crate::lab::job::Done;

/// A test's section in `unittests.cfg`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The test's name.
    pub name: String,
    /// Values by key.
    pub values: BTreeMap<String, String>,
}

/// The largest `unittests.cfg` that is read; the real one has 13 KB.
const MOST: u64 = 1 << 20;

/// Reads the text of `unittests.cfg`. Lines are `# comment`, `[test]` or `key = value`; a value in triple
/// quotes continues over lines (`for_each_unittest` in scripts/common.bash).
///
/// # Errors
/// The number of the first line of another form, and what is wrong.
pub fn parse(text: &str) -> Result<Vec<Section>, String> {
    let mut out: Vec<Section> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        let wrong = |what: &str| Err(format!("line {}: {what}", number + 1));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return wrong("a test's name has letters, digits, and _ . - only");
            }
            if out.iter().any(|s| s.name == name) {
                return wrong("a second test of this name");
            }
            out.push(Section { name: name.into(), values: BTreeMap::new() });
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { return wrong("neither [test] nor key = value") };
        let Some(section) = out.last_mut() else { return wrong("a value before the first [test]") };
        let mut value = value.trim().to_owned();
        if let Some(first) = value.strip_prefix("\"\"\"") {
            let mut whole = first.to_owned();
            while !whole.trim_end().ends_with("\"\"\"") {
                let Some((_, more)) = lines.next() else { return wrong("no end of the triple quotes") };
                whole.push('\n');
                whole.push_str(more);
            }
            let end = whole.trim_end().len() - 3;
            whole.truncate(end);
            value = whole;
        }
        section.values.insert(key.trim().into(), value);
    }
    Ok(out)
}

/// QEMU without the test's own words (x86/run of kvm-unit-tests).
const RUN: &str = "exec \"$BIFOLD_QEMU\" --no-reboot -nodefaults -global kvm-pit.lost_tick_policy=discard \
     -device pc-testdev -device isa-debug-exit,iobase=0xf4,iosize=0x4 -display none -serial stdio \
     -device pci-testdev -machine accel=kvm";

/// The exit status of a skipped test (`report_summary` in lib/report.c).
const SKIP: i32 = 77;

/// The shell script of a test.
fn script(section: &Section, kernel: &Path) -> String {
    let value = |key: &str| section.values.get(key).map(String::as_str).unwrap_or_default();
    let mut out = String::new();
    for check in value("check").split_whitespace() {
        let (path, want) = check.split_once('=').unwrap_or((check, ""));
        out.push_str(&format!(
            "[ \"$(cat {path} 2>/dev/null)\" = \"{want}\" ] || {{ echo '{path} is not {want}'; exit {SKIP}; }}\n"
        ));
    }
    let smp = if value("smp").is_empty() { "1" } else { value("smp") };
    out.push_str(&format!("{RUN} -kernel '{}' -smp {smp}", kernel.display()));
    if !value("test_args").is_empty() {
        out.push_str(&format!(" -append {}", value("test_args")));
    }
    let own = ["qemu_params", "extra_params"].map(value);
    out.push_str(&format!(" {}\n", own.join(" ").trim().replace('\n', " ")));
    out
}

/// Why the suite does not run a test here by itself.
fn not_here(section: &Section) -> Option<String> {
    let value = |key: &str| section.values.get(key).map(String::as_str).unwrap_or_default();
    let (arch, accel) = (value("arch"), value("accel"));
    if !arch.is_empty() && arch != "x86_64" {
        return Some(format!("{arch} only"));
    }
    if !accel.is_empty() && accel != "kvm" {
        return Some(format!("{accel} only"));
    }
    value("groups").split_whitespace().any(|g| g == "nodefault").then(|| "not run by default".into())
}

/// The tests of a built checkout.
///
/// # Errors
/// If the directory is no checkout, has an unreadable list of tests, or is not built.
pub fn list(checkout: &Path) -> Result<Vec<KvmTest>> {
    let dir = checkout.join("x86");
    let path = dir.join("unittests.cfg");
    let size = std::fs::metadata(&path)
        .with_context(|| format!("{}: not a checkout of kvm-unit-tests", path.display()))?
        .len();
    ensure!(size <= MOST, "{}: {size} bytes are too many for a list of tests", path.display());
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let sections = parse(&text).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
    let mut out = Vec::new();
    for section in sections {
        let Some(file) = section.values.get("file").filter(|f| !f.contains(['/', '\''])) else {
            bail!("{}: [{}] names no kernel of this directory as its file", path.display(), section.name);
        };
        let kernel = dir.join(file);
        let mut not_here = not_here(&section);
        if !kernel.is_file() && not_here.is_none() {
            not_here = Some(format!("{file} is not built"));
        }
        out.push(KvmTest {
            suite: Suite::UnitTests,
            command: [
                crate::BUSYBOX,
                "sh",
                "-c",
                &script(&section, &kernel.canonicalize().unwrap_or(kernel.clone())),
            ]
            .map(String::from)
            .to_vec(),
            name: section.name,
            needs: kernel.canonicalize().unwrap_or(kernel),
            not_here,
        });
    }
    ensure!(
        out.iter().any(|t| t.needs.is_file()),
        "{}: no test is built; run ./configure && make there",
        checkout.display()
    );
    Ok(out)
}

/// What the exit status of QEMU says, with the rules of `qemu_fixup_return_code` in scripts/vmm.bash: 1 is
/// success unless QEMU said more than warnings.
pub(super) fn verdict(done: &Done) -> (Verdict, String) {
    let errors: Vec<&str> = done
        .stderr
        .lines()
        .filter(|l| !l.trim().is_empty() && !l.to_lowercase().contains("warning"))
        .collect();
    let summary = done.stdout.lines().rev().find_map(|l| l.trim().strip_prefix("SUMMARY: "));
    let said = || summary.map_or_else(|| last_words(&done.stdout), str::to_owned);
    match (done.status, errors.first()) {
        (1, None) => (Verdict::Pass, summary.unwrap_or_default().to_owned()),
        (SKIP, _) => (Verdict::Skip, said()),
        (1, Some(error)) => (Verdict::Fail, format!("QEMU: {}", last_words(error))),
        (0, _) => (Verdict::Fail, format!("QEMU ended without the test's result: {}", said())),
        (status, _) if status > 0 && status % 2 == 1 => {
            (Verdict::Fail, format!("status {}: {}", status >> 1, said()))
        }
        (status, error) => {
            (Verdict::Fail, format!("exit status {status}: {}", error.map_or_else(said, |e| last_words(e))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# list\n[a]\nfile = a.flat\nsmp = 2\ntest_args = \"x y\"\nqemu_params = -cpu max\n\n[b-1]\nfile = b.flat\n\
        arch = i386\nqemu_params = \"\"\"-cpu\nhost\"\"\"\ncheck = /p=Y /q=1\n";

    #[test]
    fn sections_become_command_lines() {
        let sections = parse(TEXT).unwrap();
        let a = script(&sections[0], Path::new("/k/a.flat"));
        assert!(a.ends_with("-kernel '/k/a.flat' -smp 2 -append \"x y\" -cpu max\n"), "{a}");
        let b = script(&sections[1], Path::new("/k/b.flat"));
        assert!(
            b.starts_with("[ \"$(cat /p 2>/dev/null)\" = \"Y\" ] || { echo '/p is not Y'; exit 77; }\n["),
            "{b}"
        );
        assert!(b.ends_with("-smp 1 -cpu host\n"), "{b}");
        assert_eq!(not_here(&sections[1]).unwrap(), "i386 only");
        assert_eq!(not_here(&sections[0]), None);
    }

    #[test]
    fn errors_name_their_line() {
        for (text, wants) in [
            ("x = 1", "line 1: a value before"),
            ("[a]\nnothing", "line 2: neither"),
            ("[a b]", "line 1: a test's name"),
            ("[a]\n[a]", "line 2: a second"),
            ("[a]\nx = \"\"\"y\nz", "line 2: no end"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.starts_with(wants), "{e}");
        }
    }

    #[test]
    fn a_checkout_that_is_none_or_not_built_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(format!("{:#}", list(dir.path()).unwrap_err()).contains("not a checkout"));
        std::fs::create_dir(dir.path().join("x86")).unwrap();
        std::fs::write(dir.path().join("x86/unittests.cfg"), TEXT).unwrap();
        assert!(list(dir.path()).unwrap_err().to_string().contains("./configure && make"));
        std::fs::write(dir.path().join("x86/b.flat"), "").unwrap();
        let tests = list(dir.path()).unwrap();
        assert_eq!(tests[0].not_here.as_deref(), Some("a.flat is not built"));
    }

    #[test]
    fn statuses_are_those_of_isa_debug_exit() {
        let done = |status, stdout: &str, stderr: &str| {
            verdict(&Done { status, stdout: stdout.into(), stderr: stderr.into() })
        };
        assert_eq!(done(1, "SUMMARY: 3 tests\r\n", "qemu: warning: x"), (Verdict::Pass, "3 tests".into()));
        assert_eq!(done(1, "", "qemu: no such CPU").0, Verdict::Fail);
        assert_eq!(done(77, "no x2apic", "").0, Verdict::Skip);
        assert_eq!(done(3, "SUMMARY: 1 failed", ""), (Verdict::Fail, "status 1: 1 failed".into()));
        assert_eq!(done(0, "", "").0, Verdict::Fail);
        assert_eq!(done(-6, "", "").0, Verdict::Fail);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\[[a-z]*\\]|[a-z= \"#]*|\n)*") {
            if let Ok(sections) = parse(&text) {
                prop_assert!(sections.len() <= text.lines().count());
            }
        }
    }
}
