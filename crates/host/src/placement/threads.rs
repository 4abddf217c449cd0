// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads of a process: what each does for a guest, and the CPUs and nodes that each may use.

use crate::memory::text;
use crate::topology::NumberSet;
use crate::{Host, Vcpu, read};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Most threads of a process that are looked at: the default of `kernel.threads-max` of a small host.
const MOST_THREADS: usize = 1 << 16;

/// Name of KVM's thread that recovers huge pages, as long as names can be.
const RECOVERY: &str = "kvm-nx-lpage-re";

/// What a thread of a VMM does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs this vCPU.
    Vcpu(u32),
    /// Serves devices: an I/O thread of QEMU with its name, or a worker of vhost.
    Io(String),
    /// Takes back small pages that KVM made of huge ones against a processor's defect, once a minute at most.
    /// The first vCPU that runs makes the thread, which inherits that vCPU's CPUs
    /// (`kvm_mmu_start_lpage_recovery`; seen on Debian's 6.12.117).
    Recovery,
    /// Anything else: the main loop, monitors, helpers.
    Emulator,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub id: u32,
    /// Its name, as `ps -L` shows it.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// The CPUs that it may run on (`Cpus_allowed_list`): its affinity within its cpuset.
    pub cpus: NumberSet,
    /// The nodes that its memory may come from (`Mems_allowed_list`).
    pub mems: NumberSet,
    /// The CPU that it last ran on.
    pub last_cpu: Option<u32>,
    /// How the scheduler ranks it; `None` if the kernel does not tell.
    pub scheduling: Option<Scheduling>,
}

/// How the scheduler ranks a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Nice value, from -20 to 19.
    pub nice: i32,
    /// Policy: 0 is SCHED_OTHER, 3 SCHED_BATCH, 5 SCHED_IDLE (sched(7)).
    pub policy: u32,
}

impl Scheduling {
    /// Whether the policy is SCHED_FIFO or SCHED_RR.
    pub fn is_real_time(&self) -> bool {
        matches!(self.policy, 1 | 2)
    }
}

impl Host {
    /// The threads of a process in order of id. `vcpus` names those of vCPUs that the caller knows; the other
    /// roles come from the threads' names.
    ///
    /// # Errors
    /// If the process has ended, or is not visible from here.
    pub fn threads(&self, pid: u32, vcpus: &[Vcpu]) -> io::Result<Vec<Thread>> {
        let tasks = self.proc.join(pid.to_string()).join("task");
        let ids = std::fs::read_dir(&tasks)?.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let mut ids: Vec<u32> = ids.take(MOST_THREADS).collect();
        ids.sort_unstable();
        // A thread may end while the others are read.
        let threads: Vec<Thread> = ids.iter().filter_map(|id| thread(&tasks, *id, vcpus)).collect();
        if threads.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(threads) }
    }

    /// Those of a process's threads that run and are not in `read`: what they may use could not be read.
    pub fn unread_threads(&self, pid: u32, read: &[Thread]) -> Vec<u32> {
        let tasks = self.proc.join(pid.to_string()).join("task");
        let Ok(entries) = std::fs::read_dir(&tasks) else { return Vec::new() };
        let ids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let known: BTreeSet<u32> = read.iter().map(|t| t.id).collect();
        let missing = ids.take(MOST_THREADS).filter(|id| !known.contains(id));
        // A thread that began after the others were read can be read now, and one that has ended has no
        // folder.
        missing
            .filter(|id| thread(&tasks, *id, &[]).is_none() && tasks.join(id.to_string()).is_dir())
            .collect()
    }

    /// The CPUs that a thread may run on now.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn allowed_cpus(&self, pid: u32, thread: u32) -> io::Result<NumberSet> {
        let status = read(&self.proc.join(format!("{pid}/task/{thread}/status")))?;
        let status = String::from_utf8_lossy(&status);
        list(&status, "Cpus_allowed_list:").ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn thread(tasks: &Path, id: u32, vcpus: &[Vcpu]) -> Option<Thread> {
    let dir = tasks.join(id.to_string());
    let status = String::from_utf8_lossy(&read(&dir.join("status")).ok()?).into_owned();
    let name = text(&dir.join("comm")).trim_end_matches('\n').to_owned();
    let known = vcpus.iter().find(|v| v.thread == id).map(|v| Role::Vcpu(v.number));
    // With KVM's own list, a thread that only has the name of a vCPU's thread is not a vCPU's.
    let role = match (known, role(&name)) {
        (Some(role), _) => role,
        (None, Role::Vcpu(_)) if !vcpus.is_empty() => Role::Emulator,
        (None, role) => role,
    };
    let stat = text(&dir.join("stat"));
    let fields = stat_fields(&stat);
    Some(Thread {
        id,
        role,
        name,
        cpus: list(&status, "Cpus_allowed_list:")?,
        mems: list(&status, "Mems_allowed_list:").unwrap_or_default(),
        last_cpu: fields.get(39 - 3).and_then(|f| f.parse().ok()),
        scheduling: scheduling(&fields),
    })
}

