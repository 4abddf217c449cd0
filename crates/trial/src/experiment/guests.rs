// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prepares and runs the guests of an experiment: kernels and files of each kind, an initramfs for each
//! workload, and the running guests.

use super::outcome::GuestOutcome;
use super::sample::Watched;
use super::spec::{PlannedGuest, Spec, Workload, WorkloadSpec};
use crate::ExperimentError;
use crate::guest::{Said, listen};
use crate::run::EMULATOR_MIB;
use bifold_guest::cpio::{Archive, Entry};
use bifold_guest::kernel::{self, Kernel};
use bifold_guest::packages::Packages;
use bifold_guest::qemu::Qemu;
use bifold_guest::vm::{GuestVm, GuestVmSpec, Initrd};
use bifold_guest::{GuestError, workload_initramfs};
use bifold_host::qmp::Qmp;
use std::time::Duration;

const WORKLOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/workload"));
const PROGRAM: &str = "/workload";
/// MariaDB's files for a guest: the server and its load generator.
const DATABASE_PACKAGES: [&str; 2] = ["mariadb-server-core", "mariadb-client"];
const SERVER: &str = "/usr/sbin/mariadbd";
const CLIENT: &str = "/usr/bin/mariadb-slap";
const DATABASE_FILES: [&str; 4] = [SERVER, CLIENT, "/usr/share/mysql/english", "/usr/share/mysql/charsets"];
const DATA: &str = "/var/lib/mysql";
const SOCKET: &str = "/run/database.sock";
/// Pause between two runs of the load generator.
const BETWEEN_RUNS_MS: u64 = 1000;
/// Time limit of QEMU's answers. QEMU shares the machine with all other guests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kernel and files of one kind of guests.
#[derive(Debug)]
pub struct Kind {
    /// The kernel.
    pub kernel: Kernel,
    packages: Option<Packages>,
    files: Vec<String>,
}

impl Kind {
    /// Finds, or fetches, the kernels and packages of all kinds.
    pub fn find(spec: &Spec, stage: &mut dyn FnMut(&str)) -> Result<Vec<Kind>, GuestError> {
        let mut kinds = Vec::new();
        for guest in &spec.guests {
            let kernel = kernel::for_guest(guest.kernel.as_deref(), stage)?;
            let (mut names, mut files) = (guest.packages.clone(), guest.files.clone());
            if let WorkloadSpec::Database { .. } = guest.workload {
                names.extend(DATABASE_PACKAGES.map(String::from));
                files.extend(DATABASE_FILES.map(String::from));
            }
            names.sort();
            names.dedup();
            let packages = if names.is_empty() { None } else { Some(Packages::fetch(&names, stage)?) };
            kinds.push(Kind { kernel, packages, files });
        }
        Ok(kinds)
    }

    /// The initramfs of a guest of this kind with this workload.
    pub fn initrd(&self, workload: &Workload) -> Result<Initrd, GuestError> {
        let mut archive = Archive::default();
        archive.add(PROGRAM.as_bytes(), Entry::File { mode: 0o755, data: WORKLOAD.to_vec() });
        for dir in ["root", "var/tmp", DATA] {
            archive.add(dir.as_bytes(), Entry::Dir { mode: 0o755 });
        }
        if let Some(packages) = &self.packages {
            for file in &self.files {
                packages.add(&mut archive, file)?;
            }
        }
        let arguments = arguments(workload);
        Initrd::new(&workload_initramfs(&self.kernel, archive, PROGRAM, &arguments, &[])?)
    }
}

/// The arguments of the workload program, beginning with its name.
fn arguments(workload: &Workload) -> Vec<String> {
    let own = match workload {
        Workload::Idle => vec!["idle".into()],
        Workload::Synthetic { bytes, rate, sleep_ms } => {
            let numbers = [*bytes, u64::from(rate.of), u64::from(rate.parts), *sleep_ms];
            let words = numbers.map(|n| n.to_string());
            ["synthetic".to_owned()].into_iter().chain(words).collect()
        }
        Workload::Command { command, sleep_ms } => {
            let words = ["serve".into(), "-".into(), sleep_ms.to_string(), "--".into()];
            words.into_iter().chain(command.iter().cloned()).collect()
        }
        Workload::Database { clients, iterations, queries, engine, pool_mib } => {
            let mut words = vec!["serve".into(), SOCKET.into(), BETWEEN_RUNS_MS.to_string(), SERVER.into()];
            // Without privilege tables an empty data directory suffices, and nothing has to be installed. The
            // root is in memory, which has no direct I/O.
            words.extend([
                "--no-defaults".into(),
                "--user=root".into(),
                "--skip-grant-tables".into(),
                "--skip-networking".into(),
                "--performance-schema=off".into(),
                "--innodb-flush-method=fsync".into(),
                "--innodb-log-file-size=8M".into(),
                "--innodb-temp-data-file-path=ibtmp1:6M:autoextend".into(),
                "--innodb-use-native-aio=0".into(),
                "--skip-log-bin".into(),
                // The server's other buffers do not scale, so they get their smallest sizes.
                "--innodb-log-buffer-size=2M".into(),
                "--key-buffer-size=1M".into(),
                "--aria-pagecache-buffer-size=1M".into(),
                "--aria-log-file-size=8M".into(),
                "--tmp-table-size=1M".into(),
                "--query-cache-type=0".into(),
                "--query-cache-size=0".into(),
                format!("--innodb-buffer-pool-size={pool_mib}M"),
                format!("--max-connections={}", clients + 10),
                format!("--datadir={DATA}"),
                format!("--socket={SOCKET}"),
                "--".into(),
                CLIENT.into(),
                "--no-defaults".into(),
                "--silent".into(),
                "--user=root".into(),
                "--auto-generate-sql".into(),
                "--auto-generate-sql-load-type=mixed".into(),
                format!("--engine={engine}"),
                format!("--concurrency={clients}"),
                format!("--iterations={iterations}"),
                format!("--number-of-queries={queries}"),
                format!("--socket={SOCKET}"),
            ]);
            words
        }
    };
    ["workload".to_owned()].into_iter().chain(own).collect()
}

