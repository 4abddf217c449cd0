// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses a VM's files `paging_mode`, `paging_stats` and `paging_refusal`: its mode, KVM's figures of its
//! switches, and whether KVM would refuse a switch now.

mod refusal;
mod stats;

pub use refusal::{Forecast, Obstacle, RefusalReason};
pub use stats::{Of, PagingStats, Stat, Unit};

use crate::guest_memory::Shortage;
use crate::{Host, VmId, one_line, read};
use bifold_mmu::Mode;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::Path;

/// A VM's paging mode, or the switch under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The VM is in this mode.
    In(Mode),
    /// A switch to this mode is under way.
    To(Mode),
}

impl State {
    /// The state in the bytes of `paging_mode`.
    pub fn parse(bytes: &[u8]) -> Option<State> {
        match bytes.strip_suffix(b"\n").unwrap_or(bytes) {
            b"nested" => Some(State::In(Mode::Nested)),
            b"shadow" => Some(State::In(Mode::Shadow)),
            b"nested -> shadow" => Some(State::To(Mode::Shadow)),
            b"shadow -> nested" => Some(State::To(Mode::Nested)),
            _ => None,
        }
    }

    /// The VM's mode; during a switch, the mode that the VM leaves.
    pub fn mode(self) -> Mode {
        match self {
            State::In(mode) => mode,
            State::To(mode) => mode.other(),
        }
    }

    /// The new mode, if a switch is under way.
    pub fn switching_to(self) -> Option<Mode> {
        match self {
            State::In(_) => None,
            State::To(mode) => Some(mode),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::In(mode) => f.write_str(mode.name()),
            State::To(mode) => write!(f, "{} -> {}", mode.other().name(), mode.name()),
        }
    }
}

/// Why a VM's file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// Only root may read the file.
    #[error("only root may read it")]
    NotRoot,
    /// The kernel forbids reading, even for root.
    #[error("the kernel forbids it (is it locked down? see /sys/kernel/security/lockdown)")]
    Forbidden,
    /// Any other error of the kernel.
    #[error("{0}")]
    Io(io::Error),
    /// The file's text is not what KVM writes.
    #[error("{text} is no {what}")]
    Strange {
        /// The text, quoted.
        text: String,
        /// What the text should be.
        what: &'static str,
    },
}

impl From<io::Error> for Unreadable {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            // `ErrorKind` does not tell EPERM from EACCES.
            _ if Errno::from_io_error(&e) == Some(Errno::PERM) => Unreadable::Forbidden,
            io::ErrorKind::PermissionDenied => Unreadable::NotRoot,
            _ => Unreadable::Io(e),
        }
    }
}

/// Whether a VM has a paging mode of its own, and what its files say.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one value per VM, usually of the large variant
pub enum Paging {
    /// The VM has a mode of its own.
    Own {
        /// `paging_mode`.
        state: Result<State, Unreadable>,
        /// `paging_stats`.
        stats: Result<PagingStats, Unreadable>,
        /// `paging_refusal`: whether KVM would refuse a switch to the other mode.
        forecast: Result<Forecast, Unreadable>,
    },
    /// KVM has one mode for all VMs.
    HostWide,
}

impl Host {
    /// A VM's mode, figures of switches, and what would refuse a switch: KVM, or [no
    /// room](RefusalReason::Room) in a cgroup. The files are opened and
    /// closed: while one is open, KVM keeps the VM, also after its process has ended (`open_for` in
    /// `kernel/src`).
    pub fn paging(&self, vm: VmId) -> Paging {
        let shortage = || self.shortage(self.process(vm.thread).pid);
        Paging::read(&self.vm_dir(vm)).with_room(shortage)
    }
}

/// The file with a VM's mode.
pub(crate) const MODE_FILE: &str = "paging_mode";
pub(crate) const STATS_FILE: &str = "paging_stats";
/// The file with what would refuse a switch. Older modules do not have it.
pub(crate) const REFUSAL_FILE: &str = "paging_refusal";

impl Paging {
    /// Reads the files in a VM's directory.
    pub(crate) fn read(dir: &Path) -> Paging {
        Paging::by(|name| read(&dir.join(name)))
    }

    /// What the files say, which `read` reads by their names.
    pub(crate) fn by(read: impl Fn(&str) -> io::Result<Vec<u8>>) -> Paging {
        let state = match read(MODE_FILE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Paging::HostWide,
            Err(e) => Err(e.into()),
            Ok(bytes) => State::parse(&bytes).ok_or_else(|| strange(&bytes, "mode")),
        };
        let stats = read(STATS_FILE).map(|bytes| PagingStats::parse(&bytes));
        Paging::Own { state, stats: stats.map_err(Unreadable::from), forecast: forecast(read(REFUSAL_FILE)) }
    }

    /// The same with a VM's shortage of room for shadow paging, which is looked for where KVM names no
    /// reason.
    pub(crate) fn with_room(mut self, shortage: impl FnOnce() -> Option<Shortage>) -> Paging {
        if let Paging::Own { state: Ok(State::In(Mode::Nested)), forecast: Ok(forecast), .. } = &mut self {
            *forecast = std::mem::take(forecast).with_room(shortage);
        }
        self
    }

    /// The VM's own state, if known.
    pub fn state(&self) -> Option<State> {
        match self {
            Paging::Own { state: Ok(state), .. } => Some(*state),
            _ => None,
        }
    }

    /// The figures; all are `None` if the file cannot be read.
    pub fn stats(&self) -> PagingStats {
        match self {
            Paging::Own { stats: Ok(stats), .. } => *stats,
            _ => PagingStats::default(),
        }
    }

    /// The mode to which KVM would not switch the VM now, and why; `None` if KVM would switch the VM, or if
    /// that is unknown.
    pub fn obstacle(&self) -> Option<(Mode, &Obstacle)> {
        match self {
            Paging::Own { state: Ok(state), forecast: Ok(forecast), .. } => {
                Some((state.mode().other(), forecast.obstacle()?))
            }
            _ => None,
        }
    }
}

/// The forecast in what was read of `paging_refusal`.
pub(crate) fn forecast(read: io::Result<Vec<u8>>) -> Result<Forecast, Unreadable> {
    match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Forecast::Unknown),
        Err(e) => Err(e.into()),
        Ok(bytes) => Forecast::parse(&bytes).ok_or_else(|| strange(&bytes, "reason of a refusal")),
    }
}

/// The error for a text that KVM does not write.
pub(crate) fn strange(bytes: &[u8], what: &'static str) -> Unreadable {
    Unreadable::Strange { text: one_line(bytes), what }
}
