// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's trace of the recorded CPUs, in a tracing instance of our own.
//!
//! The trace is read after the recording: a reader beside the loops would be noise. The buffers keep the
//! first events and drop those for which there is no room, so that memory is bounded and what is there is
//! without gaps.

use super::clock::Clock;
use super::events::{Event, Names, parse};
use bifold_host::Host;
use bifold_host::tracing::{TracingError, TracingInstance, remove_leftovers};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};

/// Memory of the trace, all CPUs together.
const BUFFERS_KB: usize = 256 << 10;
/// A CPU's part of it, at most.
const BUFFER_KB: usize = 16 << 10;
/// Longest line that is looked at.
const MOST_LINE: u64 = 4096;
/// Events with a beginning and an end, and those that say what runs, of all processors.
const EVENTS: [&str; 10] = [
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "ipi/ipi_entry",
    "ipi/ipi_exit",
    "nmi/nmi_handler",
    "sched/sched_switch",
    "kvm/kvm_exit",
    "kvm/kvm_entry",
];
/// The folder of x86's vectors, whose events come in pairs.
const VECTORS: &str = "irq_vectors";

/// A running trace. It ends, and leaves nothing, when this value is dropped.
#[derive(Debug)]
pub struct Tracing {
    // Closed before the instance is dropped. While the file is open, the instance cannot be removed.
    held: Option<File>,
    instance: TracingInstance,
}

/// The events of one CPU.
#[derive(Debug, Default)]
pub struct CpuEvents {
    /// In the order of time.
    pub events: Vec<Event>,
    /// Events for which the buffer had no room.
    pub dropped: u64,
}

impl Tracing {
    /// Starts to trace these CPUs.
    ///
    /// # Errors
    /// If tracefs is not mounted, the user is not root, or the kernel is locked down or lacks the clock.
    pub fn start(host: &Host, cpus: &[usize], clock: Clock) -> Result<Tracing, TracingError> {
        remove_leftovers(host);
        let instance = TracingInstance::create(host)?;
        let mut tracing = Tracing { held: None, instance };
        tracing.set_up(cpus, clock)?;
        Ok(tracing)
    }

    fn set_up(&mut self, cpus: &[usize], clock: Clock) -> Result<(), TracingError> {
        let instance = &self.instance;
        instance.set("tracing_on", "0")?;
        self.held = File::open(instance.path().join("tracing_on")).ok();
        instance.set("trace_clock", clock.in_trace())?;
        instance.set("options/overwrite", "0")?;
        instance.set("tracing_cpumask", &mask(cpus))?;
        let kb = BUFFER_KB.min(BUFFERS_KB / cpus.len().max(1)).to_string();
        for cpu in cpus {
            instance.set(&format!("per_cpu/cpu{cpu}/buffer_size_kb"), &kb)?;
        }
        for event in self.events() {
            instance.set(&format!("events/{event}/enable"), "1")?;
        }
        instance.set("tracing_on", "1")
    }

    /// The wanted events that this kernel has.
    fn events(&self) -> Vec<String> {
        let events = self.instance.path().join("events");
        let mut found: Vec<String> = EVENTS.map(String::from).into();
        for entry in fs::read_dir(events.join(VECTORS)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with("_entry") || name.ends_with("_exit") {
                found.push(format!("{VECTORS}/{name}"));
            }
        }
        found.retain(|event| events.join(event).join("enable").exists());
        found
    }

    /// Ends the trace. Its events can be read then.
    pub fn stop(&self) -> Result<(), TracingError> {
        self.instance.set("tracing_on", "0")
    }

