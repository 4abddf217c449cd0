// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PCI devices with their nodes, interrupts and the interfaces and disks behind them, from `bus/pci/devices`
//! and `class` (`sysfs-bus-pci`).

use super::Device;
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

const PCI: &str = "bus/pci/devices";

/// Classes of what a PCI device drives that people know by name.
const CLASSES: [&str; 3] = ["net", "block", "infiniband"];

/// All PCI devices in order of address.
pub fn devices(sys: &Tree) -> Vec<Device> {
    let mut names = names(sys);
    let addresses = sys.names(PCI).into_iter().filter(|n| is_address(n));
    let mut devices: Vec<Device> =
        addresses.map(|a| device(sys, &a, names.remove(&a).unwrap_or_default())).collect();
    devices.sort_by_key(|d| sorted_by(&d.address));
    devices
}

fn device(sys: &Tree, address: &str, names: BTreeSet<String>) -> Device {
    let at = |name: &str| format!("{PCI}/{address}/{name}");
    let class = |t: &str| u32::from_str_radix(t.strip_prefix("0x").unwrap_or(t), 16).ok();
    let mut interrupts = sys.numbered(&at("msi_irqs"), "");
    let driver = link_name(sys, &at("driver"));
    if interrupts.is_empty() && driver.is_some() {
        // 0 stands for none. Without a driver, nothing asked for the interrupt: the number is the firmware's
        // proposal.
        interrupts = sys.id(&at("irq")).filter(|n| *n > 0).into_iter().collect();
    }
    Device {
        address: address.into(),
        class: sys.parsed(&at("class"), "class code", class).unwrap_or(0),
        node: sys.id(&at("numa_node")),
        cpus: sys.set(&at("local_cpus"), &at("local_cpulist")).unwrap_or_default(),
        names: names.into_iter().collect(),
        interrupts,
        driver,
    }
}

/// The last name of a link's target.
fn link_name(sys: &Tree, link: &str) -> Option<String> {
    let target = std::fs::read_link(sys.path(link)).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Names of interfaces and disks by the PCI device in whose directory they are.
fn names(sys: &Tree) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for class in CLASSES {
        for name in sys.names(&format!("class/{class}")) {
            let at = format!("class/{class}/{name}");
            let Ok(target) = std::fs::read_link(sys.path(&at)) else { continue };
            let mut parts = target.components().filter_map(|c| c.as_os_str().to_str());
            let Some(device) = parts.rfind(|p| is_address(p)) else { continue };
            // A partition is in the directory of its disk, too.
            if class != "block" || sys.text(&format!("{at}/partition")).is_none() {
                names.entry(device.into()).or_default().insert(name);
            }
        }
    }
    names
}

/// Whether the name is a PCI address: `0000:3b:00.0`. A domain has more than four digits behind some bridges.
fn is_address(name: &str) -> bool {
    address(name).is_some()
}

/// Domain, bus, device and function.
fn address(name: &str) -> Option<[u32; 4]> {
    let (rest, function) = name.rsplit_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, slot) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let good = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        good.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let address = [hex(domain, 4..=8)?, hex(bus, 2..=2)?, hex(slot, 2..=2)?, hex(function, 1..=1)?];
    parts.next().is_none().then_some(address)
}

fn sorted_by(name: &str) -> [u32; 4] {
    address(name).unwrap_or_default()
}
