// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an order found, and how it is given back: by the order itself, its guardian, or a later command.

use super::Way;
use super::error::OrderError;
use super::facts::POLLING;
use bifold_host::Host;
use bifold_host::guest_memory::{Balloon, Machine, Monitor, MonitorPlace};
use bifold_host::held::{HeldError, Journal, Places};
use bifold_host::qmp::Refusal;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The subsystem's word in journals and errors.
pub const WHAT: &str = "reclaim";
/// How far a size may be from what was ordered.
const SLACK: u64 = 1 << 20;
/// How long the monitor is tried. Another program may have the connection for a while, and QEMU may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(250);
/// Root's folder, which others may look into: they see that an order has a guest.
pub(super) const OF_ROOT: &str = "/run/bifold/reclaim";
/// How long a command that libvirt has not answered may still take.
const ORPHAN: Duration = Duration::from_secs(10);
/// The longest pause of a guardian, which tries on until the guest has ended.
const SELDOM: Duration = Duration::from_secs(30);

/// Whether to try on, by the time since the first try and why the last one failed.
pub type Again<'a> = dyn FnMut(Duration, &io::Error) -> bool + 'a;

/// What an order has to give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The guest's process, and when that started.
    pub guest: (u32, u64),
    /// The guest's name, as it is printed: the process may have ended since.
    pub name: String,
    /// Its monitor.
    pub monitor: MonitorPlace,
    /// How its memory is taken.
    pub way: Way,
    /// The balloon's path, or the id of virtio-mem.
    pub device: String,
    /// The size that was found, as the device counts it: outside of the balloon, or of virtio-mem.
    pub found: u64,
    /// The least size that may have been ordered.
    pub least: u64,
    /// Bytes of DIMMs that were found: with others, a balloon of the same size leaves another size outside.
    pub dimms: u64,
    /// What the guest has besides the device, which is not in the journal: an order counts it too.
    pub besides: u64,
    /// The seconds between two requests for statistics that were found, and the balloon's path, if they were
    /// changed.
    pub polling: Option<(u64, String)>,
    /// Whether the size is to stay when the order's process ends.
    pub kept: bool,
}

