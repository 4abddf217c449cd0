// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What QEMU's monitor says of a machine's memory: state, balloon with the guest's statistics, virtio-mem.
//!
//! Sources: `qapi/machine.json`, `qapi/migration.json`, `docs/interop/virtio-balloon-stats.rst` and
//! `hw/virtio/virtio-balloon.c` of QEMU. The parsers are pure functions of an answer's value.

use super::Monitor;
use crate::printable;
use crate::qmp::Refusal;
use serde_json::{Value, json};
use std::io;

/// The containers of devices with and without an `id`.
const FOLDERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];
/// Most devices that are looked at.
const MOST_DEVICES: usize = 4096;
/// States of a migration in which it has not begun or is over.
const NO_MIGRATION: [&str; 5] = ["none", "completed", "failed", "cancelled", ""];

/// What the guest's driver of the balloon reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestStatistics {
    /// When the guest sent them, in seconds since 1970 by QEMU's clock; `None` if it has never sent any.
    pub updated_s: Option<u64>,
    /// Unused bytes.
    pub free: Option<u64>,
    /// Bytes that programs can take without swapping (`MemAvailable`).
    pub available: Option<u64>,
    /// Bytes of the page cache.
    pub caches: Option<u64>,
    /// Bytes read back from swap since boot.
    pub swapped_in: Option<u64>,
    /// Faults since boot that read from a disk: pages of swap, and of files that were dropped.
    pub major_faults: Option<u64>,
    /// Processes that the guest killed for lack of memory since boot (Linux 6.12 and newer).
    pub oom_kills: Option<u64>,
}

impl GuestStatistics {
    /// Parses the value of the property `guest-stats`. 2^64-1 stands for a figure that the guest does not
    /// send.
    pub fn parse(value: &Value) -> GuestStatistics {
        let of = |name: &str| value.get("stats")?.get(name)?.as_u64().filter(|n| *n != u64::MAX);
        GuestStatistics {
            updated_s: value.get("last-update").and_then(Value::as_u64).filter(|s| *s > 0),
            free: of("stat-free-memory"),
            available: of("stat-available-memory"),
            caches: of("stat-disk-caches"),
            swapped_in: of("stat-swap-in"),
            major_faults: of("stat-major-faults"),
            oom_kills: of("stat-oom-kills"),
        }
    }
}

/// A machine's virtio-balloon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Balloon {
    /// The device's path in QEMU's object tree.
    pub path: String,
    /// Whether the guest may take pages back out of the balloon before it kills a process for lack of memory.
    pub deflate_on_oom: bool,
    /// Whether the guest reports its free pages, and QEMU gives them to the host.
    pub reports_free_pages: bool,
    /// Bytes of memory that the guest has left outside of the balloon, all of it while no driver runs;
    /// `None` if QEMU does not tell.
    pub actual: Option<u64>,
    /// Seconds between two requests for statistics; 0 if QEMU requests none.
    pub polling_s: u64,
    /// The guest's statistics.
    pub statistics: GuestStatistics,
}

/// A device of virtio-mem, whose size changes while the guest runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtioMem {
    /// The device's id, without which it cannot be changed.
    pub id: Option<String>,
    /// Bytes that the host asks the guest to have.
    pub requested: u64,
    /// Bytes that the guest has.
    pub size: u64,
    /// Sizes are multiples of this.
    pub block: u64,
}

impl VirtioMem {
    /// Parses an answer of `query-memory-devices`. Devices of other kinds are left out.
    pub fn parse(value: &Value) -> Vec<VirtioMem> {
        let device = |device: &Value| {
            if device.get("type")?.as_str()? != "virtio-mem" {
                return None;
            }
            let data = device.get("data")?;
            let of = |name: &str| data.get(name)?.as_u64();
            Some(VirtioMem {
                id: data.get("id").and_then(Value::as_str).map(String::from),
                requested: of("requested-size")?,
                size: of("size")?,
                block: of("block-size").filter(|b| b.is_power_of_two())?,
            })
        };
        members(value).filter_map(device).collect()
    }
}

