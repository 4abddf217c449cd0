// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A day of a host whose VMs come, end, pause and are switched by others, whose files and guests lie, and
//! whose daemon is killed now and then.

use super::*;
use crate::fake_host::FakeHost;
use bifold_host::Statistic;
use bifold_live::HardwareSource;
use bifold_live::hardware::HardwareCounts;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use std::fs;
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Seconds between two readings.
const STEP: u64 = 60;
const DAY: u64 = 86_400;
/// Most switches an hour, and least stay in seconds.
const MOST: usize = 6;
const STAY: u64 = 300;

/// What may stand in a file of the kernel that lies, and what does not.
const LIES: [&str; 9] = [
    "",
    "NaN\n",
    "-1\n",
    "18446744073709551615\n",
    "9223372036854775808\n",
    "1e300\n",
    "\0\0\0",
    "shadow",
    "\u{1b}[2J\n",
];

/// What KVM may say would refuse a switch.
const REFUSALS: [&str; 5] = ["hypervisor vcpu 0", "keys vcpu 0", "smm vcpu 0", "real-mode vcpu 0", "newer"];

struct Vm {
    id: VmId,
    name: String,
    /// As KVM knows it.
    mode: String,
    switches: u64,
    /// The mode at the VM's start, to which it must return.
    own: String,
    /// Whether others switch this VM too.
    foreign: bool,
    /// Whether KVM says that it would refuse a switch.
    refused: bool,
    /// Whether the daemon has read the VM: it cannot know what happened before.
    seen: bool,
    paused: bool,
    /// Seconds at which the VM was switched, by the daemon or by others.
    at: Vec<u64>,
    work: u64,
    /// The socket of the guest's reporter, and the daemon's connection.
    reporter: Option<(UnixListener, Option<UnixStream>)>,
    /// Steps that the guest has made.
    steps: [u64; 2],
}

struct Day {
    fake: FakeHost,
    folder: tempfile::TempDir,
    random: Pcg64,
    now: u64,
    next_id: u32,
    vms: Vec<Vm>,
    config: usize,
    /// Number of switches by the daemon.
    by_daemon: BTreeMap<String, u64>,
}

/// The configurations that the day changes between: which names act.
const CONFIGS: [&str; 3] = [
    "[[vm]]\nname = \"acts-*\"\npolicy = \"toggle\"\nact = true\ntrusted = true\nparameters = { interval_s = 60 }\n\
     [[vm]]\nname = \"look-*\"\npolicy = \"toggle\"\nparameters = { interval_s = 60 }\n\
     [[vm]]\nname = \"dsp-*\"\npolicy = \"dsp\"\nact = true\ntrusted = true\nparameters = { interval_s = 60 }\nreporter = \"DIR/{name}\"\n\
     [[vm]]\nname = \"probe-*\"\nact = true\ntrusted = true\nreporter = \"DIR/{name}\"\nprobe = { every_s = 3600, length_s = 300 }\n",
    "[[vm]]\nname = \"acts-1*\"\npolicy = \"always-shadow\"\nact = true\ntrusted = true\n\
     [[vm]]\nname = \"acts-*\"\npolicy = \"toggle\"\nact = true\ntrusted = true\nparameters = { interval_s = 120 }\n",
    "",
];

impl Day {
    fn text(&self) -> String {
        format!(
            "interval_s = {STEP}\nnever = [\"never-*\"]\n[recording]\nfile = \"{}\"\nmost_mib = 1\n\
             [limits]\nmin_stay_s = {STAY}\nmost_switches_per_hour = {MOST}\nblackout_s = 5\n{}",
            self.folder.path().join("vms.jsonl").display(),
            CONFIGS[self.config].replace("DIR", &self.folder.path().to_string_lossy())
        )
    }

    fn parsed(&self) -> Config {
        Config::parse(&self.text(), Path::new("c.toml")).unwrap()
    }

    fn engine(&self) -> Engine {
        let hardware = HardwareSource::Vm { name: "progress", count: Box::new(count) };
        let watch = Watch::new(self.fake.host(), hardware).unwrap();
        let folder = self.folder.path().join("run");
        fs::create_dir_all(&folder).unwrap();
        Engine::new(watch, self.parsed(), Homes::take(&folder).unwrap()).unwrap()
    }

    fn appears(&mut self) {
        let kind = ["acts", "look", "never", "dsp", "probe", "none"].choose(&mut self.random).unwrap();
        self.next_id += 100;
        let id = VmId { thread: self.next_id, fd: 7 };
        let name = format!("{kind}-{}", self.next_id / 100);
        let reporter = matches!(*kind, "dsp" | "probe").then(|| {
            let listener = UnixListener::bind(self.folder.path().join(&name)).unwrap();
            listener.set_nonblocking(true).unwrap();
            (listener, None)
        });
        let mode = ["nested", "shadow"].choose(&mut self.random).unwrap().to_string();
        self.fake.vm(id, &name);
        self.fake.mode(id, &mode, 0);
        let foreign = self.random.random_ratio(1, 4);
        let own = mode.clone();
        self.vms.push(Vm {
            id,
            name,
            mode,
            switches: 0,
            own,
            foreign,
            refused: false,
            seen: false,
            paused: false,
            at: Vec::new(),
            work: 0,
            reporter,
            steps: [0; 2],
        });
    }

