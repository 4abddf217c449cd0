// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of other tools: what becomes of them, and what is refused.

use crate::command::{bifold_in, command, names, ran};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, io};

/// The arrays of geometry-d by the plainest means: the pages of each set, the last used first.
struct Tlbs {
    code: Vec<u64>,
    data: Vec<u64>,
    second: Vec<Vec<u64>>,
    misses: [u64; 2],
}

impl Tlbs {
    fn new() -> Tlbs {
        Tlbs { code: Vec::new(), data: Vec::new(), second: vec![Vec::new(); 256], misses: [0; 2] }
    }

    /// A use of a page; whether it was there.
    fn uses(set: &mut Vec<u64>, ways: usize, page: u64) -> bool {
        let at = set.iter().position(|p| *p == page);
        at.map(|at| set.remove(at));
        set.insert(0, page);
        set.truncate(ways);
        at.is_some()
    }

    fn access(&mut self, code: bool, page: u64) {
        let first = if code { &mut self.code } else { &mut self.data };
        if !Self::uses(first, 32, page) {
            self.misses[0] += 1;
            self.misses[1] += u64::from(!Self::uses(&mut self.second[page as usize % 256], 4, page));
        }
    }

    /// Misses of the first level and of both on the accesses of a lackey trace.
    fn of(trace: &str) -> [u64; 2] {
        let mut tlbs = Tlbs::new();
        for line in trace.lines().filter(|line| !line.starts_with("==")) {
            let (kind, access) = line.split_at(3);
            let (va, bytes) = access.split_once(',').unwrap();
            let va = u64::from_str_radix(va, 16).unwrap();
            for page in va >> 12..=(va + bytes.parse::<u64>().unwrap() - 1) >> 12 {
                tlbs.access(kind == "I  ", page);
            }
        }
        tlbs.misses
    }
}

/// Misses of the program's pages in geometry-d. The kernel's stores are to pages of 2 MB, which have an array
/// of their own.
fn misses(dir: &Path, recording: &str) -> [u64; 2] {
    let args =
        format!("compare -q --caches off --profile geometry-d --configs native --format json {recording}");
    let result: serde_json::Value = serde_json::from_str(&bifold_in(dir, &args).quietly()).unwrap();
    let of = |counter: &str| result["outcome"]["configs"][0]["total"][counter].as_u64().unwrap();
    [of("l1_misses") - of("tlb_misses_2m"), of("tlb_misses_4k")]
}

/// A trace with pages that come back at all distances.
fn trace(seed: u64, length: usize) -> String {
    let (mut dice, mut text) = (seed, String::new());
    let mut draw = |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    for _ in 0..length {
        let far = if draw(4) == 0 { 3000 } else { 40 };
        let (code, data) =
            (0x40_0000 + draw(far / 2) * 4096 + draw(4096), 0x7f00_0000 + draw(far) * 4096 + draw(4096));
        writeln!(text, "I  {code:08x},{}", 1 + draw(15)).unwrap();
        match draw(4) {
            0 => writeln!(text, " L {data:08x},{}", 1 << draw(4)).unwrap(),
            1 => writeln!(text, " S {data:08x},{}", 1 << draw(6)).unwrap(),
            _ => {}
        }
    }
    text
}

#[test]
fn an_imported_trace_misses_as_a_plain_list_of_pages_does() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 1..4 {
        let trace = trace(seed, 20_000);
        fs::write(dir.path().join("t.lackey"), &trace).unwrap();
        bifold_in(dir.path(), "import -q t.lackey -o t.bifold").quietly();
        assert_eq!(misses(dir.path(), "t.bifold"), Tlbs::of(&trace), "seed {seed}");
    }
}

#[test]
fn with_large_guest_pages_each_2_mb_faults_once_and_no_small_page_misses() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(7, 20_000);
    fs::write(dir.path().join("t.lackey"), &trace).unwrap();
    bifold_in(dir.path(), "import -q t.lackey -o small.bifold").quietly();
    bifold_in(dir.path(), "import -q --guest-pages 2m t.lackey -o large.bifold").quietly();
    let args = "compare -q --caches off --configs native --format json large.bifold";
    let result: serde_json::Value = serde_json::from_str(&bifold_in(dir.path(), args).quietly()).unwrap();
    let total = &result["outcome"]["configs"][0]["total"];
    // Code from 4 MB on takes 1500 pages of 4 KB, data from 0x7f00_0000 on 3000.
    let touched = [(0x40_0000_u64, 1500), (0x7f00_0000, 3000)]
        .map(|(from, pages): (u64, u64)| ((from + pages * 4096 - 1) >> 21) - (from >> 21) + 1);
    assert_eq!(total["guest_page_faults"], touched.iter().sum::<u64>());
    assert_eq!(total["tlb_misses_4k"], 0);
    let diff = bifold_in(dir.path(), "diff small.bifold large.bifold");
    assert_eq!(diff.status, 0, "{}", diff.stderr);
    assert!(diff.stdout.contains("lackey trace of t.lackey on 2 MB guest pages"), "{}", diff.stdout);
}