/// Bytes of all DIMMs in an answer of `query-memory-devices`.
fn dimms(value: &Value) -> u64 {
    let size = |device: &Value| {
        (device.get("type")?.as_str()? == "dimm").then(|| device.get("data")?.get("size")?.as_u64()).flatten()
    };
    members(value).filter_map(size).fold(0, u64::saturating_add)
}

/// What a monitor says of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// QEMU's word for the machine's state: `running`, `paused`.
    pub state: String,
    /// Whether vCPUs run.
    pub running: bool,
    /// QEMU's word for the state of a migration that is under way.
    pub migration: Option<String>,
    /// Bytes of memory at the machine's start.
    pub base: Option<u64>,
    /// Bytes of DIMMs, which may be plugged while the guest runs, and of which a balloon takes pages too;
    /// `None` if QEMU does not list its memory devices.
    pub dimms: Option<u64>,
    /// The balloon.
    pub balloon: Option<Balloon>,
    /// All devices of virtio-mem.
    pub virtio_mem: Vec<VirtioMem>,
}

impl Machine {
    /// Asks the monitor. Changes nothing.
    ///
    /// # Errors
    /// If QEMU has ended or does not answer in time. What QEMU refuses to tell is absent.
    pub fn ask(monitor: &mut Monitor) -> io::Result<Machine> {
        let status = monitor.ask("query-status", json!({}))?;
        let migration = told(monitor.ask("query-migrate", json!({})))?;
        let sizes = told(monitor.ask("query-memory-size-summary", json!({})))?;
        let devices = told(monitor.ask("query-memory-devices", json!({})))?;
        let word = |v: &Value| printable(v.get("status").and_then(Value::as_str).unwrap_or_default());
        let migration = migration.as_ref().map(word);
        Ok(Machine {
            state: word(&status),
            running: status.get("running").and_then(Value::as_bool).unwrap_or(false),
            migration: migration.filter(|m| !NO_MIGRATION.contains(&m.as_str())),
            base: sizes.and_then(|v| v.get("base-memory")?.as_u64()),
            dimms: devices.as_ref().map(dimms),
            balloon: Balloon::ask(monitor)?,
            virtio_mem: devices.as_ref().map(VirtioMem::parse).unwrap_or_default(),
        })
    }
}

impl Balloon {
    fn ask(monitor: &mut Monitor) -> io::Result<Option<Balloon>> {
        let Some(path) = Balloon::find(monitor)? else { return Ok(None) };
        let mut get =
            |property: &str| told(monitor.ask("qom-get", json!({ "path": path, "property": property })));
        let is = |v: Option<Value>| v.and_then(|v| v.as_bool()).unwrap_or(false);
        let deflate_on_oom = is(get("deflate-on-oom")?);
        let reports_free_pages = is(get("free-page-reporting")?);
        let polling_s = get("guest-stats-polling-interval")?.and_then(|v| v.as_u64()).unwrap_or(0);
        let statistics = get("guest-stats")?.as_ref().map(GuestStatistics::parse).unwrap_or_default();
        // Refused on a KVM that does not follow changes of memory.
        let actual = told(monitor.ask("query-balloon", json!({})))?.and_then(|v| v.get("actual")?.as_u64());
        Ok(Some(Balloon { path, deflate_on_oom, reports_free_pages, actual, polling_s, statistics }))
    }

    /// The path of the balloon. QEMU allows one in a machine.
    fn find(monitor: &mut Monitor) -> io::Result<Option<String>> {
        for folder in FOLDERS {
            let list = told(monitor.ask("qom-list", json!({ "path": folder })))?;
            if let Some(name) = list.as_ref().and_then(balloon_in) {
                return Ok(Some(format!("{folder}/{name}")));
            }
        }
        Ok(None)
    }

    /// Orders the guest to have so many bytes outside of the balloon.
    ///
    /// # Errors
    /// If QEMU refuses or does not answer.
    pub fn order(monitor: &mut Monitor, bytes: u64) -> io::Result<()> {
        monitor.ask("balloon", json!({ "value": bytes })).map(drop)
    }

