// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `noise`: recordings here and in a guest, and their simulation.

use crate::command::{bifold, bifold_in, command, names, ran};
use crate::guest::{guest, no_guest_here};
use crate::stopping::interrupt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

fn simulated(dir: &Path, args: &str) -> serde_json::Value {
    let text = bifold_in(dir, &format!("noise simulate --format json {args}")).quietly();
    serde_json::from_str(&text).unwrap()
}

/// Time counts instructions there, so that only the guest's own kernel interrupts it: Debian's ticks 250
/// times a second.
#[test]
fn the_ticks_of_a_guest_are_recorded_and_attributed() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tracefs none /sys/kernel/tracing
         ({0} noise record -q --time 100 & sleep 0.5; kill -9 $!; wait $!) 2> /dev/null
         ls /sys/kernel/tracing/instances | grep -c '^bifold-' || exit 1
         {0} noise record -q --time 0.4 -o /tmp/noise && \
         cat /tmp/noise/cpu0.noise && ls /sys/kernel/tracing/instances && echo end",
        env!("CARGO_BIN_EXE_bifold")
    );
    let done = guest(dir.path(), "record -q -o a.bifold --format json", &script);
    assert_eq!(done.status, 0, "{}", done.stderr);
    let file: Vec<&str> = done.stderr.lines().skip_while(|l| !l.starts_with("# bifold noise")).collect();
    assert_eq!(file.last(), Some(&"end"), "no instance is left, of the killed one neither: {}", done.stderr);
    std::fs::write(dir.path().join("guest.noise"), file[..file.len() - 1].join("\n")).unwrap();
    let ticks: Vec<f64> = file
        .iter()
        .filter(|l| l.ends_with("\tirq:local_timer"))
        .map(|l| l.split('\t').next().unwrap().parse().unwrap())
        .collect();
    assert!((98..=101).contains(&ticks.len()), "{}", done.stderr);
    // The command's parent has a real-time class, whose bandwidth the kernel refreshes by one timer interrupt
    // between two ticks.
    let odd = ticks.windows(2).filter(|pair| (pair[1] - pair[0] - 4e6).abs() >= 5e4).count();
    assert!(odd <= 2, "{ticks:?}");
    let found = simulated(dir.path(), "guest.noise --sources --ranks 64 --grain 1ms");
    let row = &found["rows"][0];
    assert!(row["slowdown"].as_f64().unwrap() > 1.0, "{row}");
    let sources: Vec<&str> =
        row["sources"].as_array().unwrap().iter().map(|s| s["source"].as_str().unwrap()).collect();
    assert!(sources.contains(&"irq:local_timer"), "{sources:?}");
}

#[test]
fn ctrl_c_ends_a_recording_with_whole_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut c =
        command(["noise", "record", "--no-sources", "--time", "1000", "--threshold", "10us", "-o", "noise"]);
    c.current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = c.spawn().unwrap();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(50));
        if dir.path().join("noise").exists() {
            break;
        }
    }
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let files = names(&dir.path().join("noise"));
    assert!(!files.is_empty() && files.iter().all(|f| f.ends_with(".noise")), "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(dir.path().join("noise").join(file)).unwrap();
        assert!(text.contains("\n# duration_ns: ") && text.ends_with('\n'), "{text}");
    }
}

#[test]
fn rows_and_files_of_a_recording_agree() {
    let dir = tempfile::tempdir().unwrap();
    let mut c =
        command(["noise", "record", "-q", "--no-sources", "--time", "0.3", "-o", "noise", "--format", "csv"]);
    c.current_dir(dir.path());
    let csv = ran(c).quietly();
    assert!(csv.starts_with("cpu,start_ns,length_ns,source\n"), "{csv}");
    let mut lines = 0;
    for file in names(&dir.path().join("noise")) {
        let text = std::fs::read_to_string(dir.path().join("noise").join(file)).unwrap();
        lines += text.lines().filter(|l| !l.starts_with('#')).count();
    }
    assert_eq!(csv.lines().count() - 1, lines);
}

#[test]
fn wrong_files_are_refused_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    for (text, problem) in [
        ("# x\n10 5\n3 1\n", "line 3: start 3 comes before that of the line above, 10: sort the file"),
        ("10 5\n12 1\n", "line 2: the interruption starts at 12, before that of the line above ends, at 15"),
        ("10 -5\n", "line 1: the length -5 is not from 0 to 1e15 ns"),
        ("10 NaN\n", "line 1: the length NaN is not from 0 to 1e15 ns"),
        ("", "the file has no interruption"),
        ("0 1000000\n", "interruptions take 100 % of the time"),
        ("\u{1b}[2J\n", "line 1: \"\\u{1b}[2J\" is no start and length"),
    ] {
        std::fs::write(dir.path().join("bad.noise"), text).unwrap();
        let refused = bifold_in(dir.path(), "noise simulate bad.noise --ranks 4").refused();
        assert!(refused.starts_with("status 1\nbifold: cannot use noise file bad.noise: "), "{refused}");
        assert!(refused.contains(problem), "{refused}");
    }
    for args in [
        "--ranks 2^21",
        "--grain -1",
        "--noise periodic:1ms:2ms",
        "--with-exits 1us",
        "--sources",
        "--collective x",
    ] {
        assert!(
            bifold(&format!("noise simulate {args}")).refused().starts_with("status 2\nerror: "),
            "{args}"
        );
    }
    assert!(bifold("noise record -C 1000").refused().contains("may not run on CPU 1000"));
    assert!(bifold("noise record -C x").refused().starts_with("status 2"));
}

