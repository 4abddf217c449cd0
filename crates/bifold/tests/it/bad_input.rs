// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wrong arguments and files: one clear message, the right status, no file left behind.

use crate::command::{bifold, bifold_in, names, ran};
use bifold_trace::{Event, Header, MOST_VCPUS, Trailer, Writer};
use std::path::Path;

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
        "compare --generate t:10 --configs native,agile-1g",
        "compare --generate t:10 --configs agile --sample",
        "compare --generate t:10 --configs pvm-4k --sample",
        "compare --generate t:10 --configs pvm-4k --placement smp",
        "compare --generate t:10 --configs agile --placement smp",
        "compare --generate t:10 --format xml",
        "compare --generate t:10 --show tables",
        "compare --generate t:10 --show exits --format json",
        "compare --generate t:10 -i 0",
        "compare --generate t:10 -o /tmp/never --report /tmp/never",
        "compare --vcpus 9 -- true",
        "compare --vcpus 2 --guest-nodes 3 -- true",
        "compare --generate t:10 --guest-nodes 2",
        "compare --guest-tables 3-level -- true",
        "compare --generate t:10 --guest-tables pae",
        "compare --generate t:10 --nested-levels 3",
        "compare --generate t:10 --placement numa",
        "compare --generate t:10 --placement crossed",
        "compare --generate t:10 --placement smp --host-nodes 1",
        "compare --generate t:10 --sample --placement smp",
        "compare --generate t:10 --placement smp --check dsp",
        "compare --placement smp --runs 2 -- true",
        "compare --memory-use --runs 2 -- true",
        "compare --generate t:10 --memory-use --sample",
        "compare --generate t:10 --memory-use --configs nested",
        "reclaim show --generate t:10 --sample",
        "reclaim show --generate t:10 --sizes 4k",
        "reclaim cost --generate t:10",
        "reclaim cost --generate t:10 --sizes 1M,2M,3M,4M,5M,6M,7M,8M,9M",
        "compare -m 2T -- true",
        "compare --include /etc -- true",
        "compare --modules /lib -- true",
        "compare -q -v --generate t:10",
        "compare gcc -O2 x.c",
        "compare --frob -- gcc",
        "compare --generate t:10 --runs 2",
        "compare --runs 2 x.bifold",
        "compare --runs 0 -- true",
        "compare --runs 2 --timeline t -- true",
        "record -o /tmp/never --runs 2 -- true",
        "diff a.bifold",
        "diff --format csv a b",
        "diff a b c",
        "diff -o /tmp/never --report /tmp/never a b",
        "top",
        "top -i 0.01",
        "mode web agile",
        "mode web shadow now",
        "mode --format csv",
        "daemon --check-config x --config y",
        "daemon web",
        "ctl",
        "ctl stop",
        "ctl explain",
        "ctl hold web --for -1",
        "ctl status --format csv",
    ];
    let mut all = String::new();
    for args in cases {
        let text = bifold(args).refused();
        assert!(text.starts_with("status 2\n"), "{args}: {text}");
        all += &format!("$ bifold {args}\n{text}\n");
    }
    insta::assert_snapshot!(all);
}

/// Holds each row to its status: words, the argument that the error has to name, and the verb that the usage
/// has to name.
fn each_names_its_verb_and_its_argument(dir: &Path, status: i32, rows: &[(&str, &str, &str)]) {
    let first = if status == 2 { "error: " } else { "bifold: " };
    for (words, argument, verb) in rows {
        let text = bifold_in(dir, words).refused();
        assert!(text.starts_with(&format!("status {status}\n{first}")), "{words}: {text}");
        let (error, usage) =
            text.split_once("\nUsage: ").unwrap_or_else(|| panic!("{words}: no usage: {text}"));
        assert!(error.contains(argument), "{words}: {argument} is not named: {text}");
        assert!(usage.starts_with(&format!("bifold {verb} ")), "{words}: {verb} is not named: {text}");
    }
}

