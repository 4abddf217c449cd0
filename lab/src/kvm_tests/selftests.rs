// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's KVM selftests, as `kernel/selftests` builds them: programs that open /dev/kvm.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{KvmTest, Suite, Verdict, last_words};
use crate::lab::job::Done;

/// The exit status of a selftest that cannot run here (`KSFT_SKIP`, tools/testing/selftests/kselftest.h).
const SKIP: i32 = 4;

fn programs(dir: &Path, depth: u32, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && depth > 0 {
            programs(&path, depth - 1, into)?;
        } else if path.extension().is_none() && bifold_guest::image::executable(&path) {
            into.push(path);
        }
    }
    Ok(())
}

/// The tests of a directory: every program in it. Their names are the paths below it.
///
/// # Errors
/// If the directory cannot be read or holds no program.
pub fn list(dir: &Path) -> Result<Vec<KvmTest>> {
    let dir = dir.canonicalize().with_context(|| format!("--selftests {}", dir.display()))?;
    let mut found = Vec::new();
    programs(&dir, 2, &mut found)?;
    found.sort();
    ensure!(!found.is_empty(), "{} holds no program; kernel/selftests builds the tests", dir.display());
    let test = |path: PathBuf| KvmTest {
        suite: Suite::Selftests,
        name: path.strip_prefix(&dir).unwrap_or(&path).display().to_string(),
        command: vec![path.display().to_string()],
        needs: path,
        not_here: None,
    };
    Ok(found.into_iter().map(test).collect())
}

/// What a selftest's exit status says.
pub(super) fn verdict(done: &Done) -> (Verdict, String) {
    let said = || {
        let mut lines = done.stderr.lines().chain(done.stdout.lines()).map(str::trim);
        // An assertion says first where, and then in lines of their own what and why.
        let at = lines.find(|l| l.contains("Test Assertion Failure"));
        match at {
            Some(_) => {
                let text: Vec<&str> = done
                    .stderr
                    .lines()
                    .skip_while(|l| !l.contains("Test Assertion Failure"))
                    .skip(1)
                    .map(str::trim)
                    .filter(|l| !l.starts_with("pid=") && !l.starts_with(|c: char| c.is_ascii_digit()))
                    .filter(|l| !l.starts_with("(stack trace") && !l.is_empty())
                    .take(2)
                    .collect();
                text.join("; ").chars().take(160).collect()
            }
            None if done.stderr.trim().is_empty() => last_words(&done.stdout),
            None => last_words(&done.stderr),
        }
    };
    match done.status {
        0 => (Verdict::Pass, String::new()),
        SKIP => (Verdict::Skip, last_words(&format!("{}\n{}", done.stderr, done.stdout))),
        status => (Verdict::Fail, format!("exit status {status}: {}", said())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selftest_ends_with_its_status_and_the_words_of_its_assertion() {
        let done = |status, stderr: &str| Done { status, stdout: "x\n".into(), stderr: stderr.into() };
        assert_eq!(verdict(&done(0, "")).0, Verdict::Pass);
        assert_eq!(verdict(&done(4, "")), (Verdict::Skip, "x".into()));
        let text = "==== Test Assertion Failure ====\n  x86_64/a_test.c:7: ret == 0\n  pid=1 tid=1 errno=0\n     1\t0x1: main\n  wanted 0\n";
        assert_eq!(verdict(&done(254, text)).1, "exit status 254: x86_64/a_test.c:7: ret == 0; wanted 0");
    }

    #[test]
    fn a_directory_without_programs_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(list(dir.path()).unwrap_err().to_string().contains("kernel/selftests"));
        assert!(list(&dir.path().join("none")).is_err());
    }
}
