// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a file may say.

use super::*;

const GOOD: &str = "title = 'x'\nhost_memory_mib = 500\n[time]\nlength = 10\ninterval = 1\n\
    [[guest]]\nname = 'a'\ncount = 2\nmemory_mib = 256\nleast_mib = 100\nahead = 2.5\n\
    phases = [{ seconds = 5, memory_mib = 100, rate = 10 }]\n\
    [[case]]\nname = 'all'\n[[case]]\nname = 'equal'\npolicy = 'equal'\nreporting = true\n";

fn parse(text: &str) -> Result<Spec, SpecError> {
    Spec::parse(Path::new("x.toml"), text)
}

#[test]
fn a_file_becomes_guests_and_cases() {
    let spec = parse(GOOD).unwrap();
    let guests = spec.plan();
    assert_eq!((guests[1].name.as_str(), guests[1].shift_ms), ("a-2", 2500));
    assert_ne!(guests[0].seed, guests[1].seed);
    assert!(spec.cases[0].takes_nothing() && !spec.cases[1].takes_nothing());
    assert_eq!(spec.cases[1].words(), "free page reporting, balloons by equal");
    let paging = parse(&GOOD.replace("reporting", "paging")).unwrap();
    assert_eq!([spec.swap_mib(), paging.swap_mib()], [0, 12], "2 guests of 256 MiB on a host of 500");
    let one = spec.clone().only(Path::new("x.toml"), &["equal".into()]).unwrap();
    assert_eq!(one.cases.len(), 1);
    let none = spec.only(Path::new("x.toml"), &["no".into()]).unwrap_err().to_string();
    assert_eq!(none, "x.toml: has no case `no`; it has all, equal");
}

#[test]
fn the_experiments_that_ship_are_well() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/reclaim");
    let specs: Vec<Spec> =
        std::fs::read_dir(dir).unwrap().map(|file| Spec::read(&file.unwrap().path()).unwrap()).collect();
    assert_eq!(specs.len(), 3);
    assert!(specs.iter().all(|spec| spec.cases[0].takes_nothing()), "progress needs a reference");
}

#[test]
fn an_invalid_value_is_refused_with_its_field() {
    for (from, to, said) in [
        ("length = 10", "length = 0", "time.length: not a number of seconds from 1"),
        ("length = 10", "length = nan", "time.length"),
        ("interval = 1", "interval = 11", "time.interval: longer"),
        ("interval = 1", "interval = 0.5", "time.interval: not"),
        ("host_memory_mib = 500", "host_memory_mib = 199", "host_memory_mib: not from 200"),
        ("count = 2", "count = 65", "guest[0].count"),
        ("name = 'a'", "name = 'a,b'", "guest[0].name"),
        ("memory_mib = 256", "memory_mib = 64", "guest[0].memory_mib"),
        ("least_mib = 100", "least_mib = 257", "guest[0].least_mib"),
        ("memory_mib = 100,", "memory_mib = 300,", "guest[0].phases[0].memory_mib"),
        ("memory_mib = 100,", "memory_mib = 100, used_mib = 101,", "guest[0].phases[0].used_mib"),
        ("seconds = 5,", "seconds = 0,", "guest[0].phases[0].seconds"),
        ("rate = 10", "rate = 2000000", "guest[0].phases[0].rate"),
        ("rate = 10", "rate = 10, speed = 1", "unknown field `speed`"),
        (
            "policy = 'equal'",
            "policy = 'oracle'",
            "`oracle` is no policy for guests that run: use none, equal",
        ),
        ("name = 'equal'", "name = 'all'", "case[1].name"),
        ("reporting = true", "size_mib = 200", "case[1].size_mib: the case has a policy"),
        ("policy = 'equal'", "size_mib = 300", "case[1].size_mib: not above 0"),
        ("policy = 'equal'", "memory_mib = 64", "case[1].memory_mib: not from 96"),
        ("policy = 'equal'", "memory_mib = 99", "case[1].memory_mib: below guest[0].least_mib, which is 100"),
        ("policy = 'equal'", "host_memory_mib = 64", "case[1].host_memory_mib: not from 200"),
        ("title = 'x'", "title = 'x'\ndisk_us = 1000001", "disk_us: above"),
        ("title = 'x'", "title = 'x'\nrepetitions = 0", "repetitions: not from 1"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD);
        let e = parse(&text).unwrap_err().to_string();
        assert!(e.starts_with("x.toml: ") && e.contains(said), "{to}: {e}");
    }
}