/// Values that only the verb can judge: the status is that of a failure, as version 0.1 has it.
#[test]
fn every_value_that_a_verb_refuses_is_named_with_its_argument_and_its_verb() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("a", &[0; 8192]);
    write("b", &[1; 8192]);
    std::fs::create_dir(dir.path().join("full")).unwrap();
    write("full/x", b"");
    bifold_in(dir.path(), "record --generate t:10 -q -o r.bifold");
    bifold_in(dir.path(), "share fingerprint a -o fp --unkeyed --parts 4 -q");
    let capture = "compare --generate fork-storm:300 -q --configs nested-4k,shadow-4k -i 0.001 -o x";
    for name in ["s.timeline", "t.timeline"] {
        bifold_in(dir.path(), &format!("{capture} --timeline {name}"));
    }
    let experiment = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/share/synthetic.toml");
    let case = format!("share run --scale 1 --case nope {experiment}");
    let scale = format!("share run --scale 1/1000 {experiment}");
    let turns = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/reclaim/turns.toml");
    let turn = format!("reclaim run --case nope {turns}");
    each_names_its_verb_and_its_argument(
        dir.path(),
        1,
        &[
            (&turn, "--case nope", "reclaim run"),
            ("compare --generate t:10 --profile nope", "--profile nope", "compare"),
            ("compare --generate t:10 --set cpu.x=1", "--set cpu.x=1", "compare"),
            ("compare --generate t:10 --set cpu.base_cpi", "--set cpu.base_cpi", "compare"),
            (
                "compare --generate t:10 --set cpu.base_cpi=2 --set tlb.l2.ways=7",
                "--set tlb.l2.ways=7",
                "compare",
            ),
            ("compare --where r.bifold", "--where", "compare"),
            ("record --generate t:10 -o x --profile nope", "--profile nope", "record"),
            ("record --generate t:10 -o x --set a=b", "--set a=b", "record"),
            ("diff r.bifold r.bifold --profile nope", "--profile nope", "diff"),
            ("diff r.bifold r.bifold --set a=b", "--set a=b", "diff"),
            ("policy replay --policy nope s.timeline", "--policy nope", "policy replay"),
            ("policy replay --policy dsp --set a=b s.timeline", "--set a=b", "policy replay"),
            ("policy replay --policy dsp --set a s.timeline", "--set a", "policy replay"),
            ("policy replay --host-page 2m s.timeline", "--host-page 2m", "policy replay"),
            ("policy compare --policy nope s.timeline", "--policy nope", "policy compare"),
            ("policy compare --policy dsp --set policy=x s.timeline", "--set policy=x", "policy compare"),
            (
                "policy compare --policy dsp --set interval_s=0 s.timeline",
                "--set interval_s=0",
                "policy compare",
            ),
            ("policy compare --host-page 2m s.timeline", "--host-page 2m", "policy compare"),
            ("policy intervals --policy nope s.timeline", "--policy nope", "policy intervals"),
            ("policy intervals --set a=b s.timeline", "--set a=b", "policy intervals"),
            ("policy intervals -i 4000 s.timeline", "--interval 4000", "policy intervals"),
            ("policy intervals --intervals 4000 s.timeline", "--interval 4000", "policy intervals"),
            ("policy sweep --policy nope --set n=1,2 s.timeline", "--policy nope", "policy sweep"),
            (
                "policy sweep --policy dsp --set interval_s=1,2 --set a=1,2 s.timeline",
                "--set a=1,2",
                "policy sweep",
            ),
            (
                "policy sweep --policy dsp --set interval_s=1:2 s.timeline",
                "--set interval_s=1:2",
                "policy sweep",
            ),
            (
                "policy sweep --policy dsp --set interval_s=1,2 --host-page 2m s.timeline",
                "--host-page 2m",
                "policy sweep",
            ),
            ("policy train nope s.timeline t.timeline", "POLICY nope", "policy train"),
            ("policy train dsp s.timeline", "TIMELINE", "policy train"),
            ("policy train dsp s.timeline ./s.timeline", "TIMELINE", "policy train"),
            ("policy train zhang --set a=1,2 s.timeline t.timeline", "--set a=1,2", "policy train"),
            ("share potential a fp", "IMAGE", "share potential"),
            ("share fingerprint a -o fp --unkeyed", "--output", "share fingerprint"),
            ("share fingerprint a -o x --key a", "--key", "share fingerprint"),
            ("share count --part 4 fp", "--part 4", "share count"),
            ("share import b -o fp", "--output", "share import"),
            ("share model a --set pages=1", "--set pages=1", "share model"),
            ("share model a --set run", "--set run", "share model"),
            ("share model a --set pages_to_scan=x", "--set pages_to_scan=x", "share model"),
            ("share model a --set pages_to_scan=0", "--set pages_to_scan=0", "share model"),
            ("share model a --set max_page_sharing=1", "--set max_page_sharing=1", "share model"),
            (
                "share model a --set advisor_mode=scan-time --set advisor_max_pages_to_scan=0",
                "--set advisor_max_pages_to_scan=0",
                "share model",
            ),
            ("share model a --scanner tps --set smart_scan=1", "--set", "share model"),
            ("share check --set pages=1", "--set pages=1", "share check"),
            ("share check --set run", "--set run", "share check"),
            (&case, "--case nope", "share run"),
            (&scale, "--scale 1/1000", "share run"),
        ],
    );
    // Beside a command, 1 is the command's.
    let twice = [("share potential x=a x=b", "IMAGE", "share potential")];
    each_names_its_verb_and_its_argument(dir.path(), 2, &twice);
    each_names_its_verb_and_its_argument(
        dir.path(),
        125,
        &[
            ("compare --profile nope -- true", "--profile nope", "compare"),
            ("compare --set cpu.x=1 -- true", "--set cpu.x=1", "compare"),
            ("compare --keep full -- true", "--keep full", "compare"),
            ("record --profile nope -o x -- true", "--profile nope", "record"),
        ],
    );
}

