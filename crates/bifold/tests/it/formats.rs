// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closed forms of walks on real guests with tables of every format, without walk caches.

use crate::command::{command, ran};
use crate::guest::no_guest_here;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Touches small pages in turn, more than any TLB holds.
const PROGRAM: &str = r#"
#include <sys/mman.h>
int main(void) {
    unsigned long n = 16 << 20;
    volatile char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise((void *)p, n, MADV_NOHUGEPAGE);
    for (int round = 0; round < 20; round++)
        for (unsigned long i = 0; i < n; i += 4096) p[i]++;
    return 0;
}
"#;

/// Compiles it for this mode; `None` where the compiler cannot.
fn program(dir: &Path, narrow: bool) -> Option<PathBuf> {
    let (source, out) = (dir.join("p.c"), dir.join(if narrow { "p32" } else { "p64" }));
    std::fs::write(&source, PROGRAM).unwrap();
    let flags: &[&str] = if narrow { &["-m32", "-idirafter/usr/include/x86_64-linux-gnu"] } else { &[] };
    let made =
        Command::new("cc").args(["-O2", "-static"]).args(flags).arg("-o").args([&out, &source]).output();
    made.unwrap().status.success().then_some(out)
}

/// Counts of a configuration.
struct Counts {
    walks: u64,
    guest: u64,
    host: u64,
    large: u64,
    faults: u64,
}

/// The counts by configuration, and of failed checks.
fn counts(program: &Path, tables: &str, options: &str) -> Option<(Vec<Counts>, u64)> {
    let common = "compare -q -m 512M --caches off --profile geometry-g --set walk_cache.variant=none \
                  --configs native,nested-4k,shadow-4k --format json --guest-tables";
    let mut c = command(common.split_whitespace());
    c.arg(tables).args(options.split_whitespace()).arg("--").arg(program);
    let run = ran(c);
    if run.status == 77 {
        eprintln!("skipped: {}", run.stderr);
        return None;
    }
    let v: serde_json::Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stderr));
    if tables != "4-level" {
        assert_eq!(v["guest"]["tables"], tables);
    }
    let of = |c: &serde_json::Value| {
        let n = |name: &str| c["total"][name].as_u64().unwrap();
        Counts {
            walks: n("walks"),
            guest: n("guest_refs"),
            host: n("host_refs"),
            large: n("tlb_misses_2m"),
            faults: n("guest_page_faults") + n("exits_violation"),
        }
    };
    let configs = v["outcome"]["configs"].as_array().unwrap().iter().map(of).collect();
    Some((configs, v["checks"]["failed"].as_u64().unwrap()))
}

/// A walk reads `levels` entries, one less for a large page, and under nested paging `nested` entries for
/// each of these and for the page. Walks that end at an entry that is not present read fewer.
fn each_walk_reads_its_levels(tables: &str, levels: u64, shadow_levels: u64, options: &str, nested: u64) {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = program(dir.path(), levels < 4) else {
        eprintln!("skipped: the C compiler makes no static 32-bit programs");
        return;
    };
    let Some((configs, failed)) = counts(&program, tables, options) else { return };
    assert_eq!(failed, 0);
    let [native, two, shadow] = &configs[..] else { panic!("{} configurations", configs.len()) };
    assert!(native.walks > 80_000 && native.large * 10 < native.walks);
    let missing = levels * native.walks - native.large - native.guest;
    assert!(missing < 100, "{missing} references of {} walks", native.walks);
    let missing = shadow_levels * shadow.walks - shadow.guest;
    assert!(missing < 200, "{missing} references of {} walks of shadow tables", shadow.walks);
    // A fault's walk lacks the page's part, and a violation's that and what comes after.
    let missing = nested * (two.guest + two.walks) - two.host;
    assert!(missing <= nested * 2 * two.faults, "{missing} references of {} walks", two.walks);
    let per_walk = (two.guest + two.host) as f64 / two.walks as f64;
    let whole = (levels * nested + levels + nested) as f64;
    assert!(
        (whole - 1.0..whole).contains(&per_walk),
        "{per_walk} references a walk, {whole} of a small page"
    );
}

#[test]
fn four_levels_make_4_references_and_24_of_4_by_4() {
    each_walk_reads_its_levels("4-level", 4, 4, "", 4);
}

#[test]
fn five_levels_make_5_references_and_29_of_5_by_4_and_35_of_5_by_5() {
    each_walk_reads_its_levels("5-level", 5, 5, "", 4);
    each_walk_reads_its_levels("5-level", 5, 5, "--nested-levels 5", 5);
}

#[test]
fn pae_makes_2_references_below_its_registers_and_14_of_2_by_4() {
    each_walk_reads_its_levels("pae", 2, 2, "", 4);
}

#[test]
fn two_levels_make_2_references_and_14_of_2_by_4() {
    each_walk_reads_its_levels("32-bit", 2, 2, "", 4);
}

/// A guest that cannot be, with the words of both sides. None of these starts an emulator.
#[test]
fn formats_that_a_guest_a_program_or_a_recording_cannot_have_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &str| {
        let mut c = command(args.split_whitespace());
        c.current_dir(dir.path());
        ran(c)
    };
    assert_eq!(run("record -q --generate t:10 -o r.bifold").status, 0);
    let cases = [
        "compare -q --guest-tables pae r.bifold",
        "compare -q --guest-tables 32-bit -m 4G -- /bin/true",
        "compare -q --guest-tables pae --kpti on -- /bin/true",
        "compare -q --guest-tables pae --where -- /bin/true",
        "record -q --guest-tables pae --memory-use -o x -- /bin/true",
        "compare -q --guest-tables pae -- /bin/true",
    ];
    let said = cases.map(|args| {
        let text = run(args).refused();
        // A machine without the 32-bit library says so instead of the last.
        let text = text.replace("this bifold has no init for 32-bit guests", "/bin/true: a 64-bit program");
        let line = text
            .lines()
            .find(|l| l.starts_with("bifold:") || l.starts_with("error:"))
            .unwrap_or_default()
            .to_owned();
        let end = line.find(": install").or(line.find(", and a guest with")).unwrap_or(line.len());
        format!(
            "$ bifold {args}\n{}\n",
            if args.ends_with("pae -- /bin/true") { &line[..end] } else { &line }
        )
    });
    insta::assert_snapshot!(said.concat());
}
