// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns what is written into wishes, and lists every value that cannot be used with its line.

use super::file::{self, At};
use super::{Guest, HostWishes, Nodes, PageSize, Smt, Wishes};
use bifold_host::printable;
use bifold_host::topology::NumberSet;
use std::ops::RangeInclusive;

/// Most guests in a file.
const MOST_GUESTS: usize = 256;
/// Most devices of a guest.
const MOST_DEVICES: usize = 16;
/// Longest name, in bytes.
const LONGEST_NAME: usize = 128;
/// QEMU rounds `-m` up to a whole number of this many bytes, and then refuses nodes whose sum is less.
const UNIT: u64 = 8 << 10;
/// Largest memory, in bytes: 2^52 is what x86 can address.
const MOST_MEMORY: u64 = 1 << 52;

/// Reads values of a text, and collects what is wrong.
struct Reader<'a> {
    text: &'a str,
    wrong: Vec<String>,
}

/// The wishes of a file with this text.
pub fn wishes(file: file::File, text: &str) -> Result<Wishes, Vec<String>> {
    let mut reader = Reader { text, wrong: Vec::new() };
    let host = reader.host(&file.host);
    if file.guest.is_empty() {
        reader.wrong.push("no guest: add a table [[guest]] with name, vcpus and memory".into());
    }
    if file.guest.len() > MOST_GUESTS {
        reader
            .wrong
            .push(format!("{} guests: at most {MOST_GUESTS} can be planned together", file.guest.len()));
    }
    let mut guests: Vec<Guest> = Vec::new();
    for guest in file.guest.iter().take(MOST_GUESTS) {
        let read = reader.guest(guest);
        if guests.iter().any(|g| g.name == read.name) {
            reader.bad(&guest.name, "guest.name", "is the name of another guest, too");
        }
        guests.push(read);
    }
    if reader.wrong.is_empty() { Ok(Wishes { host, guests }) } else { Err(reader.wrong) }
}

/// Bytes of a size such as `64G`; the unit must be given.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.strip_suffix("iB").or(unit.strip_suffix('B')).unwrap_or(unit) {
        "" if number == "0" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|b| *b <= MOST_MEMORY)
}

