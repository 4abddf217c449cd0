// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM that is watched: its open files, and its last reading.
//!
//! The files of threads and hardware counters stay open. Those of KVM do not: while one is open, KVM keeps
//! the VM, also after its process has ended.

use crate::hardware::{OpenError, Pmu, ThreadCounters};
use crate::interval::{Interval, Reading, VcpuReading};
use crate::reporter::{MemoryView, Reporter, socket};
use bifold_host::{
    Backing, BinaryStatistics, Entries, Forecast, Host, Kvm, Mode, Obstacle, Paging, PagingStats, State,
    Statistic, Statistics, StatisticsFiles, ThreadTimes, Vcpu, VmDirectory, VmId,
};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The time, by a clock that never jumps.
pub(crate) type Clock<'a> = &'a dyn Fn() -> Duration;

/// Names the socket of a VM's reporter.
pub(crate) type SocketOf = Box<dyn Fn(&Watched) -> Option<PathBuf> + Send>;

/// A VM that is watched.
pub struct Watched {
    /// KVM's identifier. Without debugfs it is made of process id and file descriptor, which KVM does too if
    /// the process's first thread made the VM.
    pub id: VmId,
    /// The VM's process.
    pub pid: u32,
    /// The VM's name on its VMM's command line, else the process's name; `None` if neither is visible.
    pub name: Option<String>,
    /// What backs the guest's memory, when last looked at; `None` if that is unknown.
    pub backing: Option<Backing>,
    /// Why a vCPU that runs has no hardware counters.
    pub no_counters: Option<OpenError>,
    statistics: Source,
    /// KVM's directory of the VM; `None` without debugfs.
    directory: Option<VmDirectory>,
    /// The directory when the vCPUs' threads were looked for.
    searched: Option<Entries>,
    /// Whether the threads of all vCPUs were found then.
    complete: bool,
    /// Whether the VM had a mode of its own at the last reading.
    switchable: bool,
    /// Whether KVM would refuse a switch, when last looked at.
    forecast: Forecast,
    /// The mode of all VMs, if the VM has none of its own.
    host_mode: Option<State>,
    vcpus: Vec<Thread>,
    reporter: Option<Reporter>,
    last: Reading,
}

/// Where KVM's statistics come from.
#[derive(Debug)]
enum Source {
    Files(StatisticsFiles),
    /// From file descriptors of the VM's process. KVM keeps the VM as long as they are open: until procfs is
    /// searched again without finding the process.
    Binary(Vec<BinaryStatistics>),
    None,
}

/// The thread of a vCPU.
struct Thread {
    vcpu: Vcpu,
    times: Option<ThreadTimes>,
    counters: Option<ThreadCounters>,
}

impl Watched {
    /// Begins to watch a VM; `None` if the VM has just ended.
    pub(crate) fn begin(
        (host, kvm): (&Host, &Kvm),
        pmu: Option<&Pmu>,
        wanted: &[Statistic],
        id: VmId,
        socket_of: Option<&SocketOf>,
        clock: Clock,
    ) -> Option<Watched> {
        let process = host.process(id.thread);
        let statistics = match host.statistics_files(id, wanted) {
            Ok(files) => Source::Files(files),
            Err(_) => {
                let open = host.kvm_process(process.pid).and_then(|p| p.statistics().ok());
                open.filter(|all| !all.is_empty()).map_or(Source::None, Source::Binary)
            }
        };
        let host_mode = kvm.default.is_none().then(|| kvm.host_mode().map(State::In)).flatten();
        let mut vm = Watched {
            id,
            pid: process.pid,
            name: process.name,
            backing: None,
            no_counters: None,
            statistics,
            directory: None,
            searched: None,
            complete: false,
            switchable: false,
            forecast: Forecast::Unknown,
            host_mode,
            vcpus: Vec::new(),
            reporter: None,
            last: Reading::default(),
        };
        vm.find_vcpus(host, pmu);
        vm.last = vm.read(clock).ok()?;
        // Behind the reading, for which no report could have come yet.
        vm.find_reporter(host, socket_of, clock);
        Some(vm)
    }

