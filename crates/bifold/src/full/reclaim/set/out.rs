// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `bifold reclaim set` prints: lines for reading, or as JSON.

use crate::console::print;
use crate::words;
use bifold_live::order::{Back, Goal, SizeObservation};
use bifold_report::Format;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of a line.
const SCHEMA: &str = "bifold.reclaim-set/1";

/// What keeps an order above its size.
#[derive(Debug, Clone, Copy)]
pub enum Short {
    LeastSize,
    NoMore,
}

/// What `bifold reclaim set --format jsonl` writes: a line for each event of an order about a guest's size.
#[derive(Default, Serialize, JsonSchema)]
struct Line<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// What happened: `plan`, what `--dry-run` would do; `begin`; `step`, a size was ordered; `hold`, the
    /// size that the order reaches is held; or `end`.
    event: &'static str,
    /// The guest's name.
    vm: &'a str,
    /// The guest's process.
    pid: u32,
    #[serde(flatten)]
    seen: Option<Seen>,
    /// The size that the order is to reach, or of `step` the size that was ordered; absent in `hold` and
    /// `end`. Unit: bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_bytes: Option<u64>,
    /// The least size of the guest; null before statistics have arrived, absent except in `plan` and `begin`.
    /// Unit: bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_bytes: Option<Option<u64>>,
    /// How the memory would be taken: `balloon`, `virtio-mem` or `cgroup`; absent except in `plan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    /// Whether the order has reached all of its size; absent except in `hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<bool>,
    /// What became of the memory: `given_back`; `kept`, as an earlier order has left the size; `gone`, the
    /// guest has ended; or `another`, another program has set a size. Absent except in `end`.
    #[serde(skip_serializing_if = "Option::is_none")]
    back: Option<&'static str>,
    /// Why the order ended; absent except in `end`.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

/// What was seen of a guest.
#[derive(Serialize, JsonSchema)]
struct Seen {
    /// The guest's size, as the way of the order counts; absent in `end`. Unit: bytes.
    size_bytes: u64,
    /// What the guest's programs can take without swapping; null if unknown, absent in `end`. Unit: bytes.
    available_bytes: Option<u64>,
    /// What the guest cannot do without; null if unknown, absent in `end`. Unit: bytes.
    used_bytes: Option<u64>,
    /// What the guest's process has in the host's memory; null if unknown, absent in `end`. Unit: bytes.
    resident_bytes: Option<u64>,
    /// Faults of the guest since its boot that read from a disk; null if unknown, absent in `end`.
    faults: Option<u64>,
}

/// The schema of a line.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Line>(SCHEMA)
}

/// What is printed.
pub struct Out {
    pub name: String,
    pub pid: u32,
    pub format: Format,
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", (bytes + words::MIB / 2) / words::MIB)
}

fn or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".into(), mib)
}

impl Out {
    fn line(
        &self,
        text: String,
        event: &'static str,
        look: Option<&SizeObservation>,
        more: Line,
    ) -> anyhow::Result<()> {
        if self.format != Format::Jsonl {
            return print(&format!("{}: {text}\n", self.name));
        }
        let seen = look.map(|look| Seen {
            size_bytes: look.size,
            available_bytes: look.available,
            used_bytes: look.used,
            resident_bytes: look.resident,
            faults: look.faults,
        });
        let line = Line { schema: SCHEMA, event, vm: &self.name, pid: self.pid, seen, ..more };
        print(&(serde_json::to_string(&line)? + "\n"))
    }

    pub fn plan(&self, goal: &Goal, look: &SizeObservation, floor: Option<u64>) -> anyhow::Result<()> {
        let floor_text = floor.map_or("its least size is known once statistics arrive".into(), |f| {
            format!("least size {}", mib(f))
        });
        let text = format!(
            "would go from {} to {} by {}; it uses {}, {floor_text}",
            mib(look.size),
            mib(goal.size),
            goal.way.name(),
            or_unknown(look.used)
        );
        let (target_bytes, by) = (Some(goal.size), Some(goal.way.name()));
        let more = Line { target_bytes, floor_bytes: Some(floor), by, ..Line::default() };
        self.line(text, "plan", Some(look), more)
    }

    pub fn begins(&self, look: &SizeObservation, floor: Option<u64>, size: u64) -> anyhow::Result<()> {
        let text = format!(
            "has {}, uses {}, least size {}, resident {}; to {}",
            mib(look.size),
            or_unknown(look.used),
            or_unknown(floor),
            or_unknown(look.resident),
            mib(size)
        );
        let more = Line { target_bytes: Some(size), floor_bytes: Some(floor), ..Line::default() };
        self.line(text, "begin", Some(look), more)
    }

    pub fn step(&self, look: &SizeObservation, target: u64) -> anyhow::Result<()> {
        let text = format!(
            "{} -> {}; before, {} available, {} resident",
            mib(look.size),
            mib(target),
            or_unknown(look.available),
            or_unknown(look.resident)
        );
        self.line(text, "step", Some(look), Line { target_bytes: Some(target), ..Line::default() })
    }

    pub fn holds(&self, look: &SizeObservation, short: Option<Short>, ends: bool) -> anyhow::Result<()> {
        let text = format!(
            "{} at {}{}; {} available, {} resident",
            if ends { "is" } else { "holds" },
            mib(look.size),
            match short {
                None => "",
                Some(Short::LeastSize) => ", its least size",
                Some(Short::NoMore) => ", and the kernel finds no more to take",
            },
            or_unknown(look.available),
            or_unknown(look.resident)
        );
        self.line(text, "hold", Some(look), Line { whole: Some(short.is_none()), ..Line::default() })
    }

    pub fn ends(&self, back: Option<Back>, why: &str) -> anyhow::Result<()> {
        let (text, word) = match back {
            None => (format!("{why}: it stays as an earlier order has left it"), "kept"),
            Some(Back::Given) => (format!("{why}: everything is given back"), "given_back"),
            Some(Back::Gone) => (format!("{why}: the guest has ended"), "gone"),
            Some(Back::Another { size }) => {
                (format!("{why}: another program has set {}, which stays", mib(size)), "another")
            }
        };
        self.line(text, "end", None, Line { back: Some(word), why: Some(why), ..Line::default() })
    }
}
