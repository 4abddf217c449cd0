// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the revision that the command is built from, for `--version` and for results: what `git archive`
//! wrote into the file `revision`, else the repository's commit.

use std::path::Path;
use std::process::Command;

/// What the command is built from.
const SOURCES: [&str; 7] =
    ["crates", "qemu-plugin", "profiles", "include", "kernel/series.txt", "Cargo.toml", "Cargo.lock"];

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    // A hook's variables are about the hook's repository.
    git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
    let out = git.current_dir(root).args(words).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// The commit, in an archive. A repository has git's placeholder.
fn of_archive() -> Option<String> {
    let text = std::fs::read_to_string("revision").ok()?;
    let commit = text.trim().get(..12)?;
    commit.chars().all(|c| c.is_ascii_hexdigit()).then(|| commit.to_owned())
}

/// The commit, if the sources lie in a repository of their own and not within another project's.
fn of_repository(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // The log of HEAD grows with each commit and checkout.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(root, &["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let commit = git(root, &["rev-parse", "HEAD"])?;
    let changes = [&["--no-optional-locks", "status", "--porcelain", "--"][..], &SOURCES].concat();
    let modified = if git(root, &changes)?.is_empty() { "" } else { ".modified" };
    Some(format!("{}{modified}", commit.get(..12)?))
}

fn main() {
    let root = Path::new("../..").canonicalize().expect("the folder that has crates");
    // The command is built again after a change of any of these.
    for source in SOURCES.iter().filter(|source| root.join(source).exists()) {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    let revision = of_archive().or_else(|| of_repository(&root));
    if revision.is_none() && root.join(".git").exists() {
        println!("cargo:warning=git cannot read the repository, so results will not name the revision");
    }
    println!("cargo:rustc-env=BIFOLD_REVISION={}", revision.unwrap_or_default());
}
