// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words and files that are wrong: one clear message, the right status, nothing left behind.

use crate::command::{bifold, bifold_in, names};

#[test]
fn usage_errors() {
    let cases = [
        "compare",
        "record -o /tmp/never",
        "frobnicate",
        "compare --generate t:10 -- true",
        "compare --generate t:10 /dev/null",
        "compare --generate t:10 --fast",
        "compare --generate tt:10",
        "compare --generate t:zero",
        "compare --generate t:10 --configs native,agile",
        "compare --generate t:10 --format xml",
        "compare --generate t:10 -i 0",
        "compare --generate t:10 -o /tmp/never --report /tmp/never",
        "compare --vcpus 3 -- true",
        "compare -m 2T -- true",
        "compare --include /etc -- true",
        "compare --modules /lib -- true",
        "compare -q -v --generate t:10",
        "compare gcc -O2 x.c",
        "compare --frob -- gcc",
        "mode web agile",
        "mode web shadow now",
        "mode --format csv",
    ];
    let mut all = String::new();
    for args in cases {
        let text = bifold(args).refused();
        assert!(text.starts_with("status 2\n"), "{args}: {text}");
        all += &format!("$ bifold {args}\n{text}\n");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn profiles_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let good =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/geometry-g.toml"))
            .unwrap();
    std::fs::write(dir.path().join("unknown-key.toml"), format!("nonsense = 1\n{good}")).unwrap();
    std::fs::write(dir.path().join("not.toml"), "tlb = [[[").unwrap();
    let mut all = String::new();
    for args in [
        "--profile i5-7601",
        "--profile unknown-key.toml",
        "--profile not.toml",
        "--set cpu.base_cpu=1",
        "--set cpu.base_cpi=-1",
        "--set cpu.base_cpi=fast",
        "--set cpu.base_cpi",
        "--set tlb.l3.ways=4",
        "--set tlb.l2.ways=7",
    ] {
        let text = bifold_in(dir.path(), &format!("compare --generate t:10 {args}")).refused();
        assert!(text.starts_with("status 1\n"), "{args}: {text}");
        assert!(!text.contains("status 1\n\n"), "{args}: no message");
        all += &format!("$ {args}\n{text}\n");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn files_that_are_no_recording() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text"), "hello, this is no recording at all").unwrap();
    std::fs::write(dir.path().join("empty"), "").unwrap();
    let mut all = String::new();
    for name in ["missing", "text", "empty", "."] {
        let text = bifold_in(dir.path(), &format!("compare {name}")).refused();
        assert!(text.starts_with("status 1\n"), "{name}: {text}");
        all += &format!("$ bifold compare {name}\n{text}\n");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn an_output_that_cannot_be_written_is_known_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    // So many loads that the test would not end if they were run.
    let run = |args: &str| bifold_in(dir.path(), &format!("compare --generate t:900000g {args}")).refused();
    let mut all = String::new();
    for args in ["-o no/such/dir.json", "--report no/such/dir.html", "-o ."] {
        all += &format!("$ {args}\n{}\n", run(args));
    }
    let text = bifold_in(dir.path(), "record --generate t:900000g -o no/such/file").refused();
    all += &format!("$ record -o no/such/file\n{text}");
    insta::assert_snapshot!(all);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_full_disk_is_one_error() {
    for args in ["-o /dev/full", "--report /dev/full"] {
        let ran = bifold(&format!("compare --generate t:10 -q {args}"));
        assert_eq!(ran.status, 1, "{args}");
        assert_eq!(ran.stderr, "bifold: cannot write /dev/full: No space left on device (os error 28)\n");
    }
    let ran = bifold("record --generate t:100000 -q -o /dev/full");
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("/dev/full") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}
