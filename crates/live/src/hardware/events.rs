// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of events, `events.toml`, and the form in which the kernel gets an event.

use super::Cpu;
use bifold_host::Vendor;
use serde::Deserialize;

/// A maker's name in the list.
#[derive(Deserialize)]
#[serde(remote = "Vendor", rename_all = "lowercase")]
enum VendorName {
    Intel,
    Amd,
}

/// An event of a processor: which event, and of that which kinds.
///
/// ```
/// use bifold_host::Vendor;
/// use bifold_live::hardware::{Cpu, Event, Microarchitecture};
///
/// let skylake = Cpu { vendor: Vendor::Intel, family: 6, model: 0x55 };
/// let events = Microarchitecture::of(skylake).unwrap();
/// assert_eq!(events.walk_cycles[0], Event { event: 0x08, umask: 0x10, cmask: 1 });
/// assert_eq!(events.walk_cycles[0].config(), 0x0100_1008);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Event {
    /// The event's number.
    pub event: u8,
    /// The unit mask: kinds of the event that count.
    pub umask: u8,
    /// The counter mask: if not 0, count cycles in which at least so many events happen.
    pub cmask: u8,
}

impl Event {
    /// The value of `perf_event_attr.config` for a raw event, which is laid out as the event-select register
    /// is (`/sys/bus/event_source/devices/cpu/format`).
    pub fn config(self) -> u64 {
        u64::from(self.event) | u64::from(self.umask) << 8 | u64::from(self.cmask) << 24
    }
}

/// A text is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no EVENT:UMASK or EVENT:UMASK:CMASK in hexadecimal")]
pub struct BadEvent(pub String);

impl TryFrom<String> for Event {
    type Error = BadEvent;

    fn try_from(text: String) -> Result<Event, BadEvent> {
        let parts: Option<Vec<u8>> = text.split(':').map(|p| u8::from_str_radix(p, 16).ok()).collect();
        match parts.as_deref() {
            Some(&[event, umask]) => Ok(Event { event, umask, cmask: 0 }),
            Some(&[event, umask, cmask]) => Ok(Event { event, umask, cmask }),
            _ => Err(BadEvent(text)),
        }
    }
}

/// One model, or all from the first to the second.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Models {
    One(u32),
    Range([u32; 2]),
}

/// The events of a family of processors. An empty list means that nothing counts this.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Microarchitecture {
    /// The name.
    pub name: String,
    /// Folders of the source, under `tools/perf/pmu-events/arch/x86` of Linux 6.12.
    pub folder: String,
    /// The maker.
    #[serde(with = "VendorName")]
    pub vendor: Vendor,
    family: u32,
    models: Vec<Models>,
    /// Cycles in page walks.
    #[serde(default)]
    pub walk_cycles: Vec<Event>,
    /// TLB misses of all levels, on entries of 4 KB.
    #[serde(default)]
    pub tlb_misses_4k: Vec<Event>,
    /// The same for 2 MB.
    #[serde(default)]
    pub tlb_misses_2m: Vec<Event>,
    /// The same for 1 GB.
    #[serde(default)]
    pub tlb_misses_1g: Vec<Event>,
    /// Flushes of the TLB.
    #[serde(default)]
    pub tlb_flushes: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    microarchitecture: Vec<Microarchitecture>,
}

impl Microarchitecture {
    /// All of the list.
    ///
    /// # Panics
    /// If `events.toml` is wrong; a test reads it.
    pub fn all() -> Vec<Microarchitecture> {
        toml::from_str::<List>(include_str!("events.toml")).expect("events.toml is right").microarchitecture
    }

    /// The events of a processor; `None` if the list does not have it.
    pub fn of(cpu: Cpu) -> Option<Microarchitecture> {
        Microarchitecture::all().into_iter().find(|m| m.has(cpu))
    }

    fn has(&self, cpu: Cpu) -> bool {
        let models = |m: &Models| match *m {
            Models::One(model) => model == cpu.model,
            Models::Range([first, last]) => (first..=last).contains(&cpu.model),
        };
        self.vendor == cpu.vendor && self.family == cpu.family && self.models.iter().any(models)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_processor_is_listed_twice_and_every_one_counts_tlb_misses() {
        let all = Microarchitecture::all();
        for vendor in [Vendor::Intel, Vendor::Amd] {
            for (family, model) in (0..=0x1f).flat_map(|f| (0..=0xff).map(move |m| (f, m))) {
                let cpu = Cpu { vendor, family, model };
                assert!(all.iter().filter(|m| m.has(cpu)).count() <= 1, "{cpu:?}");
            }
        }
        for m in &all {
            assert!(!m.tlb_misses_4k.is_empty() && !m.tlb_misses_2m.is_empty(), "{}", m.name);
            assert_eq!(m.walk_cycles.is_empty(), m.vendor == Vendor::Amd, "{}", m.name);
            // No event counts twice within a counter, or in two.
            let lists =
                [&m.walk_cycles, &m.tlb_misses_4k, &m.tlb_misses_2m, &m.tlb_misses_1g, &m.tlb_flushes];
            let mut events: Vec<Event> = lists.into_iter().flatten().copied().collect();
            let count = events.len();
            events.sort_by_key(|e| e.config());
            events.dedup();
            assert_eq!(events.len(), count, "{}", m.name);
        }
    }

    #[test]
    fn processors_are_found_by_family_and_model() {
        let name =
            |vendor, family, model| Microarchitecture::of(Cpu { vendor, family, model }).map(|m| m.name);
        assert_eq!(name(Vendor::Intel, 6, 0x8f).unwrap(), "Sapphire, Emerald and Granite Rapids");
        assert_eq!(name(Vendor::Amd, 0x17, 0x31).unwrap(), "Zen 2");
        assert_eq!(name(Vendor::Amd, 0x17, 0x01).unwrap(), "Zen 1");
        assert_eq!(name(Vendor::Intel, 6, 0x0f), None, "Core 2");
        assert_eq!(name(Vendor::Amd, 6, 0x8f), None);
    }

    #[test]
    fn an_event_that_is_none_is_told() {
        let parse = |text: &str| Event::try_from(text.to_owned());
        assert_eq!(parse("c5:ff").unwrap().config(), 0xffc5);
        for wrong in ["", "08", "08:", "108:10", "08:10:01:00", "-8:1"] {
            assert!(
                parse(wrong).unwrap_err().to_string().starts_with(&format!("`{wrong}` is no EVENT:UMASK"))
            );
        }
    }
}