impl Reader<'_> {
    /// Notes that a value cannot be used.
    fn bad<T>(&mut self, value: &At<T>, key: &str, problem: &str) {
        let line = 1 + self.text.as_bytes()[..value.span().start].iter().filter(|b| **b == b'\n').count();
        let value = printable(self.text.get(value.span()).unwrap_or_default());
        let value: String = value.chars().take(80).collect();
        self.wrong.push(format!("line {line}: {key} = {value} {problem}"));
    }

    fn size(&mut self, value: &At<String>, key: &str) -> u64 {
        bytes(value.get_ref()).unwrap_or_else(|| {
            self.bad(value, key, "is no size with its unit, such as \"512M\" or \"64G\"");
            0
        })
    }

    fn number(&mut self, value: &At<i64>, key: &str, range: RangeInclusive<i64>) -> u32 {
        if !range.contains(value.get_ref()) {
            self.bad(value, key, &format!("is not {} to {}", range.start(), range.end()));
            return *range.start() as u32;
        }
        *value.get_ref() as u32
    }

    fn list(&mut self, value: &At<String>, key: &str) -> NumberSet {
        value.get_ref().parse().unwrap_or_else(|_| {
            self.bad(value, key, "is no list of numbers such as \"0-3,8\"");
            NumberSet::default()
        })
    }

    /// The place of a word in a list; 0, the default, if it is not given.
    fn word(&mut self, value: Option<&At<String>>, key: &str, words: &[&str]) -> usize {
        let Some(value) = value else { return 0 };
        words.iter().position(|w| w == value.get_ref()).unwrap_or_else(|| {
            self.bad(value, key, &format!("is not one of {}", words.join(", ")));
            0
        })
    }

    fn host(&mut self, host: &file::Host) -> HostWishes {
        let halt_poll_ns = host.halt_poll_ns.as_ref();
        HostWishes {
            cpus: host.cpus.as_ref().map(|v| self.list(v, "host.cpus")),
            reserve_cpus: host.reserve_cpus.as_ref().map(|v| self.list(v, "host.reserve_cpus")),
            reserve_memory: host.reserve_memory.as_ref().map_or(0, |v| self.size(v, "host.reserve_memory")),
            reserve_pages: self.word(host.huge_pages.as_ref(), "host.huge_pages", &["reserve", "keep"]) == 0,
            balancing_off: self.word(host.numa_balancing.as_ref(), "host.numa_balancing", &["off", "keep"])
                == 0,
            halt_poll_ns: halt_poll_ns.map(|v| self.number(v, "host.halt_poll_ns", 0..=1_000_000)),
        }
    }

    fn guest(&mut self, guest: &file::Guest) -> Guest {
        let nodes = guest.nodes.as_ref();
        let of = |value: &Option<At<i64>>, key, reader: &mut Self| {
            value.as_ref().map_or(0, |v| reader.number(v, key, 0..=64))
        };
        let memory = self.size(&guest.memory, "guest.memory");
        if memory == 0 && guest.memory.get_ref().starts_with('0') {
            self.bad(&guest.memory, "guest.memory", "is no memory");
        }
        if memory % UNIT != 0 {
            let name = printable(guest.name.get_ref());
            let problem =
                format!("of guest {name} is no whole number of 8K, and QEMU gives memory in 8K only");
            self.bad(&guest.memory, "guest.memory", &problem);
        }
        if guest.near.len() > MOST_DEVICES {
            self.bad(&guest.near[0], "guest.near", &format!("and further devices: at most {MOST_DEVICES}"));
        }
        Guest {
            name: self.name(&guest.name),
            vcpus: self.number(&guest.vcpus, "guest.vcpus", 1..=4096),
            memory,
            page: match self.word(guest.page_size.as_ref(), "guest.page_size", &["auto", "4K", "2M", "1G"]) {
                0 => PageSize::Auto,
                1 => PageSize::Kib(4),
                2 => PageSize::Kib(2 << 10),
                _ => PageSize::Kib(1 << 20),
            },
            nodes: nodes.map_or(Nodes::Auto, |v| self.nodes(v)),
            host_nodes: guest.host_nodes.as_ref().map(|v| self.list(v, "guest.host_nodes")),
            smt: match self.word(guest.smt.as_ref(), "guest.smt", &["threads", "cores"]) {
                0 => Smt::Threads,
                _ => Smt::Cores,
            },
            emulator_cores: of(&guest.emulator_cores, "guest.emulator_cores", self),
            io_threads: of(&guest.io_threads, "guest.io_threads", self),
            near: guest.near.iter().take(MOST_DEVICES).map(|d| d.get_ref().clone()).collect(),
            tickless: guest.tickless,
            interrupts_away: guest.interrupts_away.unwrap_or(true),
            ksm: guest.ksm,
        }
    }

    fn name(&mut self, name: &At<String>) -> String {
        let text = name.get_ref();
        if text.is_empty() || text.len() > LONGEST_NAME || text.chars().any(char::is_control) {
            let problem = format!("is no name: 1 to {LONGEST_NAME} bytes without control characters");
            self.bad(name, "guest.name", &problem);
        }
        text.clone()
    }

    fn nodes(&mut self, value: &At<toml::Value>) -> Nodes {
        match value.get_ref() {
            toml::Value::String(s) if s == "auto" => Nodes::Auto,
            toml::Value::String(s) if s == "host" => Nodes::Host,
            toml::Value::Integer(n @ 1..=128) => Nodes::Number(*n as u32),
            _ => {
                self.bad(value, "guest.nodes", "is neither \"auto\", \"host\" nor a number from 1 to 128");
                Nodes::Auto
            }
        }
    }
}