impl Record {
    /// As a journal's values.
    pub fn values(&self) -> Vec<(String, String)> {
        let mut values: Vec<(&str, String)> = vec![
            ("guest", self.guest.0.to_string()),
            ("started", self.guest.1.to_string()),
            ("name", self.name.clone()),
            ("monitor", self.monitor.to_string()),
            ("way", self.way.name().into()),
            ("device", self.device.clone()),
            ("found", self.found.to_string()),
            ("least", self.least.to_string()),
            ("dimms", self.dimms.to_string()),
        ];
        values.extend(self.polling.iter().map(|(seconds, path)| ("polling", format!("{seconds} {path}"))));
        values.extend(self.kept.then(|| ("kept", "yes".into())));
        values.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    /// From a journal's values; `None` if one is missing or wrong.
    pub fn of(values: &[(String, String)]) -> Option<Record> {
        let get = |name: &str| values.iter().find(|v| v.0 == name).map(|v| v.1.as_str());
        let number = |name: &str| get(name)?.parse::<u64>().ok();
        let polling = match get("polling") {
            Some(text) => {
                let (seconds, path) = text.split_once(' ')?;
                Some((seconds.parse().ok()?, path.to_owned()))
            }
            None => None,
        };
        Some(Record {
            guest: (get("guest")?.parse().ok()?, number("started")?),
            name: get("name")?.into(),
            monitor: MonitorPlace::parse(get("monitor")?)?,
            way: Way::ALL.into_iter().find(|w| Some(w.name()) == get("way"))?,
            device: get("device")?.into(),
            found: number("found")?,
            least: number("least")?,
            dimms: number("dimms")?,
            besides: 0,
            polling,
            kept: get("kept").is_some(),
        })
    }

    /// Whether a part of what was found may have been ordered away.
    pub fn takes(&self) -> bool {
        self.least < self.found
    }

    /// The error for a size that another program has set.
    pub fn changed(&self, size: u64) -> OrderError {
        OrderError::Changed { pid: self.guest.0, size: size >> 20, found: self.found >> 20 }
    }

    /// The record of a journal.
    ///
    /// # Errors
    /// If the journal has no such record.
    pub fn at(path: &Path, journal: &Journal) -> Result<Record, OrderError> {
        let why = || "it lacks a value of an order".to_owned();
        Record::of(&journal.found)
            .ok_or_else(|| HeldError::Journal { what: WHAT.into(), path: path.into(), why: why() }.into())
    }

    /// Gives everything back: orders the size that was found, and sets the statistics' interval back. The
    /// guest follows on its own. A size that another program has set since stays. `beat` is called while the
    /// monitor is tried.
    ///
    /// # Errors
    /// If the monitor does not answer for a minute. A guardian is still there then, or a later command.
    pub fn give_back(&self, host: &Host, force: bool, beat: &mut dyn FnMut()) -> Result<Back, OrderError> {
        beat();
        self.give_back_while(host, force, &mut |since, _| {
            beat();
            since < PATIENCE
        })
    }

    /// Waits until an order that was not answered can no longer come after what is ordered next: the last
    /// virsh may still be on its way to QEMU. A socket's orders keep their sequence.
    pub fn wait_for_last_order(&self) {
        if let MonitorPlace::Libvirt(_) = self.monitor {
            sleep(ORPHAN);
        }
    }

    /// As [`give_back`](Record::give_back), while `again` says to try on. It gets the time since the first
    /// try, and why the last one failed, several times a second.
    ///
    /// # Errors
    /// If `again` ends the tries.
    pub fn give_back_while(&self, host: &Host, force: bool, again: &mut Again) -> Result<Back, OrderError> {
        self.try_while(host, again, |monitor| self.give_back_by(monitor, force))
    }

    /// Sets the statistics' interval back, while `again` says to try on; the size stays.
    ///
    /// # Errors
    /// If `again` ends the tries, or the guest has ended.
    pub(super) fn end_polling(&self, host: &Host, again: &mut Again) -> Result<(), OrderError> {
        if self.polling.is_none() {
            return Ok(());
        }
        let ended = self.try_while(host, again, |monitor| {
            let balloon = Machine::ask(monitor)?.balloon;
            self.poll_as_before(monitor, balloon.as_ref()).map(|()| Back::Given)
        })?;
        if ended == Back::Gone { Err(OrderError::Gone { pid: self.guest.0 }) } else { Ok(()) }
    }

    fn try_while(
        &self,
        host: &Host,
        again: &mut Again,
        act: impl Fn(&mut Monitor) -> io::Result<Back>,
    ) -> Result<Back, OrderError> {
        let (begun, mut pause) = (Instant::now(), AGAIN);
        let (pid, started) = self.guest;
        loop {
            let done = host.lives(pid, started).and_then(|lives| {
                if !lives {
                    return Ok(Back::Gone);
                }
                act(&mut self.monitor.open(host, pid)?)
            });
            let source = match done {
                Ok(back) => return Ok(back),
                Err(source) => source,
            };
            let failed = Instant::now();
            loop {
                if !again(begun.elapsed(), &source) {
                    return Err(OrderError::Monitor { pid, place: self.monitor.to_string(), source });
                }
                if failed.elapsed() >= pause {
                    break;
                }
                sleep(AGAIN);
            }
            if begun.elapsed() > PATIENCE {
                pause = (2 * pause).min(SELDOM);
            }
        }
    }

    fn give_back_by(&self, monitor: &mut Monitor, force: bool) -> io::Result<Back> {
        let machine = Machine::ask(monitor)?;
        // Nothing was ordered yet. Another program's order that the guest has not followed yet stays.
        let back = if self.least == self.found && !force {
            Back::Given
        } else {
            self.way.give_back(self, &machine, monitor, force)?
        };
        self.poll_as_before(monitor, machine.balloon.as_ref())?;
        Ok(back)
    }

    /// Sets the statistics' interval back, if it is still an order's.
    pub(super) fn poll_as_before(&self, monitor: &mut Monitor, balloon: Option<&Balloon>) -> io::Result<()> {
        let (Some((seconds, path)), Some(balloon)) = (&self.polling, balloon) else { return Ok(()) };
        if balloon.polling_s != POLLING || balloon.path != *path {
            return Ok(());
        }
        match Balloon::poll(monitor, path, *seconds) {
            // The balloon may have been unplugged.
            Err(e) if Refusal::in_error(&e).is_none() => Err(e),
            _ => Ok(()),
        }
    }

    /// The same with other DIMMs: what the balloon holds stays.
    pub(super) fn with_dimms(&self, dimms: u64) -> Record {
        let with = |size: u64| size.saturating_add(dimms).saturating_sub(self.dimms);
        Record { found: with(self.found), least: with(self.least), dimms, ..self.clone() }
    }

    /// Whether a size lies between what was found and the least that was ordered.
    pub(super) fn is_ours(&self, size: u64) -> bool {
        (self.least.saturating_sub(SLACK)..=self.found.saturating_add(SLACK)).contains(&size)
    }
}

/// What became of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// It is ordered as it was found.
    Given,
    /// The guest has ended.
    Gone,
    /// Another program has set another size since, which stays.
    Another {
        /// The size.
        size: u64,
    },
}

