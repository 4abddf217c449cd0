// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts hardware events of vCPU threads through perf_event_open(2). All perf system calls are in this file.
//!
//! The events of a thread are in groups: one of cycles and instructions, and one for each other counter, with
//! all events that the counter is the sum of. The kernel puts a group on the PMU whole or not at all, so the
//! summands cover the same time. A group has at most four events, since a PMU may have no more counters: 4
//! under SMT before Ice Lake, and the TLB's events fit only the first 4 of newer ones
//! (`intel_icl_event_constraints`); AMD's have 6.
//!
//! A sample of a thread costs one read(2) for each group ([`Pmu::groups`]): five or six on Intel, five on
//! AMD, one on an unknown processor. If the thread is running, each read interrupts its CPU
//! (`perf_event_read`).

use super::counts::{Field, MOST_EVENTS, Raw, Reading};
use super::{Cpu, Event, Microarchitecture, NoPmu, OpenError};
use bifold_host::{Host, read_up_to};
use bifold_policy::Counters;
use perf_event_open::config::{self, Opts, Priv, Proc, sibling};
use perf_event_open::count::{Counter, group::CounterGroup};
use perf_event_open::event::{Event as PerfEvent, hw::Hardware, raw, sw::Software};
use std::io::{self, Read as _};

/// What the processor can count of a thread.
///
/// ```
/// use bifold_host::Host;
/// use bifold_live::hardware::Pmu;
///
/// match Pmu::of(&Host::live()) {
///     Ok(pmu) => {
///         let counters = pmu.open(std::process::id())?;
///         let (start, end) = (counters.read()?, counters.read()?);
///         println!("{:?}", end.since(&start));
///     }
///     Err(e) => println!("{e}"), // no PMU here, or not permitted
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pmu {
    microarchitecture: Option<Microarchitecture>,
    groups: Vec<Vec<Counted>>,
    notes: Vec<String>,
}

/// An event, and the field that the event is a summand of.
#[derive(Clone)]
struct Counted {
    field: Field,
    event: PerfEvent,
    exclude: Priv,
}

impl Pmu {
    /// The PMU of this machine. `host` says which processor the machine has. Opens every group once, for the
    /// calling thread, and closes them: a group that the kernel refuses makes its counter unknown, and a note
    /// says so.
    ///
    /// # Errors
    /// If not even cycles and instructions can be counted.
    pub fn of(host: &Host) -> Result<Pmu, NoPmu> {
        let cpu = Cpu::of(host);
        let microarchitecture = cpu.and_then(Microarchitecture::of);
        let mut notes = notes(cpu, microarchitecture.as_ref());
        let mut groups = vec![cycles()];
        Group::open(Proc::CURRENT, &groups[0]).map_err(|e| NoPmu::of(e, paranoid(host)))?;
        for group in microarchitecture.iter().flat_map(sums) {
            match Group::open(Proc::CURRENT, &group) {
                Ok(_) => groups.push(group),
                Err(e) => {
                    let name = group[0].field.name();
                    notes.push(format!("{name} is unknown: the kernel refuses its events ({e})"));
                }
            }
        }
        Ok(Pmu { microarchitecture, groups, notes })
    }

    /// Groups as that processor has them, made of events that the kernel counts without a PMU. They take the
    /// same system calls, and their counts mean nothing: for benches.
    #[doc(hidden)]
    pub fn stand_in(processor: &Microarchitecture) -> Pmu {
        let mut pmu = Pmu {
            microarchitecture: Some(processor.clone()),
            groups: [cycles()].into_iter().chain(sums(processor)).collect(),
            notes: Vec::new(),
        };
        for counted in pmu.groups.iter_mut().flatten() {
            counted.event = PerfEvent::try_from(Software::TaskClock).expect("the event has a number");
            counted.exclude = Priv::default();
        }
        pmu
    }

    /// The processor's events; `None` if the list does not have the processor.
    pub fn microarchitecture(&self) -> Option<&Microarchitecture> {
        self.microarchitecture.as_ref()
    }

    /// The counters of a sample that this PMU counts: `host_cycles` is the sample's `vmm_cycles`.
    pub fn known(&self) -> Counters {
        let of_field = |field| match field {
            Field::GuestCycles => Counters::NONE,
            Field::HostCycles => Counters::VMM_CYCLES,
            Field::Instructions => Counters::INSTRUCTIONS,
            Field::WalkCycles => Counters::WALK_CYCLES,
            Field::TlbMisses4k => const { Counters::of(&["tlb_misses_4k"]) },
            Field::TlbMisses2m => const { Counters::of(&["tlb_misses_2m"]) },
            Field::TlbMisses1g => const { Counters::of(&["tlb_misses_1g"]) },
            Field::TlbFlushes => const { Counters::of(&["tlb_flushes"]) },
        };
        let events = self.groups.iter().flatten();
        events.fold(Counters::NONE, |set, event| set.and(of_field(event.field)))
    }

