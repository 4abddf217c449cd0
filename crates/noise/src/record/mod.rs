// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records what interrupts a CPU: a loop on each CPU sees when, and the kernel's trace says by what.
//!
//! | module | what |
//! |---|---|
//! | `spin` | the loop |
//! | `clock` | the time-stamp counter, or CLOCK_MONOTONIC_RAW |
//! | `trace`, `events` | the kernel's trace while the loops run |
//! | `attribute` | divides an interruption among what ran |
//!
//! Where tracing is not permitted, interruptions have the source [`UNKNOWN`]. The loops
//! take all CPUs that they are given: what else has to run there interrupts them, and is recorded.

mod attribute;
mod clock;
mod events;
mod spin;
mod trace;

pub use attribute::UNTRACED;

use crate::file::{Interruption, Trace, UNKNOWN};
use attribute::{Span, parts, spans};
use bifold_host::Host;
use bifold_host::topology::NumberSet;
use bifold_host::tracing::TracingError;
use clock::{Clock, Scale};
use events::Names;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use spin::{Early, Loop, SpinRecord};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trace::{CpuEvents, Tracing};

/// Most detours of all CPUs together, and of one: 1 GB and 16 MB.
const MOST_OF_ALL: usize = 1 << 26;
const MOST_OF_CPU: usize = 1 << 20;

/// What to record.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// On which CPUs; all that are allowed if none are named.
    pub cpus: Option<NumberSet>,
    /// For how long.
    pub time: Duration,
    /// Shortest gap between two readings of the clock that counts, nanoseconds. Nine shortest iterations if
    /// not named.
    pub threshold_ns: Option<f64>,
    /// Whether to ask the kernel for sources.
    pub attribute: bool,
}

/// A recording.
#[derive(Debug)]
pub struct Recording {
    /// Each CPU's.
    pub cpus: Vec<CpuRecording>,
    /// What the loops read: the name, and how often it ticks in a second.
    pub clock: (&'static str, f64),
    /// Why interruptions have no sources, if those of no CPU have any.
    pub no_sources: Option<String>,
    /// Whether the machine is a virtual one.
    pub virtual_machine: bool,
}

/// A CPU's recording.
#[derive(Debug)]
pub struct CpuRecording {
    /// The CPU.
    pub cpu: usize,
    /// Its interruptions. An interruption with several sources is one entry for each.
    pub trace: Trace,
    /// Number of interruptions.
    pub detours: usize,
    /// Shortest time between two readings of the clock, nanoseconds: what the loop itself takes.
    pub shortest_ns: f64,
    /// Longest gap that does not count, nanoseconds.
    pub threshold_ns: f64,
    /// Number of readings.
    pub iterations: u64,
    /// Why the recording is shorter than asked, if it is.
    pub early: Option<&'static str>,
    /// Trace events for which the kernel had no room.
    pub dropped_events: u64,
    /// The last event before those, nanoseconds from the start of the recording: later interruptions have no
    /// sources.
    pub sources_until: Option<f64>,
    /// Why this CPU's interruptions have no sources, although the kernel was asked: its trace could not be
    /// read.
    pub no_sources: Option<String>,
}

/// Why nothing can be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A CPU that the process may not use.
    #[error(
        "this process may not run on CPU {cpu}: it is off line, or outside of the process's cpuset; allowed are {allowed}"
    )]
    NotAllowed {
        /// The CPU.
        cpu: u32,
        /// Those that can be recorded.
        allowed: NumberSet,
    },
    /// An empty list.
    #[error("the list of CPUs is empty")]
    NoCpu,
    /// A thread could not be started.
    #[error("cannot start a thread for CPU {cpu}")]
    Thread {
        /// The CPU.
        cpu: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The affinity of this process cannot be read.
    #[error("cannot read the CPUs of this process (sched_getaffinity)")]
    Affinity(#[source] io::Error),
}

/// Records. `stop` ends the recording early, with what there is; a thread that cannot be started sets it.
///
/// # Errors
/// If a CPU cannot be used.
pub fn record(host: &Host, options: &Options, stop: &AtomicBool) -> Result<Recording, RecordError> {
    let cpus = chosen(options.cpus.as_ref())?;
    let clock = Clock::of(host);
    let tracing = options.attribute.then(|| Tracing::start(host, &cpus, clock));
    let no_sources = no_sources(tracing.as_ref());
    let tracing = tracing.and_then(Result::ok);
    let epoch = clock.moment().ns;
    let seen = run_loops(&cpus, clock, options, stop)?;
    if let Some(tracing) = &tracing {
        // The events until now are there anyway.
        let _ = tracing.stop();
    }
    let hertz = seen.first().map_or(0.0, |s| Scale::between(s.ends.0, s.ends.1, epoch).hertz());
    let with_sources = |(cpu, seen)| of_cpu(cpu, seen, tracing.as_ref(), clock, epoch);
    let cpus = cpus.into_iter().zip(seen).map(with_sources).collect();
    let name = if clock == Clock::Tsc { "time-stamp counter" } else { "CLOCK_MONOTONIC_RAW" };
    Ok(Recording { cpus, clock: (name, hertz), no_sources, virtual_machine: is_virtual(host) })
}

const NOT_ASKED: &str = "sources were not asked for";

/// Why the trace tells no sources; `None` if it tells them.
fn no_sources(tracing: Option<&Result<Tracing, TracingError>>) -> Option<String> {
    let Some(tracing) = tracing else { return Some(NOT_ASKED.into()) };
    let e = tracing.as_ref().err()?;
    let cause = std::error::Error::source(e).map_or(String::new(), |cause| format!(": {cause}"));
    Some(format!("{e}{cause}"))
}

/// The CPUs to record, ascending: those wanted, or all that are allowed.
///
/// # Errors
/// If a CPU cannot be used.
pub fn chosen(wanted: Option<&NumberSet>) -> Result<Vec<usize>, RecordError> {
    let allowed = sched_getaffinity(None).map_err(|e| RecordError::Affinity(e.into()))?;
    let allowed: NumberSet =
        (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| cpu as u32).collect();
    let wanted = wanted.unwrap_or(&allowed);
    if let Some(cpu) = wanted.difference(&allowed).iter().next() {
        return Err(RecordError::NotAllowed { cpu, allowed });
    }
    if wanted.is_empty() {
        return Err(RecordError::NoCpu);
    }
    Ok(wanted.iter().map(|cpu| cpu as usize).collect())
}

/// The name of a CPU's thread, by which the trace knows it. Names have up to 15 bytes.
fn thread_name(cpu: usize) -> String {
    format!("bifold-ns-{cpu}")
}

fn run_loops(
    cpus: &[usize],
    clock: Clock,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Vec<SpinRecord>, RecordError> {
    let most = (MOST_OF_ALL / cpus.len()).min(MOST_OF_CPU);
    let ns = u64::try_from(options.time.as_nanos()).unwrap_or(u64::MAX >> 8).min(u64::MAX >> 8);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for &cpu in cpus {
            let asked = Loop { cpu, clock, ns, threshold_ns: options.threshold_ns, most, stop };
            let body = move || {
                bind(cpu)?;
                Ok(asked.run())
            };
            match std::thread::Builder::new().name(thread_name(cpu)).spawn_scoped(scope, body) {
                Ok(thread) => threads.push((cpu, thread)),
                Err(source) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(RecordError::Thread { cpu, source });
                }
            }
        }
        // Nothing else happens here until they end: this thread would interrupt them.
        let joined = threads.into_iter().map(|(cpu, thread)| {
            let result: io::Result<SpinRecord> = thread.join().expect("the loop does not panic");
            result.map_err(|source| RecordError::Thread { cpu, source })
        });
        joined.collect()
    })
}

