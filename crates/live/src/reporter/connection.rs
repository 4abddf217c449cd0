// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connection to the socket on which QEMU hands out a guest's reports.

use crate::reporter::{GuestReading, Report, Reports};
use bifold_host::{Host, printable};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use rustix::fs::{Mode, OFlags};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes that are read at a tick.
const MOST_BYTES: usize = 64 << 10;

/// Why there are no reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReporterError {
    /// The socket cannot be connected to.
    #[error("cannot connect to the reporter's socket {}: {source}", shown(path))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process listens on the socket that the VM's command line names.
    #[error(
        "the reporter's socket {} belongs to process {peer}, not to the VM's process {vm}: not connected",
        shown(path)
    )]
    Peer {
        /// The socket.
        path: PathBuf,
        /// The process that listens; 0 if it is in another namespace of processes.
        peer: i32,
        /// The VM's process.
        vm: u32,
    },
    /// Reports come faster than they are read.
    #[error(
        "the reports of socket {} exceed 64 KiB in an interval: report less often, or take shorter intervals",
        shown(path)
    )]
    TooMany {
        /// The socket.
        path: PathBuf,
    },
    /// Reports come too rarely for the intervals, the VM was paused, or the socket was full.
    #[error(
        "the reports of socket {} span less than a third of an interval: report at least four times in an interval of \
         at most 30 s",
        shown(path)
    )]
    TooFew {
        /// The socket.
        path: PathBuf,
    },
    /// No report came.
    #[error(
        "no report came from socket {}: bifold-reporter must run in the guest, and no other program may read the socket",
        shown(path)
    )]
    Silent {
        /// The socket.
        path: PathBuf,
    },
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// A VM's reporter: its socket, and the connection if there is one.
#[derive(Debug)]
pub struct Reporter {
    path: PathBuf,
    /// The process that must listen, and the folders in which its paths begin; `None` for a socket that the
    /// caller named.
    owner: Option<(u32, PathBuf)>,
    stream: Option<UnixStream>,
    reports: Reports,
    epoch: u64,
    /// The guest's time at the last report.
    uptime_ms: Option<u64>,
    /// When the stream was last read to its end.
    drained: Option<Duration>,
    problem: Option<ReporterError>,
}

impl Reporter {
    /// The reporter whose socket the VM's command line names.
    pub(crate) fn of(host: &Host, pid: u32, path: PathBuf) -> Reporter {
        Reporter { owner: Some((pid, host.proc.join(pid.to_string()))), ..Reporter::named(path) }
    }

