// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Long programs: regions and samples, of real guests and of generators.

use crate::command::{Ran, bifold, bifold_in, command, ran};
use crate::guest::no_guest_here;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A program that calls `work` 21 times, the eleventh time between its markers. Each call
/// touches 1 MiB of its own and takes about 1.2 million instructions.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include "bifold.h"
__attribute__((noinline)) long work(long n)
{
    volatile char *p = malloc(1 << 20);
    long s = 0;
    for (long i = 0; i < n; i++)
        s += p[i * 4096 & ((1 << 20) - 1)]++;
    return s;
}
int main(void)
{
    long s = 0;
    for (int i = 0; i < 10; i++)
        s += work(250000);
    bifold_begin();
    s += work(250000);
    bifold_end();
    for (int i = 0; i < 10; i++)
        s += work(250000);
    return s == 42;
}
"#;

/// A program that works in three regions, the second longer than the others, with work and markers without
/// effect between them. It ends within the third.
const REGIONS: &str = r#"
#include "bifold.h"
static volatile char memory[1 << 20];
static long work(long n)
{
    long s = 0;
    for (long i = 0; i < n; i++)
        s += memory[i * 4096 & ((1 << 20) - 1)]++;
    return s;
}
int main(void)
{
    long s = work(500000);
    bifold_end();
    bifold_begin();
    s += work(500000);
    bifold_end();
    bifold_end();
    s += work(1000000);
    bifold_begin();
    bifold_begin();
    s += work(1500000);
    bifold_end();
    s += work(500000);
    bifold_begin();
    s += work(500000);
    return s == 42;
}
"#;

fn compiled(dir: &Path) {
    compiled_of(dir, PROGRAM);
}

fn compiled_of(dir: &Path, program: &str) {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
    std::fs::write(dir.join("p.c"), program).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-builtin", "-I", include, "-o", "p", "p.c"]).current_dir(dir);
    assert!(cc.status().unwrap().success());
}

fn guest(dir: &Path, options: &str, program: &str) -> Ran {
    let options = format!("{options} -q -m 256");
    let mut c = command(options.split_whitespace());
    c.args(["--", program]).current_dir(dir);
    ran(c)
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn instructions(v: &Value) -> u64 {
    v["outcome"]["configs"][0]["total"]["instructions"].as_u64().unwrap()
}

#[test]
fn a_region_is_what_lies_between_its_ends() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path());
    let marked = json(&guest(
        dir.path(),
        "record -o m.bifold --vm started --format json --from-marker --regions 1",
        "./p",
    ));
    // One call of `work`, its faults and some timer interrupts: no 21 calls.
    assert!((1_000_000..10_000_000).contains(&instructions(&marked)), "{}", instructions(&marked));
    assert_eq!(marked["exit"]["kind"], "after_region");
    assert_eq!(marked["guest"]["region"], "from bifold_begin() to bifold_end()");
    // Ten calls came before, so the region's VM is warm: it has no more first touches than pages of its own.
    assert!(marked["outcome"]["before_region"].as_u64().unwrap() > 10_000_000);
    let touched = marked["outcome"]["configs"][1]["total"]["frames_backed"].as_u64().unwrap();
    assert!((1..800).contains(&touched), "{touched}");
    assert_eq!(marked["checks"]["failed"], 0);
    assert!(marked["checks"]["made"].as_u64().unwrap() > 0);
    let again = json(&bifold_in(dir.path(), "compare -q --vm started m.bifold --format json"));
    for same in ["outcome", "exit", "checks", "guest"] {
        assert_eq!(marked[same], again[same], "{same}");
    }

    let of = |options: &str| {
        let v = json(&guest(dir.path(), &format!("compare --format json {options}"), "./p"));
        assert_eq!(v["checks"]["failed"], 0, "{options}");
        v
    };
    let function = of("--from-function work --skip 1M --for 2M");
    assert!((2_000_000..2_200_000).contains(&instructions(&function)), "{}", instructions(&function));
    // It begins within the first call, so the others follow: 21 in all.
    let rest = of("--from-function work");
    assert_eq!(rest["exit"]["value"], 0);
    let rest = instructions(&rest);
    assert!((20_000_000..200_000_000).contains(&rest), "{rest}");
    // The same with fast timing, in an initramfs. The slower the machine, the more timer interrupts it has.
    let skipped = instructions(&of("--fast --root initramfs --skip 40M"));
    assert!(skipped + 20_000_000 < rest && skipped > 5_000_000, "{skipped} {rest}");
}

/// Number of every region, its instructions, and those before it.
fn regions(v: &Value) -> Vec<[u64; 3]> {
    let of = |r: &Value| {
        let number = |v: &Value| v.as_u64().unwrap();
        let total = &r["configs"][0]["total"]["instructions"];
        [&r["number"], total, &r["before_instructions"]].map(number)
    };
    v["outcome"]["regions"]["rows"].as_array().map_or(Vec::new(), |rows| rows.iter().map(of).collect())
}