#[test]
fn a_real_trace_of_valgrinds_does_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=lackey", "--trace-mem=yes", "--log-file=true.lackey", "true"])
        .current_dir(dir.path());
    match valgrind.output() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return eprintln!("left out: valgrind is not installed");
        }
        traced => assert!(traced.unwrap().status.success()),
    }
    let imported = bifold_in(dir.path(), "import true.lackey -o true.bifold");
    assert_eq!((imported.status, imported.stdout.as_str()), (0, ""), "{}", imported.stderr);
    assert!(
        imported.stderr.contains(" instructions of true, by a trace of Valgrind's lackey; ")
            && imported.stderr.contains("page faults, page tables and frames are made up"),
        "{}",
        imported.stderr
    );
    let wrong = bifold_in(dir.path(), "compare true.lackey");
    assert!(wrong.stderr.contains("`bifold import true.lackey -o true.bifold`"), "{}", wrong.stderr);
    let trace = fs::read_to_string(dir.path().join("true.lackey")).unwrap();
    assert_eq!(misses(dir.path(), "true.bifold"), Tlbs::of(&trace));
    let table = bifold_in(dir.path(), "compare -q true.bifold").quietly();
    assert!(
        table.starts_with("ran      lackey trace of true (recorded in true.bifold)\n")
            && table.contains("WARNING  page faults, page tables and frames are made up"),
        "{table}"
    );
    assert!(table.contains("\nshadow-4k "), "{table}");
}

#[test]
fn standard_input_is_a_trace_too() {
    let dir = tempfile::tempdir().unwrap();
    // Without the command, the file's name would be that of the program.
    let trace = "==1== Command: ls\n==1== \nI  00401000,3\n S 00600000,8\n";
    fs::write(dir.path().join("t"), trace).unwrap();
    let mut import = command(["import", "-q", "-", "-o", "piped.bifold"]);
    import.current_dir(dir.path()).stdin(Stdio::from(fs::File::open(dir.path().join("t")).unwrap()));
    ran(import).quietly();
    bifold_in(dir.path(), "import -q t -o t.bifold").quietly();
    assert_eq!(
        fs::read(dir.path().join("piped.bifold")).unwrap(),
        fs::read(dir.path().join("t.bifold")).unwrap()
    );
}

#[test]
fn what_cannot_be_imported_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("threads")).unwrap();
    fs::write(at("t"), "I  00401000,3\n").unwrap();
    fs::write(at("cut"), "I  00401000,3\n L 004").unwrap();
    fs::write(at("foreign"), "int main;\n").unwrap();
    fs::write(at("large"), (0..20_000).fold(String::new(), |s, i| s + &format!(" L {:x},8\n", i << 12)))
        .unwrap();
    for (args, status, words) in [
        ("import none -o r", 1, "cannot read trace none: No such file"),
        ("import /dev/null -o r", 1, "no regular file: import a file, or `-` for standard input"),
        ("import foreign -o r", 1, "cannot tell what kind of trace foreign is: give --from"),
        ("import cut -o r", 1, "trace cut is truncated: it ends within line 2"),
        ("import -m 64M large -o r", 1, "trace large, line 16"),
        ("import threads -o r", 1, "threads: no file of the directory is named *.trace*"),
        ("import --from champsim t -o r", 1, "trace t is truncated"),
        ("import t -o none/r", 1, "cannot create recording none/r"),
        ("import t -o t", 2, "would overwrite the trace"),
        ("import threads -o threads/r", 2, "lies in the directory of the trace"),
        ("import t -o -", 2, "a recording needs a file"),
        ("import t -o r --for many", 2, "500k"),
        ("import t -o r --from pin", 2, "--from"),
        ("import t -o /dev/full", 1, "cannot write recording /dev/full: No space left"),
    ] {
        let text = bifold_in(dir.path(), args).refused();
        assert!(text.starts_with(&format!("status {status}\n")) && text.contains(words), "{args}: {text}");
    }
    assert_eq!(names(dir.path()), ["cut", "foreign", "large", "t", "threads"]);
}