/// Binds the calling thread to a CPU.
fn bind(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn of_cpu(cpu: usize, seen: SpinRecord, tracing: Option<&Tracing>, clock: Clock, epoch: u64) -> CpuRecording {
    let scale = Scale::between(seen.ends.0, seen.ends.1, epoch);
    let mut names = Names::default();
    let read = tracing.map(|t| t.of_cpu(cpu, &thread_name(cpu), &mut names));
    let (events, no_sources) = match read.transpose() {
        Ok(events) => (events, None),
        Err(e) => (None, Some(format!("cannot read the kernel's trace of CPU {cpu}: {e}"))),
    };
    let in_ns = |time: f64| match clock {
        Clock::Tsc => scale.time(time as u64),
        // The trace has nanoseconds of the same clock.
        Clock::Raw => time - epoch as f64,
    };
    let dropped_events = events.as_ref().map_or(0, |e| e.dropped);
    let spans = events.as_ref().map(|e: &CpuEvents| spans(&e.events, in_ns));
    let start = scale.time(seen.ends.0.ticks);
    let last = |e: &CpuEvents| e.events.last().map_or(start, |event| in_ns(event.time).max(start));
    let until = events.as_ref().filter(|e| e.dropped > 0).map(last);
    let length = |ticks: u64| scale.length(ticks as i64);
    let mut trace = Trace { duration: scale.time(seen.ends.1.ticks) - start, ..Trace::default() };
    let detours = seen.detours.iter().map(|(at, ticks)| (scale.time(*at), length(*ticks)));
    let traced = spans.as_deref().map(|spans| (spans, until.unwrap_or(f64::INFINITY)));
    fill(&mut trace, start, detours, traced, &names);
    CpuRecording {
        cpu,
        trace,
        detours: seen.detours.len(),
        shortest_ns: length(seen.shortest),
        threshold_ns: length(seen.threshold),
        iterations: seen.iterations,
        early: seen.early.map(|early| match early {
            Early::Full => "there was no room for more interruptions",
            Early::Moved => "the CPU went off line, or was taken from this process",
        }),
        dropped_events,
        sources_until: until.map(|until| until - start),
        no_sources,
    }
}

/// Adds detours to a trace, each divided among its sources. `traced` are the spans, and until when the kernel
/// traced.
fn fill(
    trace: &mut Trace,
    start: f64,
    detours: impl Iterator<Item = (f64, f64)>,
    traced: Option<(&[Span], f64)>,
    names: &Names,
) {
    let (mut spans, until) = traced.unwrap_or((&[], f64::NEG_INFINITY));
    for (at, length) in detours {
        while spans.first().is_some_and(|s| s.end <= at) {
            spans = &spans[1..];
        }
        // What the kernel did not know, and what it had no room to say.
        let unnamed = if at + length <= until { UNTRACED } else { UNKNOWN };
        let divided = if at <= until { parts(at, length, spans) } else { vec![(length, None)] };
        let mut now = at - start;
        for (length, source) in divided {
            let name = source.map_or(unnamed, |source| &names.all[source as usize]);
            let source = trace.source(name);
            trace.interruptions.push(Interruption { start: now, length, source });
            now += length;
        }
    }
}

/// Whether the processor says that a hypervisor is there.
fn is_virtual(host: &Host) -> bool {
    let cpu = bifold_host::read_up_to(&host.proc.join("cpuinfo"), 1 << 16).unwrap_or_default();
    let text = String::from_utf8_lossy(&cpu);
    text.lines().any(|l| l.starts_with("flags") && l.split(' ').any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_recorded_on_one_cpu_and_within_the_time() {
        let cpu = chosen(None).unwrap()[0];
        let only = NumberSet::from_iter([cpu as u32]);
        let options = Options { cpus: Some(only), time: Duration::from_millis(100), ..Options::default() };
        let found = record(&Host::live(), &options, &AtomicBool::new(false)).unwrap();
        let [one] = &found.cpus[..] else { panic!("{found:?}") };
        assert_eq!((one.cpu, found.no_sources.as_deref()), (cpu, Some(NOT_ASKED)));
        assert!(one.early.is_some() || (9.9e7..1e9).contains(&one.trace.duration), "{}", one.trace.duration);
        assert!(
            one.iterations > 100 && one.shortest_ns > 0.0 && one.threshold_ns >= 9.0 * one.shortest_ns * 0.99
        );
        // What is written can be read.
        let again = Trace::read(one.trace.text("").as_bytes()).unwrap();
        assert_eq!(again.interruptions.len(), one.detours);
    }

    #[test]
    fn a_cpu_that_is_not_allowed_is_named() {
        let options = Options { cpus: Some("0-1023".parse().unwrap()), ..Options::default() };
        let error = record(&Host::live(), &options, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("may not run on CPU"), "{error}");
        let none = Options { cpus: Some(NumberSet::default()), ..Options::default() };
        assert!(matches!(record(&Host::live(), &none, &AtomicBool::new(false)), Err(RecordError::NoCpu)));
    }

    #[test]
    fn a_stop_ends_a_long_recording() {
        let options = Options { time: Duration::from_secs(3600), ..Options::default() };
        let found = record(&Host::live(), &options, &AtomicBool::new(true)).unwrap();
        assert!(found.cpus.iter().all(|cpu| cpu.trace.duration < 60e9));
    }

    #[test]
    fn parts_of_a_detour_follow_each_other() {
        let mut names = Names::default();
        let [a, b] = ["irq:timer", "softirq:TIMER"].map(|n| names.index(n.into()));
        let spans = [
            Span { start: 1100.0, end: 1200.0, source: a },
            Span { start: 1200.0, end: 1250.0, source: b },
            Span { start: 5000.0, end: 5050.0, source: b },
        ];
        let mut trace = Trace { duration: 1e4, ..Trace::default() };
        let detours = [(1090.0, 170.0), (3000.0, 40.0), (4990.0, 100.0)];
        fill(&mut trace, 1000.0, detours.into_iter(), Some((&spans, f64::INFINITY)), &names);
        let found: Vec<_> = trace
            .interruptions
            .iter()
            .map(|i| (i.start, i.length, &trace.sources[i.source as usize][..]))
            .collect();
        let expected = [
            (90.0, 120.0, "irq:timer"),
            (210.0, 50.0, "softirq:TIMER"),
            (2000.0, 40.0, UNTRACED),
            (3990.0, 100.0, "softirq:TIMER"),
        ];
        assert_eq!(found, expected);
        // The kernel had no room for events after 3010 ns: the second detour may have had sources, too.
        let mut trace = Trace { duration: 1e4, ..Trace::default() };
        fill(&mut trace, 1000.0, detours.into_iter(), Some((&spans[..2], 3010.0)), &names);
        let sources: Vec<&str> =
            trace.interruptions.iter().map(|i| &trace.sources[i.source as usize][..]).collect();
        assert_eq!(sources, ["irq:timer", "softirq:TIMER", UNKNOWN, UNKNOWN]);
    }
}
