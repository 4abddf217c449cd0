// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads how long QEMU's vCPU thread ran and how long it waited for a CPU.
//!
//! A boot's limit counts these times instead of wall time, because a boot on a busy host may take minutes
//! with nothing wrong. Source: `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst).

use std::time::{Duration, Instant};

/// A thread's times since its start, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ThreadTime {
    /// Time on a CPU.
    pub(crate) ran: f64,
    /// Time waiting for a CPU.
    pub(crate) waited: f64,
}

/// The times of QEMU's vCPU thread; `None` before the thread starts and after it ends.
pub(crate) fn vcpu_thread(pid: u32) -> Option<ThreadTime> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        if read("comm").is_some_and(|c| c.starts_with("CPU") || c.starts_with("ALL CPUs")) {
            return parse(&read("schedstat")?);
        }
    }
    None
}

fn parse(schedstat: &str) -> Option<ThreadTime> {
    let mut ns = schedstat.split(' ').map(|n| n.trim().parse::<f64>());
    let mut next = || Some(ns.next()?.ok()? / 1e9);
    Some(ThreadTime { ran: next()?, waited: next()? })
}

/// Tells a slow boot from one that is stuck.
#[derive(Debug)]
pub(crate) struct Boot {
    looked: Instant,
    had: ThreadTime,
    words: u64,
    /// Time in which the vCPU thread neither ran nor waited for a CPU, and the stream did not grow.
    pub(crate) idle: Duration,
    most_ran: f64,
}

impl Boot {
    /// The shortest time between two looks.
    const EVERY: Duration = Duration::from_millis(250);
    /// A boot that is idle for this long is stuck.
    const MOST_IDLE: Duration = Duration::from_secs(120);

    /// A boot that may take `most_ran` seconds of CPU time.
    pub(crate) fn new(most_ran: f64) -> Boot {
        let (looked, had) = (Instant::now(), ThreadTime::default());
        Boot { looked, had, words: 0, idle: Duration::ZERO, most_ran }
    }

    /// Whether the boot may go on, given that `words` of the stream have come so far.
    pub(crate) fn goes_on(&mut self, pid: u32, words: u64) -> bool {
        let elapsed = self.looked.elapsed();
        if elapsed < Self::EVERY {
            return true;
        }
        self.looked = Instant::now();
        self.count(elapsed, vcpu_thread(pid).unwrap_or(self.had), words)
    }

    fn count(&mut self, elapsed: Duration, had: ThreadTime, words: u64) -> bool {
        // If the stream grows, an idle guest waits for the consumer.
        if words == self.words {
            let busy = had.ran - self.had.ran + had.waited - self.had.waited;
            self.idle += elapsed.saturating_sub(Duration::from_secs_f64(busy.max(0.0)));
        }
        (self.had, self.words) = (had, words);
        self.idle < Self::MOST_IDLE && had.ran < self.most_ran
    }

    /// CPU time so far, in seconds.
    pub(crate) fn ran(&self) -> f64 {
        self.had.ran
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn schedstat_is_read_in_seconds() {
        assert_eq!(parse("1500000000 250000000 17\n"), Some(ThreadTime { ran: 1.5, waited: 0.25 }));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_boot_that_waits_for_a_cpu_has_time() {
        let mut boot = Boot::new(300.0);
        for i in 1..10_000 {
            let at = f64::from(i);
            assert!(boot.count(SECOND, ThreadTime { ran: at * 0.01, waited: at * 0.99 }, 0));
        }
    }

    #[test]
    fn a_boot_whose_events_wait_for_their_consumer_has_time() {
        let mut boot = Boot::new(300.0);
        for i in 1..10_000 {
            assert!(boot.count(SECOND, ThreadTime::default(), i));
        }
    }

    #[test]
    fn a_boot_that_does_nothing_ends_after_two_minutes() {
        let mut boot = Boot::new(300.0);
        let looks = (1..).take_while(|_| boot.count(SECOND, ThreadTime { ran: 1.0, waited: 0.0 }, 5)).count();
        assert!((119..=122).contains(&looks), "{looks}");
    }

    #[test]
    fn a_boot_that_runs_in_circles_ends_after_its_cpu_time() {
        let mut boot = Boot::new(300.0);
        let mut at = 0.0;
        while boot.count(SECOND, ThreadTime { ran: at, waited: 0.0 }, 0) {
            at += 1.0;
        }
        assert_eq!(at, 300.0);
    }
}
