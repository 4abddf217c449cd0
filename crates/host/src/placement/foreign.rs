// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads of other processes on given CPUs: those that are confined to these CPUs, and those that run there
//! now.

use super::threads::{list, stat_fields};
use crate::memory::text;
use crate::topology::NumberSet;
use crate::{Host, read};
use std::io;

/// Most threads that are looked at: the default of `kernel.pid_max` on 64 bits is 4,194,304, and a look takes
/// about 10 us.
const MOST_THREADS: usize = 1 << 18;

/// Flags of `stat` (`include/linux/sched.h`): a kernel thread, and a thread whose affinity user space cannot
/// set, such as the per-CPU threads of the kernel.
const PF_KTHREAD: u64 = 0x0020_0000;
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;

/// Beginnings of the names of kernel threads that the kernel itself binds: those of interrupts, KVM's, and
/// those that each node has (`mm/vmscan.c`, `mm/compaction.c`).
const BOUND_BY_KERNEL: [&str; 4] = ["irq/", "kvm-nx-lpage-re", "kswapd", "kcompactd"];

/// A thread of another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignThread {
    /// Thread id.
    pub id: u32,
    /// Its process.
    pub pid: u32,
    /// Its name. Chosen by its owner: show it with [`printable`](crate::printable).
    pub name: String,
    /// The CPUs that it may run on.
    pub cpus: NumberSet,
    /// The CPU that it last ran on.
    pub last_cpu: u32,
    /// Whether it runs, or waits for a CPU, at this moment.
    pub runs: bool,
}

/// What a look found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignThreads {
    /// The threads, by process and id.
    pub threads: Vec<ForeignThread>,
    /// What could not be read, and whether root could.
    pub unread: Vec<(String, bool)>,
}