    /// Sets the seconds between two requests for statistics; 0 for none.
    ///
    /// # Errors
    /// If QEMU refuses or does not answer.
    pub fn poll(monitor: &mut Monitor, path: &str, seconds: u64) -> io::Result<()> {
        let property = "guest-stats-polling-interval";
        monitor.ask("qom-set", json!({ "path": path, "property": property, "value": seconds })).map(drop)
    }
}

impl VirtioMem {
    /// Asks the guest to have so many bytes of the device with this id.
    ///
    /// # Errors
    /// If QEMU refuses or does not answer.
    pub fn order(monitor: &mut Monitor, id: &str, bytes: u64) -> io::Result<()> {
        let path = format!("{}/{id}", FOLDERS[0]);
        monitor
            .ask("qom-set", json!({ "path": path, "property": "requested-size", "value": bytes }))
            .map(drop)
    }
}

/// The name of the balloon in an answer of `qom-list`.
pub(crate) fn balloon_in(list: &Value) -> Option<String> {
    let name = |member: &Value| {
        let kind = member.get("type")?.as_str()?.strip_prefix("child<virtio-balloon")?;
        let name = member.get("name")?.as_str()?;
        // A journal has the path on one line.
        (kind.ends_with('>') && !name.chars().any(char::is_control)).then(|| name.to_owned())
    };
    members(list).find_map(name)
}

/// An answer, or nothing if QEMU refused the command.
fn told(answer: io::Result<Value>) -> io::Result<Option<Value>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(e) if Refusal::in_error(&e).is_some() => Ok(None),
        Err(e) => Err(e),
    }
}

fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().take(MOST_DEVICES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_the_guest_does_not_send_is_absent() {
        // An answer of QEMU 10.0 with a guest of Linux 6.1, shortened.
        let text = r#"{"stats": {"stat-swap-out": 0, "stat-available-memory": 435740672, "stat-free-memory": 436862976,
            "stat-minor-faults": 1, "stat-major-faults": 0, "stat-total-memory": 476893184, "stat-swap-in": 18446744073709551615,
            "stat-oom-kills": 18446744073709551615, "stat-disk-caches": 0}, "last-update": 1764249600}"#;
        let stats = GuestStatistics::parse(&serde_json::from_str(text).unwrap());
        assert_eq!((stats.available, stats.major_faults), (Some(435740672), Some(0)));
        assert_eq!((stats.swapped_in, stats.oom_kills), (None, None));
        assert_eq!(stats.updated_s, Some(1764249600));
        let never =
            json!({ "stats": { "stat-free-memory": -1, "stat-available-memory": "much" }, "last-update": 0 });
        assert_eq!(GuestStatistics::parse(&never), GuestStatistics::default());
    }

    #[test]
    fn virtio_mem_is_distinguished_from_dimms() {
        let list = json!([
            { "type": "dimm", "data": { "size": 1, "id": "d0" } },
            { "type": "virtio-mem", "data": { "id": "vm0", "requested-size": 4, "size": 2, "max-size": 8, "block-size": 2 } },
            { "type": "virtio-mem", "data": { "requested-size": 4, "size": 2, "max-size": 8, "block-size": 0 } },
        ]);
        let expected = VirtioMem { id: Some("vm0".into()), requested: 4, size: 2, block: 2 };
        assert_eq!(VirtioMem::parse(&list), [expected]);
        assert_eq!((dimms(&list), dimms(&json!("x"))), (1, 0));
        assert_eq!(VirtioMem::parse(&json!("x")), []);
    }

    #[test]
    fn the_balloon_is_found_by_its_type() {
        let list = json!([
            { "name": "type", "type": "string" },
            { "name": "balloonish", "type": "child<virtio-net-pci>" },
            { "name": "b\n", "type": "child<virtio-balloon-pci>" },
            { "name": "device[3]", "type": "child<virtio-balloon-pci-non-transitional>" },
        ]);
        assert_eq!(balloon_in(&list).as_deref(), Some("device[3]"));
        assert_eq!(balloon_in(&json!([{ "name": "x", "type": "link<virtio-balloon-pci>" }])), None);
    }
}
