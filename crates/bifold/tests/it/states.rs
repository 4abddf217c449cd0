// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--vm`: the state of the VM when the program begins.

use crate::command::{bifold, bifold_in};
use serde_json::Value;

fn json(args: &str) -> Value {
    let text =
        bifold(&format!("compare -q --generate fork-storm:6 --caches off --format json {args}")).quietly();
    serde_json::from_str(&text).unwrap()
}

fn total<'a>(v: &'a Value, config: &str, counter: &str) -> &'a Value {
    let (mode, page) = config.rsplit_once('-').unwrap();
    let page = if page == "4k" { "4K" } else { "2M" };
    let all = v["outcome"]["configs"].as_array().unwrap();
    let of = |c: &&Value| c["mode"] == mode && c["host_page"] == page && c.get("outer_page").is_none();
    &all.iter().find(of).unwrap_or_else(|| panic!("{config} of {all:?}"))["total"][counter]
}

#[test]
fn a_long_lived_vm_is_the_default_and_each_state_is_said_and_counted() {
    let v = json("");
    assert_eq!(v["outcome"]["vm"], "long-lived");
    assert_eq!(total(&v, "nested-4k", "exits_violation"), 0);
    let table = bifold("compare -q --generate fork-storm:6").quietly();
    assert!(table.contains("VM       long-lived: the host has backed the guest's memory"), "{table}");
    assert!(table.contains("A VM that has just started also pays for its first touches"), "{table}");
    let v = json("--vm started");
    assert!(total(&v, "nested-4k", "frames_backed").as_u64() > Some(0));
    let v = json("--vm restored-uffd");
    assert_eq!(total(&v, "nested-4k", "frames_backed"), 0);
    assert!(total(&v, "nested-2m", "huge_frames_from_uffd").as_u64() > Some(0));
}

#[test]
fn a_file_is_mapped_by_small_pages_alone() {
    let v = json("--vm restored");
    assert_eq!(v["outcome"]["configs"].as_array().unwrap().len(), 3, "native and those with 4 KB pages");
    assert!(total(&v, "shadow-4k", "frames_from_file").as_u64() > Some(0));
    let refused = bifold("compare --generate t:1k --vm restored --configs nested-2m").refused();
    assert!(refused.starts_with("status 2\n") && refused.contains("nested-2m has larger ones"), "{refused}");
}

#[test]
fn a_profile_without_the_cost_of_a_snapshots_page_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let profile = bifold("profile show i5-7600").quietly().replacen("\"i5-7600\"", "\"old\"", 1);
    let lines = profile.lines().filter(|line| !line.starts_with("uffd_"));
    let without: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert!(without.len() < profile.len(), "{profile}");
    std::fs::write(dir.path().join("old.toml"), without).unwrap();
    let refused =
        bifold_in(dir.path(), "compare --generate t:1k --profile old.toml --vm restored-uffd").refused();
    assert!(refused.starts_with("status 2\n"), "{refused}");
    assert!(refused.contains("--vm restored-uffd") && refused.contains("no exit.uffd_frame"), "{refused}");
    let set = "--set exit.uffd_frame.cycles=30000 --set exit.uffd_frame.prior=mine \
               --set exit.uffd_huge.cycles=300000 --set exit.uffd_huge.prior=mine";
    let args = format!("compare -q --generate t:1k --profile old.toml --vm restored-uffd {set}");
    bifold_in(dir.path(), &args).quietly();
}

#[test]
fn a_state_that_there_is_not_is_refused_with_those_that_there_are() {
    let refused = bifold("compare --generate t:1k --vm backed").refused();
    assert!(refused.contains("long-lived, started, restored, restored-uffd"), "{refused}");
}

#[test]
fn guests_within_guests_have_pages_of_both_levels() {
    let v = json("--configs pvm,nested-on-nested --vm started");
    let names: Vec<String> = v["outcome"]["configs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| format!("{} {} {}", c["mode"], c["host_page"], c["outer_page"]).replace('"', ""))
        .collect();
    let of = |mode: &str| ["4K null", "4K 2M", "2M 4K", "2M null"].map(|p| format!("{mode} {p}"));
    assert_eq!(names, [of("nested-on-nested"), of("pvm")].concat());
}