    fn file(&self, vm: usize, name: &str) -> PathBuf {
        self.fake.host().vm_dir(self.vms[vm].id).join(name)
    }

    /// What happens on the host between two readings.
    fn happens(&mut self) {
        if self.vms.len() < 4 || (self.vms.len() < 10 && self.random.random_ratio(1, 15)) {
            self.appears();
        }
        if self.vms.len() > 4 && self.random.random_ratio(1, 20) {
            let vm = self.random.random_range(0..self.vms.len());
            self.fake.end(self.vms.remove(vm).id);
        }
        for vm in 0..self.vms.len() {
            self.works(vm);
            if self.random.random_ratio(1, 50) {
                self.vms[vm].paused ^= true;
            }
            if self.random.random_ratio(1, 30) {
                self.lies(vm);
            }
            if self.random.random_ratio(1, 40) {
                self.has_a_reason(vm);
            }
            if self.vms[vm].foreign && self.vms[vm].seen && self.random.random_ratio(1, 25) {
                self.switched_by_others(vm);
            }
        }
    }

    /// Counters go on, wrap, or go back.
    fn works(&mut self, vm: usize) {
        let back = self.random.random_ratio(1, 100);
        let one = &mut self.vms[vm];
        if !one.paused {
            one.work = if back { 3 } else { one.work + 5_000_000_000 };
        }
        let (id, work) = (one.id, one.work);
        self.fake.vcpu(id, 0, work, work / 7);
        self.fake.count(id, Statistic::Exits, work.wrapping_mul(1 << 30));
        self.reports(vm);
    }

    /// The guest works in phases of an hour, and its reporter tells that, or lies.
    fn reports(&mut self, vm: usize) {
        let phase = (self.now / 3600) as usize % 2;
        let lie = self.random.random_ratio(1, 12).then(|| *LIES.choose(&mut self.random).unwrap());
        let one = &mut self.vms[vm];
        let Some((listener, connection)) = &mut one.reporter else { return };
        if let Ok((stream, _)) = listener.accept() {
            *connection = Some(stream);
        }
        one.steps[phase] += if one.paused { 0 } else { 1000 };
        let [tables, chase] = one.steps;
        let faults = lie.map_or((tables * 100).to_string(), |lie| lie.trim().into());
        let line = format!(
            "{{\"schema\":\"bifold.report/1\",\"page_faults\":{faults},\"progress\":{{\"tables\":{tables},\"chase\":{chase}}}}}\n"
        );
        self.fake.count(one.id, Statistic::PfGuest, tables * 100);
        // The daemon that held the other end may be gone.
        if connection.as_mut().is_some_and(|c| c.write_all(line.as_bytes()).is_err()) {
            *connection = None;
        }
    }

    /// A file of the VM says nonsense until the next time it is written.
    fn lies(&mut self, vm: usize) {
        let lie = *LIES.choose(&mut self.random).unwrap();
        let thread = self.vms[vm].id.thread;
        let proc = self.fake.host().proc.join(thread.to_string());
        let files = [
            self.file(vm, "exits"),
            self.file(vm, "pf_guest"),
            proc.join(format!("task/{}/schedstat", thread + 1)),
            proc.join("status"),
            self.file(vm, "vcpu0/pid"),
        ];
        fs::write(files.choose(&mut self.random).unwrap(), lie).unwrap();
    }

    /// KVM would refuse switches from now on, or no longer, or its file says nonsense.
    fn has_a_reason(&mut self, vm: usize) {
        let one = self.vms[vm].id;
        let line = *REFUSALS.choose(&mut self.random).unwrap();
        let (refused, line) = match self.random.random_range(0..6) {
            0 => (true, line),
            1 => (false, LIES.choose(&mut self.random).unwrap().trim_end()),
            _ => (false, "none"),
        };
        self.vms[vm].refused = refused;
        self.fake.refusal(one, line);
    }

    fn switched_by_others(&mut self, vm: usize) {
        let now = self.now;
        let one = &mut self.vms[vm];
        one.mode = if one.mode == "nested" { "shadow" } else { "nested" }.into();
        one.switches += 1;
        one.at.push(now);
        let (id, mode, switches) = (one.id, one.mode.clone(), one.switches);
        self.fake.mode(id, &mode, switches);
    }