/// What a thread does, by its name: QEMU's `CPU 0/KVM`, `CPU 0/TCG` and `IO iothread0` (with
/// `-name debug-threads=on`), other VMMs' names of vCPUs, the kernel's `vhost-PID` and KVM's own.
fn role(name: &str) -> Role {
    let tcg = || name.strip_prefix("CPU ")?.strip_suffix("/TCG")?.parse().ok();
    if let Some(vcpu) = crate::vcpus::number(name).or_else(tcg) {
        return Role::Vcpu(vcpu);
    }
    match name.strip_prefix("IO ") {
        Some(id) => Role::Io(id.to_owned()),
        None if name.starts_with("vhost-") => Role::Io(name.to_owned()),
        None if name == RECOVERY => Role::Recovery,
        None => Role::Emulator,
    }
}

pub(super) fn list(status: &str, field: &str) -> Option<NumberSet> {
    status.lines().find_map(|l| l.strip_prefix(field))?.parse().ok()
}

/// The fields of `stat` (proc(5)) from field 3 on, which is the first behind the name.
pub(super) fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rfind(')').map(|at| stat[at + 1..].split_whitespace().collect()).unwrap_or_default()
}

/// Fields 19 and 41.
fn scheduling(fields: &[&str]) -> Option<Scheduling> {
    let nice = fields.get(19 - 3)?.parse().ok()?;
    Some(Scheduling { nice, policy: fields.get(41 - 3)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn a_threads_role_is_its_name_or_what_kvm_says() {
        let (_dir, host) = host();
        let task = |id: u32, comm: &str, cpus: &str| {
            let dir = host.proc.join(format!("42/task/{id}"));
            put(&dir.join("comm"), comm.as_bytes());
            let status =
                format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1\n");
            put(&dir.join("status"), status.as_bytes());
            let fields = (4..=41).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
            put(&dir.join("stat"), format!("{id} (a ) b) S {fields}\n").as_bytes());
        };
        assert!(host.threads(42, &[]).is_err());
        task(42, "qemu-system-x86\n", "0-3");
        task(44, "CPU 0/TCG\n", "2");
        task(45, "IO disk 1\n", "1");
        task(46, "vhost-42\n", "1,3");
        task(47, "kvm-nx-lpage-re\n", "2");
        let roles = |vcpus: &[Vcpu]| -> Vec<Role> {
            host.threads(42, vcpus).unwrap().into_iter().map(|t| t.role).collect()
        };
        let io = |name: &str| Role::Io(name.into());
        assert_eq!(roles(&[]), [Role::Emulator, Role::Vcpu(0), io("disk 1"), io("vhost-42"), Role::Recovery]);
        let kvm = [Vcpu { number: 7, thread: 46 }];
        assert_eq!(
            roles(&kvm),
            [Role::Emulator, Role::Emulator, io("disk 1"), Role::Vcpu(7), Role::Recovery]
        );
        let threads = host.threads(42, &[]).unwrap();
        assert_eq!((threads[3].cpus.to_string(), threads[3].last_cpu), ("1,3".into(), Some(39)));
        assert_eq!(threads[3].scheduling, Some(Scheduling { nice: 19, policy: 41 }));
        assert_eq!(host.unread_threads(42, &threads), [] as [u32; 0]);
        // A thread without a list of CPUs, and one that has ended.
        put(&host.proc.join("42/task/50/comm"), b"CPU 1/KVM\n");
        let threads = host.threads(42, &[]).unwrap();
        assert_eq!((threads.len(), host.unread_threads(42, &threads)), (5, vec![50]));
        assert_eq!(host.allowed_cpus(42, 44).unwrap().to_string(), "2");
        assert!(host.allowed_cpus(42, 99).is_err());
    }
}