    /// Looks again at what changes rarely: the name, the threads of the vCPUs, and a reporter that is not
    /// connected.
    pub(crate) fn refresh(
        &mut self,
        host: &Host,
        pmu: Option<&Pmu>,
        socket_of: Option<&SocketOf>,
        clock: Clock,
    ) {
        let process = host.process(self.id.thread);
        if process.name.is_some() {
            self.name = process.name;
        }
        self.find_vcpus(host, pmu);
        self.reconnect(socket_of, clock);
    }

    /// Looks for a reporter on the VMM's command line, which does not change, and connects.
    fn find_reporter(&mut self, host: &Host, socket_of: Option<&SocketOf>, clock: Clock) {
        let path = host.command_line(self.pid).and_then(|line| socket(&line));
        self.reporter = path.map(|path| Reporter::of(host, self.pid, path));
        self.reconnect(socket_of, clock);
    }

    /// Connects to the reporter, if there is one and no connection. A socket that the caller names has
    /// precedence.
    fn reconnect(&mut self, socket_of: Option<&SocketOf>, clock: Clock) {
        if self.reporter.as_ref().is_some_and(Reporter::is_connected) {
            return;
        }
        if let Some(path) = socket_of.and_then(|named| named(self)) {
            if self.reporter.as_ref().is_none_or(|r| r.path() != path) {
                self.reporter = Some(Reporter::named(path));
            }
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.connect(clock());
        }
    }

    /// Looks at what backs the guest's memory. The kernel looks at every page for that.
    pub(crate) fn look_at_memory(&mut self, host: &Host) {
        self.backing = host.backing(self.pid);
    }

    /// Looks whether KVM would refuse to switch the VM, or a cgroup leaves too little room. KVM looks at each
    /// vCPU for that.
    pub(crate) fn look_at_refusal(&mut self, host: &Host) {
        let read = self.directory.as_ref().map(VmDirectory::forecast);
        let forecast = read.and_then(Result::ok).unwrap_or_default();
        let is_nested = self.switchable && self.last.state == Some(State::In(Mode::Nested));
        let shortage = || if is_nested { host.shortage(self.pid) } else { None };
        self.forecast = forecast.with_room(shortage);
    }

    fn find_vcpus(&mut self, host: &Host, pmu: Option<&Pmu>) {
        if self.directory.is_none() {
            self.directory = host.vm_directory(self.id).ok();
        }
        // Before the search: a vCPU that is added meanwhile is found by the next one.
        self.searched = self.entries();
        let found = host.vcpus(Some(self.id), self.pid);
        self.complete = host.vcpu_count(self.id).is_none_or(|all| found.len() == all);
        self.vcpus.retain(|t| found.contains(&t.vcpu));
        for vcpu in found {
            if self.vcpus.iter().all(|t| t.vcpu != vcpu) {
                self.vcpus.push(Thread { vcpu, times: None, counters: None });
            }
        }
        // What failed before is tried again.
        self.no_counters = None;
        for t in &mut self.vcpus {
            if t.times.is_none() {
                t.times = host.thread_times(self.pid, t.vcpu.thread).ok();
            }
            if t.counters.is_none() {
                match pmu.map(|p| p.open(t.vcpu.thread)) {
                    Some(Ok(counters)) => t.counters = Some(counters),
                    None | Some(Err(OpenError::Ended { .. })) => {}
                    Some(Err(e)) => self.no_counters = Some(e),
                }
            }
        }
        self.vcpus.sort_by_key(|t| t.vcpu);
    }

    /// Reads the VM, and returns what it did since the reading before.
    ///
    /// # Errors
    /// If the VM has ended.
    pub(crate) fn interval(&mut self, clock: Clock) -> io::Result<Interval> {
        let now = self.read(clock)?;
        let interval = Interval::between(&self.last, &now);
        self.last = now;
        Ok(interval)
    }

