// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interrupts: which CPUs each goes to, and how often each CPU had it.

use crate::Host;
use crate::memory::text;
use crate::topology::NumberSet;
use std::collections::BTreeMap;

/// An interrupt of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupt {
    /// Number, as in `/proc/interrupts`.
    pub number: u32,
    /// Its handlers: `eth0-rx-0`. Empty if no driver has it.
    pub handlers: String,
    /// The CPUs that it goes to.
    pub cpus: NumberSet,
    /// How often each CPU had it since boot; CPUs without are left out.
    pub counts: BTreeMap<u32, u64>,
}

impl Host {
    /// The interrupts that a driver has, by number; empty if procfs does not show them, as in most
    /// containers.
    pub fn interrupts(&self) -> Vec<Interrupt> {
        let Ok(entries) = std::fs::read_dir(self.proc.join("irq")) else { return Vec::new() };
        let mut numbers: Vec<u32> =
            entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|n| self.interrupt(n)).collect()
    }

    fn interrupt(&self, number: u32) -> Option<Interrupt> {
        let dir = self.proc.join(format!("irq/{number}"));
        let list = |name| text(&dir.join(name)).parse::<NumberSet>().ok().filter(|s| !s.is_empty());
        let cpus = match (list("effective_affinity_list"), list("smp_affinity_list")) {
            // Message-signalled interrupts move when they come next (IRQD_SETAFFINITY_PENDING), which may
            // take long.
            (Some(now), Some(next)) if now.intersection(&next).is_empty() => next,
            (now, next) => now.or(next)?,
        };
        let sys = self.sys.join(format!("kernel/irq/{number}"));
        let handlers = text(&sys.join("actions")).trim().to_owned();
        if handlers.is_empty() || handlers == "(null)" {
            return None;
        }
        let counts = text(&sys.join("per_cpu_count"));
        let counts = (0..).zip(counts.trim().split(','));
        let counts = counts.filter_map(|(cpu, n)| Some((cpu, n.parse().ok().filter(|n| *n > 0)?)));
        Some(Interrupt { number, handlers, cpus, counts: counts.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn an_interrupt_without_a_driver_is_none() {
        let (_dir, host) = host();
        assert_eq!(host.interrupts(), []);
        for (number, actions, file) in [
            (24, "virtio0-config\n", "effective_affinity_list"),
            (9, "acpi,x\n", "smp_affinity_list"),
            (3, "\n", "smp_affinity_list"),
        ] {
            put(&host.proc.join(format!("irq/{number}/{file}")), b"0-1\n");
            put(&host.sys.join(format!("kernel/irq/{number}/actions")), actions.as_bytes());
        }
        // Moved to CPUs 0-1, but there was no interrupt since.
        put(&host.proc.join("irq/9/effective_affinity_list"), b"3\n");
        put(&host.proc.join("irq/24/smp_affinity_list"), b"0-3\n");
        put(&host.proc.join("irq/default_smp_affinity"), b"3\n");
        put(&host.sys.join("kernel/irq/24/per_cpu_count"), b"5,0,7\n");
        let found = host.interrupts();
        let cpus: NumberSet = "0-1".parse().unwrap();
        let acpi =
            Interrupt { number: 9, handlers: "acpi,x".into(), cpus: cpus.clone(), counts: BTreeMap::new() };
        let virtio = Interrupt {
            number: 24,
            handlers: "virtio0-config".into(),
            cpus,
            counts: BTreeMap::from([(0, 5), (2, 7)]),
        };
        assert_eq!(found, [acpi, virtio]);
    }
}
