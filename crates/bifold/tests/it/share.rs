// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What guests could share: images with known answers.

use crate::command::{bifold, bifold_in, names};
use std::path::Path;

const PAGE: usize = 4096;

/// A page of one content: 0 is zeros, up to 9 a repeated byte, others their number once.
fn page(content: u32) -> Vec<u8> {
    match content {
        0..10 => vec![content as u8; PAGE],
        _ => {
            let mut page = vec![0; PAGE];
            page[..4].copy_from_slice(&content.to_be_bytes());
            page
        }
    }
}

fn write(dir: &Path, name: &str, contents: impl IntoIterator<Item = u32>) {
    let bytes: Vec<u8> = contents.into_iter().flat_map(page).collect();
    std::fs::write(dir.join(name), bytes).unwrap();
}

/// Two guests of 4 MB and a bit. The second page of 2 MB of both is the same but for one page of 4 KB; the
/// first of `a` has repeats inside, that of `b` is zeros.
pub fn guests(dir: &Path) {
    let common = |odd| (0..512).map(move |i| if i == 100 { odd } else { 1000 + i });
    write(dir, "a", (0..512).map(|i| 10 + i % 8).chain(common(7)).chain([0, 5, 5]));
    write(dir, "b", (0..512).map(|_| 0).chain(common(7_000_000)).chain([5, 10]));
    write(dir, "libc.so", [1005, 1006, 9999]);
}

#[test]
fn potential_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    guests(dir.path());
    for (name, args) in [
        ("share_potential_table", "a b --known libc.so -n 4"),
        ("share_potential_json", "a b --known libc.so -n 4 --format json"),
        ("share_potential_jsonl", "a web=b -n 2 --format jsonl"),
        ("share_potential_csv", "a b --format csv"),
    ] {
        insta::assert_snapshot!(name, bifold_in(dir.path(), &format!("share potential {args}")).quietly());
    }
    let csv =
        |args: &str| bifold_in(dir.path(), &format!("share potential a b --format csv {args}")).quietly();
    // All methods agree unless pages were made to collide.
    assert_eq!(csv(""), csv("--no-verify"));
    assert_eq!(csv(""), csv("--method sha1"));
    bifold_in(dir.path(), "share potential a b --format csv -o out.csv -q").quietly();
    assert_eq!(std::fs::read_to_string(dir.path().join("out.csv")).unwrap(), csv(""));
}

#[test]
fn share_help() {
    for (name, args) in [
        ("share_fingerprint_help_short", "share fingerprint -h"),
        ("share_count_help_short", "share count -h"),
        ("share_import_help_short", "share import -h"),
        ("share_model_help_short", "share model -h"),
        ("share_check_help_short", "share check -h"),
    ] {
        insta::assert_snapshot!(name, bifold(args).quietly());
    }
}

#[test]
fn a_model_of_each_scanner_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    guests(dir.path());
    for (name, args) in [
        ("share_model_ksm", "a b"),
        (
            "share_model_ksm_settings",
            "a b --set pages_to_scan=1000 --set max_page_sharing=8 --set use_zero_pages=1 --set smart_scan=0",
        ),
        ("share_model_ksm_advisor", "a b --huge-pages --set advisor_mode=scan-time --passes 3"),
        ("share_model_ksm_json", "a b --passes 2 --format json"),
        ("share_model_tps", "a b --scanner tps --passes 1"),
        ("share_model_tps_shared_salt", "a b --scanner tps --passes 1 --shared-salt"),
    ] {
        insta::assert_snapshot!(name, bifold_in(dir.path(), &format!("share model {args}")).quietly());
    }
    bifold_in(dir.path(), "share model a b -q -o out.txt").quietly();
    let table = bifold_in(dir.path(), "share model a b").quietly();
    assert_eq!(std::fs::read_to_string(dir.path().join("out.txt")).unwrap(), table);
}

