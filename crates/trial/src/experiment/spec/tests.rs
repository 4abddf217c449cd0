// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a file may say, and what a scale makes of it.

use super::*;
use bifold_host::ksm::Setting;
use std::time::Duration;

const WHOLE: &str = r#"
title = "a test"
host_memory_mib = 4096
[time]
length = 3600
sample = 300
potential = [1200]
[ksm]
pages_to_scan = 1000
use_zero_pages = true
advisor_mode = "none"
[start]
free_below = 0.75
tuner = { every = 60, boost = 300, decay = 50, min = 64, max = 1250 }
[[guest]]
name = "a"
count = 2
memory_mib = 2048
workload = { kind = "synthetic", buffer_mib = 1024, write_rate = "1/32", sleep = 10 }
[[guest]]
name = "b"
count = 1
memory_mib = 1024
kernel = "6.12"
workload = { kind = "database", clients = 400, iterations = 50, queries_per_client = 5500, engine = "innodb", buffer_pool_mib = 128 }
[[case]]
name = "usual"
[[case]]
name = "busy"
write_rate = "1"
ksm = { pages_to_scan = 50 }
start = { free_below = 0.2 }
"#;

fn parse(text: &str) -> Result<Spec, String> {
    Spec::parse(Path::new("x.toml"), text).map_err(|e| e.to_string())
}

fn scale(text: &str) -> Scale {
    Rate::parse(text).unwrap()
}

#[test]
fn sizes_and_times_are_scaled_and_counts_are_not() {
    let plan = parse(WHOLE).unwrap().plan(Path::new("x"), scale("1/8"), &[]).unwrap();
    assert_eq!(plan.budget_mib, 512);
    assert_eq!((plan.length.as_secs(), plan.sample.as_millis()), (450, 37_500));
    assert_eq!(plan.potential, [Duration::from_secs(150)]);
    let guests: Vec<_> = plan.guests.iter().map(|g| (g.name.as_str(), g.memory_mib)).collect();
    assert_eq!(guests, [("a-1", 256), ("a-2", 256), ("b-1", 128)]);
    let [usual, busy] = &plan.cases[..] else { panic!("two cases") };
    assert_eq!(usual.ksm.get(Setting::PagesToScan), Some(1000));
    assert_eq!(usual.ksm.get(Setting::UseZeroPages), Some(1));
    assert_eq!(busy.ksm.get(Setting::PagesToScan), Some(50));
    assert_eq!(busy.ksm.get(Setting::UseZeroPages), Some(1), "what a case does not name stays");
    assert_eq!(usual.start.tuner.unwrap().every, 7.5);
    assert_eq!(busy.start.free_below, Some(0.2));
    let rate = |of, parts| Rate { of, parts };
    let synthetic = |rate| Workload::Synthetic { bytes: 128 << 20, rate, sleep_ms: 1250 };
    assert_eq!(usual.workloads[0], synthetic(rate(1, 32)));
    assert_eq!(busy.workloads[0], synthetic(rate(1, 1)));
    let Workload::Database { clients, iterations, queries, pool_mib, .. } = &usual.workloads[1] else {
        panic!("a database")
    };
    assert_eq!((*clients, *iterations, *queries, *pool_mib), (50, 6, 50 * 687, 16));
}

#[test]
fn cases_can_be_chosen() {
    let spec = parse(WHOLE).unwrap();
    let plan = |only: &str| spec.plan(Path::new("x"), scale("1/8"), &[only.to_owned()]);
    assert_eq!(plan("busy").unwrap().cases.len(), 1);
    assert!(plan("other").unwrap_err().to_string().contains("has no case `other`; it has usual, busy"));
}

#[test]
fn too_small_a_scale_is_refused_with_the_guest() {
    let spec = parse(WHOLE).unwrap();
    let e = spec.plan(Path::new("x.toml"), scale("1/32"), &[]).unwrap_err().to_string();
    assert!(e.contains("guest `a` would have 64 MiB at scale 1/32"), "{e}");
}

#[test]
fn rates_are_ratios() {
    let of = |t: &str| Rate::parse(t).map(|r| (r.of, r.parts));
    assert_eq!(of("0"), Some((0, 1)));
    assert_eq!(of("1/32"), Some((1, 32)));
    assert_eq!(of("0.25"), Some((25, 100)));
    for bad in ["", "1/0", "-1", "a", "1.", "1.x", ".5.", "1/2/3", "nan"] {
        assert_eq!(of(bad), None, "{bad}");
    }
}

#[test]
fn what_is_wrong_is_named_with_file_and_field() {
    let change = |from: &str, to: &str| {
        assert!(WHOLE.contains(from), "{from}");
        parse(&WHOLE.replacen(from, to, 1)).unwrap_err()
    };
    for (from, to, expected) in [
        ("title =", "titel =", "titel"),
        ("sample = 300", "sample = 4000", "time.sample: longer"),
        ("sample = 300", "sample = 0", "time.sample: not a number of seconds"),
        ("[1200]", "[4000]", "time.potential: after"),
        ("pages_to_scan = 1000", "pages = 1000", "ksm.pages"),
        ("pages_to_scan = 1000", "run = 1", "ksm.run: is set by the experiment"),
        ("pages_to_scan = 1000", "pages_to_scan = [1]", "neither a number nor a word"),
        ("free_below = 0.75", "free_below = 75", "start.free_below: not a share"),
        ("min = 64", "min = 6400", "start.tuner"),
        ("min = 64", "minimum = 64", "minimum"),
        ("name = \"b\"", "name = \"a\"", "guest[1].name: another guest has it"),
        ("name = \"b\"", "name = \"a/b\"", "guest[1].name: not letters"),
        ("count = 2", "count = 0", "guest[0].count"),
        ("count = 2", "count = 300", "guest[0].count"),
        ("memory_mib = 2048", "memory_mib = 32", "guest[0].memory_mib"),
        ("buffer_mib = 1024", "buffer_mib = 2048", "guest[0].workload.buffer_mib"),
        ("\"1/32\"", "\"1/0\"", "is no ratio"),
        ("clients = 400", "clients = 0", "guest[1].workload"),
        ("\"innodb\"", "\"x; rm\"", "guest[1].workload.engine"),
        ("kind = \"synthetic\"", "kind = \"magic\"", "magic"),
        ("name = \"busy\"", "name = \"usual\"", "case[1].name"),
        ("{ pages_to_scan = 50 }", "{ pages_to_scan = \"x\" }", "case[1].ksm.pages_to_scan"),
    ] {
        let e = change(from, to);
        assert!(e.starts_with("x.toml: ") && e.contains(expected), "{to}: {e}");
    }
    let missing = Spec::read(Path::new("/no/such.toml")).unwrap_err().to_string();
    assert!(missing.contains("/no/such.toml"));
}

#[test]
fn the_experiments_that_ship_are_well_and_fit_a_laptop() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/share");
    let mut seen = 0;
    for file in std::fs::read_dir(&dir).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let plan = Spec::read(&path).unwrap().plan(&path, scale("1/8"), &[]).unwrap();
            let memory: u64 = plan.guests.iter().map(|g| g.memory_mib).sum();
            assert!(memory <= 4096, "{}: {memory} MiB", path.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}