impl Host {
    /// The threads of all processes but these that last ran on one of the CPUs, and either may run on no
    /// others or run at this moment.
    ///
    /// The kernel's threads per CPU and per node are left out, and so are threads of interrupts, which follow
    /// their interrupt, threads that have used no CPU time so far, and this process. Processes and threads
    /// that end meanwhile are left out.
    pub fn foreign_threads(&self, cpus: &NumberSet, except: &[u32]) -> ForeignThreads {
        let mut found = ForeignThreads::default();
        let (mut looked, mut refused) = (0, 0_u32);
        let pids = self.pids();
        // Process 1 always runs. A procfs with hidepid=2 does not show processes of other users.
        if !pids.contains(&1) {
            found.unread.push(("threads of other users' processes: procfs does not show them".into(), true));
        }
        for pid in pids {
            if except.contains(&pid) || pid == std::process::id() {
                continue;
            }
            let ids = match std::fs::read_dir(self.proc.join(format!("{pid}/task"))) {
                Ok(entries) => entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()),
                Err(e) => {
                    refused += u32::from(e.kind() == io::ErrorKind::PermissionDenied);
                    continue;
                }
            };
            for id in ids {
                if looked == MOST_THREADS {
                    let what =
                        format!("threads of other processes: only the first {MOST_THREADS} were looked at");
                    found.unread.push((what, false));
                    return found;
                }
                looked += 1;
                found.threads.extend(self.foreign_thread(pid, id, cpus));
            }
        }
        if refused > 0 {
            found.unread.push((format!("threads of {refused} other processes: only root may look"), true));
        }
        found
    }

    fn foreign_thread(&self, pid: u32, id: u32, cpus: &NumberSet) -> Option<ForeignThread> {
        let dir = self.proc.join(format!("{pid}/task/{id}"));
        let stat = text(&dir.join("stat"));
        // Fields 3, 9, 14, 15 and 39 of proc(5).
        let fields = stat_fields(&stat);
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let runs = *fields.first()? == "R";
        let flags = number(9)?;
        let used = number(14)?.saturating_add(number(15)?);
        let last_cpu = u32::try_from(number(39)?).ok().filter(|cpu| cpus.contains(*cpu))?;
        if used == 0 || flags & PF_NO_SETAFFINITY != 0 {
            return None;
        }
        let name = text(&dir.join("comm")).trim_end_matches('\n').to_owned();
        if flags & PF_KTHREAD != 0 && BOUND_BY_KERNEL.iter().any(|n| name.starts_with(n)) {
            return None;
        }
        let status = String::from_utf8_lossy(&read(&dir.join("status")).ok()?).into_owned();
        let allowed = list(&status, "Cpus_allowed_list:")?;
        let confined = !allowed.is_empty() && allowed.is_subset(cpus);
        (confined || runs).then_some(ForeignThread { id, pid, name, cpus: allowed, last_cpu, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    struct Stat {
        state: &'static str,
        flags: u64,
        ticks: u32,
        cpu: u32,
    }

    const ASLEEP: Stat = Stat { state: "S", flags: 0, ticks: 3, cpu: 2 };

    fn thread(host: &Host, pid: u32, id: u32, name: &str, cpus: &str, stat: Stat) {
        let dir = host.proc.join(format!("{pid}/task/{id}"));
        let Stat { state, flags, ticks, cpu } = stat;
        let middle = (16..=38).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let line =
            format!("{id} (a ) b) {state} 4 5 6 7 8 {flags} 10 11 12 13 {ticks} 0 {middle} {cpu} 40\n");
        put(&dir.join("stat"), line.as_bytes());
        put(&dir.join("comm"), format!("{name}\n").as_bytes());
        put(&dir.join("status"), format!("Name:\tx\nCpus_allowed_list:\t{cpus}\n").as_bytes());
    }

    #[test]
    fn confined_and_running_threads_of_other_processes_are_found() {
        let (_dir, host) = host();
        let per_cpu = Stat { flags: PF_KTHREAD | PF_NO_SETAFFINITY, ..ASLEEP };
        thread(&host, 1, 1, "init", "0-7", ASLEEP);
        thread(&host, 20, 20, "make", "0-7", ASLEEP);
        thread(&host, 20, 21, "cc1", "2", ASLEEP);
        thread(&host, 20, 22, "both", "2,4", Stat { cpu: 4, ..ASLEEP });
        thread(&host, 20, 23, "busy", "0-7", Stat { state: "R", ..ASLEEP });
        thread(&host, 20, 24, "elsewhere", "0-7", Stat { state: "R", cpu: 3, ..ASLEEP });
        thread(&host, 20, 25, "never ran", "2", Stat { ticks: 0, ..ASLEEP });
        thread(&host, 30, 30, "migration/2", "2", per_cpu);
        thread(&host, 31, 31, "irq/24-eth0", "2", Stat { flags: PF_KTHREAD, ..ASLEEP });
        for (pid, name) in [(33, "kswapd0"), (34, "kcompactd1")] {
            thread(&host, pid, pid, name, "2,4", Stat { flags: PF_KTHREAD, ..ASLEEP });
        }
        thread(&host, 32, 32, "vhost-42", "2", Stat { flags: PF_KTHREAD, ..ASLEEP });
        thread(&host, 42, 42, "the guest", "2", ASLEEP);
        thread(&host, std::process::id(), std::process::id(), "bifold", "2", ASLEEP);
        // Ended meanwhile: folders without files.
        std::fs::create_dir_all(host.proc.join("50/task/50")).unwrap();
        std::fs::create_dir_all(host.proc.join("51")).unwrap();
        let found = host.foreign_threads(&"2,4".parse().unwrap(), &[42]);
        let mut ids: Vec<(u32, bool)> = found.threads.iter().map(|t| (t.id, t.runs)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [(21, false), (22, false), (23, true), (32, false)]);
        assert_eq!(found.unread, []);
        let compiler = found.threads.iter().find(|t| t.id == 21).unwrap();
        assert_eq!((compiler.pid, compiler.name.as_str(), compiler.last_cpu), (20, "cc1", 2));
    }

    #[test]
    fn hidden_processes_are_told() {
        let (_dir, host) = host();
        thread(&host, 20, 20, "own", "0-7", ASLEEP);
        let unread = host.foreign_threads(&"2".parse().unwrap(), &[]).unread;
        assert!(matches!(&unread[..], [(what, true)] if what.contains("procfs does not show them")));
    }

    #[test]
    fn this_machine_has_no_confined_per_cpu_threads() {
        let host = Host::live();
        let this = std::process::id();
        let cpus = host.allowed_cpus(this, this).unwrap();
        let found = host.foreign_threads(&cpus, &[]);
        let per_cpu = ["migration/", "ksoftirqd/", "cpuhp/", "kworker/0:", "irq/"];
        let stray = found.threads.iter().find(|t| per_cpu.iter().any(|p| t.name.starts_with(p)));
        assert_eq!(stray, None);
    }
}
