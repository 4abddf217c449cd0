// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold export`: results and timelines as tables.

use crate::command::bifold_in;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A table in CSV: columns by name, row by row.
pub fn csv(path: &Path) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let head = reader.headers().unwrap().clone();
    let row = |r: csv::StringRecord| head.iter().map(String::from).zip(r.iter().map(String::from)).collect();
    reader.records().map(|r| row(r.unwrap())).collect()
}

#[test]
fn a_table_has_the_counts_of_its_results() {
    let dir = tempfile::tempdir().unwrap();
    let of = |args: &str| bifold_in(dir.path(), args);
    let compare = "compare -q --format json --configs native,nested-4k,shadow-2m --interval 0.001 --set cpu.frequency_hz=10000000";
    of(&format!("{compare} --generate t:3000 -o a.json")).quietly();
    of(&format!("{compare} --generate gups:60000 --seed 7 -o b.json")).quietly();
    of("export -q a.json b.json -o r.csv").quietly();
    let rows = csv(&dir.path().join("r.csv"));
    assert_eq!(rows.len(), 6);
    for (row, (file, i)) in
        rows.iter().zip(["a.json", "b.json"].into_iter().flat_map(|f| [(f, 0), (f, 1), (f, 2)]))
    {
        let document = std::fs::read(dir.path().join(file)).unwrap();
        let v: Value = serde_json::from_slice(&document).unwrap();
        let config = &v["outcome"]["configs"][i];
        assert_eq!(
            (row["file"].as_str(), &row["config"]),
            (file, &config["name"].as_str().unwrap().to_owned())
        );
        for (name, value) in config["total"].as_object().unwrap() {
            assert_eq!(row[name], value.to_string(), "{file} {name}");
        }
        for (name, value) in config["figures"].as_object().unwrap() {
            assert_eq!(row[name].parse::<f64>().unwrap(), value.as_f64().unwrap(), "{file} {name}");
        }
        assert_eq!(row["seed"], v["outcome"]["seed"].to_string());
        assert_eq!(row["host_page"], ["", "4K", "2M"][i]);
    }
    of("export -q --table intervals b.json -o i.csv").quietly();
    let intervals = csv(&dir.path().join("i.csv"));
    assert!(intervals.len() > 3, "{}", intervals.len());
    let sum = |rows: &[BTreeMap<String, String>], config: &str| -> u64 {
        rows.iter().filter(|r| r["config"] == config).map(|r| r["walk_cycles"].parse::<u64>().unwrap()).sum()
    };
    for config in ["native", "nested-4k", "shadow-2m"] {
        assert_eq!(sum(&intervals, config), sum(&rows[3..], config), "{config}");
    }
    for (end, magic) in [("parquet", b"PAR1"), ("arrow", b"ARRO")] {
        of(&format!("export -q a.json b.json -o r.{end}")).quietly();
        assert!(std::fs::read(dir.path().join(format!("r.{end}"))).unwrap().starts_with(magic), "{end}");
    }
}

#[test]
fn what_has_no_rows_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let of = |args: &str| bifold_in(dir.path(), args);
    of("compare -q --format json --configs nested-4k --generate t:300 -o a.json").quietly();
    let whole = std::fs::read(dir.path().join("a.json")).unwrap();
    std::fs::write(dir.path().join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(dir.path().join("bad.timeline"), b"\x28\xb5\x2f\xfdno").unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("full.csv")).unwrap();
    for (args, status, says) in [
        ("export a.json -o a.xlsx", 2, "end it with .parquet, .arrow or .csv"),
        ("export a.json cut.json -o r.csv", 1, "cut.json is"),
        ("export none.json -o r.csv", 1, "cannot read none.json"),
        ("export bad.timeline -o r.csv", 1, "bad.timeline is no timeline"),
        ("export a.json --table places -o r.csv", 1, "the run was made without --where"),
        ("export a.json -o full.csv", 1, "No space left on device"),
    ] {
        let refused = of(args);
        assert_eq!(refused.status, status, "{args}: {}", refused.stderr);
        assert!(refused.stderr.contains(says), "{args}: {}", refused.stderr);
        assert!(!dir.path().join("r.csv").exists(), "{args}");
    }
    std::os::unix::fs::symlink("a.json", dir.path().join("a.csv")).unwrap();
    let over = of("export a.json -o a.csv");
    assert!(over.stderr.contains("would overwrite the input"), "{}", over.stderr);
    assert_eq!(std::fs::read(dir.path().join("a.json")).unwrap(), whole);
}
