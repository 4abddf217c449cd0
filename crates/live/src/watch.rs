// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the VMs of a host, and reads them at every tick.

use crate::hardware::{HardwareSource, Pmu};
use crate::interval::Interval;
use crate::vm::{Clock, SocketOf, Watched};
use bifold_host::exit_counts::{ExitCounters, ExitCountersError, ExitTable};
use bifold_host::{Host, HostError, Kvm, State, Statistic, VmId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How often what changes rarely is looked at again: names, threads of vCPUs, what would refuse a switch, and
/// VMs where debugfs does not list them.
const REFRESH: Duration = Duration::from_secs(10);
/// How soon vCPUs whose threads KVM does not know yet are looked for again. Each try doubles the time, up to
/// [`REFRESH`].
const RETRY: Duration = Duration::from_secs(1);
/// How often a VM's memory is looked at. The kernel looks at every page for that, so at most one VM's a tick,
/// and less often if a look takes long: looks take at most 1/[`LOOKS`] of the time.
/// `cargo bench -p bifold-live --bench watching` measures how long a GiB takes.
const MEMORY: Duration = Duration::from_secs(60);
const LOOKS: u32 = 400;

/// The VMs of a host.
///
/// ```no_run
/// use bifold_host::Host;
/// use bifold_live::{HardwareSource, Watch};
/// use std::time::{Duration, Instant};
///
/// let start = Instant::now();
/// let mut watch = Watch::new(Host::live(), HardwareSource::None)?;
/// watch.tick(&|| start.elapsed());
/// std::thread::sleep(Duration::from_secs(1));
/// for (id, interval) in watch.tick(&|| start.elapsed()).intervals {
///     println!("VM {id} ran for {:?} ns", interval.ran_ns());
/// }
/// # Ok::<(), bifold_host::HostError>(())
/// ```
pub struct Watch {
    host: Host,
    kvm: Kvm,
    hardware: HardwareSource,
    statistics: Vec<Statistic>,
    exits: Option<Exits>,
    socket_of: Option<SocketOf>,
    /// Whether VMs are looked at for what would refuse a switch.
    forecasts: bool,
    vms: BTreeMap<VmId, Times>,
    /// When the next look at a VM's memory may be.
    next_look: Duration,
    /// When VMs were last searched in procfs.
    searched: Option<Duration>,
    /// Why debugfs does not list the VMs.
    no_debugfs: Option<HostError>,
}

/// A VM, and when what changes rarely was last looked at.
struct Times {
    vm: Watched,
    refreshed: Duration,
    /// How long after that it is refreshed again.
    wait: Duration,
    memory: Option<Duration>,
    /// When KVM was last asked what would refuse a switch, and the VM's mode then.
    forecast: Option<(Duration, Option<State>)>,
}

impl Times {
    fn new(vm: Watched, at: Duration) -> Times {
        let wait = if vm.is_complete() { REFRESH } else { RETRY };
        Times { vm, refreshed: at, wait, memory: None, forecast: None }
    }

    /// Looks again at what changes rarely, if it is time to.
    fn refresh(
        &mut self,
        host: &Host,
        pmu: Option<&Pmu>,
        socket_of: Option<&SocketOf>,
        at: Duration,
        clock: Clock,
    ) {
        let changed = self.vm.has_new_vcpus();
        if !changed && at < self.refreshed + self.wait {
            return;
        }
        self.vm.refresh(host, pmu, socket_of, clock);
        self.wait = match self.vm.is_complete() {
            true => REFRESH,
            false if changed => RETRY,
            false => (2 * self.wait).min(REFRESH),
        };
        self.refreshed = at;
    }
}

/// Counts of exits, and their last reading.
struct Exits {
    /// None if they failed, as when the module kvm was unloaded: they are started again later.
    counters: Option<ExitCounters>,
    started: Duration,
    last: Option<ExitTable>,
    failed: Option<String>,
}

impl Exits {
    /// The exits since the last reading; `None` at the first reading, and if the counts cannot be read.
    fn interval(&mut self, host: &Host, at: Duration) -> Option<ExitTable> {
        if self.counters.is_none() && self.started + REFRESH <= at {
            self.started = at;
            self.counters = ExitCounters::start(host).ok();
        }
        let counters = self.counters.as_mut()?;
        let now = match counters.read() {
            Ok(now) => now,
            Err(e) => {
                self.failed = Some(e.to_string());
                (self.last, self.counters, self.started) = (None, None, at);
                return None;
            }
        };
        if !now.nearly_full() {
            let last = self.last.replace(now)?;
            return self.last.as_ref().map(|now| now.since(&last));
        }
        match counters.restart() {
            Ok(restart) => {
                let last = self.last.replace(restart.first)?;
                Some(restart.last.since(&last))
            }
            Err(e) => {
                self.failed = Some(e.to_string());
                self.last.replace(now.clone()).map(|last| now.since(&last))
            }
        }
    }
}

/// What a tick saw.
#[derive(Debug, Default)]
pub struct Tick {
    /// What each VM did since the tick before. A VM that is new has its first interval at the next tick.
    pub intervals: Vec<(VmId, Interval)>,
    /// VMs seen for the first time.
    pub came: Vec<VmId>,
    /// VMs that have ended.
    pub gone: Vec<VmId>,
}

impl Watch {
    /// Watches the VMs of a host, with hardware counts from this source. Without debugfs, VMs come from
    /// procfs.
    ///
    /// # Errors
    /// If the host has no KVM.
    pub fn new(host: Host, hardware: HardwareSource) -> Result<Watch, HostError> {
        let kvm = host.kvm()?;
        Ok(Watch {
            host,
            kvm,
            hardware,
            statistics: Statistic::ALL.to_vec(),
            exits: None,
            socket_of: None,
            forecasts: false,
            vms: BTreeMap::new(),
            next_look: Duration::ZERO,
            searched: None,
            no_debugfs: None,
        })
    }

    /// Reads these of KVM's statistics alone; the others are unknown. In debugfs each is a file, and takes
    /// three system calls a tick. [`Measured::STATISTICS`](crate::Measured::STATISTICS) are those that
    /// policies and advice need. This holds for VMs that are found afterwards.
    ///
    /// ```no_run
    /// use bifold_host::Host;
    /// use bifold_live::{HardwareSource, Measured, Watch};
    ///
    /// let mut watch = Watch::new(Host::live(), HardwareSource::None)?;
    /// watch.read_only(Measured::STATISTICS);
    /// # Ok::<(), bifold_host::HostError>(())
    /// ```
    pub fn read_only(&mut self, statistics: &[Statistic]) {
        self.statistics = statistics.to_vec();
    }

    /// Names the sockets of reporters inside guests, beside those that command lines of QEMU name. Who
    /// listens on a socket so named is not checked. Called for VMs that are new, and every 10 s for those
    /// whose reporter is not connected.
    pub fn report_from(&mut self, socket_of: impl Fn(&Watched) -> Option<PathBuf> + Send + 'static) {
        self.socket_of = Some(Box::new(socket_of));
    }

    /// Looks every 10 s, and after each switch, whether KVM would refuse to switch the VM to its other mode.
    /// Advice names the reason then. KVM looks at each vCPU for that.
    pub fn forecast_switches(&mut self) {
        self.forecasts = true;
    }

    /// Counts exits by the hardware's reason too, which costs a look-up in a table for each exit of each VM
    /// on the host.
    ///
    /// # Errors
    /// If this kernel or this user cannot count them.
    pub fn count_exits(&mut self) -> Result<(), ExitCountersError> {
        let counters = Some(ExitCounters::start(&self.host)?);
        self.exits = Some(Exits { counters, started: Duration::ZERO, last: None, failed: None });
        Ok(())
    }

    /// Why exits could not be counted in some interval.
    pub fn exits_failed(&self) -> Option<&str> {
        self.exits.as_ref()?.failed.as_deref()
    }

    /// Reads all VMs. `clock` tells the time, and never jumps.
    pub fn tick(&mut self, clock: &dyn Fn() -> Duration) -> Tick {
        let mut tick = Tick::default();
        let at = clock();
        let exits = self.exits.as_mut().and_then(|e| e.interval(&self.host, at));
        for (id, one) in &mut self.vms {
            match one.vm.interval(clock) {
                Ok(mut interval) => {
                    exits.iter().for_each(|all| interval.add_exits(all));
                    self.hardware.count(&mut interval);
                    tick.intervals.push((*id, interval));
                }
                Err(_) => tick.gone.push(*id),
            }
        }
        // Looked at again behind the readings, which this would delay.
        for one in self.vms.values_mut() {
            one.refresh(&self.host, self.hardware.pmu(), self.socket_of.as_ref(), at, clock);
        }
        let present = self.present(at);
        if let Some(present) = &present {
            tick.gone.extend(self.vms.keys().filter(|id| !present.contains(id)));
        }
        tick.gone.sort_unstable();
        tick.gone.dedup();
        tick.gone.iter().for_each(|id| drop(self.vms.remove(id)));
        tick.intervals.retain(|(id, _)| self.vms.contains_key(id));
        for id in present.into_iter().flatten().filter(|id| !tick.gone.contains(id)) {
            if self.vms.contains_key(&id) {
                continue;
            }
            let (pmu, socket_of) = (self.hardware.pmu(), self.socket_of.as_ref());
            let wanted = &self.statistics;
            if let Some(vm) = Watched::begin((&self.host, &self.kvm), pmu, wanted, id, socket_of, clock) {
                self.vms.insert(id, Times::new(vm, at));
                tick.came.push(id);
            }
        }
        self.look_at_refusals(at);
        self.look_at_memory(clock);
        tick
    }

    /// Looks at what would refuse switches, where it is time to.
    fn look_at_refusals(&mut self, at: Duration) {
        for one in self.vms.values_mut().filter(|_| self.forecasts) {
            let state = one.vm.state();
            if one.forecast.is_none_or(|(before, then)| then != state || before + REFRESH <= at) {
                one.vm.look_at_refusal(&self.host);
                one.forecast = Some((at, state));
            }
        }
    }

    /// The VMs that exist; `None` if they were not looked for at this tick.
    fn present(&mut self, at: Duration) -> Option<Vec<VmId>> {
        match self.host.vm_ids() {
            Ok(ids) => {
                self.no_debugfs = None;
                Some(ids)
            }
            // Without debugfs, the processes' open files tell. Reading them all takes long.
            Err(e) => {
                self.no_debugfs = Some(e);
                if self.searched.is_some_and(|before| at < before + REFRESH) {
                    return None;
                }
                self.searched = Some(at);
                let all = self.host.kvm_processes();
                Some(all.iter().flat_map(|p| p.vms.iter().map(|&fd| VmId { thread: p.pid, fd })).collect())
            }
        }
    }

    /// Looks at the memory of the VM whose turn it is.
    fn look_at_memory(&mut self, clock: Clock) {
        let at = clock();
        if at < self.next_look {
            return;
        }
        let due = |one: &&mut Times| one.memory.is_none_or(|before| before + MEMORY <= at);
        if let Some(one) = self.vms.values_mut().filter(due).min_by_key(|one| one.memory) {
            one.vm.look_at_memory(&self.host);
            one.memory = Some(at);
            let took = clock().saturating_sub(at);
            self.next_look = at.saturating_add(took.saturating_mul(LOOKS));
        }
    }

    /// The VMs, in the order of their identifiers.
    pub fn vms(&self) -> impl Iterator<Item = &Watched> {
        self.vms.values().map(|one| &one.vm)
    }

    /// The VM of this identifier.
    pub fn vm(&self, id: VmId) -> Option<&Watched> {
        self.vms.get(&id).map(|one| &one.vm)
    }

    /// Why KVM's directory in debugfs does not list the VMs; they come from procfs then, without KVM's
    /// statistics unless their processes have asked KVM for them.
    pub fn no_debugfs(&self) -> Option<&HostError> {
        self.no_debugfs.as_ref()
    }

    /// The host's PMU, if the hardware counts come from it.
    pub fn pmu(&self) -> Option<&Pmu> {
        self.hardware.pmu()
    }

    /// The host's KVM.
    pub fn kvm(&self) -> &Kvm {
        &self.kvm
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;
    use bifold_host::Statistic;
    use bifold_policy::Mode;

    fn id(thread: u32) -> VmId {
        VmId { thread, fd: 7 }
    }

    fn at(watch: &mut Watch, seconds: u64) -> Tick {
        watch.tick(&|| Duration::from_secs(seconds))
    }

    #[test]
    fn vms_come_run_are_renamed_and_go() {
        let fake = FakeHost::new();
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        assert!(at(&mut watch, 0).came.is_empty());
        fake.vm(id(100), "web");
        fake.vm(id(200), "db");
        let tick = at(&mut watch, 1);
        assert_eq!((tick.came, tick.intervals.len()), (vec![id(100), id(200)], 0));
        fake.vcpu(id(100), 0, 500_000_000, 100_000_000);
        fake.count(id(100), Statistic::Exits, 70);
        let tick = at(&mut watch, 2);
        let (first, web) = &tick.intervals[0];
        assert_eq!((*first, web.mode, web.load()), (id(100), Some(Mode::Nested), Some(0.5)));
        assert_eq!((web.statistics.get(Statistic::Exits), web.waited_ns()), (Some(70), Some(100_000_000)));
        fake.vm(id(200), "db-2");
        fake.end(id(100));
        let tick = at(&mut watch, 3);
        assert_eq!((tick.gone, tick.intervals.len()), (vec![id(100)], 1));
        assert_eq!(watch.vm(id(200)).unwrap().name.as_deref(), Some("db"), "not looked at again yet");
        at(&mut watch, 20);
        assert_eq!(watch.vm(id(200)).unwrap().name.as_deref(), Some("db-2"));
    }

    #[test]
    fn a_vcpu_that_is_plugged_in_is_found_at_once_and_unknown_at_first() {
        let fake = FakeHost::new();
        fake.vm(id(100), "web");
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        at(&mut watch, 0);
        fake.vcpu(id(100), 1, 0, 0);
        let load = |tick: Tick| tick.intervals[0].1.load();
        assert_eq!(load(at(&mut watch, 1)), Some(0.0), "found behind this reading");
        assert_eq!(load(at(&mut watch, 2)), None);
        assert_eq!((load(at(&mut watch, 3)), watch.vm(id(100)).unwrap().vcpus()), (Some(0.0), 2));
    }

    #[test]
    fn statistics_that_are_not_wanted_are_unknown() {
        let fake = FakeHost::new();
        fake.vm(id(100), "web");
        fake.count(id(100), Statistic::PfTaken, 3);
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        watch.read_only(&[Statistic::PfTaken]);
        at(&mut watch, 0);
        let statistics = at(&mut watch, 1).intervals[0].1.statistics;
        let seen = [Statistic::PfTaken, Statistic::Exits].map(|s| statistics.get(s));
        assert_eq!(seen, [Some(0), None]);
    }

    #[test]
    fn looks_at_memory_that_take_long_are_rare() {
        let fake = FakeHost::new();
        for thread in [100, 200] {
            fake.vm(id(thread), "web");
            let smaps = fake.host().proc.join(format!("{thread}/smaps"));
            std::fs::write(smaps, "7f0000000000-7f0010000000 rw-p 00000000 00:00 0\nRss: 4 kB\n").unwrap();
        }
        // Each call of this clock takes 10 ms, and so each look.
        let millis = std::cell::Cell::new(0);
        let slow = || {
            millis.set(millis.get() + 10);
            Duration::from_millis(millis.get())
        };
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        let mut looked = |seconds: u64| {
            millis.set(1000 * seconds);
            watch.tick(&slow);
            watch.vms().filter(|vm| vm.backing.is_some()).count()
        };
        assert_eq!([1, 2, 4, 6].map(&mut looked), [1, 1, 1, 2], "10 ms are 1/400 of 4 s");
    }

    #[test]
    fn a_vcpu_that_never_ran_is_looked_for_less_and_less_often() {
        let fake = FakeHost::new();
        fake.vm(id(100), "web");
        let pid = fake.host().vm_dir(id(100)).join("vcpu1/pid");
        std::fs::create_dir_all(pid.parent().unwrap()).unwrap();
        std::fs::write(&pid, "0\n").unwrap();
        let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
        let mut vcpus_at = |seconds| {
            at(&mut watch, seconds);
            watch.vm(id(100)).unwrap().vcpus()
        };
        // Looked for at 0, 1, 3 and 7 s.
        assert_eq!([0, 1, 2, 3, 7].map(&mut vcpus_at), [1; 5]);
        fake.vcpu(id(100), 1, 0, 0);
        assert_eq!([8, 14, 15].map(&mut vcpus_at), [1, 1, 2]);
    }

    #[test]
    fn without_debugfs_processes_tell_and_the_mode_is_the_hosts() {
        let fake = FakeHost::new();
        let host = fake.host();
        std::fs::remove_dir_all(&host.debug).unwrap();
        std::fs::remove_file(host.sys.join("module/kvm/parameters/paging_mode")).unwrap();
        let process = host.proc.join("100");
        let write = |name: &str, text: &str| {
            let path = process.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cmdline", "qemu-system-x86_64\0-name\0web\0");
        write("task/101/comm", "CPU 0/KVM\n");
        write("task/101/schedstat", "5 5 5\n");
        std::fs::create_dir_all(process.join("fd")).unwrap();
        std::os::unix::fs::symlink("anon_inode:kvm-vm", process.join("fd/7")).unwrap();
        let mut watch = Watch::new(host, HardwareSource::None).unwrap();
        assert_eq!(at(&mut watch, 0).came, [id(100)]);
        assert!(matches!(watch.no_debugfs(), Some(HostError::NoDebugfs { .. })));
        write("task/101/schedstat", "1000000005 5 5\n");
        let tick = at(&mut watch, 1);
        let interval = &tick.intervals[0].1;
        assert_eq!((interval.mode, interval.load()), (Some(Mode::Nested), Some(1.0)));
        assert_eq!(interval.statistics.get(Statistic::Exits), None);
        std::fs::remove_dir_all(&process).unwrap();
        assert_eq!(at(&mut watch, 11).gone, [id(100)]);
    }
}