#[test]
fn models_and_checks_that_make_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    guests(dir.path());
    let mut all = String::new();
    for args in [
        "model",
        "model nothing",
        "model a --set max_page_sharing=1",
        "model a --set pages=1",
        "model a --set run",
        "model a --scanner tps --set smart_scan=1",
        "model a --passes 0",
        "check --content nothing",
        "check --set advisor_mode=fast",
        "check --runs 0",
        "check --tolerance nan",
        "check --tolerance=-1",
        "check --limit inf",
        "watch -i NaN",
        "run --scale nan x.toml",
        "run --scale inf x.toml",
        "run --scale 1/0 x.toml",
        "check --markdown /no/such/dir/x",
    ] {
        let text = bifold_in(dir.path(), &format!("share {args}")).refused();
        all += &format!("$ bifold share {args}\n{text}\n");
    }
    insta::assert_snapshot!("share_model_and_check_refusals", all);
}

#[test]
fn images_that_cannot_be_counted() {
    let dir = tempfile::tempdir().unwrap();
    guests(dir.path());
    std::fs::write(dir.path().join("guest.gz"), b"\x1f\x8b and so on").unwrap();
    std::fs::write(dir.path().join("odd"), [1; 5000]).unwrap();
    std::fs::write(dir.path().join("kdump"), b"KDUMP   and so on").unwrap();
    std::fs::write(dir.path().join("a=a"), page(3)).unwrap();
    let mut kernel = vec![0; 0x1000];
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    std::fs::write(dir.path().join("vmlinuz"), kernel).unwrap();
    let before = names(dir.path());
    let mut all = String::new();
    for args in [
        "",
        "a nothing",
        "guest.gz",
        "odd -o never",
        "kdump",
        "pid:4194305",
        "x=a x=b",
        "a --kernel vmlinuz",
        "a -o /no/such/dir/x",
    ] {
        let text = bifold_in(dir.path(), &format!("share potential {args}")).refused();
        all += &format!("$ bifold share potential {args}\n{text}\n");
    }
    insta::assert_snapshot!("share_potential_refusals", all);
    assert_eq!(names(dir.path()), before);
    // A file whose own name has the sign.
    let csv = bifold_in(dir.path(), "share potential a=a --format csv").quietly();
    assert!(csv.lines().nth(1).unwrap().starts_with("a=a,4096,1,"), "{csv}");
}

#[test]
fn a_running_guests_shared_memory_is_counted_by_name_and_by_process() {
    // This process has no guest, but memory.
    let ram = std::hint::black_box(vec![1u8; 64 << 20]);
    let csv = bifold(&format!("share potential me=pid:{} --format csv -q", std::process::id())).quietly();
    let pages: u64 = csv.lines().nth(1).unwrap().split(',').nth(2).unwrap().parse().unwrap();
    assert!(pages as usize * PAGE >= ram.len(), "{csv}");
}

/// The whole way over fingerprints: two directories, each part by itself, in any order.
fn count_by_parts(dir: &Path) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    // A key that is always the same, for messages name it.
    std::fs::write(dir.join("key"), "07".repeat(32)).unwrap();
    std::fs::set_permissions(dir.join("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    for (image, to) in [("a", "fp-a"), ("b", "fp-b")] {
        bifold_in(dir, &format!("share fingerprint -q --key key --parts 4 -o {to} {image}")).quietly();
    }
    for part in 0..4 {
        bifold_in(dir, &format!("share count -q --part {part} -o {part}.json fp-a fp-b")).quietly();
    }
    bifold_in(dir, "share merge 3.json 0.json 2.json 1.json --format csv").quietly()
}

