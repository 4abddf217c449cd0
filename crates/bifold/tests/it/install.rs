// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make install`: what is installed works without the tree that it was built in.

use crate::command::{Ran, ran};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs make with what `cargo test` has built.
fn make(target: &str, destdir: &Path) -> Ran {
    let built = Path::new(env!("CARGO_BIN_EXE_bifold")).parent().unwrap();
    let mut c = Command::new("make");
    c.arg("-C").arg(root()).arg(target).arg("PREFIX=/opt/x");
    c.arg(format!("DESTDIR={}", destdir.display())).arg(format!("BUILT={}", built.display()));
    ran(c)
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .flat_map(|e| if e.path().is_dir() { files(&e.path()) } else { vec![e.path()] })
        .collect()
}

#[test]
fn what_is_installed_works_elsewhere_and_goes_away_again() {
    let dir = tempfile::tempdir().unwrap();
    let made = make("install", dir.path());
    assert_eq!(made.status, 0, "{}", made.stderr);
    let at = |path: &str| dir.path().join("opt/x").join(path);
    for file in [
        "share/man/man1/bifold.1",
        "share/man/man1/bifold-share-check.1",
        "share/man/man5/bifold.toml.5",
        "share/man/man5/bifold-wishes.5",
        "share/man/man8/bifold-daemon.8",
        "share/man/man8/bifold-ctl.8",
        "lib/systemd/system/bifoldd.service",
        "share/bifold/bifold.toml",
        "share/bifold/grafana.json",
        "share/bifold/libvirt-qemu-hook",
        "share/bash-completion/completions/bifold",
        "share/zsh/site-functions/_bifold",
        "share/fish/vendor_completions.d/bifold.fish",
        "share/bifold/experiments/share/synthetic.toml",
        "share/bifold/experiments/reclaim/turns.toml",
    ] {
        assert!(fs::metadata(at(file)).is_ok_and(|m| m.len() > 100), "{file}");
    }
    let run = |args: &[&str]| {
        let mut c = Command::new(at("bin/bifold"));
        c.args(args).current_dir("/").env_remove("BIFOLD_PLUGIN");
        ran(c)
    };
    let compared = run(&["compare", "--generate", "t:1000", "--format", "csv", "-q"]);
    assert_eq!(compared.status, 0, "{}", compared.stderr);
    // The plugin is the installed one, not the one of the build.
    let doctor: serde_json::Value =
        serde_json::from_str(&run(&["doctor", "--format", "json"]).stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let plugin = checks.iter().find(|c| c["name"] == "capture plugin").unwrap();
    let found = fs::canonicalize(plugin["detail"].as_str().unwrap()).unwrap();
    assert_eq!(found, fs::canonicalize(at("lib/bifold/libbifold_capture_plugin.so")).unwrap());
    let unit = fs::read_to_string(at("lib/systemd/system/bifoldd.service")).unwrap();
    assert!(unit.contains("\nExecStart=/opt/x/bin/bifold daemon\n"), "{unit}");
    assert!(!unit.contains("/usr/local/bin"), "{unit}");
    let is_executable = |path: &str| fs::metadata(at(path)).unwrap().permissions().mode() & 0o111 == 0o111;
    assert!(is_executable("share/bifold/libvirt-qemu-hook") && !is_executable("share/bifold/bifold.toml"));
    assert_eq!(make("uninstall", dir.path()).status, 0);
    assert_eq!(files(dir.path()), [] as [PathBuf; 0]);
}
