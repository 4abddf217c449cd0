// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What hwloc's `lstopo` printed: a tree of objects, distances between nodes, speeds of their memory.
//!
//! Three formats occur: verbose text, brief text, and XML. All have an object to a line.

use bifold_host::topology::NumberSet;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// An object: a package, a cache, a node, a device.
#[derive(Debug, Default)]
pub struct Object {
    /// Its type as in XML, without the kind of cache: `L1Cache`, `PU`, `NUMANode`.
    pub kind: String,
    /// What hwloc adds to the type: `MemorySideCache`, `DRAM`.
    pub subtype: String,
    /// The operating system's number (`P#`).
    pub os: Option<u32>,
    /// hwloc's own number (`L#`); XML has none.
    pub logical: Option<u32>,
    /// Other attributes.
    pub attributes: BTreeMap<String, String>,
    /// Name of an operating system's device.
    pub name: String,
    /// Visible CPUs below; for a node the CPUs that hwloc takes it to be local to.
    pub cpus: NumberSet,
    /// Pages by size in bytes, of a node in XML.
    pub pages: BTreeMap<u64, u64>,
    /// The object that this is in.
    pub parent: Option<usize>,
    depth: usize,
}

impl Object {
    /// The number in the first of these attributes that is there; 0 without.
    pub fn number(&self, names: [&str; 2]) -> u64 {
        let found = names.iter().find_map(|n| self.attributes.get(*n));
        found.map_or(0, |t| t.parse().unwrap_or_else(|_| panic!("{names:?}: {t}")))
    }

    /// Bytes, in the first attribute with `KB` behind, or in the second.
    pub fn amount(&self, [kib, bytes]: [&str; 2]) -> u64 {
        match self.attributes.get(kib) {
            Some(text) => text.strip_suffix("KB").unwrap().parse::<u64>().unwrap() << 10,
            None => self.number([bytes, bytes]),
        }
    }

    /// The address of a PCI device or bridge.
    pub fn pci_address(&self) -> Option<&str> {
        let is_pci = ["PCIDev", "PCIBridge", "Bridge"].contains(&&*self.kind);
        let found = self.attributes.get("busid").or(self.attributes.get("pci_busid"));
        found.filter(|_| is_pci).map(String::as_str)
    }

    /// The class of a PCI device, four digits.
    pub fn pci_class(&self) -> &str {
        &self.attributes.get("class").or(self.attributes.get("pci_type")).unwrap()[..4]
    }

    pub fn is_bridge(&self) -> bool {
        self.kind.ends_with("Bridge")
    }
}

/// What a run of `lstopo` printed.
#[derive(Debug, Default)]
pub struct Output {
    /// Objects, each behind its parent.
    pub objects: Vec<Object>,
    /// Distances by numbers of nodes.
    pub distances: BTreeMap<(u32, u32), u64>,
    /// Speeds by name and node.
    pub speeds: BTreeMap<(String, u32), u64>,
    /// CPUs that exist and are not visible.
    pub hidden: Option<NumberSet>,
    /// The cgroup.
    pub group: Option<String>,
}

impl Output {
    pub fn read(file: &Path) -> Output {
        let text = fs::read_to_string(file).unwrap();
        let mut output = if text.starts_with("<?xml") { of_xml(&text) } else { of_text(&text) };
        output.set_cpus();
        output
    }

