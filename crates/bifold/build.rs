// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the revision that the command is built from, for `--version` and for results: of the repository, else
//! what `git archive` wrote into the file `revision`.

use std::path::Path;
use std::process::Command;

fn git(words: &[&str]) -> Option<String> {
    let out = Command::new("git").args(words).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// The commit, if the sources lie in a repository of their own and not within another project's.
fn of_repository() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = Path::new("../..").canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != here {
        return None;
    }
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    for file in ["HEAD", "packed-refs", &branch] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let modified =
        git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--", "../../crates"])?;
    Some(format!("{}{}", commit.get(..12)?, if modified.is_empty() { "" } else { ".modified" }))
}

/// The commit, in an archive.
fn of_archive() -> Option<String> {
    let text = std::fs::read_to_string("revision").ok()?;
    let commit = text.trim().get(..12)?;
    commit.chars().all(|c| c.is_ascii_hexdigit()).then(|| commit.to_owned())
}

fn main() {
    // The command is built again after any change here.
    println!("cargo:rerun-if-changed=..");
    let revision = of_repository().or_else(of_archive).unwrap_or_default();
    println!("cargo:rustc-env=BIFOLD_REVISION={revision}");
}