/// A guest from its start to its end.
#[derive(Debug)]
pub struct Guest {
    vm: Option<GuestVm>,
    qmp: Option<Qmp>,
    ram: u64,
    /// The guest's outcome so far.
    pub outcome: GuestOutcome,
}

impl Guest {
    /// Starts the guest.
    pub fn start(
        qemu: &Qemu,
        planned: &PlannedGuest,
        kind: &Kind,
        initrd: &Initrd,
        workload: &Workload,
        huge_pages: bool,
    ) -> Result<Guest, GuestError> {
        let spec = GuestVmSpec {
            name: &planned.name,
            memory_mib: planned.memory_mib,
            kernel: &kind.kernel,
            initrd,
            merge: planned.mergeable,
            huge_pages,
            kvm: false,
            group: None,
            more: &[],
        };
        Ok(Guest {
            vm: Some(GuestVm::start(qemu, &spec)?),
            qmp: None,
            ram: planned.memory_mib << 20,
            outcome: GuestOutcome {
                name: planned.name.clone(),
                kernel: kind.kernel.version.clone(),
                workload: workload.words(),
                memory_mib: planned.memory_mib,
                ready_s: None,
                cycles: 0,
                died: None,
                failed: None,
            },
        })
    }

    /// Reads the lines that the guest has sent, and notices its end. Returns news for the user, as text.
    pub fn poll(&mut self, now: f64) -> Result<Option<String>, GuestError> {
        let o = &mut self.outcome;
        let mut news = None;
        let died = listen(&mut self.vm, |said| match said {
            Said::Load("ready", _) => o.ready_s = o.ready_s.or(Some(now)),
            Said::Load("cycle", n) => o.cycles = n.parse().unwrap_or(o.cycles),
            Said::Load("failed", why) if o.failed.is_none() => {
                o.failed = Some(why.into());
                news = Some(format!("{}: its workload failed: {why}", o.name));
            }
            Said::End(_, line) if o.failed.is_none() => {
                o.failed = Some(line.into());
                news = Some(format!("{}: its workload ended: {line}", o.name));
            }
            _ => {}
        })?;
        if let Some(why) = died {
            news = Some(format!("{} died at {now:.1} s: {why}", o.name));
            o.died = Some((now, why));
        }
        Ok(news)
    }

    /// Whether the guest is running.
    pub fn lives(&self) -> bool {
        self.vm.is_some()
    }

    /// What a sample needs of the guest.
    pub fn watched(&self) -> Option<Watched> {
        let vm = self.vm.as_ref()?;
        Some(Watched { pid: vm.pid(), ram: self.ram, cycles: self.outcome.cycles })
    }

    /// Pauses or resumes the guest, by QMP's `stop` or `cont`.
    pub fn order(&mut self, command: &str) -> std::io::Result<()> {
        let Some(vm) = &self.vm else { return Ok(()) };
        let qmp = match &mut self.qmp {
            Some(qmp) => qmp,
            none => none.insert(Qmp::greet(vm.qmp(), PATIENCE)?),
        };
        qmp.ask(command, serde_json::json!({})).map(drop)
    }
}

/// Refuses a plan whose guests, and the copies that a count makes of their memory, may not fit into the
/// host's memory.
pub fn fits(
    guests: &[PlannedGuest],
    copies: bool,
    available_mib: u64,
    hint: impl Fn() -> Option<String>,
) -> Result<(), ExperimentError> {
    let ram: u64 = guests.iter().map(|g| g.memory_mib).sum();
    let needed_mib = ram + EMULATOR_MIB * guests.len() as u64 + if copies { ram } else { 0 };
    if needed_mib <= available_mib {
        return Ok(());
    }
    Err(ExperimentError::Memory { guests: guests.len(), needed_mib, available_mib, hint: hint() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;

    #[test]
    fn the_workload_gets_its_numbers() {
        let rate = Rate { of: 1, parts: 32 };
        let w = Workload::Synthetic { bytes: 1 << 27, rate, sleep_ms: 1250 };
        assert_eq!(arguments(&w), ["workload", "synthetic", "134217728", "1", "32", "1250"]);
        let w = Workload::Command { command: vec!["/bin/x".into(), "-y".into()], sleep_ms: 5 };
        assert_eq!(arguments(&w), ["workload", "serve", "-", "5", "--", "/bin/x", "-y"]);
        let w = Workload::Database {
            clients: 50,
            iterations: 6,
            queries: 100,
            engine: "innodb".into(),
            pool_mib: 16,
        };
        let words = arguments(&w);
        assert_eq!(words.iter().filter(|w| *w == "--").count(), 1, "{words:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_scale_that_does() {
        let guest = PlannedGuest { name: "a".into(), kind: 0, memory_mib: 1000, mergeable: true };
        let guests = [guest.clone(), guest];
        assert!(fits(&guests, false, 2220, || None).is_ok());
        let e = fits(&guests, true, 2220, || Some("1/4".into())).unwrap_err().to_string();
        assert!(e.contains("2 guests take 4220 MiB") && e.contains("--scale 1/4"), "{e}");
    }
}