    pub fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(move |o| o.kind == kind)
    }

    /// The objects that an object is in, from the inside out.
    pub fn above<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = &'a Object> {
        std::iter::successors(object.parent, |at| self.objects[*at].parent).map(|at| &self.objects[at])
    }

    /// The objects directly or indirectly in an object.
    pub fn below<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(move |o| self.above(o).any(|above| std::ptr::eq(above, object)))
    }

    /// Whether the operating system's numbers tell all packages apart.
    pub fn packages_have_numbers(&self) -> bool {
        let numbers: Vec<_> = self.all("Package").map(|o| o.os).collect();
        let unique: BTreeSet<_> = numbers.iter().collect();
        unique.len() == numbers.len() && !unique.contains(&None)
    }

    /// Whether the format is the brief one, which has memory in MiB.
    pub fn in_mib(&self) -> bool {
        self.all("NUMANode").any(|o| o.attributes.contains_key("MB"))
    }

    /// The visible CPUs.
    pub fn cpus(&self) -> NumberSet {
        self.all("PU").filter_map(|o| o.os).collect()
    }

    /// Fills in CPUs from below, then those of memory from above.
    fn set_cpus(&mut self) {
        for at in (0..self.objects.len()).rev() {
            let object = &self.objects[at];
            let own: NumberSet = object.os.filter(|_| object.kind == "PU").into_iter().collect();
            let cpus = object.cpus.union(&own);
            self.objects[at].cpus = cpus.clone();
            if let Some(parent) = self.objects[at].parent {
                self.objects[parent].cpus = self.objects[parent].cpus.union(&cpus);
            }
        }
        for at in 0..self.objects.len() {
            let memory = ["NUMANode", "MemCache"].contains(&&*self.objects[at].kind);
            if let (true, Some(parent)) = (memory, self.objects[at].parent) {
                self.objects[at].cpus = self.objects[parent].cpus.clone();
            }
        }
    }

    fn push(&mut self, object: Object) {
        let above = |o: &Object| o.depth < object.depth;
        let parent = self.objects.iter().rposition(above);
        self.objects.push(Object { parent, ..object });
    }
}

fn of_text(text: &str) -> Output {
    let mut output = Output::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(first) = line.strip_prefix("Relative latency matrix (name NUMALatency") {
            assert!(first.contains("by logical indexes"));
            let rows = std::iter::from_fn(|| lines.next_if(|l| l.starts_with(' ')));
            output.distances = matrix(&output, &rows.collect::<Vec<_>>());
        } else if let Some(name) = line.strip_prefix("Memory attribute #") {
            let name = name.split(['`', '\'']).nth(1).unwrap().to_owned();
            while let Some(line) = lines.next_if(|l| l.starts_with("  NUMANode")) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let node = output.node(words[1].strip_prefix("L#").unwrap().parse().unwrap());
                output.speeds.insert((name.clone(), node), words[3].parse().unwrap());
            }
        } else if let Some((_, mask)) = line.split_once(" processors not represented in topology: ") {
            output.hidden = NumberSet::from_mask(&words_of_32_bits(mask));
        } else if !line.trim_start().starts_with("depth ") && !line.starts_with("Special depth ") {
            if let Some(object) = object(line) {
                if let Some(group) = object.attributes.get("LinuxCgroup") {
                    output.group = Some(group.clone());
                }
                output.push(object);
            }
        }
    }
    output
}

/// Distances with hwloc's own numbers of nodes in head and first column.
fn matrix(output: &Output, lines: &[&str]) -> BTreeMap<(u32, u32), u64> {
    let rows: Vec<Vec<&str>> = lines.iter().map(|l| l.split_whitespace().collect()).collect();
    let node = |word: &str| output.node(word.parse().unwrap());
    let (head, rows) = rows.split_first().unwrap();
    let cells = |row: &Vec<&str>| {
        let from = node(row[0]);
        let cells = head[1..].iter().zip(&row[1..]);
        cells.map(|(to, value)| ((from, node(to)), value.parse().unwrap())).collect::<Vec<_>>()
    };
    rows.iter().flat_map(cells).collect()
}

impl Output {
    /// The system's number of the node with this number of hwloc's.
    fn node(&self, logical: u32) -> u32 {
        self.all("NUMANode").find(|o| o.logical == Some(logical)).and_then(|o| o.os).unwrap()
    }
}

