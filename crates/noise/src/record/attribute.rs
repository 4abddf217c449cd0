// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Divides detours among what ran meanwhile.
//!
//! The events of a CPU say for each moment what ran: the innermost interrupt or softirq, else the thread, or
//! KVM if the thread is a vCPU that has left its guest. Each source gets the time in which it was the
//! innermost. What is left of a detour is the way into the kernel and back: up to [`WAY_NS`] belong to the
//! detour's first source. More than that has a name of its own, [`UNTRACED`], and so has a detour in which
//! nothing was traced: the hypervisor, firmware, or a part of the kernel without events.

use super::events::{Event, What};
use std::collections::HashMap;

/// The name of what has no event.
pub const UNTRACED: &str = "untraced";
/// The longest way into the kernel and back.
const WAY_NS: f64 = 2000.0;

/// A time in which one source ran. The source is an index of names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub start: f64,
    pub end: f64,
    pub source: u32,
}

/// What ran on a CPU, from its events. Times without a span are the loop's own. `scale` turns ticks into
/// nanoseconds.
pub fn spans(events: &[Event], scale: impl Fn(f64) -> f64) -> Vec<Span> {
    let mut state = State::default();
    let mut spans: Vec<Span> = Vec::new();
    let mut since = f64::NEG_INFINITY;
    for event in events {
        let now = scale(event.time);
        if let (Some(source), true) = (state.innermost(), since.is_finite()) {
            spans.push(Span { start: since, end: now, source });
        }
        if let What::Took(source, ns) = event.what {
            spans.push(Span { start: now - ns, end: now, source });
        }
        state.go_on(event);
        since = now;
    }
    spans.retain(|s| s.end > s.start);
    spans.sort_by(|a, b| a.start.total_cmp(&b.start));
    spans
}

/// What runs on a CPU.
#[derive(Default)]
struct State {
    /// Interrupts and softirqs, the innermost last.
    stack: Vec<u32>,
    /// The thread that runs, unless it is the loop's.
    thread: Option<u32>,
    /// Id of the thread that runs.
    id: u32,
    /// Exits of vCPUs that are being handled.
    exits: HashMap<u32, u32>,
}

impl State {
    fn innermost(&self) -> Option<u32> {
        let exit = || self.exits.get(&self.id).copied();
        self.stack.last().copied().or_else(|| self.thread.map(|name| exit().unwrap_or(name)))
    }

    fn go_on(&mut self, event: &Event) {
        match event.what {
            What::Begins(source) => self.stack.push(source),
            What::Ends => _ = self.stack.pop(),
            What::Took(..) => {}
            What::Runs { id, own, name } => {
                self.thread = (!own).then_some(name);
                // A switch between threads is outside of every interrupt.
                self.stack.clear();
                self.id = id;
                return;
            }
            What::GuestLeft(reason) => _ = self.exits.insert(event.thread, reason),
            What::GuestEntered => _ = self.exits.remove(&event.thread),
        }
        self.id = event.thread;
    }
}

/// A part of a detour: nanoseconds, and the source, none if it was not traced.
pub type Part = (f64, Option<u32>);

/// Divides a detour. `spans` are sorted by start, and those before the detour are gone.
pub fn parts(start: f64, length: f64, spans: &[Span]) -> Vec<Part> {
    let end = start + length;
    let mut parts: Vec<Part> = Vec::new();
    let mut left = length;
    for span in spans.iter().take_while(|s| s.start < end) {
        let time = (span.end.min(end) - span.start.max(start)).min(left);
        if time <= 0.0 {
            continue;
        }
        left -= time;
        match parts.iter_mut().find(|(_, source)| *source == Some(span.source)) {
            Some((sum, _)) => *sum += time,
            None => parts.push((time, Some(span.source))),
        }
    }
    match parts.first_mut() {
        Some((time, _)) if left <= WAY_NS => *time += left,
        _ => parts.push((left, None)),
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: f64, thread: u32, what: What) -> Event {
        Event { time, thread, what }
    }

    #[test]
    fn the_innermost_source_has_the_time() {
        // A timer interrupt 100-200, a softirq 200-260 with an interrupt 210-220 in it.
        let events = [
            event(100.0, 1, What::Begins(0)),
            event(200.0, 1, What::Ends),
            event(200.0, 1, What::Begins(1)),
            event(210.0, 1, What::Begins(2)),
            event(220.0, 1, What::Ends),
            event(260.0, 1, What::Ends),
        ];
        let spans = spans(&events, |t| t);
        // 20 ns of the way into the kernel and back go to the first source.
        assert_eq!(parts(90.0, 180.0, &spans), [(120.0, Some(0)), (50.0, Some(1)), (10.0, Some(2))]);
    }

    #[test]
    fn a_thread_has_the_time_until_the_loop_runs_again_and_a_vcpu_gives_its_exits() {
        let events = [
            event(1000.0, 1, What::Runs { id: 9, own: false, name: 5 }),
            event(1500.0, 9, What::GuestLeft(6)),
            event(1600.0, 9, What::Begins(7)),
            event(1650.0, 9, What::Ends),
            event(1800.0, 9, What::GuestEntered),
            event(2000.0, 9, What::Runs { id: 1, own: true, name: 8 }),
        ];
        let spans = spans(&events, |t| t);
        assert_eq!(parts(1000.0, 1000.0, &spans), [(700.0, Some(5)), (250.0, Some(6)), (50.0, Some(7))]);
    }

    #[test]
    fn what_is_long_and_not_traced_has_a_name_of_its_own() {
        let spans = [Span { start: 0.0, end: 500.0, source: 3 }];
        assert_eq!(parts(0.0, 2500.0, &spans), [(2500.0, Some(3))]);
        assert_eq!(parts(0.0, 2501.0, &spans), [(500.0, Some(3)), (2001.0, None)]);
        assert_eq!(parts(600.0, 50.0, &spans), [(50.0, None)]);
    }

    #[test]
    fn an_end_without_a_beginning_does_no_harm() {
        let events = [
            event(5.0, 1, What::Ends),
            event(9.0, 1, What::GuestEntered),
            event(7.0, 1, What::Took(1, 50.0)),
        ];
        assert_eq!(spans(&events, |t| t), [Span { start: -43.0, end: 7.0, source: 1 }]);
    }
}
