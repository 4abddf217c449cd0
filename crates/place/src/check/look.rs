// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the facts for a check. What cannot be read is noted, and the rest is checked.

use super::blocks;
use super::pages::{self, MOST_PAGES};
use super::qmp::{self, Told};
use super::seen::{Block, GuestFacts, HostFacts, PlacementFacts, Unknown};
use super::unseen;
use crate::apply::MOST_ID;
use crate::plan::Plan;
use crate::settings;
use crate::view::View;
use bifold_host::LiveGuest;
use bifold_host::guest_memory::MonitorPlace;
use bifold_host::placement::{Memory, Role, Thread};
use bifold_host::topology::NumberSet;
use bifold_host::{Host, HostError, named, printable, read_up_to, word_rank};
use std::io;
use std::path::{Path, PathBuf};

/// Upper limit for a setting's text.
const MOST_SETTING: u64 = 64 << 10;

/// Why a check cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The user's word selects no guest.
    #[error("no guest `{}` among the {of} that run here: give a process id, a PID-FD or a name", .word.escape_debug())]
    NoGuest {
        /// The user's word.
        word: String,
        /// Number of guests.
        of: usize,
    },
    /// The user's word selects several guests.
    #[error("`{}` means {} guests: give one of the process ids {}", .word.escape_debug(), .pids.len(), listed(.pids))]
    SeveralGuests {
        /// The user's word.
        word: String,
        /// Their processes.
        pids: Vec<u32>,
    },
    /// The guest has ended.
    #[error("guest {} (process {pid}) has ended", printable(.name))]
    Ended {
        /// The VM's name.
        name: String,
        /// Its process.
        pid: u32,
    },
    /// The monitor that the user named cannot be asked.
    #[error("cannot ask QEMU's monitor at {}: is the socket QEMU's, and has no other program its one connection?", .socket.display())]
    Monitor {
        /// The socket.
        socket: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The host cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl CheckError {
    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        match self {
            CheckError::Host(e) => e.cannot_work_here(),
            CheckError::Monitor { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

fn listed(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// What to look at beyond the guests themselves.
pub struct Options<'a> {
    /// The plan whose settings are read.
    pub plan: Option<&'a Plan>,
    /// The socket of the guest's monitor.
    pub qmp: Option<&'a Path>,
    /// Gets pages looked at, and all.
    pub progress: &'a dyn Fn(u64, u64),
}

/// The guests that a word means, or all: a process id, a PID-FD or a name.
///
/// # Errors
/// If the word means none, or several.
pub fn chosen(guests: &[LiveGuest], word: Option<&str>) -> Result<Vec<u32>, CheckError> {
    let Some(word) = word else { return Ok(guests.iter().map(|g| g.pid).collect()) };
    let found = named(guests, |g| word_rank(word, g.vm, g.pid, Some(&g.name)));
    let pids: Vec<u32> = found.iter().map(|g| g.pid).collect();
    match pids.len() {
        1 => Ok(pids),
        0 => Err(CheckError::NoGuest { word: word.into(), of: guests.len() }),
        _ => Err(CheckError::SeveralGuests { word: word.into(), pids }),
    }
}

/// The facts of the host, of the chosen guests, and of the others' vCPUs.
///
/// # Errors
/// If a chosen guest ends meanwhile, or the monitor that the options name cannot be asked.
pub fn look(
    host: &Host,
    guests: &[LiveGuest],
    chosen: &[u32],
    options: &Options,
) -> Result<PlacementFacts, CheckError> {
    let mut seen = PlacementFacts { host: host_seen(host, options.plan), guests: Vec::new() };
    for guest in guests {
        if chosen.contains(&guest.pid) {
            seen.guests.push(whole(host, guest, options)?);
        } else if let Ok(other) = outline(host, guest, &Told::default()) {
            seen.guests.push(other);
        }
    }
    foreign(host, guests, chosen, &mut seen);
    Ok(seen)
}

/// The threads of processes that are no guests, on the CPUs that the chosen guests' vCPUs are pinned to.
fn foreign(host: &Host, guests: &[LiveGuest], chosen: &[u32], seen: &mut PlacementFacts) {
    let pinned: Vec<&mut GuestFacts> =
        seen.guests.iter_mut().filter(|g| chosen.contains(&g.pid) && !g.pins().is_empty()).collect();
    if pinned.is_empty() {
        return;
    }
    let cpus = pinned.iter().fold(NumberSet::default(), |all, g| all.union(&g.pinned_cpus()));
    let pids: Vec<u32> = guests.iter().map(|g| g.pid).collect();
    let found = host.foreign_threads(&cpus, &pids);
    for guest in pinned {
        let unread = found.unread.iter().cloned();
        guest.unknown.extend(unread.map(|(what, privilege)| Unknown { what, privilege }));
    }
    seen.host.foreign = found.threads;
}

fn host_seen(host: &Host, plan: Option<&Plan>) -> HostFacts {
    let number = |path: &str| {
        let text = read_up_to(&settings::file(host, path), MOST_SETTING).ok()?;
        String::from_utf8_lossy(&text).trim().parse().ok()
    };
    let value = |path: &str| {
        let text = read_up_to(&settings::file(host, path), MOST_SETTING).ok()?;
        Some(settings::value(&String::from_utf8_lossy(&text)))
    };
    // No other file than those that a plan may set is shown to whoever asks.
    let steps = plan.map(|p| p.steps.iter()).into_iter().flatten();
    let steps = steps.filter(|s| settings::allowed(&s.path, &s.value).is_ok());
    HostFacts {
        numa_balancing: number("/proc/sys/kernel/numa_balancing"),
        ksm_run: number("/sys/kernel/mm/ksm/run"),
        ksm_across: number("/sys/kernel/mm/ksm/merge_across_nodes"),
        interrupts: host.interrupts(),
        foreign: Vec::new(),
        uptime_s: host.uptime_s(),
        settings: steps.map(|s| (s.path.clone(), value(&s.path))).collect(),
    }
}

/// The threads of a guest and the ids of its I/O threads in order; `None` if the guest has ended. Its monitor
/// is asked only if the threads' names do not tell: QEMU 10 gives no name at all to the thread of an id that
/// is too long.
pub(crate) fn threads_of(host: &Host, guest: &LiveGuest) -> Option<(Vec<Thread>, Vec<String>)> {
    let mut seen = outline(host, guest, &Told::default()).ok()?;
    let long_id = |view: &View| view.io_threads.iter().any(|id| id.len() > MOST_ID);
    if seen.vcpus().is_empty() || seen.view.as_ref().is_some_and(long_id) {
        let options = Options { plan: None, qmp: None, progress: &|_, _| {} };
        let told = monitor(host, guest, &options, &mut Vec::new()).ok()?;
        seen = outline(host, guest, &told).ok()?;
    }
    let ids = seen.view.map(|v| v.io_threads).unwrap_or_default();
    (host.started(guest.pid) == Some(guest.started)).then_some((seen.threads, ids))
}

/// A guest without its memory.
fn outline(host: &Host, guest: &LiveGuest, told: &Told) -> Result<GuestFacts, CheckError> {
    let ended = |_| CheckError::Ended { name: guest.name.clone(), pid: guest.pid };
    let vcpus = if told.vcpus.is_empty() { &guest.vcpus } else { &told.vcpus };
    let mut threads = host.threads(guest.pid, vcpus).map_err(ended)?;
    for thread in &mut threads {
        if let Some((id, _)) = told.io_threads.iter().find(|(_, t)| *t == thread.id) {
            thread.role = Role::Io(id.clone());
        }
    }
    let thread_cpusets = host.thread_cpusets(guest.pid, threads.iter().map(|t| t.id));
    Ok(GuestFacts {
        pid: guest.pid,
        name: guest.name.clone(),
        kvm: guest.kvm,
        threads,
        cpuset: host.cpuset(guest.pid),
        thread_cpusets,
        view: host.command_line(guest.pid).and_then(|line| View::parse(&line)),
        ..GuestFacts::default()
    })
}

/// A guest with its memory, and what is not known of it.
fn whole(host: &Host, guest: &LiveGuest, options: &Options) -> Result<GuestFacts, CheckError> {
    let mut unknown = Vec::new();
    let told = monitor(host, guest, options, &mut unknown)?;
    let mut seen = outline(host, guest, &told)?;
    unknown.extend(unseen::of_threads(host, guest, &seen));
    unknown.extend(unseen::of_cgroups(host, &mut seen));
    unknown.extend(unseen::of_interrupts(host, &seen));
    match host.memory_of(guest.pid) {
        Ok(memory) => {
            seen.blocks = memory_seen(&seen, &memory, &told, options, &mut unknown)?;
            unknown.extend(unseen::of_memory(host, &seen));
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            unknown.push(Unknown { what: "its memory: only root may look".into(), privilege: true });
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(ended(&seen)),
        Err(e) => unknown.push(Unknown { what: format!("its memory: {e}"), privilege: false }),
    }
    // Another process may have the id by now; its facts would be reported as this guest's.
    if host.started(guest.pid) != Some(guest.started) {
        return Err(ended(&seen));
    }
    seen.unknown = unknown;
    Ok(seen)
}

fn ended(guest: &GuestFacts) -> CheckError {
    CheckError::Ended { name: guest.name.clone(), pid: guest.pid }
}

/// What the guest's monitor tells: the one that the user names, else the one on the command line.
fn monitor(
    host: &Host,
    guest: &LiveGuest,
    options: &Options,
    unknown: &mut Vec<Unknown>,
) -> Result<Told, CheckError> {
    if let Some(socket) = options.qmp {
        return qmp::ask(socket).map_err(|source| CheckError::Monitor { socket: socket.into(), source });
    }
    // libvirt would note in its log that the guest is tainted.
    let Some(socket) = host.command_line(guest.pid).and_then(|line| MonitorPlace::socket_of(&line)) else {
        return Ok(Told::default());
    };
    let shown = socket.display().to_string();
    Ok(qmp::ask_own(host, guest.pid, &MonitorPlace::Socket(socket)).unwrap_or_else(|e| {
        let what = format!("its monitor at {shown} does not answer ({e}); its threads' names and its mappings' sizes tell instead");
        unknown.push(Unknown { what, privilege: e.kind() == io::ErrorKind::PermissionDenied });
        Told::default()
    }))
}

fn memory_seen(
    guest: &GuestFacts,
    memory: &[Memory],
    told: &Told,
    options: &Options,
    unknown: &mut Vec<Unknown>,
) -> Result<Vec<Block>, CheckError> {
    let (found, doubt) = blocks::find(guest.view.as_ref(), memory, &told.blocks);
    let plugged = guest.view.as_ref().and_then(blocks::plugged);
    unknown.extend(doubt.into_iter().chain(plugged).map(|what| Unknown { what, privilege: false }));
    let mappings: Vec<&Memory> = found.iter().map(|(_, m)| m).collect();
    let pages = match pages::look(guest.pid, &mappings, MOST_PAGES, options.progress) {
        Ok(pages) => pages,
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Err(ended(guest)),
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            mappings.into_iter().map(pages::by_numa_maps).collect()
        }
        Err(e) => {
            let privilege = matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES));
            unknown.push(Unknown { what: format!("the nodes of its pages: {e}"), privilege });
            vec![Default::default(); mappings.len()]
        }
    };
    let block = |((node, memory), pages)| Block { node, memory, pages };
    Ok(found.into_iter().zip(pages).map(block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(pid: u32, name: &str) -> LiveGuest {
        LiveGuest { pid, name: name.into(), started: 1, vm: None, kvm: false, vcpus: Vec::new() }
    }

    #[test]
    fn a_word_means_one_guest() {
        let guests = [guest(41, "web"), guest(42, "db"), guest(43, "db"), guest(44, "42")];
        assert_eq!(chosen(&guests, None).unwrap(), [41, 42, 43, 44]);
        assert_eq!(chosen(&guests, Some("web")).unwrap(), [41]);
        assert_eq!(chosen(&guests, Some("42")).unwrap(), [42], "a process id comes before a name");
        assert!(chosen(&guests, Some("db")).unwrap_err().to_string().contains("42, 43"));
        assert!(
            chosen(&guests, Some("\u{1b}x"))
                .unwrap_err()
                .to_string()
                .starts_with("no guest `\\u{1b}x` among the 4")
        );
    }

    #[test]
    fn a_guest_that_ends_meanwhile_is_an_error() {
        let options = Options { plan: None, qmp: None, progress: &|_, _| {} };
        let error =
            look(&Host::live(), &[guest(u32::MAX >> 1, "a\u{7}")], &[u32::MAX >> 1], &options).unwrap_err();
        assert_eq!(error.to_string(), "guest a\\u{7} (process 2147483647) has ended");
        // Another process has the id: this one began at another time.
        let this = guest(std::process::id(), "x");
        assert!(matches!(
            look(&Host::live(), std::slice::from_ref(&this), &[this.pid], &options),
            Err(CheckError::Ended { .. })
        ));
    }
}
