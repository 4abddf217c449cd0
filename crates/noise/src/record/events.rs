// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of the kernel's trace, as events that begin and end something on a CPU.
//!
//! The form of a line is that of `print_trace_line` and `trace_print_context` (Linux's
//! `kernel/trace/trace_output.c`): the command's name in 16 columns, its id, the CPU, flags, the time, and
//! the event with its fields. Names of commands and interrupts come from outside.

use std::collections::HashMap;

/// Columns of a command's name: TASK_COMM_LEN. The names themselves have up to 15 bytes.
const NAME: usize = 16;

/// What happened on a CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// Ticks of the trace's clock, or nanoseconds.
    pub time: f64,
    /// The thread that ran.
    pub thread: u32,
    pub what: What,
}

/// The kinds of events. Names are indices in [`Names`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// An interrupt or softirq begins, and ends.
    Begins(u32),
    Ends,
    /// Something is over that took so many nanoseconds.
    Took(u32, f64),
    /// Another thread runs: its id, whether it is the loop's own, and its name.
    Runs {
        id: u32,
        own: bool,
        name: u32,
    },
    /// A guest is left, for a reason, and entered.
    GuestLeft(u32),
    GuestEntered,
}

/// Names of sources, each once.
#[derive(Debug, Default)]
pub struct Names {
    indices: HashMap<String, u32>,
    pub all: Vec<String>,
}

impl Names {
    /// The index of a name.
    pub fn index(&mut self, name: String) -> u32 {
        let next = self.all.len() as u32;
        *self.indices.entry(name).or_insert_with_key(|name| {
            self.all.push(name.clone());
            next
        })
    }
}

/// Reads a line of the trace. `own` is the name of the loop's thread. None for comments, for other events,
/// and for whatever else is no event.
pub fn parse(line: &[u8], own: &str, names: &mut Names) -> Option<Event> {
    let text = String::from_utf8_lossy(line.get(NAME..)?);
    let (thread, rest) = text.strip_prefix('-')?.split_once(' ')?;
    let (_, rest) = rest.split_once("] ")?;
    let (_flags, rest) = rest.split_once(' ')?;
    let (time, rest) = rest.trim_start().split_once(": ")?;
    let (event, fields) = rest.split_once(':')?;
    Some(Event {
        time: ticks(time)?,
        thread: thread.parse().ok()?,
        what: what(event, fields.trim(), own, names)?,
    })
}

/// A whole number of ticks, or seconds with six decimals, which become nanoseconds.
fn ticks(time: &str) -> Option<f64> {
    let number = |t: &str| t.parse::<u64>().ok();
    let value = match time.split_once('.') {
        None => number(time)?,
        Some((seconds, micros)) => {
            let micros = number(micros).filter(|_| micros.len() == 6)?;
            number(seconds)?.checked_mul(1_000_000_000)?.checked_add(micros * 1000)?
        }
    };
    Some(value as f64)
}

fn what(event: &str, fields: &str, own: &str, names: &mut Names) -> Option<What> {
    let field = |name: &str| fields.split(' ').find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
    Some(match event {
        "irq_handler_entry" => {
            let name = fields.split_once(" name=").map_or("", |(_, name)| name);
            What::Begins(names.index(format!("irq:{} {name}", field("irq")?)))
        }
        "softirq_entry" => {
            let action = fields.split_once("[action=").and_then(|(_, a)| a.strip_suffix(']')).unwrap_or("?");
            What::Begins(names.index(format!("softirq:{action}")))
        }
        "ipi_entry" => {
            let reason = fields.trim_start_matches('(').trim_end_matches(')');
            What::Begins(names.index(format!("ipi:{reason}")))
        }
        "irq_handler_exit" | "softirq_exit" | "ipi_exit" => What::Ends,
        "nmi_handler" => {
            What::Took(names.index("nmi".into()), field("delta_ns").or(delta(fields))?.parse().ok()?)
        }
        "sched_switch" => {
            let next = fields.split_once("==> next_comm=")?.1;
            let (name, rest) = next.rsplit_once(" next_pid=")?;
            let id = rest.split(' ').next()?.parse().ok()?;
            What::Runs { id, own: name == own, name: names.index(format!("thread:{}", without_number(name))) }
        }
        "kvm_exit" => {
            let reason = fields.split_once("reason ")?.1.split(' ').next()?;
            What::GuestLeft(names.index(format!("exit:{reason}")))
        }
        "kvm_entry" => What::GuestEntered,
        // x86's vectors: local_timer_entry and so on.
        _ => match event.strip_suffix("_entry") {
            Some(vector) => What::Begins(names.index(format!("irq:{vector}"))),
            None => event.strip_suffix("_exit").map(|_| What::Ends)?,
        },
    })
}