    /// The events of a CPU on which the thread named `own` was the loop.
    ///
    /// # Errors
    /// If the kernel's files cannot be read.
    pub fn of_cpu(&self, cpu: usize, own: &str, names: &mut Names) -> io::Result<CpuEvents> {
        let dir = self.instance.path().join(format!("per_cpu/cpu{cpu}"));
        let mut found = CpuEvents::default();
        let mut trace = BufReader::new(File::open(dir.join("trace"))?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if trace.by_ref().take(MOST_LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            found.events.extend(parse(line, own, names));
        }
        let stats = bifold_host::read_up_to(&dir.join("stats"), 1 << 16)?;
        found.dropped = dropped(&String::from_utf8_lossy(&stats));
        Ok(found)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // If somebody holds a file of the instance, the directory stays, but nothing is traced.
        let _ = self.instance.set("tracing_on", "0");
        let _ = self.instance.set("events/enable", "0");
        self.held = None;
    }
}

/// `dropped events: 12` of a CPU's statistics.
fn dropped(stats: &str) -> u64 {
    let line = stats.lines().find_map(|l| l.strip_prefix("dropped events: "));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

/// CPUs as hexadecimal words of 32, the highest first.
fn mask(cpus: &[usize]) -> String {
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word =
        |i: usize| cpus.iter().filter(|cpu| *cpu / 32 == i).fold(0_u32, |word, cpu| word | 1 << (cpu % 32));
    (0..words).rev().map(|i| format!("{:08x}", word(i))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::clock::Moment;
    use super::super::spin::SpinRecord;
    use super::super::{UNKNOWN, UNTRACED, of_cpu};
    use super::*;

    #[test]
    fn a_mask_has_words_of_32_cpus() {
        assert_eq!(mask(&[0, 3]), "00000009");
        assert_eq!(mask(&[33, 64]), "00000001,00000002,00000000");
    }

    #[test]
    fn dropped_events_are_those_of_the_statistics() {
        assert_eq!(dropped("entries: 5\noverrun: 0\ndropped events: 17\nread events: 0\n"), 17);
        assert_eq!(dropped(""), 0);
    }

    #[test]
    fn a_trace_is_set_up_in_an_instance_that_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { tracing: dir.path().into(), ..Host::live() };
        let instance = dir.path().join(format!("instances/bifold-{}-0", std::process::id()));
        // A kernel makes the files with the directory: a folder of the same name stands in for each.
        fs::create_dir_all(dir.path().join("instances")).unwrap();
        let error = Tracing::start(&host, &[1], Clock::Raw).unwrap_err();
        assert!(error.to_string().contains("tracing_on"), "{error}");
        assert!(!instance.exists());
    }

    /// Nothing stands in for a trace that cannot be read: `untraced` would say that the kernel knew nothing.
    #[test]
    fn a_cpu_whose_trace_cannot_be_read_has_no_sources_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("instances")).unwrap();
        let host = Host { tracing: dir.path().into(), ..Host::live() };
        let tracing = Tracing { held: None, instance: TracingInstance::create(&host).unwrap() };
        let cpu_dir = tracing.instance.path().join("per_cpu/cpu1");
        fs::create_dir_all(&cpu_dir).unwrap();
        let recorded = || of_cpu(1, seen(), Some(&tracing), Clock::Raw, 0);
        let lost = recorded();
        assert_eq!(lost.trace.sources, [UNKNOWN]);
        let why = lost.no_sources.unwrap();
        assert!(why.starts_with("cannot read the kernel's trace of CPU 1: "), "{why}");
        // The trace alone is not enough: whether events were dropped would not be known.
        fs::write(cpu_dir.join("trace"), "").unwrap();
        assert_eq!(recorded().trace.sources, [UNKNOWN]);
        fs::write(cpu_dir.join("stats"), "dropped events: 3\n").unwrap();
        let read = recorded();
        assert_eq!(
            (read.trace.sources, read.dropped_events, read.no_sources),
            (vec![UNKNOWN.into()], 3, None)
        );
        assert_eq!(read.sources_until, Some(0.0));
        fs::write(cpu_dir.join("stats"), "dropped events: 0\n").unwrap();
        let whole = recorded();
        assert_eq!((whole.trace.sources, whole.sources_until), (vec![UNTRACED.into()], None));
    }

    /// A loop of 10 us with a detour of 3 us.
    fn seen() -> SpinRecord {
        let moment = |ns| Moment { ticks: ns, ns };
        SpinRecord {
            detours: vec![(2000, 3000)],
            shortest: 10,
            threshold: 90,
            iterations: 700,
            ends: (moment(1000), moment(11_000)),
            early: None,
        }
    }
}