    fn read(&mut self, clock: Clock) -> io::Result<Reading> {
        let at = clock();
        let mut statistics = Statistics::default();
        match &self.statistics {
            Source::Files(files) => statistics = files.read()?,
            Source::Binary(all) => all.iter().try_for_each(|one| one.add_to(&mut statistics))?,
            Source::None => {}
        }
        let vcpus = self.vcpus.iter().map(|t| VcpuReading {
            number: t.vcpu.number,
            thread: t.vcpu.thread,
            time: t.times.as_ref().and_then(ThreadTimes::read),
            hardware: t.counters.as_ref().and_then(|c| c.read().ok()),
        });
        let vcpus = vcpus.collect();
        let paging = self.directory.as_ref().map_or(Paging::HostWide, VmDirectory::paging);
        self.switchable = matches!(paging, Paging::Own { .. });
        let state = if self.switchable { paging.state() } else { self.host_mode };
        let guest = self.reporter.as_mut().and_then(|r| r.read(at));
        Ok(Reading { at, state, paging: paging.stats(), statistics, vcpus, guest })
    }

    /// The reporter inside the guest; `None` if the VM has no port for one that is known.
    pub fn reporter(&self) -> Option<&Reporter> {
        self.reporter.as_ref()
    }

    /// The guest's memory by its reporter's last report; `None` if none came for the last reading.
    pub fn memory_inside(&self) -> Option<&MemoryView> {
        self.last.guest.as_ref().map(|reading| &reading.report.memory)
    }

    /// The mode of paging, or the switch under way, at the last reading.
    pub fn state(&self) -> Option<State> {
        self.last.state
    }

    /// KVM's figures of the VM's switches, at the last reading.
    pub fn paging_stats(&self) -> &PagingStats {
        &self.last.paging
    }

    /// Whether this VM has a mode of its own, which can be switched.
    pub fn switchable(&self) -> bool {
        self.switchable
    }

    /// What would refuse a switch of this VM to its other mode, when last looked at
    /// ([`Watch::forecast_switches`]); `None` if KVM would switch the VM, or if that is unknown.
    ///
    /// [`Watch::forecast_switches`]: crate::Watch::forecast_switches
    pub fn obstacle(&self) -> Option<&Obstacle> {
        self.forecast.obstacle()
    }

    /// Whether the threads of all vCPUs were found when they were last looked for. KVM does not know a thread
    /// until the vCPU has run.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether KVM has added vCPUs since they were last looked for.
    pub(crate) fn has_new_vcpus(&self) -> bool {
        self.entries() != self.searched
    }

    fn entries(&self) -> Option<Entries> {
        self.directory.as_ref()?.entries()
    }

    /// Number of vCPUs whose threads are known.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;
    use crate::{HardwareSource, Watch};

    const ID: VmId = VmId { thread: 100, fd: 7 };

    #[test]
    fn what_would_refuse_a_switch_is_looked_at_rarely_and_after_each_switch() {
        let fake = FakeHost::new();
        fake.vm(ID, "web");
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        fake.refusal(ID, "smm vcpu 0");
        let seen = |watch: &mut Watch, seconds| {
            watch.tick(&|| Duration::from_secs(seconds));
            watch.vm(ID).unwrap().obstacle().map(|o| o.reason.word().to_string())
        };
        assert_eq!(seen(&mut watch, 0), None, "no forecast was asked for");
        watch.forecast_switches();
        assert_eq!(seen(&mut watch, 1).as_deref(), Some("smm"));
        fake.refusal(ID, "keys vcpu 0");
        assert_eq!(
            [9, 10, 11].map(|s| seen(&mut watch, s)),
            [Some("smm"), Some("smm"), Some("keys")].map(|w| w.map(String::from))
        );
        fake.mode(ID, "shadow", 1);
        fake.refusal(ID, "none");
        assert_eq!(seen(&mut watch, 12), None, "the mode is another");
        std::fs::remove_file(fake.host().vm_dir(ID).join("paging_refusal")).unwrap();
        assert_eq!((seen(&mut watch, 22), watch.vms().count()), (None, 1), "older modules");
    }

    #[test]
    fn a_cgroup_without_room_is_an_obstacle_of_a_vm_in_nested_paging() {
        let fake = FakeHost::new();
        fake.vm(ID, "web");
        fake.room(ID, 1 << 20, 0);
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        watch.forecast_switches();
        let mut seen = |seconds| {
            watch.tick(&|| Duration::from_secs(seconds));
            watch.vm(ID).unwrap().obstacle().map(|o| o.reason.word().to_string())
        };
        assert_eq!(seen(0).as_deref(), Some("room"));
        fake.mode(ID, "shadow", 1);
        assert_eq!((seen(1), seen(20)), (None, None), "the way back needs no room");
    }
}