#[test]
fn every_pair_of_markers_is_a_region_and_the_command_ends_only_if_asked() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compiled_of(dir.path(), REGIONS);
    // Exact timing on one vCPU, so that runs are equal.
    let run = |options: &str| {
        let options = format!("{options} -q -m 256 --format json");
        let mut c = command(options.split_whitespace());
        c.args(["--", "./p"]).current_dir(dir.path());
        json(&ran(c))
    };
    let all = run("record -o r.bifold --from-marker --where");
    assert_eq!((&all["exit"]["kind"], &all["exit"]["value"]), (&Value::from("code"), &Value::from(0)));
    assert_eq!(all["guest"]["region"], "each from bifold_begin() to bifold_end()");
    assert_eq!(all["checks"]["failed"], 0);
    let rows = regions(&all);
    let [[1, first, before], [2, second, between], [3, third, _]] = rows[..] else { panic!("{rows:?}") };
    // A pass of the loop has 5 to 12 instructions.
    assert!((2_000_000..10_000_000).contains(&first), "{rows:?}");
    assert!(second > 2 * first && second < 4 * first && third > first / 2 && third < 2 * first, "{rows:?}");
    assert!(before > first / 2 && between > first && between < 3 * first, "{rows:?}");
    assert_eq!(instructions(&all), first + second + third);
    // The first region touches what was touched before it: no page of its own has to be backed again.
    for row in all["outcome"]["regions"]["rows"].as_array().unwrap() {
        assert!(row["configs"][1]["total"]["frames_backed"].as_u64().unwrap() < 300, "{row}");
    }
    // All costs that `--where` charges are of regions.
    let charged: u64 = ["rows", "others"]
        .iter()
        .flat_map(|k| all["where"][k].as_array().cloned().unwrap_or_else(|| vec![all["where"][k].clone()]))
        .map(|row| row["costs"][0]["tlb_misses"].as_u64().unwrap_or(0))
        .sum();
    let total = &all["outcome"]["configs"][0]["total"];
    let misses: u64 =
        ["4k", "2m", "1g"].iter().map(|s| total[format!("tlb_misses_{s}")].as_u64().unwrap()).sum();
    assert_eq!(charged, misses);
    let again = json(&bifold_in(dir.path(), "compare -q r.bifold --format json"));
    for same in ["outcome", "exit", "checks", "guest"] {
        assert_eq!(all[same], again[same], "{same}");
    }
    let table = bifold_in(dir.path(), "compare -q r.bifold").quietly();
    assert!(table.contains("(3 regions; ") && table.contains("\nregion "), "{table}");

    // The same first region, whether the command ends with it or goes on.
    let one = run("record -o one.bifold --from-marker --regions 1 --where");
    assert_eq!(one["exit"]["kind"], "after_region");
    assert!(one["outcome"]["regions"].is_null());
    for (of, alone) in all["outcome"]["regions"]["rows"][0]["configs"]
        .as_array()
        .unwrap()
        .iter()
        .zip(one["outcome"]["configs"].as_array().unwrap())
    {
        assert_eq!((&of["name"], &of["total"]), (&alone["name"], &alone["total"]));
    }
    let two = run("compare --from-marker --regions 2");
    assert_eq!(two["exit"]["kind"], "after_region");
    assert_eq!(two["guest"]["region"], "the first 2 from bifold_begin() to bifold_end()");
    assert_eq!(regions(&two).len(), 2);
    // Every region has its length at most, and the command goes on.
    let short = run("compare --from-marker --for 2M");
    assert_eq!(short["exit"]["kind"], "code");
    let lengths: Vec<u64> = regions(&short).iter().map(|r| r[1]).collect();
    assert!(lengths.len() == 3 && lengths.iter().all(|n| (2_000_000..2_010_000).contains(n)), "{lengths:?}");

    let refused = bifold_in(dir.path(), "compare -q r.bifold --sample").refused();
    assert!(refused.contains("--sample is for one region, and this recording may have several"), "{refused}");
}