#[test]
fn fingerprints_give_the_figures_of_the_images() {
    let dir = tempfile::tempdir().unwrap();
    guests(dir.path());
    let exact = bifold_in(dir.path(), "share potential a b --format csv").quietly();
    assert_eq!(count_by_parts(dir.path()), exact);
    assert_eq!(bifold_in(dir.path(), "share potential fp-a fp-b --format csv").quietly(), exact);

    std::fs::write(dir.path().join("list.csv"), "hash,count\n0,5\n1\n2,2\n").unwrap();
    bifold_in(dir.path(), "share import -q --zero 0 -o imported list.csv").quietly();
    let table = bifold_in(dir.path(), "share potential imported").quietly();
    assert!(table.contains("Hashes of 32 bits over-count sharing"), "{table}");

    let mut all = String::new();
    for args in [
        "fingerprint a -o fp-c",
        "fingerprint a -o fp-a --key key",
        "fingerprint a -o fp-c --key list.csv",
        "fingerprint a -o fp-c --key key --memory 2",
        "count --part 4 fp-a",
        "count --part 0 fp-a fp-a",
        "count --part 0 fp-a imported",
        "potential a fp-a",
        "merge 0.json 1.json",
        "merge list.csv",
    ] {
        let text = bifold_in(dir.path(), &format!("share {args}")).refused();
        all += &format!("$ bifold share {args}\n{text}\n");
    }
    insta::assert_snapshot!("share_fingerprint_refusals", all);
    assert!(!dir.path().join("fp-c").exists());
}

#[test]
fn files_without_an_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = String::new();
    for args in [
        "run /dev/zero",
        "potential /dev/zero",
        "model /dev/zero",
        "merge /dev/zero",
        "import -q /dev/zero -o out",
        "fingerprint --key /dev/zero -o out /dev/zero",
    ] {
        let text = bifold_in(dir.path(), &format!("share {args}")).refused();
        all += &format!("$ bifold share {args}\n{text}\n");
    }
    insta::assert_snapshot!("share_endless_files", all);
    assert_eq!(names(dir.path()), [] as [String; 0]);
}

/// A second opinion: DuckDB, from PyPI, on the same Parquet files.
#[test]
fn duckdb_counts_the_same() {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("duckdb");
    let python = venv.join("bin/python");
    let run = |program: &Path, args: &[&str]| {
        std::process::Command::new(program).args(args).output().ok().filter(|out| out.status.success())
    };
    let has_it = || run(&python, &["-c", "import duckdb"]).is_some();
    if !has_it() {
        let made = run(Path::new("python3"), &["-m", "venv", venv.to_str().unwrap()]);
        let args = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "duckdb"];
        if made.is_none() || run(&python, &args).is_none() || !has_it() {
            eprintln!("skipped: python3 -m venv and pip cannot install duckdb here");
            return;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    guests(dir.path());
    let csv = count_by_parts(dir.path());
    let query = format!(
        "import duckdb\n\
         for size in (4096, 2097152):\n\
         \x20   rows = f\"(SELECT fingerprint, guest, sum(count)::BIGINT AS n, fingerprint = from_hex(repeat('00', 16)) AS zero \
         FROM '{}/fp-*/*.parquet' WHERE page_bytes = {{size}} GROUP BY ALL)\"\n\
         \x20   print(*duckdb.execute(f\"SELECT coalesce(sum(n), 0)::BIGINT, coalesce(sum(n) FILTER (zero), 0)::BIGINT, \
         count(DISTINCT fingerprint) FILTER (NOT zero), coalesce(sum(n - 1) FILTER (NOT zero), 0)::BIGINT, \
         count(*) FILTER (NOT zero) - count(DISTINCT fingerprint) FILTER (NOT zero) FROM {{rows}}\").fetchall()[0], sep=',')\n",
        dir.path().display()
    );
    let answer = |query: &str| {
        let out = std::process::Command::new(&python).args(["-c", query]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let theirs = answer(&query);
    let ours: String = csv
        .lines()
        .filter(|line| line.starts_with(','))
        .map(|line| line.split(',').skip(2).take(5).collect::<Vec<_>>().join(",") + "\n")
        .collect();
    assert_eq!(theirs, ours);
    // The guide's own query: minimum, intra and inter of small pages.
    let guide = include_str!("../../../../docs/guide/share.md");
    let sql = guide.split_once("```sql\n").unwrap().1.split_once("```").unwrap().0;
    let sql = sql.replace("fp/results/*", &format!("{}/fp-*", dir.path().display()));
    let theirs =
        answer(&format!("import duckdb\nprint(*duckdb.execute(\"\"\"{sql}\"\"\").fetchall()[0], sep=',')\n"));
    let small = ours.lines().next().unwrap().splitn(3, ',').nth(2).unwrap();
    assert_eq!(theirs.trim_end(), small);
}