    /// Why a counter is unknown, one sentence a counter or processor; empty if all are known.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Number of groups of each thread: the system calls of one [`ThreadCounters::read`].
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of events of each thread: the files that one [`ThreadCounters`] keeps open.
    pub fn events(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Opens and starts the counters of a thread, on whatever CPU the thread runs. They count until they are
    /// dropped; a thread that ends stops them. They do not count threads that the thread makes.
    ///
    /// # Errors
    /// If the thread has ended, or is another user's, or this process has too many open files
    /// ([`FileLimit`](super::FileLimit)).
    pub fn open(&self, thread: u32) -> Result<ThreadCounters, OpenError> {
        // To perf_event_open(2), 0 is the caller, and -1 is no thread.
        if thread == 0 || i32::try_from(thread).is_err() {
            return Err(OpenError::Ended { thread });
        }
        let groups = self.groups.iter().map(|g| Group::open(Proc(thread), g)).collect::<io::Result<_>>();
        Ok(ThreadCounters { groups: groups.map_err(|e| OpenError::of(thread, e))? })
    }
}

/// The counters of a thread. They stay with the thread that opened them (they are not `Send`).
pub struct ThreadCounters {
    groups: Vec<Group>,
}

impl ThreadCounters {
    /// Reads all counters, by one system call for each group. After the thread has ended, they keep their
    /// last state.
    ///
    /// # Errors
    /// If the kernel's answer does not fit these groups.
    pub fn read(&self) -> io::Result<Raw> {
        Ok(Raw(self.groups.iter().map(Group::read).collect::<io::Result<_>>()?))
    }
}

/// An open group of events.
struct Group {
    perf: CounterGroup,
    fields: Vec<Field>,
}

impl Group {
    fn open(thread: Proc, events: &[Counted]) -> io::Result<Group> {
        let (first, others) = events.split_first().expect("a group has an event");
        // The leader starts disabled and so disables the whole group until it is complete.
        let mut opts = Opts { exclude: first.exclude.clone(), ..Opts::default() };
        opts.stat_format.siblings = true;
        opts.stat_format.time_enabled = true;
        opts.stat_format.time_running = true;
        let mut perf = CounterGroup::from(Counter::new(first, (thread, config::All), opts)?);
        for event in others {
            perf.add(event, sibling::Opts { exclude: event.exclude.clone(), ..Default::default() })?;
        }
        perf.enable()?;
        Ok(Group { perf, fields: events.iter().map(|e| e.field).collect() })
    }

    fn read(&self) -> io::Result<Reading> {
        let mut bytes = [0; Reading::bytes(MOST_EVENTS)];
        // Not by `Counter::stat`, which does not check the length of the kernel's answer.
        let read = self.perf.leader().file().read(&mut bytes)?;
        Reading::parse(&bytes[..read], &self.fields)
    }
}

/// The group of cycles and instructions. Every processor has these events. On Intel, the guest's two have
/// counters of their own; on AMD, and if the NMI watchdog has the counter of cycles, they take general ones.
fn cycles() -> Vec<Counted> {
    let counted = |field, event: Hardware, exclude| Counted {
        field,
        event: PerfEvent::try_from(event).expect("the event has a number"),
        exclude,
    };
    let outside = Priv { guest: true, ..Priv::default() };
    vec![
        counted(Field::GuestCycles, Hardware::CpuCycle, guest_only()),
        counted(Field::Instructions, Hardware::Instr, guest_only()),
        counted(Field::HostCycles, Hardware::CpuCycle, outside),
    ]
}

/// The other groups: one for each counter that the processor has events for.
fn sums(processor: &Microarchitecture) -> Vec<Vec<Counted>> {
    let group = |(field, events): (Field, &[Event])| -> Vec<Counted> {
        let raw = |e: &Event| raw::Raw { config: e.config(), config1: 0, config2: 0, config3: 0 };
        let event = |e| PerfEvent::try_from(raw(e)).expect("a raw event is any number");
        events.iter().map(|e| Counted { field, event: event(e), exclude: guest_only() }).collect()
    };
    lists(processor).map(group).into_iter().filter(|group| !group.is_empty()).collect()
}

fn lists(processor: &Microarchitecture) -> [(Field, &[Event]); 5] {
    [
        (Field::WalkCycles, &processor.walk_cycles),
        (Field::TlbMisses4k, &processor.tlb_misses_4k),
        (Field::TlbMisses2m, &processor.tlb_misses_2m),
        (Field::TlbMisses1g, &processor.tlb_misses_1g),
        (Field::TlbFlushes, &processor.tlb_flushes),
    ]
}

/// Counts in the guest alone: `exclude_host`. The guest's kernel and user space both count.
fn guest_only() -> Priv {
    Priv { host: true, ..Priv::default() }
}

/// What the list of events does not have for the processor.
fn notes(cpu: Option<Cpu>, processor: Option<&Microarchitecture>) -> Vec<String> {
    const UNKNOWN: &str = "TLB misses, flushes and walk cycles are unknown";
    let Some(processor) = processor else {
        return vec![match cpu {
            Some(Cpu { vendor, family, model }) => format!(
                "{UNKNOWN}: the list of events does not have this processor ({vendor:?}, family {family:#x}, model {model:#x})"
            ),
            None => format!("{UNKNOWN}: /proc/cpuinfo tells of no processor of Intel or AMD"),
        }];
    };
    let without = lists(processor).into_iter().filter(|(_, events)| events.is_empty());
    let note = |(field, _): (Field, _)| {
        format!("{} is unknown: no event for it is listed for {}", field.name(), processor.name)
    };
    without.map(note).collect()
}

/// Which users may open events: see `perf_event_paranoid` in Documentation/admin-guide/sysctl/kernel.rst.
fn paranoid(host: &Host) -> Option<i64> {
    let bytes = read_up_to(&host.proc.join("sys/kernel/perf_event_paranoid"), 32).ok()?;
    String::from_utf8(bytes).ok()?.trim().parse().ok()
}

/// What the library asks for, so that an event of any kind can be in a group.
impl TryFrom<&Counted> for PerfEvent {
    type Error = io::Error;

    fn try_from(counted: &Counted) -> io::Result<PerfEvent> {
        Ok(counted.event.clone())
    }
}

#[cfg(test)]
mod tests;
