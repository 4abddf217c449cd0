// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a release is made of: one version in every place, and the licences of all that is linked in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn run(tool: &Path, words: &[&str]) -> Output {
    Command::new(tool).args(words).output().expect("tools/setup installs python3")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A golden of a result, which names the version that made the result.
const GOLDEN: &str = "crates/bifold/tests/it/snapshots/it__goldens__reclaim_show_json.snap";

/// A folder with the files that name the version, and with the tool.
struct Tree(tempfile::TempDir);

impl Tree {
    fn copied() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for file in [
            "tools/version",
            "Cargo.toml",
            "Cargo.lock",
            "debian/changelog",
            "CHANGELOG.md",
            "README.md",
            "docs/start/install.md",
            "python/bifold/__init__.py",
            "crates/reporter/bifold-reporter.8",
            GOLDEN,
        ] {
            let to = tree.path(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(root().join(file), &to).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
        // Entries of the version to come.
        tree.change("CHANGELOG.md", |text| {
            text.replacen("## [Unreleased]\n", "## [Unreleased]\n\n### Added\n\n- A thing.\n", 1)
        });
        tree
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn change(&self, file: &str, by: impl Fn(String) -> String) {
        fs::write(self.path(file), by(fs::read_to_string(self.path(file)).unwrap())).unwrap();
    }

    fn version(&self, words: &[&str]) -> Output {
        run(&self.path("tools/version"), words)
    }
}

fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{said}");
}

#[test]
fn every_place_names_one_version() {
    let found = run(&root().join("tools/version"), &[]);
    assert_eq!(
        stdout(&found).trim(),
        env!("CARGO_PKG_VERSION"),
        "{}",
        String::from_utf8_lossy(&found.stderr)
    );
}

#[test]
fn a_new_version_is_written_to_every_place() {
    let tree = Tree::copied();
    assert!(tree.version(&["--set", "98.7.6"]).status.success());
    assert_eq!(stdout(&tree.version(&[])).trim(), "98.7.6");
    let changelog = fs::read_to_string(tree.path("CHANGELOG.md")).unwrap();
    assert!(changelog.contains("## [Unreleased]\n\n## [98.7.6] - "), "{}", &changelog[..400]);
    let entry = fs::read_to_string(tree.path("debian/changelog")).unwrap();
    assert!(entry.starts_with("bifold (98.7.6-1) unstable; urgency=medium\n"), "{entry}");
    let golden = fs::read_to_string(tree.path(GOLDEN)).unwrap();
    assert!(golden.contains("\"bifold\": \"98.7.6\""), "{golden}");
    // Nothing is left to release.
    refused(&tree.version(&["--set", "98.7.7"]), "no entries in [Unreleased]");
}

#[test]
fn a_place_that_differs_is_named() {
    for (file, old, new) in [
        ("README.md", "bifold_", "bifold_9"),
        ("debian/changelog", "bifold (", "bifold (9"),
        ("python/bifold/__init__.py", "__version__ = \"", "__version__ = \"9"),
        ("Cargo.lock", "name = \"bifold\"\nversion = \"", "name = \"bifold\"\nversion = \"9"),
    ] {
        let tree = Tree::copied();
        tree.change(file, |text| text.replacen(old, new, 1));
        refused(&tree.version(&[]), file);
        refused(&tree.version(&["--set", "98.7.6"]), file);
    }
    let tree = Tree::copied();
    refused(&tree.version(&["--set", "two"]), "give a version");
    refused(&tree.version(&["--release"]), "CHANGELOG.md has entries in [Unreleased]");
}

#[test]
fn each_linked_crate_has_its_licence_and_its_notices() {
    let tool = root().join("tools/crate-licences");
    let copyright = run(&tool, &["--copyright"]);
    assert!(copyright.status.success(), "{}", String::from_utf8_lossy(&copyright.stderr));
    let copyright = stdout(&copyright);
    let crates: Vec<&str> = copyright.split("\n\n").filter(|p| p.trim().starts_with("Files: ")).collect();
    for paragraph in &crates {
        let field = |name: &str| {
            paragraph.lines().any(|l| l.strip_prefix(name).is_some_and(|value| !value.trim().is_empty()))
        };
        assert!(field("Copyright:") && field("License:"), "{paragraph}");
    }
    let of = |name: &str| crates.iter().find(|p| p.contains(&format!("vendor/{name}-")));
    assert!(of("clap").is_some_and(|p| p.ends_with("License: Expat or Apache-2.0")));
    assert!(of("zstd-sys").is_some_and(|p| p.contains("Meta Platforms") && p.ends_with("BSD-3-clause")));
    // Tests and procedural macros are not linked in.
    assert!(of("proptest").is_none() && of("serde_derive").is_none());
    let notices = stdout(&run(&tool, &["--notices"]));
    assert!(
        notices.contains("Permission is hereby granted") && !notices.contains("GNU GENERAL PUBLIC LICENSE\n")
    );
}
