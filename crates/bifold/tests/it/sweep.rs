// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold sweep`: tasks of several workers, and what becomes of them.

use crate::command::{Ran, bifold_in, command, ran, version};
use crate::export::csv;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SPEC: &str = "\
options = ['--configs', 'nested-4k,shadow-4k']

[programs.chase]
generate = 'pointer-chase:2000'

[programs.table]
generate = 'gups:2000'
axes = ['seed', 'profile']

[axes]
seed = [1, 2, 3]
profile = ['epyc-zen5-guest', 'i5-7600']

[axes.cpi]
fast = ['--set', 'cpu.base_cpi=0.5']
slow = ['--set=cpu.base_cpi=2.0']
";
/// 3 seeds, 2 profiles, and for one program 2 speeds.
const TASKS: usize = 3 * 2 * 2 + 3 * 2;

fn at(dir: &Path, args: &str) -> Ran {
    bifold_in(dir, &format!("sweep {args}"))
}

fn new(dir: &Path, spec: &str) {
    std::fs::write(dir.join("sweep.toml"), spec).unwrap();
    assert_eq!(at(dir, "new -q sweep.toml runs").quietly(), format!("{TASKS}\n"));
}

fn status(dir: &Path) -> Value {
    serde_json::from_str(&at(dir, "status --format json runs").quietly()).unwrap()
}

/// The merged tables, whose bytes do not depend on who ran what.
fn merged(dir: &Path) -> [Vec<u8>; 3] {
    ["r.parquet", "r.arrow", "r.csv"].map(|file| {
        at(dir, &format!("merge -q -o {file} runs")).quietly();
        std::fs::read(dir.join(file)).unwrap()
    })
}

#[test]
fn every_combination_has_its_rows_and_a_report_compares_values() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    new(dir, SPEC);
    let listed = at(dir, "tasks runs").quietly();
    assert!(listed.starts_with("0000 chase cpi=fast profile=epyc-zen5-guest seed=1\n"), "{listed}");
    assert!(listed.ends_with("0017 table profile=i5-7600 seed=3\n"), "{listed}");
    let early = at(dir, "merge -o r.csv runs");
    assert_eq!((early.status, dir.join("r.csv").exists()), (1, false));
    assert!(early.stderr.contains("18 of 18 tasks have no result"), "{}", early.stderr);
    assert!(at(dir, "report runs").stderr.contains("no task of runs has a result"));

    at(dir, "run -q --task 3,17 runs").quietly();
    assert_eq!(status(dir)["done"], 2);
    at(dir, "merge -q --partial -o p.csv runs").quietly();
    assert_eq!(csv(&dir.join("p.csv")).len(), 2 * 2);
    at(dir, "run -q -j2 runs").quietly();
    let v = status(dir);
    assert_eq!(
        (&v["done"], &v["failed"], &v["left"], &v["running"]),
        (&TASKS.into(), &0.into(), &0.into(), &0.into())
    );
    assert_eq!(at(dir, "tasks --left runs").quietly(), "");
    merged(dir);
    let rows = csv(&dir.join("r.csv"));
    assert_eq!(rows.len(), TASKS * 2);
    // A row is what `compare` says of the same options.
    let alone = "compare -q --format json --configs nested-4k,shadow-4k --profile=i5-7600 --seed=2 --generate=gups:2000";
    let v: Value = serde_json::from_str(&bifold_in(dir, alone).quietly()).unwrap();
    let found = rows.iter().find(|r| r["task"] == "16" && r["config"] == "shadow-4k").unwrap();
    assert_eq!(
        (found["axis_profile"].as_str(), found["axis_seed"].as_str(), found["axis_cpi"].as_str()),
        ("i5-7600", "2", "")
    );
    let total = v["outcome"]["configs"][1]["total"].as_object().unwrap();
    assert!(total.iter().all(|(name, n)| n.as_u64() == found[name].parse().ok()), "{found:?}");
    at(dir, "merge -q --table tasks -o t.csv runs").quietly();
    assert!(csv(&dir.join("t.csv")).iter().all(|r| r["seconds"].parse::<f64>().unwrap() > 0.0));

    let report = at(dir, "report -q --report r.html runs").quietly();
    assert!(
        report.contains("cpi: fast -> slow") && report.contains("profile: epyc-zen5-guest -> i5-7600"),
        "{report}"
    );
    // A slower core takes more time, though its overhead is a smaller percentage; nothing says that less is
    // cheaper.
    let slower = report.split("cpi: fast -> slow").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<&str> =
        slower.lines().filter(|l| l.contains("nested-4k") || l.contains("shadow-4k")).collect();
    assert!(!rows.is_empty() && rows.iter().all(|l| l.contains(" +")), "{slower}");
    assert!(report.contains("-20 is 20 % less time") && !report.contains("cheaper"), "{report}");
    let html = std::fs::read_to_string(dir.join("r.html")).unwrap();
    assert!(html.contains("predicted time of each combination") && html.contains("18 of 18 tasks"));
}