/// The folder of this user's locks and journals. It does not survive a reboot.
///
/// # Errors
/// If this user has no such folder.
pub fn folder() -> Result<PathBuf, OrderError> {
    if rustix::process::geteuid().is_root() {
        return Ok(OF_ROOT.into());
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute());
    own.map(|dir| Path::new(&dir).join("bifold-reclaim")).ok_or(OrderError::NoFolder)
}

/// Refuses a guest that another user's order has, with its journal in another folder: root's, or that of the
/// process's user.
pub(super) fn alone(host: &Host, folder: &Path, guest: (u32, u64)) -> Result<(), OrderError> {
    let theirs = host.user(guest.0).map(|user| format!("/run/user/{user}/bifold-reclaim").into());
    in_another(folder, [Some(OF_ROOT.into()), theirs], guest)
}

/// Refuses a guest with a journal in one of these folders, if that is another one. A folder that this user
/// may not look into may have one.
pub(super) fn in_another(
    folder: &Path,
    folders: [Option<PathBuf>; 2],
    guest: (u32, u64),
) -> Result<(), OrderError> {
    let pid = guest.0;
    for other in folders.into_iter().flatten().filter(|f| f != folder) {
        let path = places(&other, guest).journal;
        match path.symlink_metadata() {
            Ok(_) => return Err(OrderError::OfAnotherUser { pid, path }),
            // A part of the path may be a file.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(source) => return Err(OrderError::Unseen { pid, path, source }),
        }
    }
    Ok(())
}

/// Lock and journal of the orders about a guest's process.
pub fn places(folder: &Path, (pid, started): (u32, u64)) -> Places {
    let name = format!("{pid}-{started}");
    Places { lock: folder.join(format!("{name}.lock")), journal: folder.join(format!("{name}.journal")) }
}

/// All journals in a folder: of orders under way, of sizes that were kept, and of orders whose process and
/// guardian were killed. Those that cannot be read are errors of their own.
pub fn records(folder: &Path) -> Vec<Result<(Places, Record), OrderError>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "journal")).collect();
    paths.sort();
    let read = |journal: PathBuf| {
        let places = Places { lock: journal.with_extension("lock"), journal };
        let found = Journal::read(&places.journal, WHAT).map_err(OrderError::from).transpose()?;
        Some(found.and_then(|j| Record::at(&places.journal, &j)).map(|record| (places, record)))
    };
    paths.into_iter().filter_map(read).collect()
}