#[test]
fn a_command_ends_at_the_wanted_accuracy() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Ends by itself after hours only, and at the time limit with another kind of exit.
    let options = "record -o u.bifold -q --format json -m 256 --sample=20k:400k --until 80% --configs nested-4k --timeout 400";
    let mut c = command(options.split_whitespace());
    c.args(["--", "sh", "-c", "while :; do /bin/true; done"]).current_dir(dir.path());
    let live = json(&ran(c));
    assert_eq!(live["exit"]["kind"], "accurate_enough");
    assert!(live["outcome"]["sampling"]["windows"].as_u64().unwrap() >= 30);
    let of = &live["outcome"]["configs"][0];
    let half = of["estimate"]["half_width_cycles"].as_f64().unwrap();
    let total = &of["total"];
    let extra: f64 = ["walk_cycles", "vmm_cycles"].iter().map(|k| total[k].as_f64().unwrap()).sum();
    // Some windows more came before the command had ended.
    assert!(half < 1.2 * extra, "{half} {extra}");
    let again = json(&bifold_in(dir.path(), "compare -q u.bifold --format json --configs nested-4k"));
    for same in ["outcome", "exit"] {
        assert_eq!(live[same], again[same], "{same}");
    }
    let e = bifold_in(dir.path(), "compare --until 5% -- true").refused();
    assert!(e.contains("--sample"), "{e}");
    let e = bifold_in(dir.path(), "compare --generate t:10 --sample=10k:1M --until 5%").refused();
    assert!(e.contains("--until"), "{e}");
}

#[test]
fn a_region_that_is_never_reached_is_an_error_that_says_why() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path());
    for (options, program, why) in [
        ("--skip 900G", "./p", "and the first 900000000000 are skipped"),
        ("--from-marker", "true", "never executed the marker bifold_begin()"),
        ("--from-function wurk", "./p", "cannot begin at function wurk"),
    ] {
        let text = guest(dir.path(), &format!("compare {options}"), program).refused();
        assert!(text.starts_with("status 125\nbifold: ") && text.contains(why), "{text}");
    }
}

#[test]
fn a_sampled_guest_is_checked_and_replays_to_the_same_figures() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path());
    let live = json(&guest(
        dir.path(),
        "record -o s.bifold --fast --root initramfs --format json --sample=200k:5M",
        "./p",
    ));
    assert_eq!(live["exit"]["value"], 0);
    assert_eq!(live["checks"]["failed"], 0);
    let sampling = &live["outcome"]["sampling"];
    assert!(sampling["windows"].as_u64().unwrap() > 15, "{sampling}");
    assert!(sampling["other_instructions"].as_u64().unwrap() > 50_000_000, "{sampling}");
    for c in live["outcome"]["configs"].as_array().unwrap() {
        assert!(c["estimate"]["half_width_cycles"].as_f64().unwrap() >= 0.0, "{c}");
        // Every call of `work` faults on its own memory, in gaps as elsewhere.
        assert!(c["total"]["guest_page_faults"].as_u64().unwrap() >= 21 * 256);
    }
    assert!(live["no_policies"].as_str().unwrap().contains("a sampled run has none"));
    let again = json(&bifold_in(dir.path(), "compare -q s.bifold --format json"));
    for same in ["outcome", "exit", "checks", "guest"] {
        assert_eq!(live[same], again[same], "{same}");
    }
    let refused = bifold_in(dir.path(), "compare -q s.bifold --sample").refused();
    assert!(refused.contains("of a sampled run already"), "{refused}");
    let refused = bifold_in(dir.path(), "compare -q s.bifold --timeline t").refused();
    assert!(refused.contains("--timeline needs a timeline, and a sampled run has none"), "{refused}");
}

#[test]
fn a_generator_s_sample_shows_each_overhead_with_its_interval() {
    insta::assert_snapshot!(bifold("compare -q --generate fork-storm:60 --sample=50k:500k").quietly());
}

#[test]
fn a_recorded_sample_of_a_generator_replays() {
    let dir = tempfile::tempdir().unwrap();
    let options = "record -q -o g.bifold --generate t:2m --sample=20k:200k --format json";
    let live = json(&bifold_in(dir.path(), options));
    let again = json(&bifold_in(dir.path(), "compare -q g.bifold --format json"));
    assert_eq!(live["outcome"], again["outcome"]);
    assert!(live["outcome"]["sampling"]["windows"].as_u64().unwrap() > 5);
}

#[test]
fn regions_are_for_guests_and_windows_fit_their_periods() {
    for (options, message) in [
        ("compare --generate t:1k --skip 1M", "--skip is about a guest"),
        ("compare --generate t:1k --for 1s", "--for is about a guest"),
        ("compare --sample=1M:2M -- true", "8 times as long as a window"),
        ("compare --skip 5x -- true", "not a number of instructions or seconds"),
        ("compare --from-marker --from-function main -- true", "cannot be used with"),
        ("compare --regions 2 -- true", "--from-marker"),
        ("compare --from-marker --regions 0 -- true", "0 is not in"),
        ("compare --generate t:1k --from-marker", "--from-marker is about a guest"),
        (
            "compare --from-marker --sample -- true",
            "--sample is for one region, and --from-marker records all",
        ),
        ("compare --from-marker --regions 2 --skip 5M -- true", "--skip is for one region"),
        ("compare --sample --check dsp -- true", "--check needs a timeline"),
    ] {
        let text = bifold(options).refused();
        assert!(text.starts_with("status 2\n") && text.contains(message), "{options}: {text}");
    }
}