/// A minute on one CPU: a timer of 5 us every 4 ms, and a backup of 20 ms every 5 s.
fn a_minute() -> String {
    let mut text = String::new();
    for tick in 0..15_000_u64 {
        let (at, in_period) = (tick * 4_000_000, tick % 1250);
        if !(601..=605).contains(&in_period) {
            text += &format!("{at}\t5000\tirq:timer\n");
        }
        if in_period == 600 {
            text += &format!("{}\t20000000\tthread:backup\n", at + 1_000_000);
        }
    }
    text + "# duration_ns: 60000000000\n"
}

#[test]
fn a_run_sees_enough_of_its_noise_or_says_that_it_does_not() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.noise"), a_minute()).unwrap();
    let found = simulated(dir.path(), "a.noise --sources --ranks 16 --grain 100us -q");
    let row = &found["rows"][0];
    assert!(row["rounds"].as_f64() >= row["enough_rounds"].as_f64(), "{row}");
    let first = &row["sources"][0];
    assert_eq!(first["source"], "thread:backup", "{row}");
    assert!(first["gain"].as_f64().unwrap() > 0.03, "{row}");
    // Too few steps are what was asked for. Nothing is said of the source that did not come.
    let short =
        bifold_in(dir.path(), "noise simulate a.noise --sources --ranks 16 --grain 100us --steps 100");
    assert!(
        short.stderr.contains("100 steps see 0.00") && short.stderr.contains("10 would be"),
        "{}",
        short.stderr
    );
    let last = short.stdout.lines().last().unwrap();
    assert!(last.starts_with("thread:backup") && last.ends_with("not sampled"), "{}", short.stdout);
}

#[test]
fn coscheduled_ranks_share_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    for (name, at) in [("a", 0), ("b", 5_000_000)] {
        let text = format!("{at}\t1000000\n# duration_ns: 10000000\n");
        std::fs::write(dir.path().join(format!("{name}.noise")), text).unwrap();
    }
    let found = simulated(dir.path(), "a.noise b.noise --coscheduled --ranks 16 --grain 1ms --steps 1000");
    let rows = found["rows"].as_array().unwrap();
    assert_eq!([&rows[0]["noise"], &rows[1]["noise"]], ["a.noise", "b.noise"]);
    for row in rows {
        assert!((row["slowdown"].as_f64().unwrap() - 1.111).abs() < 0.003, "{row}");
    }
}

#[test]
fn the_share_of_noise_by_steps_is_that_of_each_grain() {
    let shown = bifold("noise simulate -q --noise bernoulli:0.5:1ms --grain 100us,10ms --ranks 4").quietly();
    assert!(
        shown.contains("4.762 % with grain 10.00 ms.")
            && shown.contains("83.333 % of the time of a rank alone with grain"),
        "{shown}"
    );
}

#[test]
fn names_from_outside_are_escaped_in_errors() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = command(["noise", "simulate", "a\u{1b}[2Jb"]);
    c.current_dir(dir.path());
    let refused = ran(c).refused();
    assert!(
        refused.contains("cannot use noise file a\\u{1b}[2Jb") && !refused.contains('\u{1b}'),
        "{refused}"
    );
    for bad in ["periodic:1\u{1b}[2J:1us", "\u{1b}[2J"] {
        let refused = ran(command(["noise", "simulate", "--noise", bad])).refused();
        assert!(refused.starts_with("status 2") && !refused.contains('\u{1b}'), "{refused:?}");
    }
}

#[test]
fn a_recording_that_cannot_be_written_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let record = |time: &str| {
        let mut c = command([
            "noise",
            "record",
            "--no-sources",
            "--threshold",
            "10us",
            "--time",
            time,
            "-o",
            "noise",
        ]);
        c.current_dir(dir.path());
        ran(c)
    };
    assert_eq!(record("0.1").status, 0);
    let first = names(&dir.path().join("noise"));
    let stale = "cpu99999.noise";
    std::fs::write(dir.path().join("noise").join(stale), "1 1\n").unwrap();
    let again = record("0.1");
    assert!(
        again.stderr.contains(stale) && again.stderr.contains("of another recording"),
        "{}",
        again.stderr
    );
    let one = dir.path().join("noise").join(&first[0]);
    std::fs::remove_file(&one).unwrap();
    std::fs::create_dir(&one).unwrap();
    let begin = std::time::Instant::now();
    let refused = record("100").refused();
    assert!(refused.starts_with("status 1") && refused.contains(&first[0]), "{refused}");
    assert!(begin.elapsed() < Duration::from_secs(60), "nothing was recorded");
}

#[test]
fn a_recording_without_interruptions_has_no_share_and_no_table_of_sources() {
    let record = |format: &str| {
        let all = [
            "noise",
            "record",
            "-q",
            "--no-sources",
            "--time",
            "0.05",
            "--threshold",
            "1000s",
            "--format",
            format,
        ];
        ran(command(all)).quietly()
    };
    let table = record("table");
    assert!(table.contains(" 0.0000 ") && !table.contains("-0.0000"), "{table}");
    assert!(
        table.contains("No interruption was longer than the threshold.") && !table.contains("source"),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&record("json")).unwrap();
    assert!(json["cpus"][0]["share"].as_f64().unwrap().is_sign_positive(), "{json}");
}

#[test]
fn a_million_ranks_are_as_slow_as_the_closed_form_says() {
    let found = simulated(
        Path::new("."),
        "--noise bernoulli:1e-6:1us --grain 5us --ranks 2^20 --collective ideal --steps 400",
    );
    let step = found["rows"][0]["step_ns"].as_f64().unwrap();
    assert!((step / 5649.6 - 1.0).abs() < 0.01, "{step}");
}
