// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cache`: kept boots.

use crate::command::{command, ran};
use std::path::Path;

fn cache(home: &Path, verb: &str) -> String {
    let mut c = command(verb.split_whitespace());
    c.env("XDG_CACHE_HOME", home);
    ran(c).quietly()
}

#[test]
fn an_empty_cache_is_listed_and_cleared_and_not_created() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(cache(home.path(), "cache list"), "0 kept boots, 0 MiB of at most 2048 MiB\n");
    assert_eq!(cache(home.path(), "cache clear"), "removed 0 kept boots, 0 MiB\n");
    let v: serde_json::Value = serde_json::from_str(&cache(home.path(), "cache list --format json")).unwrap();
    assert_eq!(
        (v["schema"].as_str(), v["boots"].as_array().map(Vec::len)),
        (Some("bifold.cache/1"), Some(0))
    );
    assert!(!home.path().join("bifold").exists());
}

#[test]
fn boots_of_another_version_are_not_listed_and_are_cleared() {
    let home = tempfile::tempdir().unwrap();
    let boots = home.path().join("bifold/boots");
    for (name, about) in
        [("a", "bifold-boot 1\nguest Linux 6.1, 512 MiB\nmemory 5 0\nstate 4 0\n"), ("b", "other")]
    {
        let at = boots.join(name);
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join("about"), about).unwrap();
        std::fs::write(at.join("memory"), "12345").unwrap();
        std::fs::write(at.join("state"), "1234").unwrap();
    }
    assert!(cache(home.path(), "cache list").starts_with("0 kept boots, "));
    assert!(cache(home.path(), "cache clear").starts_with("removed 0 kept boots, "));
    assert!(!boots.join("a").exists() && !boots.join("b").exists());
}

#[test]
fn without_a_home_the_error_says_what_is_missing() {
    let mut c = command(["cache", "list"]);
    c.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    let text = ran(c).refused();
    assert!(text.contains("XDG_CACHE_HOME"), "{text}");
}
