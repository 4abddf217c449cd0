// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::full::place::words::{folded, siblings, size};
use bifold_host::topology::{
    Access, Allowed, Cache, Cpu, Device, HugePool, Node, NumberSet, SideCache, Topology,
};
use std::collections::{BTreeMap, BTreeSet};

fn set(list: &str) -> NumberSet {
    list.parse().unwrap()
}

/// Two packages of two cores with two threads, and a node of memory alone.
fn server() -> Topology {
    let mut t =
        Topology { numa: true, isolated: set("2-3,6-7"), tickless: set("6-7"), ..Topology::default() };
    for n in 0..8 {
        let (package, threads) = ((n % 4 / 2) as i32, NumberSet::from_iter([n % 4, n % 4 + 4]));
        let cpu = Cpu {
            online: true,
            package: Some(package),
            die: Some(0),
            core: Some((n % 2) as i32),
            threads,
            node: Some(2 * package as u32),
        };
        t.cpus.insert(n, cpu);
    }
    t.cpus.insert(8, Cpu::default());
    for (n, cpus) in [(0, "0-1,4-5"), (2, "2-3,6-7")] {
        t.caches.push(Cache { level: 3, id: Some(n), bytes: 32 << 20, line: 64, ways: 16, cpus: set(cpus) });
        let pool = HugePool { total: 64, free: 60 + u64::from(n), surplus: 0 };
        let node = Node {
            cpus: set(cpus),
            memory: 64 << 30,
            free: (50 << 30) + (300 << 20),
            kvm_tables: Some(1_300 << 10),
            huge: BTreeMap::from([(2048, pool)]),
            ..Node::default()
        };
        t.nodes.insert(n, node);
    }
    t.nodes.insert(5, Node { memory: 256 << 30, free: 256 << 30, ..Node::default() });
    for (from, row) in [(0, [10, 21, 17]), (2, [21, 10, 28]), (5, [17, 28, 10])] {
        t.nodes.get_mut(&from).unwrap().distances = [0, 2, 5].into_iter().zip(row).collect();
    }
    let access = |node: &str, ns, mb| {
        let (read_latency, read_bandwidth) = (Some(ns), Some(mb));
        Some(Access { initiators: set(node), read_latency, read_bandwidth, ..Access::default() })
    };
    t.nodes.get_mut(&0).unwrap().access = access("0", 80, 131_072);
    t.nodes.get_mut(&5).unwrap().cpu_access = access("0", 300, 30_000);
    t.nodes.get_mut(&5).unwrap().side_caches = vec![SideCache { level: 1, bytes: 16 << 30, line: 64 }];
    let device = |address: &str, class, node, names: &[&str], interrupts: &str| Device {
        address: address.into(),
        class,
        node,
        names: names.iter().map(|n| n.to_string()).collect(),
        interrupts: set(interrupts),
        ..Device::default()
    };
    t.devices = vec![
        device("0000:00:1f.0", 0x06_01_00, Some(0), &[], ""),
        device("0000:3b:00.0", 0x02_00_00, Some(2), &["ens1", "\u{1b}[2J"], "33-48"),
        device("0000:5e:00.0", 0x01_08_02, None, &["nvme0n1"], ""),
    ];
    let container = Some("docker".into());
    t.allowed = Some(Allowed { group: "/a\nb".into(), cpus: set("0-3"), nodes: set("0,5"), container });
    t.notes = vec!["a note".into()];
    t
}

#[test]
fn a_server_is_seen_at_a_glance() {
    let text = text::table(&server());
    assert!(text.lines().all(|l| l.chars().count() <= 80 && !l.contains(char::is_control)), "{text}");
    insta::assert_snapshot!("place_show_table", text);
    insta::assert_snapshot!("place_show_json", json::document(&server()).unwrap());
}

#[test]
fn a_machine_about_which_nothing_is_known_has_no_empty_parts() {
    let cpus = BTreeMap::from([(0, Cpu { online: true, ..Cpu::default() })]);
    let t = Topology { cpus, nodes: BTreeMap::from([(0, Node::default())]), ..Topology::default() };
    insta::assert_snapshot!("place_show_table_nothing", text::table(&t));
}

#[test]
fn sizes_have_one_decimal_at_most() {
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (5 << 20, "5 MiB"),
        ((5 << 20) + (512 << 10), "5.5 MiB"),
        (u64::MAX, "16777216 TiB"),
    ] {
        assert_eq!(size(bytes), text);
    }
}

#[test]
fn lines_are_folded_at_80_columns_and_never_within_a_number() {
    let numbers: Vec<String> = (0..200).map(|n| (2 * n).to_string()).collect();
    let text = folded(2, "CPUs", &[numbers.join(",")]);
    assert!(text.lines().count() > 5 && text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let back: Vec<&str> = text.split([' ', ',', '\n']).filter(|w| !w.is_empty()).skip(1).collect();
    assert_eq!(back, numbers);
    let parts: Vec<String> = (0..30).map(|n| format!("part {n}")).collect();
    let text = folded(0, "x", &parts);
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    assert_eq!(text.split_whitespace().skip(1).collect::<Vec<_>>().join(" "), parts.join(", "));
}

#[test]
fn siblings_are_lists_where_lists_say_it() {
    let topology = |cores: &[&str]| {
        let mut t = Topology::default();
        for threads in cores.iter().map(|c| set(c)) {
            t.cpus.extend(
                threads.iter().map(|n| (n, Cpu { online: true, threads: threads.clone(), ..Cpu::default() })),
            );
        }
        t
    };
    for (cores, words) in [
        (&["0", "1"][..], &[][..]),
        (&["0-1"], &["0 with 1"]),
        (&["0,4", "1,5"], &["0-1 with 4-5, in this order"]),
        (&["0-1", "2-3"], &["0,2 with 1,3, in this order"]),
        (&["0,5", "1,4"], &["0,5", "1,4"]),
        (&["0,2", "1", "3-6"], &["0 with 2", "3 with 4 with 5 with 6"]),
    ] {
        assert_eq!(siblings(&topology(cores), &set("0-6")), words, "{cores:?}");
    }
}

/// The paths of all fields below a value, as the docs write them.
fn fields(value: &serde_json::Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (name, value) in map {
                let path = format!("{path}{}{name}", if path.is_empty() { "" } else { "." });
                if !value.is_array() {
                    found.insert(path.clone());
                }
                fields(value, &path, found);
            }
        }
        serde_json::Value::Array(values) => {
            found.insert(format!("{path}[]"));
            values.iter().for_each(|value| fields(value, &format!("{path}[]"), found));
        }
        _ => {}
    }
}

#[test]
fn the_page_of_formats_has_every_field() {
    let page = include_str!("../../../../../../docs/reference/formats.md");
    let section = page.split_once("\n## place show\n").unwrap().1.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = rows.map(|(field, _)| field.to_owned()).collect();
    let mut found = BTreeSet::new();
    fields(&serde_json::from_str(&json::document(&server()).unwrap()).unwrap(), "", &mut found);
    // It has the fields of `access`.
    found.retain(|f| !f.starts_with("nodes[].cpu_access."));
    assert_eq!(documented, found);
}
