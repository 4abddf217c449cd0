// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs tests under the chosen KVMs: several tests share a boot, and several boots run at a time. If a boot
//! ends early, the test that ran has died, and the tests after it get a boot of their own.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};

use super::{KvmTest, TestResult, UnderKvm, Verdict, judge};
use crate::BUSYBOX;
use crate::lab::job::{Job, Trial, TrialEnd};
use crate::lab::{Lab, Plan};
use crate::vendor::Emulator;

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The KVMs.
    pub kvms: Vec<&'static UnderKvm>,
    /// Time limit of a test, in the laboratory's time.
    pub seconds: u64,
    /// Time between two switches of a VM, in the laboratory's time.
    pub switch_every_ms: u64,
    /// Number of boots at a time.
    pub jobs: usize,
    /// The laboratory's memory.
    pub memory_mib: u64,
    /// Directory for the tests' outputs.
    pub logs: Option<PathBuf>,
}

/// Tests that share a boot.
const A_BOOT: usize = 10;
/// Wall seconds for one second of the laboratory's time, on a busy machine. TCG executes 500 million
/// instructions in one second of the laboratory's time, Bochs 100 million.
const WALL: u64 = 20;
/// Wall seconds for a boot.
const BOOT: u64 = 300;

/// A result by KVM and test; `None` if the test is not for this machine.
pub type Results = Vec<Vec<Option<TestResult>>>;

/// Boots once for these tests. Returns the results of those that ended, and of the one that the boot ended
/// in.
fn boot(lab: &Lab, tests: &[&KvmTest], kvm: &UnderKvm, settings: &Settings) -> Result<Vec<TestResult>> {
    let trial = |t: &&KvmTest| {
        let switch_every_us = kvm.switching.then_some(settings.switch_every_ms * 1000);
        Job::Trial(Trial { command: t.command.clone(), seconds: settings.seconds, switch_every_us })
    };
    let mut jobs = vec![Job::Kvm { nested: kvm.nested }];
    jobs.extend(tests.iter().map(trial));
    let (programs, files): (Vec<PathBuf>, Vec<PathBuf>) =
        tests.iter().map(|t| t.needs.clone()).partition(|p| bifold_guest::image::executable(p));
    let plan = Plan {
        jobs: jobs.into(),
        programs: [vec![BUSYBOX.into()], programs].concat(),
        files,
        emulator: true,
        // For the test of protection keys.
        cpu_flags: &["+pku"],
        memory_mib: settings.memory_mib,
        seconds: BOOT + tests.len() as u64 * settings.seconds * WALL,
        ..Plan::default()
    };
    let attempt = lab.attempt(&plan, &mut |_, _| String::new())?;
    let mut outputs = attempt.outputs.into_iter();
    if outputs.next().is_none() {
        return Err(attempt.error.map_or_else(|| anyhow!("a boot without results"), Into::into));
    }
    let mut results = Vec::new();
    for (output, test) in outputs.zip(tests) {
        let end = output.files.get(TrialEnd::FILE).context("a test left no account of itself")?;
        results.push(judge(test.suite, &output.done, &serde_json::from_slice(end)?, output.seconds));
    }
    if let Some(error) = attempt.error {
        results.push(TestResult::without_run(Verdict::Died, error.to_string()));
    }
    Ok(results)
}

fn keep(dir: &std::path::Path, kvm: &UnderKvm, test: &KvmTest, result: &TestResult) -> Result<()> {
    let path = dir.join(format!("{}-{}-{}.txt", test.suite.name(), test.name.replace('/', "-"), kvm.name));
    let text = format!(
        "{}: {}\nswitches {}, refused {:?}\nkernel {:?}\n--- stdout ---\n{}\n",
        result.verdict.word(),
        result.detail,
        result.switches,
        result.refused,
        result.messages,
        result.output
    );
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Runs the tests under each KVM: under the kernel's own in `plain`, under ours in `ours`.
///
/// # Errors
/// If a laboratory does not boot, or a log cannot be written.
pub fn drive(
    (plain, ours): (&Lab, &Lab),
    tests: &[KvmTest],
    settings: &Settings,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Results> {
    let here: Vec<usize> = (0..tests.len()).filter(|&i| tests[i].not_here.is_none()).collect();
    let mut queue: Vec<(usize, &[usize])> =
        (0..settings.kvms.len()).flat_map(|k| here.chunks(A_BOOT).map(move |some| (k, some))).collect();
    let (all, mut ended) = (here.len() * settings.kvms.len(), 0);
    queue.reverse(); // they are taken from the end
    let results: Results = settings.kvms.iter().map(|_| vec![None; tests.len()]).collect();
    let (queue, state) = (Mutex::new(queue), Mutex::new((results, &mut ended)));
    let died = |_| anyhow!("a worker died");
    let worker = || -> Result<()> {
        loop {
            let Some((k, mut left)) = queue.lock().map_err(|_| anyhow!("a worker died"))?.pop() else {
                return Ok(());
            };
            let kvm = settings.kvms[k];
            while !left.is_empty() {
                let some: Vec<&KvmTest> = left.iter().map(|&i| &tests[i]).collect();
                let done = boot(if kvm.ours { ours } else { plain }, &some, kvm, settings)
                    .inspect_err(|_| queue.lock().map(|mut q| q.clear()).unwrap_or_default())
                    .with_context(|| format!("a boot for {}", kvm.name))?;
                let mut state = state.lock().map_err(|_| anyhow!("a worker died"))?;
                for (&i, result) in left.iter().zip(&done) {
                    if let Some(dir) = &settings.logs {
                        keep(dir, kvm, &tests[i], result)?;
                    }
                    *state.1 += 1;
                    let (n, name) = (*state.1, &tests[i].name);
                    say(&format!(
                        "{n} of {all}: {name}, {}: {} ({:.1} s)",
                        kvm.about,
                        result.verdict.word(),
                        result.seconds
                    ));
                    state.0[k][i] = Some(result.clone());
                }
                left = &left[done.len()..];
            }
        }
    };
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..settings.jobs.max(1)).map(|_| s.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker died"))?)
    })?;
    Ok(state.into_inner().map_err(died)?.0)
}

/// What fits the laboratory's emulator.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Memory in MiB. Bochs keeps 2 GiB in memory, and the rest in a file.
    pub memory_mib: u64,
    /// Time limit of a test.
    pub seconds: u64,
    /// Time between two switches. A second of the laboratory's time is 500 million instructions under QEMU
    /// and 100 million under Bochs, so that with 20 ms there, VMs do little but switch.
    pub switch_every_ms: u64,
}

impl Defaults {
    /// The defaults of a laboratory.
    pub fn of(lab: &Lab) -> Defaults {
        match lab.vendor().emulator {
            Emulator::Qemu { .. } => Defaults { memory_mib: 3072, seconds: 10, switch_every_ms: 20 },
            Emulator::Bochs { .. } => Defaults { memory_mib: 2048, seconds: 40, switch_every_ms: 100 },
        }
    }
}
