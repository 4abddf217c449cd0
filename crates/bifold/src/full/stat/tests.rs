// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verb on a host made of files.

use super::*;
use crate::full::fake_host::Tree;
use bifold_host::Statistic;
use bifold_live::HardwareSource;
use bifold_live::IntervalRow;
use bifold_live::hardware::HardwareCounts;
use clap::Parser as _;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: StatArgs,
}

fn args(words: &[&str]) -> StatArgs {
    Line::try_parse_from([&["stat", "-q", "-i", "0.05", "-n", "1"], words].concat()).unwrap().args
}

/// A host with two VMs, whose vCPUs have run for a second.
fn host() -> Tree {
    let tree = Tree::new();
    tree.write("sys/module/kvm_amd/parameters/npt", "Y\n");
    tree.write("sys/module/kvm/parameters/paging_mode", "nested\n");
    for (pid, name, mode) in [(100, "web", "nested"), (200, "the db\u{1b}[2J", "shadow")] {
        tree.vm(pid, name, 0, "");
        let dir = format!("debug/kvm/{pid}-7");
        tree.paging(pid, mode, "none");
        tree.write(&format!("{dir}/exits"), "70000\n");
        tree.write(&format!("{dir}/vcpu0/pid"), &format!("{}\n", pid + 1));
        tree.write(&format!("proc/{pid}/task/{}/schedstat", pid + 1), "1000000000 5 1\n");
    }
    tree
}

/// The verb's output file.
fn written(words: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let words = [words, &["-o", path.to_str().unwrap()]].concat();
    stat(host().host(), (None, None), &args(&words)).unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn csv_has_a_head_and_a_row_for_each_vm_and_vcpu() {
    let text = written(&["--format", "csv", "--vcpus"]);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("time,seconds,vm,name,pid,vcpu,mode,load,run_ns"), "{}", lines[0]);
    let starts = ["100-7,web,100,,nested,0,0", "100-7,web,100,0,nested,0,0", "200-7,the db", "200-7,the db"];
    assert_eq!(lines.len(), 5, "{text}");
    for (line, start) in lines[1..].iter().zip(starts) {
        let after = line.splitn(3, ',').nth(2).unwrap();
        assert!(after.starts_with(start), "{line}");
    }
}

#[test]
fn lines_of_json_leave_out_what_is_unknown_and_words_choose_vms() {
    for words in [["web"], ["100"], ["100-7"]] {
        let text = written(&[&words[..], &["--format", "jsonl"]].concat());
        let row: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!((&row["schema"], &row["mode"]), (&"bifold.stat/1".into(), &"nested".into()));
        assert_eq!((&row["exits"], &row["mode_switches"]), (&0.into(), &0.into()));
        assert!(row.get("instructions").is_none() && row.get("vcpu").is_none(), "{row}");
    }
    assert_eq!(written(&["nobody", "--format", "jsonl"]), "");
}

#[test]
fn the_table_escapes_names_and_marks_what_is_unknown() {
    let text = written(&[]);
    let row = text.lines().find(|l| l.starts_with("the db")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[1..6], ["db\\u{1b}[2J", "shadow", "0.0", "0.0", "0"], "{row}");
    assert_eq!(cells[6..], ["-", "-", "-", "-", "-", "0"], "{row}");
}

#[test]
fn below_the_table_a_mode_that_kvm_would_refuse_is_named_with_the_reason() {
    let tree = host();
    tree.paging(200, "shadow", "smm vcpu 1");
    let mut watch = Watch::new(tree.host(), HardwareSource::None).unwrap();
    watch.forecast_switches();
    watch.tick(&|| Duration::ZERO);
    let mut interval = watch.tick(&|| Duration::from_secs(1)).intervals.remove(1).1;
    // What a host made of files cannot tell: page faults take 10 % of the cycles.
    [(Statistic::Exits, 10), (Statistic::PfTaken, 10), (Statistic::Invlpg, 0), (Statistic::PfGuest, 0)]
        .into_iter()
        .for_each(|(s, n)| interval.statistics.set(s, n));
    interval.vcpus[0].hardware = HardwareCounts {
        guest_cycles: Some(900_000_000),
        host_cycles: Some(100_000_000),
        instructions: Some(1_000_000_000),
        walk_cycles: Some(0),
        tlb_misses_4k: Some(0),
        tlb_flushes: Some(0),
        ..HardwareCounts::ZERO
    };
    interval.vcpus[0].ran_ns = Some(900_000_000);
    interval.vcpus[0].waited_ns = Some(20_000_000);
    let vm = watch.vms().nth(1).unwrap();
    let text = table::table(&[IntervalRow::of_vm(0.0, vm, &interval)]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = "nested paging (about 10 %) would help most, but the VM cannot be switched to nested mode now: vCPU 1 is in \
                system management mode";
    assert!(words.contains(says) && words.contains("CPUs that fewer threads want (up to 2 %)"), "{text}");
}

#[test]
fn a_command_bounds_the_run_and_gives_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let words =
        ["stat", "-q", "--format", "jsonl", "-o", path.to_str().unwrap(), "web", "--", "sh", "-c", "exit 3"];
    let args = Line::try_parse_from(words).unwrap().args;
    let status = stat(host().host(), (None, None), &args).unwrap();
    assert_eq!(status, Status::OfCommand(CommandExit::Code(3)));
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1, "one interval");
    let missing = Line::try_parse_from(["stat", "-q", "--", "/no/such/command"]).unwrap().args;
    let e = stat(host().host(), (None, None), &missing).unwrap_err();
    assert_eq!(e.to_string(), "/no/such/command: program not found");
    assert_eq!(crate::status::of_error_beside_a_command(&e), 127);
}

#[test]
fn parquet_needs_a_file_and_a_full_disk_is_an_error_with_its_name() {
    let parquet = args(&["--format", "parquet"]);
    let e = stat(host().host(), (None, None), &parquet).unwrap_err();
    assert_eq!(e.to_string(), "--output is missing: a Parquet file is no text for stdout");
    for format in ["csv", "jsonl", "table"] {
        let full = args(&["--format", format, "-o", "/dev/full"]);
        let e = stat(host().host(), (None, None), &full).unwrap_err();
        assert_eq!(
            format!("{e:#}"),
            "cannot write /dev/full: No space left on device (os error 28)",
            "{format}"
        );
    }
    let bytes = {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let words = ["--format", "parquet", "-o", path.to_str().unwrap()];
        stat(host().host(), (None, None), &args(&words)).unwrap();
        std::fs::read(path).unwrap()
    };
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}