#[test]
fn workers_that_are_killed_lose_no_task_and_count_none_twice() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    new(dir, &SPEC.replace(":2000", ":60000"));
    let worker = || {
        let mut c = command("sweep run -q runs".split(' '));
        c.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut killed = 0;
    // A worker that gets no task done before it is killed would make this endless.
    for round in 0..400 {
        let (mut a, mut b) = (worker(), worker());
        std::thread::sleep(Duration::from_millis(20 + 15 * round));
        killed += usize::from(a.try_wait().unwrap().is_none());
        a.kill().unwrap();
        a.wait().unwrap();
        b.wait().unwrap();
        if status(dir)["done"] == TASKS {
            break;
        }
    }
    assert!(killed > 0, "no worker was killed at work");
    let v = status(dir);
    assert_eq!((&v["done"], &v["failed"], &v["running"]), (&TASKS.into(), &0.into(), &0.into()), "{v}");
    let broken = merged(dir);
    std::fs::remove_dir_all(dir.join("runs")).unwrap();
    assert_eq!(at(dir, "new -q sweep.toml runs").quietly(), format!("{TASKS}\n"));
    at(dir, "run -q runs").quietly();
    assert!(broken == merged(dir), "the tables of killed workers are those of one that ran through");
}

#[test]
fn sweeps_that_changed_and_results_of_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    new(dir, SPEC);
    at(dir, "run -q --task 0 runs").quietly();
    // The same again changes nothing, another plan is refused.
    new(dir, SPEC);
    assert_eq!(status(dir)["done"], 1);
    std::fs::write(dir.join("sweep.toml"), SPEC.replace("[1, 2, 3]", "[1, 2]")).unwrap();
    let other = at(dir, "new sweep.toml runs");
    assert_eq!((other.status, other.stdout.as_str()), (1, ""));
    assert!(
        other.stderr.contains("has the plan of another sweep, of 18 tasks, and this one has 12"),
        "{}",
        other.stderr
    );
    // A result under another number, or of another sweep.
    let results = dir.join("runs/results");
    std::fs::copy(results.join("0000.json"), results.join("0005.json")).unwrap();
    let moved = at(dir, "merge --partial -o r.csv runs");
    assert!(moved.stderr.contains("0005.json: is the result of task 0"), "{}", moved.stderr);
    std::fs::remove_file(results.join("0005.json")).unwrap();
    let whole = std::fs::read(results.join("0000.json")).unwrap();
    std::fs::write(results.join("0000.json"), &whole[..whole.len() - 40]).unwrap();
    let cut = at(dir, "merge --partial -o r.csv runs");
    assert!(
        cut.stderr.contains("results/0000.json is no") && cut.stderr.contains("run the task again"),
        "{}",
        cut.stderr
    );
    assert!(!dir.join("r.csv").exists());
    // Another version.
    let plan = std::fs::read_to_string(dir.join("runs/sweep.json")).unwrap();
    let version = format!("\"bifold\":\"{}\"", version());
    std::fs::write(dir.join("runs/sweep.json"), plan.replace(&version, "\"bifold\":\"0.0.1\"")).unwrap();
    let version = at(dir, "run runs");
    assert!(version.stderr.contains("was planned by Bifold 0.0.1, and this is"), "{}", version.stderr);
    std::fs::write(dir.join("runs/sweep.json"), "{").unwrap();
    assert!(at(dir, "status runs").stderr.contains("sweep.json is damaged"));
    assert!(at(dir, "status none").stderr.contains("`bifold sweep new SPEC.toml FOLDER` makes one"));
}

