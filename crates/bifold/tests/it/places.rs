// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--where`: costs by process, binary, function and mapping, of a real guest and of its recording.

use crate::command::{bifold, bifold_in, command, ran};
use crate::guest::no_guest_here;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Touches memory of its own in a function of its own, by code that it makes, and by a child.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 4096

__attribute__((noinline)) void touch_all(char *p)
{
    for (long i = 0; i < PAGES; i++)
        p[i * 4096] = 1;
}

int main(int argc, char **argv)
{
    /* rdi: address, rsi: pages. A byte is stored to each. */
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0xc6, 0x00, 0x01, 0x48, 0x05, 0x00, 0x10,
                                         0x00, 0x00, 0x48, 0xff, 0xce, 0x75, 0xf2, 0xc3};
    char *p = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *jit = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[64];
    FILE *map;

    touch_all(p);
    if (argc == 1)
        return 0;
    memcpy(jit, code, sizeof code);
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    map = fopen(name, "w");
    fprintf(map, "%lx %zx made at run time\n", (unsigned long)jit, sizeof code);
    fclose(map);
    ((void (*)(char *, long))jit)(p, PAGES);
    if (!fork()) {
        execl(argv[1], argv[1], NULL);
        _exit(1);
    }
    wait(NULL);
    return 0;
}
"#;

/// The program, built, in a directory of its own.
fn toucher() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("toucher");
    std::fs::write(dir.path().join("p.c"), PROGRAM).unwrap();
    let built =
        Command::new("cc").args(["-O1", "-o"]).arg(&path).arg(dir.path().join("p.c")).status().unwrap();
    assert!(built.success());
    (dir, path)
}

/// A configuration's sums in each view, and what the same counters say in the outcome.
fn sums(v: &Value) -> [Vec<BTreeMap<String, i64>>; 3] {
    let read = |costs: &Value| -> Vec<BTreeMap<String, i64>> {
        let of = |c: &Value| {
            let fields = c.as_object().unwrap().iter();
            fields.map(|(k, v)| (k.clone(), v.as_i64().unwrap())).collect()
        };
        costs.as_array().unwrap().iter().map(of).collect()
    };
    let [code, cause] = [("rows", "others"), ("cause_rows", "cause_others")].map(|(rows, others)| {
        let mut sums = read(&v["where"][others]["costs"]);
        for row in v["where"][rows].as_array().unwrap() {
            for (sum, cost) in sums.iter_mut().zip(read(&row["costs"])) {
                cost.into_iter().for_each(|(k, n)| *sum.get_mut(&k).unwrap() += n);
            }
        }
        sums
    });
    let total = |c: &Value| {
        let t = c["total"].as_object().unwrap();
        let sum = |prefix: &str| -> i64 {
            t.iter().filter(|(k, _)| k.starts_with(prefix)).map(|(_, v)| v.as_i64().unwrap()).sum()
        };
        let waits = |run: &str| sum(&format!("{run}_stall_cycles")) - sum(&format!("{run}_hidden_cycles"));
        [
            ("tlb_misses", sum("tlb_misses_")),
            ("walk_cycles", sum("walk_cycles")),
            ("walk_hidden_cycles", sum("walk_hidden_cycles")),
            ("exits", sum("exits_")),
            ("vmm_cycles", sum("vmm_cycles")),
            ("data_wait_cycles", waits("data") - waits("ideal")),
        ]
        .map(|(k, n)| (k.to_string(), n))
        .into()
    };
    [code, cause, v["outcome"]["configs"].as_array().unwrap().iter().map(total).collect()]
}