#[test]
fn every_usage_error_names_its_verb_and_its_argument() {
    let dir = tempfile::tempdir().unwrap();
    for (name, seconds) in [("a.timeline", "0.00001"), ("b.timeline", "0.00001")] {
        bifold_in(
            dir.path(),
            &format!("compare --generate t:1000 -q --timeline {name} -i {seconds} -o {name}.txt"),
        );
    }
    bifold_in(dir.path(), "record --generate t:1000 -q -o sampled.bifold --sample=10k:80k");
    for name in ["a.json", "b.json"] {
        bifold_in(dir.path(), &format!("compare --generate t:10 -q --format json -o {name}"));
    }
    let rows = [
        ("compare", "CMD", "compare"),
        ("compare --generate t:10 x.bifold", "FILE", "compare"),
        ("compare --generate tt:10", "--generate", "compare"),
        ("compare --generate t:10 --thp never", "--thp", "compare"),
        ("compare --generate t:10 --keep d", "--keep", "compare"),
        ("compare --generate t:10 --skip 1M", "--skip", "compare"),
        ("compare --generate t:10 --runs 2", "--runs", "compare"),
        ("compare --runs 2 --timeline t -- true", "--timeline", "compare"),
        ("compare --generate t:10 --configs agile-1g", "--configs", "compare"),
        ("compare --generate t:10 --check no-policy", "--check no-policy", "compare"),
        ("compare --generate t:10 --check dsp --configs native", "--check", "compare"),
        ("compare --generate t:10 --timeline t --configs native,shadow", "--timeline", "compare"),
        ("compare --generate t:10 --timeline t --sample", "--timeline", "compare"),
        ("compare --generate t:10 --where", "--where", "compare"),
        ("compare --generate t:10 --where=agile", "--where=agile", "compare"),
        ("compare --where=stacks --sample -- true", "--where=stacks", "compare"),
        ("compare sampled.bifold --sample", "--sample", "compare"),
        ("compare --generate t:10 --show exits --format csv", "--show", "compare"),
        ("compare --generate t:10 -o x --report x", "--report", "compare"),
        ("compare --generate t:10 --format xml", "--format", "compare"),
        ("compare --include /etc -- true", "--include", "compare"),
        ("compare --memory 1X -- true", "--memory", "compare"),
        ("compare --timeout 1h -- true", "--timeout", "compare"),
        ("compare --generate t:10 --sample=1M", "--sample", "compare"),
        ("record -o x", "CMD", "record"),
        ("record -o x --generate t:10 -- true", "--generate", "record"),
        ("record -o x --generate t:10 --report x", "--report", "record"),
        ("record --generate t:10", "--output", "record"),
        ("diff a.json b.json --seed 2", "--seed", "diff"),
        ("diff a.json b.json --format csv", "--format", "diff"),
        ("diff a.json b.json -o a.json", "--output a.json", "diff"),
        ("mode web agile", "[nested|shadow]", "mode"),
        ("mode --format csv", "--format", "mode"),
        ("daemon --check-config x --state y", "--check-config", "daemon"),
        ("ctl explain", "VM", "ctl explain"),
        ("ctl hold web --for x", "--for", "ctl hold"),
        ("ctl status --format csv", "--format", "ctl status"),
        ("doctor cooking", "VERB", "doctor"),
        ("doctor --format csv", "--format", "doctor"),
        ("policy list --format csv", "--format", "policy list"),
        ("policy replay --other known --estimator e.toml a.timeline", "--estimator", "policy replay"),
        ("policy replay --policy dsp --policy dsp a.timeline", "--policy dsp", "policy replay"),
        ("policy replay --policy dsp --policy zhang --set n=3 a.timeline", "--set", "policy replay"),
        ("policy replay", "TIMELINE", "policy replay"),
        ("policy compare", "TIMELINE", "policy compare"),
        ("policy compare a.timeline -o x --report x", "--report", "policy compare"),
        ("policy compare a.timeline --time-scale 0", "--time-scale", "policy compare"),
        ("policy intervals a.timeline -i 0", "--interval", "policy intervals"),
        ("policy intervals a.timeline --report a.timeline", "--report a.timeline", "policy intervals"),
        ("policy sweep --policy dsp --set interval_s a.timeline", "--set", "policy sweep"),
        ("policy sweep --policy dsp --set interval_s=1,2", "TIMELINE", "policy sweep"),
        ("policy train zhang a.timeline b.timeline", "--set", "policy train"),
        ("policy train estimator --set n=1:2:2 a.timeline", "--set", "policy train"),
        ("policy train zhang --samples s.toml", "--samples", "policy train"),
        ("share potential", "IMAGE", "share potential"),
        ("share potential --method md5 x", "--method", "share potential"),
        ("share fingerprint -o d x", "--key", "share fingerprint"),
        ("share fingerprint -o d --unkeyed --memory 1 x", "--memory", "share fingerprint"),
        ("share count --part x d", "--part", "share count"),
        ("share import -o d --zero xyz list", "--zero", "share import"),
        ("share model --passes 0 x", "--passes", "share model"),
        ("share check --tolerance 2", "--tolerance", "share check"),
        ("share check --content cake", "--content", "share check"),
        ("share run --scale 0 x.toml", "--scale", "share run"),
        ("share watch -i 0", "--interval", "share watch"),
        ("share advise --format csv", "--format", "share advise"),
        ("compare --generate t:10 --seed x", "--seed", "compare"),
        ("compare --generate t:10 --interval 0", "--interval", "compare"),
        ("compare --generate t:10 --time-scale 0", "--time-scale", "compare"),
        ("compare --generate t:10 --folded x", "--where", "compare"),
        ("compare --generate t:10 --where --folded-count x", "--folded-count", "compare"),
        ("compare --generate t:0", "--generate", "compare"),
        ("compare --runs x -- true", "--runs", "compare"),
        ("compare --vcpus 9 -- true", "--vcpus", "compare"),
        ("compare --guest-nodes 0 -- true", "--guest-nodes", "compare"),
        ("compare --generate t:10 --host-nodes 2", "--placement", "compare"),
        ("compare --generate t:10 --placement smp --host-nodes 65", "--host-nodes", "compare"),
        ("compare --kpti x -- true", "--kpti", "compare"),
        ("compare --guest-tables x -- true", "--guest-tables", "compare"),
        ("compare --generate t:10 --nested-levels 6", "--nested-levels", "compare"),
        ("compare --root x -- true", "--root", "compare"),
        ("compare --modules x -- true", "--kernel", "compare"),
        ("compare --check-every x -- true", "--check-every", "compare"),
        ("compare --skip x -- true", "--skip", "compare"),
        ("compare --for x -- true", "--for", "compare"),
        ("compare --from-marker --from-function x -- true", "--from-marker", "compare"),
        ("diff a.json b.json -i 0", "--interval", "diff"),
        ("completions x", "SHELL", "completions"),
        ("policy replay --start x a.timeline", "--start", "policy replay"),
        ("policy replay --host-page 1g a.timeline", "--host-page", "policy replay"),
        ("policy replay --vm old a.timeline", "--vm", "policy replay"),
        ("policy replay --other x a.timeline", "--other", "policy replay"),
        ("policy sweep --policy dsp --set interval_s=1,2 -n x a.timeline", "--count", "policy sweep"),
        ("share potential a -n x", "--count", "share potential"),
        ("share fingerprint a -o x --unkeyed --parts 0", "--parts", "share fingerprint"),
        ("share model --scanner x a", "--scanner", "share model"),
        ("share check --pages 1", "--pages", "share check"),
        ("share check --passes 0", "--passes", "share check"),
        ("share check --runs 0", "--runs", "share check"),
        ("share check --limit 0", "--limit", "share check"),
        ("share check --processes --content zero-pages", "--processes", "share check"),
        ("share watch -n 0", "--count", "share watch"),
        ("reclaim watch -i 0", "--interval", "reclaim watch"),
        ("reclaim watch -n 0", "--count", "reclaim watch"),
        ("reclaim advise --format csv", "--format", "reclaim advise"),
        ("reclaim set web 5X", "SIZE", "reclaim set"),
        ("reclaim set web 1 --by magic", "--by", "reclaim set"),
        ("reclaim set web 1 --floor 0", "--floor", "reclaim set"),
        ("reclaim set web 1 --step x", "--step", "reclaim set"),
        ("reclaim set web 1 --for 5 --keep", "--for", "reclaim set"),
        ("reclaim restore --force --keep", "--force", "reclaim restore"),
    ];
    each_names_its_verb_and_its_argument(dir.path(), 2, &rows);
}

