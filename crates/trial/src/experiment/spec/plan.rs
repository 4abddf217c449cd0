// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans an experiment: its sizes and times on this machine.

use super::validate::settings;
use super::{CaseSpec, Rate, Scale, Spec, SpecError, StartSpec, WorkloadSpec};
use crate::spec::{SMALLEST_MIB, known};
use bifold_host::ksm::Settings;
use std::path::Path;
use std::time::Duration;

/// Guest memory is a multiple of this, MiB.
const STEP_MIB: u64 = 2;

/// An experiment with this machine's sizes and times.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The experiment's file.
    pub spec: Spec,
    /// The scale of the plan.
    pub scale: Scale,
    /// Memory of the imagined host, MiB.
    pub budget_mib: u64,
    /// Length of a case, from the time when all workloads are ready.
    pub length: Duration,
    /// Time between samples.
    pub sample: Duration,
    /// Times at which the potential is counted, in order, from the time when all workloads are ready.
    pub potential: Vec<Duration>,
    /// All guests.
    pub guests: Vec<PlannedGuest>,
    /// All cases.
    pub cases: Vec<PlannedCase>,
}

/// One guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedGuest {
    /// The guest's name.
    pub name: String,
    /// Index of the guest's kind.
    pub kind: usize,
    /// Guest memory, MiB.
    pub memory_mib: u64,
    /// Whether KSM may merge the guest's memory.
    pub mergeable: bool,
}

/// One case.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCase {
    /// The case's name.
    pub name: String,
    /// KSM's settings.
    pub ksm: Settings,
    /// When KSM runs.
    pub start: StartSpec,
    /// Workload of each kind of guest.
    pub workloads: Vec<Workload>,
}

/// A guest's workload, in this run's sizes.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // as in [`WorkloadSpec`], in bytes and milliseconds
pub enum Workload {
    Idle,
    Synthetic { bytes: u64, rate: Rate, sleep_ms: u64 },
    Database { clients: u32, iterations: u32, queries: u64, engine: String, pool_mib: u64 },
    Command { command: Vec<String>, sleep_ms: u64 },
}

impl Workload {
    fn of(spec: &WorkloadSpec, rate: Option<Rate>, scale: Scale) -> Workload {
        let count = |n: u32| scaled(u64::from(n), scale, 1) as u32;
        let ms = |s: f64| (s * scale.value() * 1000.0).round() as u64;
        match spec {
            WorkloadSpec::Idle => Workload::Idle,
            WorkloadSpec::Synthetic { buffer_mib, write_rate, sleep } => Workload::Synthetic {
                bytes: scaled(buffer_mib << 20, scale, 4096),
                rate: rate.unwrap_or(*write_rate),
                sleep_ms: ms(*sleep),
            },
            WorkloadSpec::Database { clients, iterations, queries_per_client, engine, buffer_pool_mib } => {
                let clients = count(*clients);
                Workload::Database {
                    clients,
                    iterations: count(*iterations),
                    queries: u64::from(clients) * u64::from(count(*queries_per_client)),
                    engine: engine.clone(),
                    // InnoDB's minimum is 5 MiB.
                    pool_mib: scaled(*buffer_pool_mib, scale, 1).max(5),
                }
            }
            WorkloadSpec::Command { command, sleep } => {
                Workload::Command { command: command.clone(), sleep_ms: ms(*sleep) }
            }
        }
    }

    /// A description for tables and reports.
    pub fn words(&self) -> String {
        match self {
            Workload::Idle => "idle".into(),
            Workload::Synthetic { bytes, rate, sleep_ms } => format!(
                "{} MiB of equal pages, write rate {rate}, {} s between cycles",
                bytes >> 20,
                *sleep_ms as f64 / 1000.0
            ),
            Workload::Database { clients, iterations, queries, engine, pool_mib } => format!(
                "MariaDB ({engine}, buffer pool {pool_mib} MiB), {clients} clients, {queries} queries, {iterations} times, again and again"
            ),
            Workload::Command { command, .. } => command.join(" "),
        }
    }
}

impl Spec {
    /// The plan at a scale. `only` names the cases that are run; if it is empty, all are.
    ///
    /// # Errors
    /// If a guest becomes too small, or there is no such case.
    pub fn plan(&self, path: &Path, scale: Scale, only: &[String]) -> Result<Plan, SpecError> {
        let guests = self.guests_at(path, scale)?;
        let one = [CaseSpec { name: "all".into(), ..CaseSpec::default() }];
        let cases = if self.cases.is_empty() { &one[..] } else { &self.cases[..] };
        known(path, only, cases.iter().map(|c| &c.name))?;
        let factor = scale.value();
        let seconds = |s: f64| Duration::from_secs_f64(s * factor);
        let cases = cases
            .iter()
            .filter(|c| only.is_empty() || only.contains(&c.name))
            .map(|c| {
                let mut ksm = self.ksm.clone();
                ksm.extend(c.ksm.clone());
                let mut start = c.start.clone().unwrap_or(self.start.clone());
                if let Some(tuner) = &mut start.tuner {
                    tuner.every *= factor;
                }
                PlannedCase {
                    name: c.name.clone(),
                    ksm: settings(&ksm).expect("checked when read"),
                    start,
                    workloads: self
                        .guests
                        .iter()
                        .map(|g| Workload::of(&g.workload, c.write_rate, scale))
                        .collect(),
                }
            })
            .collect();
        let all = guests.iter().map(|g| g.memory_mib).sum();
        Ok(Plan {
            spec: self.clone(),
            scale,
            budget_mib: self.host_memory_mib.map_or(all, |m| scaled(m, scale, STEP_MIB)),
            length: seconds(self.time.length),
            sample: seconds(self.time.sample).max(Duration::from_millis(100)),
            potential: {
                let mut at: Vec<Duration> = self.time.potential.iter().map(|s| seconds(*s)).collect();
                at.sort();
                at
            },
            guests,
            cases,
        })
    }

    /// All guests at a scale.
    fn guests_at(&self, path: &Path, scale: Scale) -> Result<Vec<PlannedGuest>, SpecError> {
        let mut guests = Vec::new();
        for (kind, g) in self.guests.iter().enumerate() {
            let mib = scaled(g.memory_mib, scale, STEP_MIB);
            if mib < SMALLEST_MIB {
                let guest = g.name.clone();
                return Err(SpecError::TooSmall { path: path.into(), guest, mib, scale });
            }
            guests.extend((1..=g.count).map(|n| PlannedGuest {
                name: format!("{}-{n}", g.name),
                kind,
                memory_mib: mib,
                mergeable: g.mergeable,
            }));
        }
        Ok(guests)
    }
}

/// n times the scale, at least one step.
fn scaled(n: u64, scale: Scale, step: u64) -> u64 {
    let n = u128::from(n) * u128::from(scale.of) / u128::from(scale.parts);
    (u64::try_from(n).unwrap_or(u64::MAX) / step * step).max(step)
}
