// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verb on hosts made of files: every word that it prints.

use super::*;
use bifold_host::PagingStats;
use bifold_host::holes::HOLES;
use clap::Parser as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

const STATS: &str = "switches_to_shadow 1203
switches_to_nested 1202
switches_by_guest 0
by_guest_failed 0
refused 1
refused_host 0
refused_encrypted 0
refused_dma 0
refused_tss 0
refused_hypervisor 1
refused_keys 0
refused_smm 0
refused_real_mode 0
rolled_back 0
timed_out 0
interrupted 0
no_memory 0
vcpus 2
vcpus_in_guest_last 1
quiesce_ns_last 254000
quiesce_ns_worst 5100000
switch_ns_last 702000
switch_ns_worst 10100000
resume_ns_last 81500
resume_ns_worst 4100000000
drop_ns_last 40000
drop_ns_worst 90000
tables_kept 476
tables_dropped 0
shadow_pages 0
shadow_pages_dropped 1288
";

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A host with three VMs: one of each mode and one on its way, or all without a mode of their own.
fn host(dir: &Path, switchable: bool) -> Host {
    let [sys, proc, debug, tracing] = ["sys", "proc", "debug", "tracing"].map(|n| dir.join(n));
    let host = Host { sys, proc, debug, tracing };
    put(&host.sys.join("module/kvm/parameters/halt_poll_ns"), "200000\n");
    put(&host.sys.join("module/kvm_amd/parameters/npt"), "Y\n");
    put(&host.debug.join("kvm/exits"), "12345\n");
    let vms = [
        ("977-9", "nested\n", "lkvm\0run\0", STATS),
        ("4242-12", "shadow\n", "qemu\0-name\0guest=web,debug-threads=on\0", STATS),
        ("31337-12", "nested -> shadow\n", "qemu\0-name\0the db\x1b[2J\0", "vcpus 2\nrefused 3"),
    ];
    for (id, mode, cmdline, stats) in vms {
        let vm = host.debug.join("kvm").join(id);
        ["vcpu0", "vcpu1"].iter().for_each(|n| fs::create_dir_all(vm.join(n)).unwrap());
        if switchable {
            put(&vm.join("paging_mode"), mode);
            put(&vm.join("paging_stats"), stats);
            put(&vm.join("paging_refusal"), "none\n");
        }
        let pid = id.split_once('-').unwrap().0;
        put(&host.proc.join(pid).join("cmdline"), cmdline);
        put(&host.proc.join(pid).join("comm"), "a-vmm\n");
    }
    if switchable {
        put(&host.sys.join("module/kvm/parameters/paging_mode"), "nested\n");
        let fixed: Vec<&str> = HOLES.iter().map(|hole| hole.name).collect();
        put(&host.sys.join("module/kvm/parameters/paging_fixes"), &(fixed.join(" ") + "\n"));
    }
    host
}

/// The verb as a program of its own.
#[derive(clap::Parser)]
struct Mode {
    #[command(flatten)]
    args: ModeArgs,
}

/// What these words print, on both outputs, and the exit status.
fn ran(host: &Host, args: &str) -> String {
    let parsed = Mode::try_parse_from(std::iter::once("mode").chain(args.split_whitespace())).unwrap().args;
    let text = match answer(host, &parsed) {
        Ok((data, notes)) => notes.iter().fold(data, |text, n| format!("{text}(stderr) bifold: {n}\n")),
        Err(e) => format!("(stderr) bifold: {e:#}\n(status {})\n", crate::status::of_error(&e)),
    };
    format!("$ bifold mode {args}\n{text}\n").replace(host.sys.parent().unwrap().to_str().unwrap(), "")
}

fn all(host: &Host, cases: &[&str]) -> String {
    cases.iter().map(|args| ran(host, args)).collect()
}

#[test]
fn modes_are_listed_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), true);
    insta::assert_snapshot!(all(
        &host,
        &["", "--format json", "web", "31337", "977-9 --format json", "web shadow"]
    ));
}

#[test]
fn an_unmodified_kvm_is_shown_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), false);
    let mut out = all(&host, &["", "--format json", "web", "web --format json", "web shadow"]);
    put(&host.sys.join("module/kvm_amd/parameters/npt"), "N\n");
    out += &ran(&host, "web");
    fs::remove_dir_all(host.sys.join("module/kvm_amd")).unwrap();
    out += &all(&host, &["", "web shadow"]);
    insta::assert_snapshot!(out);
}