#[test]
fn options_that_compare_does_not_take_are_refused_before_a_task_runs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (from, to, says) in [
        ("seed = [1", "sead = [1", "does not take the task's options"),
        ("generate = 'gups", "generate = 'gups", ""),
        ("'nested-4k,shadow-4k'", "'nested-4k', '--runs=3'", "which a task cannot have"),
        ("generate = 'gups:2000'", "", "needs one of run, recording and generate"),
        ("'i5-7600'", "'no-such-profile'", "no-such-profile: neither a built-in profile"),
    ] {
        // The name of an axis stands in its program's list as well.
        let axis = if to.contains("sead") { "'sead'" } else { "'seed'" };
        let spec = SPEC.replace(from, to).replace("'seed'", axis);
        std::fs::write(dir.join("sweep.toml"), spec).unwrap();
        let tried = at(dir, "new -q sweep.toml runs");
        assert_eq!(tried.status == 0, says.is_empty(), "{to}: {}", tried.stderr);
        assert!(tried.stderr.contains(says), "{to}: {}", tried.stderr);
        if to.contains("sead") {
            assert!(tried.status == 2 && tried.stderr.contains("sweep.toml: task "), "{}", tried.stderr);
        }
    }
    let restored = "options = ['--configs', 'nested-2m', '--set', 'cpu.base_cpi=1.0']\n\
                    [programs.a]\ngenerate = 't'\n[axes]\nvm = ['started', 'restored']\n";
    std::fs::write(dir.join("sweep.toml"), restored).unwrap();
    let refused = at(dir, "new -q sweep.toml restored").refused();
    assert!(refused.starts_with("status 2\n") && refused.contains("has 4 KB host pages only"), "{refused}");
    std::fs::write(dir.join("sweep.toml"), format!("repeats = ['none']\n{SPEC}")).unwrap();
    assert_eq!(at(dir, "new -q sweep.toml runs").status, 2);
    // A task whose values only the run can judge fails, says why, and does not stop the others.
    std::fs::write(dir.join("sweep.toml"), SPEC.replace("base_cpi=2.0", "base_cpi=-2.0")).unwrap();
    at(dir, "new -q sweep.toml failing").quietly();
    let failed = at(dir, "run -q failing");
    assert_eq!(failed.status, 1, "{}", failed.stderr);
    let v: Value = serde_json::from_str(&at(dir, "status --format json failing").quietly()).unwrap();
    assert_eq!((&v["done"], &v["failed"]), (&12.into(), &6.into()), "{v}");
    assert!(v["failures"][0]["why"].as_str().unwrap().contains("cpu.base_cpi"), "{v}");
    assert!(at(dir, "run --task 99 failing").stderr.contains("has no task 99: tasks are 0 to 17"));
}

#[test]
fn a_full_disk_stops_a_worker_and_loses_no_result() {
    let dir = tempfile::tempdir().unwrap();
    new(dir.path(), SPEC);
    // A file system of 600 KB in a mount namespace of the shell's own, which needs root.
    let script = "mkdir small && mount -t tmpfs -o size=600k none small && cp -r runs small && \
         { $BIFOLD sweep run -q small/runs; echo $? > status; cp -r small/runs/. after; }";
    let mut c = Command::new("unshare");
    c.args(["--mount", "sh", "-c", script])
        .current_dir(dir.path())
        .env("BIFOLD", env!("CARGO_BIN_EXE_bifold"));
    let ran = c.output();
    let Ok(status) = std::fs::read_to_string(dir.path().join("status")) else {
        eprintln!("skipped: no file system can be mounted here: {ran:?}");
        return;
    };
    let stderr = String::from_utf8(ran.unwrap().stderr).unwrap();
    assert_eq!(status, "1\n", "{stderr}");
    assert!(stderr.contains("cannot write") && stderr.contains("No space left on device"), "{stderr}");
    // What was kept is whole, and the others are still to be run.
    std::fs::rename(dir.path().join("runs"), dir.path().join("before")).unwrap();
    std::fs::rename(dir.path().join("after"), dir.path().join("runs")).unwrap();
    let v = self::status(dir.path());
    assert!(v["done"].as_u64().unwrap() > 0 && v["left"].as_u64().unwrap() > 0, "{v}");
    at(dir.path(), "run -q runs").quietly();
    merged(dir.path());
}