#[test]
fn every_cost_of_a_guest_is_attributed_and_a_recording_of_it_says_the_same() {
    if no_guest_here() {
        return;
    }
    let (dir, path) = toucher();
    // The kernel names a process by the name it was run under.
    let child = dir.path().join("child");
    std::os::unix::fs::symlink(&path, &child).unwrap();

    let mut c = command(
        "record -q --vm started --where --folded a.folded -o a.bifold --format json -m 256 --".split(' '),
    );
    c.arg(&path).arg(&child).current_dir(dir.path());
    let live = ran(c);
    assert_eq!((live.status, &*live.stderr), (0, ""));
    let v: Value = serde_json::from_str(&live.stdout).unwrap();
    let [code, cause, totals] = sums(&v);
    assert_eq!((&code, &cause), (&totals, &totals));
    assert_eq!(v["checks"]["failed"], 0);
    assert_eq!(v["where"]["missing"], Value::Array(Vec::new()));

    // The last configuration is a shadow one: the first touch of 4096 pages exits at least once each.
    let exits = |names: [&str; 4]| -> u64 {
        let rows = v["where"]["rows"].as_array().unwrap().iter();
        let keys = ["process", "binary", "function", "mapping"];
        let row = rows.filter(|r| keys.iter().zip(names).all(|(k, n)| n == "*" || r[*k] == n));
        row.map(|r| r["costs"][3]["exits"].as_u64().unwrap()).sum()
    };
    for process in ["toucher", "child"] {
        let n = exits([process, "toucher", "touch_all", "anonymous"]);
        assert!((4096..2 * 4096 + 100).contains(&n), "{process}: {n}");
        assert!(exits([process, "kernel", "*", "*"]) > 100, "{process}");
        assert!(exits([process, "*", "?", "*"]) < 100, "{process}");
    }
    // By cause, the kernel's clearing of the pages is the function's. The page is in the host before its
    // store.
    let caused = |names: [&str; 4], config: usize| -> u64 {
        let rows = v["where"]["cause_rows"].as_array().unwrap().iter();
        let keys = ["process", "binary", "function", "mapping"];
        let row = rows.filter(|r| keys.iter().zip(names).all(|(k, n)| n == "*" || r[*k] == n));
        row.map(|r| r["costs"][config]["exits"].as_u64().unwrap()).sum()
    };
    let nested = v["where"]["configs"].as_array().unwrap().iter().position(|c| c == "nested-4k").unwrap();
    let cleared = caused(["toucher", "toucher", "touch_all", "anonymous"], nested);
    assert!((3800..4700).contains(&cleared), "{cleared}");
    assert!(caused(["*", "*", "clear_page_rep", "*"], nested) < 100);
    // The command's own exec is the guest's start. That of the child is the program's: the kernel fills its
    // first stack.
    assert_eq!(caused(["toucher", "kernel", "(exec)", "*"], nested), 0);
    assert!(caused(["child", "kernel", "(exec)", "*"], nested) > 0);
    let misses: u64 = v["where"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|r| {
            r["binary"] == "[JIT]" && r["function"] == "made at run time" && r["mapping"] == "anonymous"
        })
        .map(|r| r["costs"][0]["tlb_misses"].as_u64().unwrap())
        .sum();
    assert!(misses > 2000, "{misses}");

    let again =
        bifold_in(dir.path(), "compare -q --vm started --where --folded b.folded --format json a.bifold")
            .quietly();
    let again: Value = serde_json::from_str(&again).unwrap();
    for same in ["outcome", "where"] {
        assert_eq!(v[same], again[same], "{same}");
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(read("a.folded"), read("b.folded"));
    let counted: i64 =
        read("a.folded").lines().map(|l| l.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum();
    let ranked_by = v["where"]["ranked_by"].as_str().unwrap();
    let at = v["where"]["configs"].as_array().unwrap().iter().position(|c| c == ranked_by).unwrap();
    // Places that waited less than in the ideal run have no line.
    let exposed = totals[at]["walk_cycles"] - totals[at]["walk_hidden_cycles"];
    let extra = exposed + totals[at]["vmm_cycles"] + totals[at]["data_wait_cycles"];
    assert!((extra..extra + extra / 10).contains(&counted), "{counted} and {extra}");
    assert_ne!(totals[at]["data_wait_cycles"], 0);

    // A recording without calls has no stacks, and says how to get them.
    let refused = bifold_in(dir.path(), "compare -q --where=stacks a.bifold");
    assert!(refused.stderr.contains("record with `bifold record --where=stacks`"), "{}", refused.stderr);

    // Without --where the same recording has the same figures, and says nothing of places.
    let plain = bifold_in(dir.path(), "compare -q --vm started --format json a.bifold").quietly();
    let plain: Value = serde_json::from_str(&plain).unwrap();
    assert_eq!(plain["outcome"], v["outcome"]);
    assert_eq!(plain["where"], Value::Null);
    let table = bifold_in(dir.path(), "compare -q --where=nested-4k a.bifold --report r.html").quietly();
    assert!(table.contains("places in nested-4k cause"), "{table}");
    assert!(table.contains("\nCosts by the user code that caused them (--where=code:"), "{table}");
    let table = bifold_in(dir.path(), "compare -q --where=shadow-4k,code a.bifold").quietly();
    assert!(table.contains("\nCosts by the code that ran (--where=cause:"), "{table}");
    assert!(table.contains("places in shadow-4k cause"), "{table}");
    assert!(read("r.html").contains("<iframe class=\"flames\""));
}

/// Nearly all first touches lie in gaps, where they are counted as in a whole run.
#[test]
fn a_sampled_run_charges_places_as_a_whole_run_does() {
    if no_guest_here() {
        return;
    }
    let (dir, path) = toucher();
    let mut c = command("compare -q --vm started --where --sample=10k:1M --format json -m 256 --".split(' '));
    c.arg(&path).arg(&path).current_dir(dir.path());
    let v: Value = serde_json::from_str(&ran(c).quietly()).unwrap();
    let s = &v["outcome"]["sampling"];
    let [windows, measured, between] =
        ["windows", "measured_instructions", "other_instructions"].map(|k| s[k].as_u64().unwrap());
    assert!(windows > 5 && between > 10 * measured, "{s}");
    let [code, cause, totals] = sums(&v);
    for (config, total) in totals.iter().enumerate() {
        for (name, n) in total {
            for sums in [&code, &cause] {
                let sum = sums[config][name];
                // Every place's costs are rounded, and so is every counter of the total.
                assert!((sum - n).abs() <= 2000 + n.abs() / 50, "{config} {name}: {sum} and {n}");
            }
        }
    }
    let rows = v["where"]["cause_rows"].as_array().unwrap();
    let nested = v["where"]["configs"].as_array().unwrap().iter().position(|c| c == "nested-4k").unwrap();
    let cleared: u64 = rows
        .iter()
        .filter(|r| r["function"] == "touch_all" && r["mapping"] == "anonymous")
        .map(|r| r["costs"][nested]["exits"].as_u64().unwrap())
        .sum();
    // Of the program, and of the child, which gets the pages that the program has freed or others.
    assert!((3800..2 * 4700).contains(&cleared), "{cleared}");
}

#[test]
fn stacks_have_the_functions_that_called_each_other() {
    if no_guest_here() {
        return;
    }
    let (dir, path) = toucher();
    let mut c =
        command("record -q --where=stacks --folded a.folded -o a.bifold --format json -m 256 --".split(' '));
    c.arg(&path).current_dir(dir.path());
    let live = ran(c);
    assert_eq!((live.status, &*live.stderr), (0, ""));
    let v: Value = serde_json::from_str(&live.stdout).unwrap();
    let [code, cause, totals] = sums(&v);
    assert_eq!((&code, &cause), (&totals, &totals));
    assert_eq!(v["checks"]["failed"], 0);
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let folded = read("a.folded");
    let line = folded.lines().find(|l| l.contains(";touch_all;anonymous")).expect(&folded);
    let frames: Vec<&str> = line.rsplit_once(' ').unwrap().0.split(';').collect();
    assert_eq!(
        (frames[0], &frames[frames.len() - 3..]),
        ("toucher", &["main", "touch_all", "anonymous"][..]),
        "{line}"
    );
    // The same from the recording, and by code the kernel's function below its caller's.
    let again = bifold_in(dir.path(), "compare -q --where=stacks,code --folded b.folded a.bifold").quietly();
    assert!(again.contains("by the code that ran"), "{again}");
    assert!(
        read("b.folded").contains(";main;touch_all;clear_page_rep_[k];direct map"),
        "{}",
        read("b.folded")
    );
}

#[test]
fn where_is_refused_without_a_guest_that_told() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(bifold_in(dir.path(), "record -q -o t.bifold --generate t:1000").status, 0);
    let text = bifold_in(dir.path(), "compare --where t.bifold").refused();
    let problem = "needs to know who ran, and t.bifold does not say: record with `bifold record --where`";
    assert!(
        text.starts_with(&format!("status 1\nbifold: --where {problem}\n\nUsage: bifold compare ")),
        "{text}"
    );
    let text = bifold("compare --where --generate t:1000").refused();
    assert!(text.starts_with("status 2\n") && text.contains("a generator has no programs"), "{text}");
    let text = bifold("compare --where=nested --generate t:1000").refused();
    assert!(
        text.starts_with("status 2\n") && text.contains("cause, code, stacks or a configuration: native"),
        "{text}"
    );
    let text = bifold("compare --folded x --generate t:1000").refused();
    assert!(text.starts_with("status 2\n") && text.contains("--where"), "{text}");
}