#[test]
fn profiles_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let good =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/geometry-g.toml"))
            .unwrap();
    std::fs::write(dir.path().join("unknown-key.toml"), format!("nonsense = 1\n{good}")).unwrap();
    std::fs::write(dir.path().join("not.toml"), "tlb = [[[").unwrap();
    let other = good.replace("guest_leaf = 24", "guest_leaf = 25");
    std::fs::write(dir.path().join("same-name.toml"), other).unwrap();
    let mut all = String::new();
    for args in [
        "--profile i5-7601",
        "--profile unknown-key.toml",
        "--profile not.toml",
        "--profile same-name.toml",
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

/// A recording of a guest of two vCPUs, or of as many as it says, with events of a third.
#[test]
fn vcpus_that_a_guest_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, vcpus| {
        let header = Header { guest_frames: 1 << 16, vcpus, ..Header::default() };
        let mut writer = Writer::create(dir.path().join(name), &header).unwrap();
        let mut words = Vec::new();
        for event in [Event::Vcpu(0), Event::Cr3(0x1000), Event::Vcpu(1), Event::Cr3(0x1000), Event::Vcpu(2)]
        {
            event.encode(&mut words);
        }
        writer.write(&words).unwrap();
        writer.finish(&Trailer::default()).unwrap();
    };
    write("two.bifold", 2);
    write("one.bifold", 1);
    write("many.bifold", MOST_VCPUS + 1);
    write("three.bifold", 3);
    let mut all = String::new();
    let lines = [
        "compare two.bifold",
        "compare one.bifold",
        "compare many.bifold",
        "compare --vm started --placement smp two.bifold",
        "reclaim show two.bifold",
        "reclaim cost --sizes 16M two.bifold",
        "diff two.bifold two.bifold",
    ];
    for line in lines {
        all += &format!("$ bifold {line}\n{}\n", bifold_in(dir.path(), line).refused());
    }
    insta::assert_snapshot!(all);
    assert_eq!(bifold_in(dir.path(), "compare -q three.bifold").status, 0);
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
fn a_full_disk_is_one_error_and_the_result_is_printed() {
    let table = bifold("compare --generate t:10 -q").quietly();
    for args in ["-o /dev/full", "--report /dev/full", "--timeline /dev/full"] {
        let ran = bifold(&format!("compare --generate t:10 -q {args}"));
        assert_eq!((ran.status, &ran.stdout), (1, &table), "{args}");
        assert_eq!(ran.stderr, "bifold: cannot write /dev/full: No space left on device (os error 28)\n");
    }
    let ran = bifold("record --generate t:100000 -q -o /dev/full");
    // Its header is written at once: nothing has run yet.
    assert_eq!((ran.status, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("/dev/full") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}

/// As on a disk that becomes full: files may have 50 KiB.
#[test]
fn a_recording_that_can_no_longer_be_written_costs_the_recording_and_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = std::process::Command::new("sh");
    let run = "trap '' XFSZ; ulimit -f 100; exec \"$0\" record --generate t:300000 -q -o x.bifold";
    c.args(["-c", run, env!("CARGO_BIN_EXE_bifold")]).current_dir(dir.path());
    c.env("BIFOLD_PROFILE", "i5-7600");
    let ran = ran(c);
    assert_eq!(ran.status, 1);
    assert_eq!(ran.stderr, "bifold: cannot write recording x.bifold: File too large (os error 27)\n");
    assert_eq!(ran.stdout, bifold("compare --generate t:300000 -q").quietly());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn no_output_may_be_an_input_or_another_output() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    bifold_in(dir.path(), "record --generate t:1000 -q -o a.bifold --timeline a.timeline -i 0.00001");
    std::fs::hard_link(at("a.bifold"), at("hard.html")).unwrap();
    std::os::unix::fs::symlink("a.bifold", at("soft.html")).unwrap();
    let profile = include_str!("../../../../profiles/geometry-g.toml");
    std::fs::write(at("p.toml"), profile).unwrap();
    let before = std::fs::read(at("a.bifold")).unwrap();
    let mut all = String::new();
    for args in [
        "compare a.bifold -o a.bifold",
        "compare a.bifold --report ./a.bifold",
        "compare a.bifold --report hard.html",
        "compare a.bifold --timeline soft.html",
        "compare a.bifold --profile p.toml -o p.toml",
        "compare a.bifold -o x --timeline x",
        "compare a.bifold --report x --timeline ./x",
        "record --generate t:10 -o x --report x",
        "policy compare a.timeline -o a.timeline",
        "policy compare a.timeline --report x -o x",
        "policy compare a.timeline --policy p.toml --report p.toml",
        "policy intervals a.timeline --report a.timeline",
        "policy sweep a.timeline --policy dsp --set interval_s=1,2 -o a.timeline",
        "policy train estimator a.timeline -o a.timeline",
    ] {
        let text = bifold_in(dir.path(), args).refused();
        assert!(text.starts_with("status 2\n"), "{args}: {text}");
        all += &format!("$ bifold {args}\n{}\n", text.lines().nth(1).unwrap());
    }
    insta::assert_snapshot!(all);
    assert_eq!(std::fs::read(at("a.bifold")).unwrap(), before);
    // Devices take any number of outputs.
    bifold("compare --generate t:10 -q -o /dev/null --report /dev/null --timeline /dev/null").quietly();
}

#[test]
fn files_without_an_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("huge.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    let mut all = String::new();
    for args in [
        "compare --generate t:10 --profile /dev/zero",
        "compare --generate t:10 --profile huge.toml",
        "compare /dev/zero",
        "policy compare /dev/zero",
        "policy compare --policy /dev/zero x.timeline",
        "policy compare --policy huge.toml x.timeline",
        "policy compare --estimator /dev/zero x.timeline",
        "policy train dsp --samples /dev/zero",
        "share run /dev/zero",
        "share merge /dev/zero",
        "share check --tolerance nan",
        "share check --tolerance -1",
    ] {
        let text = bifold_in(dir.path(), args).refused();
        all += &format!("$ bifold {args}\n{text}\n");
    }
    insta::assert_snapshot!(all);
}

/// The exit status distinguishes a command that fails from Bifold itself failing.
#[test]
fn own_failures_beside_a_command_have_a_status_of_their_own() {
    for args in [
        "compare --set cpu.base_cpu=1 -- true",
        "compare -o no/such/dir -- true",
        "record -o no/such/dir -- true",
    ] {
        let text = bifold(args).refused();
        assert!(text.starts_with("status 125\nbifold: "), "{args}: {text}");
    }
    assert!(bifold("compare no/such/recording").refused().starts_with("status 1\n"));
}