/// `nmi_handler: perf_event_nmi_handler() delta_ns: 1234 handled: 1`
fn delta(fields: &str) -> Option<&str> {
    fields.split_once("delta_ns: ")?.1.split(' ').next()
}

/// A thread's name without its CPU or number: `kworker/3:1-events` and `ksoftirqd/3` are the same work on
/// each CPU.
fn without_number(name: &str) -> &str {
    name.split_once('/').map_or(name, |(work, number)| {
        if number.starts_with(|c: char| c.is_ascii_digit() || c == 'u') { work } else { name }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Option<(f64, u32, String)> {
        let mut names = Names::default();
        let event = parse(line.as_bytes(), "bifold-ns-1", &mut names)?;
        let shown = match event.what {
            What::Begins(n) => format!("begins {}", names.all[n as usize]),
            What::Took(n, ns) => format!("took {} {ns}", names.all[n as usize]),
            What::Runs { id, own, name } => format!("runs {id} {own} {}", names.all[name as usize]),
            What::GuestLeft(n) => format!("left {}", names.all[n as usize]),
            other => format!("{other:?}"),
        };
        Some((event.time, event.thread, shown))
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        for (line, expected) in [
            (
                "     bifold-ns-1-4711    [001] d.h..   123.000045: local_timer_entry: vector=236",
                "begins irq:local_timer",
            ),
            ("     bifold-ns-1-4711    [001] d.h.. 999123456789012: local_timer_exit: vector=236", "Ends"),
            (
                "     bifold-ns-1-4711    [001] d.h1. 123: irq_handler_entry: irq=24 name=virtio0-req.0",
                "begins irq:24 virtio0-req.0",
            ),
            ("     bifold-ns-1-4711    [001] d.h1. 123: irq_handler_exit: irq=24 ret=handled", "Ends"),
            (
                "     bifold-ns-1-4711    [001] ..s1. 123: softirq_entry: vec=1 [action=TIMER]",
                "begins softirq:TIMER",
            ),
            (
                "     bifold-ns-1-4711    [001] d.Z1. 123: nmi_handler: perf_event_nmi_handler() delta_ns: 1234 handled: 1",
                "took nmi 1234",
            ),
            (
                "     bifold-ns-1-4711    [001] d..2. 123: sched_switch: prev_comm=bifold-ns-1 prev_pid=4711 prev_prio=120 prev_state=R ==> next_comm=kworker/1:2 next_pid=88 next_prio=120",
                "runs 88 false thread:kworker",
            ),
            (
                "     kworker/1:2-88      [001] d..2. 123: sched_switch: prev_comm=kworker/1:2 prev_pid=88 prev_prio=120 prev_state=I ==> next_comm=bifold-ns-1 next_pid=4711 next_prio=120",
                "runs 4711 true thread:bifold-ns-1",
            ),
            (
                "       CPU 0/KVM-900     [001] d..1. 123: kvm_exit: vcpu 0 reason HLT rip 0xff info1 0x0",
                "left exit:HLT",
            ),
            ("       CPU 0/KVM-900     [001] d..1. 123: kvm_entry: vcpu 0, rip 0xff", "GuestEntered"),
        ] {
            assert_eq!(one(line).map(|e| e.2).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(
            one("     bifold-ns-1-4711    [001] d.h..   123.000045: local_timer_entry: vector=236")
                .unwrap()
                .0,
            123_000_045_000.0
        );
    }

    #[test]
    fn names_of_commands_do_not_confuse() {
        let line = "  a] 1: x_entry:-12      [001] d.... 7: sched_switch: prev_comm=a] 1: x_entry: prev_pid=12 prev_prio=1 prev_state=S ==> next_comm=b next_pid=9 next_pid=3 next_prio=1";
        assert_eq!(one(line), Some((7.0, 12, "runs 3 false thread:b next_pid=9".into())));
    }

    #[test]
    fn other_lines_are_no_events() {
        for line in [
            "# tracer: nop",
            "",
            "CPU:1 [LOST 12 EVENTS]",
            "     bifold-ns-1-4711    [001] d.h.. 123: sys_write: x",
            "     bifold-ns-1-4711    [001] d.h.. 1.5: local_timer_entry: vector=236",
            "     bifold-ns-1-4711    [001] d.h.. 99999999999999.000000: local_timer_entry: vector=236",
            "     bifold-ns-1-x       [001] d.h.. 1: local_timer_entry: vector=236",
        ] {
            assert_eq!(one(line), None, "{line}");
        }
    }
}
