// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold ci`: programs in guests beside their baselines.

use crate::command::{bifold_in, command, ran};
use crate::guest::no_guest_here;
use serde_json::Value;
use std::path::Path;

const LIST: &str = "\
options = ['--configs', 'nested-4k,shadow-4k', '--root', 'host']

[programs.loop]
run = ['sh', 'loop.sh']
worse_than_percent = 1.0

[programs.none]
run = ['true']
";

fn write_loop(dir: &Path, times: u32) {
    let script = format!("i=0; while [ $i -lt {times} ]; do /bin/true; i=$((i+1)); done\n");
    std::fs::write(dir.join("loop.sh"), script).unwrap();
}

#[test]
fn a_program_that_grew_fails_the_job_and_one_that_cannot_be_compared_too() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |args: &str| bifold_in(dir.path(), &format!("ci -q {args}"));
    std::fs::write(dir.path().join("bifold-ci.toml"), LIST).unwrap();
    write_loop(dir.path(), 60);
    let saved = of("--save --only loop").quietly();
    assert!(saved.contains("loop       saved"), "{saved}");
    assert!(saved.starts_with("VM       long-lived\nprofile  i5-7600 (kvm linux-6.1)\n"), "{saved}");
    // The same in another environment, which the program does not see.
    let mut again = command("ci -q --only loop --format json".split(' '));
    again.current_dir(dir.path()).env("BESIDE", "x".repeat(5000));
    let v: Value = serde_json::from_str(&ran(again).quietly()).unwrap();
    let program = &v["programs"][0];
    assert_eq!((&v["schema"], &program["result"]), (&"bifold.ci/1".into(), &"same".into()), "{v}");
    assert_eq!(program["baseline"]["worse_than_percent"], 1.0);

    write_loop(dir.path(), 63);
    let worse = of("--only loop --junit a.xml --markdown a.md");
    assert_eq!((worse.status, worse.stderr.as_str()), (4, ""), "{}", worse.stdout);
    assert!(worse.stdout.contains("WORSE: ") && worse.stdout.contains("page faults"), "{}", worse.stdout);
    let xml = std::fs::read_to_string(dir.path().join("a.xml")).unwrap();
    assert!(xml.contains("<testsuite name=\"bifold\" tests=\"1\" failures=\"1\" errors=\"0\""), "{xml}");
    assert!(xml.contains("<failure message=\"WORSE: "), "{xml}");
    let summary = std::fs::read_to_string(dir.path().join("a.md")).unwrap();
    assert!(
        summary.starts_with("## Bifold\n\nVM: long-lived\n\nprofile: i5-7600 (kvm linux-6.1)\n\n| program |")
            && summary.contains("| loop | WORSE |"),
        "{summary}"
    );

    let without = of("--jobs 2");
    assert_eq!(without.status, 1, "{}", without.stdout);
    assert!(
        without.stdout.contains("bifold-baselines/none.json: `bifold ci --save` writes it"),
        "{}",
        without.stdout
    );
    std::fs::write(dir.path().join("loop.sh"), "exit 3\n").unwrap();
    let baseline = || std::fs::read(dir.path().join("bifold-baselines/loop.json")).unwrap();
    let (before, saved) = (baseline(), of("--save --only loop"));
    assert_eq!((saved.status, baseline() == before), (1, true), "a good baseline stays: {}", saved.stdout);
    let failed = of("--only loop");
    assert_eq!(failed.status, 1);
    assert!(failed.stdout.contains("\nFAILED   loop\n"), "{}", failed.stdout);
    assert!(failed.stdout.contains("the command failed: exit status 3"), "{}", failed.stdout);
}