    /// The reporter on this socket, whoever listens there.
    pub(crate) fn named(path: PathBuf) -> Reporter {
        Reporter {
            path,
            owner: None,
            stream: None,
            reports: Reports::default(),
            epoch: 0,
            uptime_ms: None,
            drained: None,
            problem: None,
        }
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a connection. QEMU serves one client at a time: a second one is connected, and waits.
    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Number of lines from the guest that were no report.
    pub fn bad_lines(&self) -> u64 {
        self.reports.bad_lines()
    }

    /// Why there were no reports, when last connected or read.
    pub fn problem(&self) -> Option<&ReporterError> {
        self.problem.as_ref()
    }

    /// Connects, if there is no connection.
    pub(crate) fn connect(&mut self, at: Duration) {
        if self.stream.is_some() {
            return;
        }
        match self.try_connect() {
            Ok(stream) => {
                self.stream = Some(stream);
                self.reports.restart();
                self.uptime_ms = None;
                (self.epoch, self.drained, self.problem) = (self.epoch + 1, Some(at), None);
            }
            Err(e) => self.problem = Some(e),
        }
    }

    fn try_connect(&self) -> Result<UnixStream, ReporterError> {
        let failed = |source: io::Error| ReporterError::Connect { path: self.path.clone(), source };
        let stream = self.open().and_then(|file| connected(&file)).map_err(failed)?;
        if let Some((vm, _)) = self.owner {
            // The owner of the VM chose the path: another process may listen there and hear that someone
            // came, no more.
            let peer = getsockopt(&stream, PeerCredentials).map_err(|e| failed(e.into()))?.pid();
            if u32::try_from(peer).ok() != Some(vm) {
                return Err(ReporterError::Peer { path: self.path.clone(), peer, vm });
            }
        }
        Ok(stream)
    }

    /// Opens the socket's file, as the VM's process sees it: from its root or folder.
    fn open(&self) -> io::Result<OwnedFd> {
        let open = |path: &Path| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let Some((_, process)) = &self.owner else { return Ok(open(&self.path)?) };
        match self.path.strip_prefix("/") {
            // The root of another user's process may be closed to this user.
            Ok(path) => Ok(open(&process.join("root").join(path)).or_else(|_| open(&self.path))?),
            Err(_) => Ok(open(&process.join("cwd").join(&self.path))?),
        }
    }

    /// Reads what has come; `None` if that has no report that holds for this moment.
    pub(crate) fn read(&mut self, at: Duration) -> Option<GuestReading> {
        let mut stream = self.stream.take()?;
        let mut seen = ReadReports { epoch: self.epoch, uptime_ms: self.uptime_ms, ..ReadReports::default() };
        let end = drain(&mut stream, |bytes| self.reports.read(bytes, |report| seen.add(report)));
        (self.epoch, self.uptime_ms) = (seen.epoch, seen.uptime_ms);
        let before = match end {
            End::Drained => self.drained.replace(at),
            End::More => self.drained.take().and(None),
            End::Closed => return None,
        };
        self.stream = Some(stream);
        let path = || self.path.clone();
        if matches!(end, End::More) {
            self.problem = Some(ReporterError::TooMany { path: path() });
        }
        let length = at.saturating_sub(before?);
        let silent = seen.last.is_none();
        let reading = seen.reading(length);
        self.problem = match reading {
            Some(_) => None,
            None if silent => Some(ReporterError::Silent { path: path() }),
            None => Some(ReporterError::TooFew { path: path() }),
        };
        reading
    }
}

/// A stream that never blocks. The way over the open file has no limit of length, and ends at no other file.
fn connected(file: &OwnedFd) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str())?;
    connect(stream.as_raw_fd(), &address)?;
    Ok(stream.into())
}

enum End {
    /// Nothing was left.
    Drained,
    /// The limit of bytes was reached.
    More,
    /// QEMU closed the connection, or the connection failed.
    Closed,
}

fn drain(stream: &mut impl Read, mut each: impl FnMut(&[u8])) -> End {
    let mut buffer = [0; 8 << 10];
    for _ in 0..MOST_BYTES / buffer.len() {
        match stream.read(&mut buffer) {
            Ok(0) => return End::Closed,
            Ok(n) => {
                each(&buffer[..n]);
                // A read that is not full has emptied the socket.
                if n < buffer.len() {
                    return End::Drained;
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return End::Drained,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return End::Closed,
        }
    }
    End::More
}

/// The reports of one reading: the first one's time, and the last one.
#[derive(Default)]
struct ReadReports {
    epoch: u64,
    /// The guest's time at the last report that tells it, of an earlier reading too.
    uptime_ms: Option<u64>,
    first: Option<u64>,
    last: Option<Report>,
}

impl ReadReports {
    fn add(&mut self, report: Report) {
        // A guest that has booted counts its time from 0.
        if self.uptime_ms.zip(report.uptime_ms).is_some_and(|(before, now)| now < before) {
            self.epoch += 1;
            self.first = None;
        }
        self.first = self.first.or(report.uptime_ms);
        self.uptime_ms = report.uptime_ms.or(self.uptime_ms);
        self.last = Some(report);
    }

    /// The last report, if it is of the end of an interval of this length.
    ///
    /// A socket that no program empties fills up, and holds reports of the time when it was empty. So the
    /// reports of an interval must span at least a third of it. A reporter that does not tell its time is
    /// believed.
    fn reading(self, length: Duration) -> Option<GuestReading> {
        let report = self.last?;
        let span = self.first.zip(report.uptime_ms);
        let span = span.map(|(first, last)| Duration::from_millis(last.saturating_sub(first)));
        if span.is_some_and(|span| span < length / 3) {
            return None;
        }
        let age = length.saturating_sub(span.unwrap_or_default());
        Some(GuestReading { epoch: self.epoch, age, report })
    }
}