#[test]
fn fingerprints_of_a_fleet_give_the_figures_of_the_images() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    crate::share::guests(dir);
    let spec = "[fingerprints]\nimages = ['a', 'web=b']\nkey = 'key'\nparts = 5\n";
    std::fs::write(dir.join("fleet.toml"), spec).unwrap();
    assert_eq!(at(dir, "new -q fleet.toml runs").quietly(), "7\n");
    assert!(at(dir, "tasks runs").quietly().ends_with(
        "0001 web\n0002 count part=0\n0003 count part=1\n\
        0004 count part=2\n0005 count part=3\n0006 count part=4\n"
    ));
    let early = at(dir, "run -q --task 4 runs");
    assert_eq!(early.status, 1);
    assert!(early.stderr.contains("reads the result of task 0000 a, which has none: run that one first"));
    // Workers that make the key, and wait for each other's fingerprints.
    let worker = || {
        let mut c = command("sweep run --jobs 2 runs".split(' '));
        c.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for worker in [worker(), worker()] {
        let ran = worker.wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    assert_eq!(status(dir)["done"], 7);
    let results: String = (2..7).map(|n| format!(" runs/results/{n:04}.json")).collect();
    let merged = bifold_in(dir, &format!("share merge --format csv{results}")).quietly();
    assert_eq!(merged, bifold_in(dir, "share potential a web=b --format csv").quietly());
    for verb in ["merge -o r.csv", "report"] {
        let refused = at(dir, &format!("{verb} runs"));
        assert!(
            refused.stderr.contains("`bifold share merge runs/results/*.json` adds the counts"),
            "{verb}"
        );
    }
    // What cannot be read fails once, and the counts that need it do not run.
    std::fs::write(dir.join("fleet.toml"), spec.replace("web=b", "web=missing")).unwrap();
    at(dir, "new -q fleet.toml failing").quietly();
    let failed = at(dir, "run --jobs 2 failing");
    assert_eq!(failed.status, 1);
    assert!(
        failed.stderr.contains("1 of 7 tasks have results, 1 failed, 5 read what failed"),
        "{}",
        failed.stderr
    );
    std::fs::copy(dir.join("b"), dir.join("missing")).unwrap();
    let tasks = (0..7).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    at(dir, &format!("run -q --jobs 3 --task {tasks} failing")).quietly();
}

#[test]
fn a_sweep_has_the_profiles_of_the_machine_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let own = bifold_in(dir, "profile show geometry-g").quietly().replacen("\"geometry-g\"", "\"mine\"", 1);
    std::fs::write(dir.join("mine.toml"), &own).unwrap();
    let spec = "[programs.named]\ngenerate = 't:1000'\noptions = ['--profile', 'mine.toml', '--set', 'cpu.base_cpi=1.0']\n\
                [programs.unnamed]\ngenerate = 't:1000'\n";
    std::fs::write(dir.join("sweep.toml"), spec).unwrap();
    let mut of_machine = command("sweep new sweep.toml other".split(' '));
    of_machine.current_dir(dir).env_remove("BIFOLD_PROFILE");
    let made = ran(of_machine);
    let says = "tasks that name no --profile have this machine's on every machine: ";
    assert!(made.stderr.contains(says), "{}", made.stderr);
    at(dir, "new -q sweep.toml runs").quietly();
    // Another machine has another file of the name, or none, and another default.
    std::fs::write(dir.join("mine.toml"), own.replacen("entries = 1536", "entries = 24", 1)).unwrap();
    let elsewhere = |args: &str| {
        let mut c = command(args.split(' '));
        c.current_dir(dir).env("BIFOLD_PROFILE", "zen4");
        ran(c)
    };
    let run = elsewhere("sweep run runs");
    let says = "BIFOLD_PROFILE names zen4, and the sweep's tasks have profiles of its plan: i5-7600, mine";
    assert!(run.status == 0 && run.stderr.contains(says), "{}", run.stderr);
    at(dir, "merge -q -o r.csv runs").quietly();
    let rows = csv(&dir.join("r.csv"));
    std::fs::write(dir.join("mine.toml"), &own).unwrap();
    for (task, options) in [("0", "--profile mine.toml --set cpu.base_cpi=1.0"), ("1", "--profile i5-7600")] {
        let alone =
            bifold_in(dir, &format!("compare -q --generate t:1000 --format json {options}")).quietly();
        let alone: Value = serde_json::from_str(&alone).unwrap();
        let row = rows.iter().find(|r| r["task"] == task).unwrap();
        assert_eq!(alone["outcome"]["config_hash"], row["config_hash"].as_str(), "{options}");
    }
    // The same description on another machine is another plan.
    let again = elsewhere("sweep new -q sweep.toml runs");
    assert!(again.status == 1 && again.stderr.contains("hardware profiles"), "{}", again.stderr);
}