/// A line `Type(subtype) L#1 (P#2 key=value key="a value") "name"`.
fn object(line: &str) -> Option<Object> {
    let words = line.trim_start();
    let depth = line.len() - words.len();
    let kind = words.split([' ', '(']).next()?;
    let known = kind.chars().next()?.is_ascii_uppercase()
        && (words.contains("L#") || words.contains("P#") || depth == 0);
    if !known || words.starts_with("Topology ") || words.starts_with("CPU kind ") {
        return None;
    }
    let rest = &words[kind.len()..];
    let (subtype, rest) = match rest.strip_prefix('(') {
        Some(inner) => inner.split_once(')').unwrap(),
        None => ("", rest),
    };
    let number = |mark: &str| {
        let digits = rest.split_once(mark)?.1;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let name = rest.rsplit_once(") \"").and_then(|(_, n)| n.strip_suffix('"')).unwrap_or_default();
    let data_cache = kind.strip_suffix("dCache").map(|level| format!("{level}Cache"));
    let kind = if kind == "PCI" { "PCIDev" } else { kind };
    Some(Object {
        kind: data_cache.unwrap_or(kind.into()),
        subtype: subtype.into(),
        os: number("P#"),
        logical: number("L#"),
        attributes: attributes(rest, number("(")),
        name: name.into(),
        depth,
        ..Object::default()
    })
}

/// The words `key=value` or `key="a value"`; in the brief format, `MB` for the amount in `(3958MB)`.
fn attributes(text: &str, brief: Option<u32>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    if let Some(mib) = brief.filter(|_| text.ends_with("MB)")) {
        found.insert("MB".to_owned(), mib.to_string());
    }
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('=') {
        let key = before.rsplit([' ', '(']).next().unwrap_or_default();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_at(after.find([' ', ')']).unwrap_or(after.len())),
        };
        found.insert(key.to_owned(), value.to_owned());
        rest = after;
    }
    found
}

fn of_xml(text: &str) -> Output {
    let mut output = Output::default();
    let (mut indexes, mut values, mut speed) = (Vec::new(), Vec::new(), String::new());
    for line in text.lines() {
        let words = line.trim_start();
        let found = xml_attributes(words);
        let get = |name: &str| found.get(name).cloned();
        let numbers = || -> Vec<u64> {
            let inner = words.split(['>', '<']).nth(2).unwrap();
            inner.split_whitespace().map(|w| w.parse().unwrap()).collect()
        };
        match words.split([' ', '>']).next().unwrap_or_default() {
            "<object" => output.push(xml_object(line.len() - words.len(), found)),
            "<page_type" => {
                let (size, count) =
                    (get("size").unwrap().parse().unwrap(), get("count").unwrap().parse().unwrap());
                output.objects.last_mut().unwrap().pages.insert(size, count);
            }
            "<info" if get("name").as_deref() == Some("LinuxCgroup") => output.group = get("value"),
            "<distances2" => {
                assert_eq!((get("name"), get("indexing")), (Some("NUMALatency".into()), Some("os".into())))
            }
            "<indexes" => indexes.extend(numbers()),
            "<u64values" => values.extend(numbers()),
            "<memattr" => speed = get("name").unwrap(),
            "<memattr_value" => {
                let node = get("target_obj_gp_index").or(get("target_obj_os_index"));
                panic!("a speed of {speed} of node {node:?} in XML: its form is not known here");
            }
            _ => {}
        }
    }
    for (from, row) in indexes.iter().zip(values.chunks(indexes.len().max(1))) {
        let cells = indexes.iter().zip(row).map(|(to, d)| ((*from as u32, *to as u32), *d));
        output.distances.extend(cells);
    }
    output
}

fn xml_object(depth: usize, found: BTreeMap<String, String>) -> Object {
    let get = |name: &str| found.get(name).cloned().unwrap_or_default();
    // Devices are no part of any set of CPUs.
    let cpus = found.get("cpuset").and_then(|mask| NumberSet::from_mask(&words_of_32_bits(mask)));
    Object {
        kind: get("type"),
        subtype: get("subtype"),
        os: found.get("os_index").and_then(|n| n.parse().ok()),
        name: get("name"),
        cpus: cpus.unwrap_or_default(),
        attributes: found,
        depth,
        ..Object::default()
    }
}

fn xml_attributes(tag: &str) -> BTreeMap<String, String> {
    let mut parts = tag.split('"');
    let mut found = BTreeMap::new();
    while let (Some(before), Some(value)) = (parts.next(), parts.next()) {
        let key = before.trim_end_matches('=').rsplit(' ').next().unwrap_or_default();
        found.insert(key.to_owned(), value.to_owned());
    }
    found
}

/// hwloc's masks as the kernel writes masks: without `0x`, and with no empty word.
fn words_of_32_bits(mask: &str) -> String {
    let word = |w: &str| w.trim_start_matches("0x").to_owned();
    let words: Vec<String> =
        mask.trim().split(',').map(word).map(|w| if w.is_empty() { "0".into() } else { w }).collect();
    words.join(",")
}