#[test]
fn what_stands_in_the_way_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), true);
    let mut out = all(&host, &["db", "4242-13 shadow", "a-vmm"]);
    let db = host.debug.join("kvm/31337-12");
    put(&db.join("paging_mode"), "both\n");
    fs::remove_file(db.join("paging_stats")).unwrap();
    put(&db.join("paging_refusal"), "smm vcpu\x1b[2J\n");
    out += &all(&host, &["31337", "31337 --format json"]);
    put(&host.proc.join("977/cmdline"), "qemu\0-name\0web\0");
    out += &ran(&host, "web shadow");
    fs::remove_dir_all(host.debug.join("kvm")).unwrap();
    fs::create_dir(host.debug.join("kvm")).unwrap();
    out += &all(&host, &["", "web"]);
    fs::remove_dir_all(host.debug.join("kvm")).unwrap();
    out += &ran(&host, "");
    fs::create_dir_all(host.debug.join("x86")).unwrap();
    out += &ran(&host, "");
    fs::remove_dir_all(host.sys.join("module/kvm")).unwrap();
    out += &ran(&host, "");
    insta::assert_snapshot!(out);
}

#[test]
fn what_kvm_would_refuse_is_told_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), true);
    let says = |id: &str, line: &str| put(&host.debug.join("kvm").join(id).join("paging_refusal"), line);
    says("977-9", "hypervisor vcpu 1\n");
    says("4242-12", "gpu_9\n");
    says("31337-12", "tss\n");
    let mut out = all(&host, &["", "977", "977 --format json"]);
    // As older modules have it.
    ["977-9", "4242-12", "31337-12"]
        .iter()
        .for_each(|id| fs::remove_file(host.debug.join("kvm").join(id).join("paging_refusal")).unwrap());
    out += &all(&host, &["", "977 --format json"]);
    insta::assert_snapshot!(out);
}

#[test]
fn a_cgroup_without_room_and_stays_that_ended_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), true);
    let group = host.sys.join("fs/cgroup/machine.slice");
    put(&host.proc.join("self/mounts"), "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    put(&host.proc.join("977/cgroup"), "0::/machine.slice\n");
    put(&host.proc.join("977/maps"), "7f0000000000-7f0200000000 rw-p 00000000 00:00 0\n");
    put(&group.join("memory.max"), "9663676416\n");
    put(&group.join("memory.current"), "9395240960\n");
    let stats = host.debug.join("kvm/977-9/paging_stats");
    put(&stats, &STATS.replace("by_guest 0", "by_guest 3\nback_for_memory 2"));
    let mut out = all(&host, &["", "977", "977 --format json", "977 shadow"]);
    put(&group.join("memory.max"), "max\n");
    out += &ran(&host, "977");
    insta::assert_snapshot!(out);
}

#[test]
fn holes_of_the_loaded_modules_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), true);
    let fixes = host.sys.join("module/kvm/parameters/paging_fixes");
    put(&fixes, "CVE-2026-23401 CVE-2026-46113 CVE-2026-53359\n");
    let mut out = all(&host, &["web --format json", "web nested"]);
    fs::remove_file(&fixes).unwrap();
    out += &all(&host, &["", "web nested", "977 shadow"]);
    insta::assert_snapshot!(out);
}

/// A file takes the write as KVM does, but does not count.
#[test]
fn a_switch_is_written_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), true);
    let vm = || select(host.vms().unwrap(), "web").unwrap();
    assert!(ran(&host, "web nested").contains("nothing was done"));
    assert_eq!(fs::read_to_string(host.debug.join("kvm/4242-12/paging_mode")).unwrap(), "nested\n");
    let stats = PagingStats::parse(STATS.as_bytes());
    let switch = Switch {
        to: bifold_host::Mode::Shadow,
        happened: Happened::Switched,
        wall: Duration::from_micros(1930),
        stats,
    };
    let bare = Switch { stats: PagingStats::default(), ..switch.clone() };
    let mut out = text::switched(&vm(), &switch) + "\n" + &text::switched(&vm(), &bare) + "\n";
    out += &json::switched(&vm(), &switch).unwrap();
    insta::assert_snapshot!(out);
    assert_eq!(notes_of(&switch), Vec::<String>::new());
    assert!(
        notes_of(&Switch { happened: Happened::Crowded, ..switch })[0].contains("may be of their switch")
    );
}