    /// Does what KVM does when a mode was written, and holds what the daemon did to what it may do.
    fn kvm(&mut self, config: &Config, away: &dyn Fn(VmId) -> bool) {
        for vm in 0..self.vms.len() {
            let written = fs::read_to_string(self.file(vm, "paging_mode")).unwrap().trim().to_string();
            if written == self.vms[vm].mode {
                continue;
            }
            let now = self.now;
            let one = &mut self.vms[vm];
            let acts = config.rule(one.id, Some(&one.name)).is_some_and(|r| r.act);
            let returned = !away(one.id);
            if !returned {
                assert!(!one.refused, "{} at {now}: {} was asked for {written}", one.id, one.name);
                assert!(acts, "{} at {now}: {} was switched to {written}", one.id, one.name);
            }
            // Limits hold for what policies want. Whoever returns to its own mode may also be given back.
            if acts && !returned {
                let in_hour = one.at.iter().filter(|at| **at + 3600 > now + STEP).count();
                assert!(in_hour < MOST, "{} at {now}: {:?}", one.id, one.at);
                assert!(one.at.last().is_none_or(|at| at + STAY <= now), "{} at {now}: {:?}", one.id, one.at);
            }
            assert!(
                !one.name.starts_with("never")
                    && !one.name.starts_with("look")
                    && !one.name.starts_with("none")
            );
            let kind = self.vms[vm].name.split('-').next().unwrap_or_default().to_string();
            *self.by_daemon.entry(kind).or_default() += 1;
            let one = &mut self.vms[vm];
            one.mode = written.clone();
            one.switches += 1;
            one.at.push(now);
            let (id, switches) = (one.id, one.switches);
            self.fake.mode(id, &written, switches);
        }
    }
}

/// Counts a program whose page-table work is costly in shadow paging, and whose pointer chases are costly in
/// nested paging, by the progress that its guest reports.
fn count(interval: &Interval) -> HardwareCounts {
    // Nor would a model tell what an interval with a switch had.
    if interval.mode.is_none() {
        return HardwareCounts::UNKNOWN;
    }
    let Some(guest) = &interval.guest else { return HardwareCounts::UNKNOWN };
    let steps = |name| guest.progress.get(name).copied();
    let Some((tables, chase)) = steps("tables").zip(steps("chase")) else { return HardwareCounts::UNKNOWN };
    let misses = 10 * tables + 30_000 * chase;
    HardwareCounts {
        instructions: Some(1_000_000 * (tables + chase)),
        guest_cycles: Some(2_000_000 * (tables + chase)),
        tlb_misses_4k: Some(misses),
        walk_cycles: Some(20 * misses),
        ..HardwareCounts::ZERO
    }
}

#[test]
fn a_day_without_a_panic_a_forbidden_switch_or_a_forgotten_mode() {
    let mut day = Day {
        // In memory, if this machine has such a folder: a day is a million files that are read.
        fake: FakeHost::under(
            Some(Path::new("/dev/shm")).filter(|p| p.is_dir()).unwrap_or(&std::env::temp_dir()),
        ),
        folder: tempfile::tempdir().unwrap(),
        random: Pcg64::seed_from_u64(17),
        now: 0,
        next_id: 1000,
        vms: Vec::new(),
        config: 0,
        by_daemon: BTreeMap::new(),
    };
    (0..5).for_each(|_| day.appears());
    let mut engine = day.engine();
    let (mut restarts, mut blocked, mut wall) = (0, 0, 1e9);
    while day.now < DAY {
        day.now += STEP;
        day.happens();
        // The clock of the wall jumps; the daemon's own does not.
        wall += if day.random.random_ratio(1, 500) { -5000.0 } else { STEP as f64 };
        let now = day.now;
        engine.tick(&|| Duration::from_secs(now), wall);
        let away: Vec<VmId> = engine.switcher.homes.vms();
        day.vms.iter_mut().for_each(|vm| vm.seen = engine.watch().vm(vm.id).is_some());
        day.kvm(&engine.config.clone(), &|id| away.contains(&id));
        if day.random.random_ratio(1, 100) {
            day.config = day.random.random_range(0..CONFIGS.len());
            engine.reload(day.parsed()).unwrap();
        }
        // Killed, not ended: switches of the last hour are forgotten, so the count starts from 0.
        if day.random.random_ratio(1, 200) {
            drop(engine);
            engine = day.engine();
            day.vms.iter_mut().for_each(|vm| {
                vm.at.clear();
                vm.seen = false;
            });
            restarts += 1;
        }
        let vms = engine.status().vms;
        blocked += vms.iter().filter(|vm| vm.state == "blocked").count();
        assert!(vms.len() <= 11 && engine.events().len() < 200);
    }
    assert!(restarts >= 2, "{restarts}");
    let switched: Vec<&str> =
        day.by_daemon.iter().filter(|(_, n)| **n >= 5).map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(switched, ["acts", "dsp", "probe"], "{:?}", day.by_daemon);
    assert!(blocked > 10, "{blocked}");
    assert_eq!(engine.end(), Vec::<String>::new());
    assert!(!day.folder.path().join("run/modes").exists());
    for vm in (0..day.vms.len()).filter(|vm| !day.vms[*vm].foreign) {
        let mode = fs::read_to_string(day.file(vm, "paging_mode")).unwrap();
        assert_eq!(mode.trim(), day.vms[vm].own, "{}", day.vms[vm].name);
    }
}
