// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs quick tests, several boots at a time. After a failed test, the remaining tests of its boot get a new
//! boot.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bifold_guest::Kind;

use super::{BUSYBOX, Paging, Shared, Test, TestBody, poke};
use crate::TINY_VMM;
use crate::lab::job::{Job, Jobs};
use crate::lab::{Lab, LabError, Plan, Skipped, beside};

/// How a test ended.
#[derive(Debug)]
pub struct Outcome {
    /// The test.
    pub test: &'static Test,
    /// Run time. The time of the first test in a boot includes the boot.
    pub seconds: f64,
    /// Why the test failed or was skipped, if it was.
    pub end: Result<()>,
}

/// Memory of a boot. It must be below 2 GiB ([`poke`](mod@super::poke)) and holds the inner guest, 2 MB
/// pages, the image and the emulator.
const MIB: u64 = 1536;
/// Number of 2 MB pages for the tiny VMM's guests.
const HUGE_PAGES: u64 = 64;
/// Time limit of a boot. On an idle machine, a boot with all tests takes a tenth of it.
const SECONDS: u64 = 400;

enum Unit {
    Boot(Paging, Vec<&'static Test>),
    Own(&'static Test, fn(&Shared) -> Result<()>),
}

fn units(tests: &[&'static Test]) -> Vec<Unit> {
    let mut out = Vec::new();
    for which in [Paging::Shadow, Paging::Nested] {
        let mine = |t: &&&'static Test| matches!(t.body, TestBody::Jobs { paging, .. } if paging == which);
        let group: Vec<_> = tests.iter().filter(mine).copied().collect();
        if !group.is_empty() {
            out.push(Unit::Boot(which, group));
        }
    }
    out.extend(tests.iter().filter_map(|t| match t.body {
        TestBody::Own(run) => Some(Unit::Own(t, run)),
        TestBody::Jobs { .. } => None,
    }));
    out
}

/// Runs the tests, with `at_a_time` boots at a time, and reports each outcome when the test ends. An error if
/// this machine cannot run them.
pub fn run(
    lab: &Lab,
    tests: &[&'static Test],
    at_a_time: usize,
    progress: &(dyn Fn(&str) + Sync),
    tell: &mut dyn FnMut(Outcome),
) -> Result<()> {
    let shared = Shared { lab, flags: Default::default(), predicted: Default::default() };
    let mut queue = units(tests);
    queue.reverse();
    let queue = Mutex::new(queue);
    let (outcomes, told) = channel();
    let work = |outcomes: Sender<Outcome>| -> Result<()> {
        let next = || queue.lock().map(|mut q| q.pop()).unwrap_or_default();
        while let Some(unit) = next() {
            let done = match unit {
                Unit::Boot(paging, group) => boot(&shared, paging, &group, progress, &outcomes),
                Unit::Own(test, run) => {
                    progress(test.name);
                    let begun = Instant::now();
                    usable(run(&shared)).map(|end| {
                        let _ = outcomes.send(Outcome { test, seconds: begun.elapsed().as_secs_f64(), end });
                    })
                }
            };
            if done.is_err() {
                // The other boots would fail in the same way.
                queue.lock().map(|mut q| q.clear()).unwrap_or_default();
                return done;
            }
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..at_a_time.max(1))
            .map(|_| {
                let outcomes = outcomes.clone();
                s.spawn(|| work(outcomes))
            })
            .collect();
        drop(outcomes);
        told.iter().for_each(tell);
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker died"))?)
    })
}

/// Whether an error means that this machine lacks something, which is no failure of a test.
fn cannot(e: &anyhow::Error) -> bool {
    let lab = e.downcast_ref::<LabError>().map(LabError::kind);
    let capture = e.downcast_ref::<bifold_guest::GuestError>().map(bifold_guest::GuestError::kind);
    lab.or(capture) == Some(Kind::CannotWorkHere)
}

fn usable(end: Result<()>) -> Result<Result<()>> {
    match end {
        // Another processor of the same vendor may do.
        Err(e) if matches!(e.downcast_ref(), Some(LabError::Processor { .. })) => {
            Ok(Err(Skipped(format!("{e:#}")).into()))
        }
        Err(e) if cannot(&e) => Err(e),
        end => Ok(end),
    }
}

/// The jobs of a test, and the programs that they need.
fn plan(paging: Paging, tests: &[&'static Test]) -> Result<(Plan, Vec<usize>)> {
    let mut jobs = vec![Job::Kvm { nested: paging == Paging::Nested }];
    let mut ends = Vec::new();
    for test in tests {
        if let TestBody::Jobs { jobs: make, .. } = test.body {
            jobs.extend(make().with_context(|| test.name)?);
        }
        ends.push(jobs.len());
    }
    let mut programs = vec![BUSYBOX.into()];
    let vmm = |j: &Job| matches!(j, Job::Run { command } if command[0].ends_with(TINY_VMM));
    if jobs.iter().any(vmm) {
        programs.push(beside(TINY_VMM)?);
    }
    let jobs = Jobs { jobs, huge_pages: HUGE_PAGES };
    let plan = Plan { jobs, programs, memory_mib: MIB, seconds: SECONDS, ..Plan::default() };
    Ok((plan, ends))
}

/// Boots until all tests have ended.
fn boot(
    shared: &Shared,
    paging: Paging,
    tests: &[&'static Test],
    progress: &(dyn Fn(&str) + Sync),
    outcomes: &Sender<Outcome>,
) -> Result<()> {
    let mut left = tests;
    while !left.is_empty() {
        let names: Vec<&str> = left.iter().map(|t| t.name).collect();
        progress(&format!("a boot for {}", names.join(", ")));
        let begun = Instant::now();
        let (plan, ends) = plan(paging, left)?;
        let attempt = shared.lab.attempt(&plan, &mut poke)?;
        let mut error = attempt.error.map(anyhow::Error::from);
        // A failure of the machine counts for the first test.
        let mut from = 1;
        let mut before = attempt.outputs.first().map_or(0.0, |o| o.seconds);
        let mut ended = 0;
        for (test, end) in left.iter().zip(ends) {
            let Some(outputs) = attempt.outputs.get(from..end) else { break };
            let TestBody::Jobs { check, .. } = test.body else { break };
            let seconds = before + outputs.iter().map(|o| o.seconds).sum::<f64>();
            let end_of_test = usable(check(shared, outputs))?;
            let _ = outcomes.send(Outcome { test, seconds, end: end_of_test });
            (from, before, ended) = (end, 0.0, ended + 1);
        }
        let Some(error) = error.take() else { return Ok(()) };
        if attempt.outputs.is_empty() {
            // Without a machine with this KVM, the other tests would fail too.
            let seconds = begun.elapsed().as_secs_f64();
            let lacks = matches!(error.downcast_ref(), Some(LabError::Processor { .. }));
            for test in &left[ended..] {
                let why = format!("{error:#}");
                let end = Err(if lacks { Skipped(why).into() } else { anyhow!(why) });
                let _ = outcomes.send(Outcome { test, seconds, end });
            }
            return Ok(());
        }
        if let Some(test) = left.get(ended) {
            let done: f64 = attempt.outputs[..from].iter().map(|o| o.seconds).sum();
            let seconds = begun.elapsed().as_secs_f64() - done + before;
            let _ = outcomes.send(Outcome { test, seconds, end: Err(error) });
        }
        left = left.get(ended + 1..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_one_kvm_share_a_boot() {
        let all = super::super::named(&[]).unwrap();
        let units = units(&all);
        let boots = units.iter().filter(|u| matches!(u, Unit::Boot(..))).count();
        assert_eq!(boots, 2);
        let count: usize = units.iter().map(|u| if let Unit::Boot(_, t) = u { t.len() } else { 1 }).sum();
        assert_eq!(count, all.len());
        assert!(super::super::named(&["none".into()]).is_err());
    }
}
