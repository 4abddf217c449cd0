// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts and runs the guardian, a process that restores settings if their holder is killed.
//!
//! The guardian is the same program under a hidden verb. Its stdin is one end of a socket whose other end
//! the holder has; the kernel closes the holder's end when the holder ends, in any way. The guardian's stdout
//! is the lock's file. A lock of flock(2) belongs to the open file, so the lock stays until both processes
//! have ended, and no other holder can begin between the holder's death and the restoring. The guardian has
//! a session of its own, so the terminal's Ctrl-C does not reach it. It ignores the signals that end sessions
//! and services, because the holder gets them too and may be restoring. Among them is SIGABRT, which systemd
//! sends to all processes of a service that hangs.
//!
//! A holder whose settings need care sends signs of life. If they stop, as after Ctrl-Z, the guardian closes
//! the socket and restores. The holder finds that out at its next sign of life, which it sends before and
//! after each change.

use super::{HeldError, Journal};
use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The guardian's message once signals cannot end it.
const READY: &[u8] = b"ready\n";
/// The holder's message that the settings are to stay as they are, because they are restored or are to be
/// kept.
const STAY: u8 = b'.';
/// The holder's message that it lives, and may have written the journal again. Once there was one, more have
/// to follow.
const BEAT: u8 = b'+';
/// How long the holder may be silent between two of them.
const HUNG: Duration = Duration::from_secs(15);
/// Time limit for the guardian's message.
const START: Duration = Duration::from_secs(20);
/// How long the guardian's end is awaited where the holder must not wait on.
const ENDS: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(5) };
/// How often the guardian's end is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// How to start a guardian: a program and its first arguments. The holder adds further arguments, the
/// journal's path last. The program must call [`stand_guard`] with that path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guardian {
    /// The program.
    pub program: OsString,
    /// The program's first arguments.
    pub words: Vec<OsString>,
}

impl Guardian {
    /// The running program, under a verb.
    ///
    /// # Errors
    /// If `/proc/self/exe` cannot be read.
    pub fn this_program(verb: &str) -> Result<Guardian, HeldError> {
        // The path may name another program by now; this link cannot.
        let program = "/proc/self/exe";
        std::fs::metadata(program).map_err(|e| HeldError::io(Path::new(program), e))?;
        Ok(Guardian { program: program.into(), words: vec![verb.into()] })
    }

    /// Starts the guardian and waits until it is ready.
    pub(super) fn start(&self, words: &[&Path], journal: &Path, lock: &File) -> Result<Standing, HeldError> {
        let failed = |what: &str, e: io::Error| HeldError::Guardian { why: format!("{what}: {e}") };
        let (mut ours, theirs) = UnixStream::pair().map_err(|e| failed("no socket", e))?;
        reap();
        let lock = lock.try_clone().map_err(|e| failed("no copy of the lock", e))?;
        let child = Command::new(&self.program)
            .arg0("bifold")
            .args(&self.words)
            .args(words)
            .arg(journal)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(lock))
            .spawn()
            .map_err(|e| failed("the program cannot be run", e))?;
        let mut standing = Standing {
            child: Some(child),
            socket: Some(ours.try_clone().map_err(|e| failed("no socket", e))?),
        };
        let mut said = [0; READY.len()];
        let answer = ours.set_read_timeout(Some(START)).and_then(|()| ours.read_exact(&mut said));
        match answer {
            Ok(()) if said == READY => Ok(standing),
            other => {
                // Nothing was changed, so there is nothing to restore: this guardian must not begin later.
                standing.kill();
                let why =
                    other.err().map_or("it did not send `ready`".into(), |e| format!("it sent nothing: {e}"));
                Err(HeldError::Guardian { why })
            }
        }
    }
}

/// Guardians that were left to themselves and may have ended since: until they are waited for, they keep
/// their process ids.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

fn reap() {
    LEFT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// A running guardian.
#[derive(Debug)]
pub(super) struct Standing {
    /// `None` if it was left to itself.
    child: Option<Child>,
    socket: Option<UnixStream>,
}

impl Standing {
    /// Has the guardian end without restoring. Fails if it restores already, or has ended.
    pub fn excuse(&mut self) -> Result<(), HeldError> {
        self.send(STAY)
    }

    /// Whether the guardian still runs and listens, and why not.
    pub fn beat(&mut self) -> Result<(), HeldError> {
        self.send(BEAT)
    }

    fn send(&mut self, message: u8) -> Result<(), HeldError> {
        let why = match self.child.as_mut().map_or(Ok(None), Child::try_wait) {
            Ok(Some(status)) => format!("it has ended ({status})"),
            Err(e) => e.to_string(),
            Ok(None) => {
                let Some(socket) = &mut self.socket else { return Ok(()) };
                // A guardian that reads nothing must not hold the holder up.
                match socket.set_nonblocking(true).and_then(|()| socket.write_all(&[message])) {
                    Ok(()) => return Ok(()),
                    Err(e) => format!("it does not listen: {e}"),
                }
            }
        };
        Err(HeldError::NoGuardian { why })
    }

    /// Ends a guardian that has nothing to restore. One that does not end by itself is killed.
    pub fn finish(mut self) {
        self.socket = None;
        if !self.ends_within(ENDS) {
            self.kill();
        }
    }

    /// Closes the socket and waits until the guardian has ended, however long it restores.
    pub fn dismiss(mut self) {
        self.socket = None;
        let _ = self.child.take().map(|mut child| child.wait());
    }

    /// Closes the socket. The guardian restores the settings and ends on its own.
    pub fn leave(mut self) {
        reap();
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).extend(self.child.take());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Whether the guardian ends within this time.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let Some(child) = &mut self.child else { return true };
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                return false;
            }
            sleep(LOOK);
        }
        true
    }
}

impl Drop for Standing {
    /// Closes the socket. The guardian may try for ever to restore, so its end is awaited for some seconds
    /// only.
    fn drop(&mut self) {
        self.socket = None;
        self.ends_within(ENDS);
    }
}

/// What a guardian did before it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stood {
    /// Nothing: the holder restored all settings.
    Idle,
    /// It restored the settings that a killed holder left changed.
    Restored {
        /// The holder's process.
        pid: u32,
        /// Whether that process has only stopped to send signs of life.
        hangs: bool,
    },
}

/// Runs the guardian: waits for the end of stdin and then restores the journal's settings by `restore`,
/// unless the holder has said that it has ended. A journal that was removed meanwhile, as with a folder of a
/// user who logs out, still counts.
///
/// # Errors
/// If the settings cannot be restored. The journal then stays for the next holder.
pub fn stand_guard<E: From<HeldError>>(
    what: &str,
    journal: &Path,
    restore: impl FnOnce(&Journal) -> Result<(), E>,
) -> Result<Stood, E> {
    let wrong = |what: &str, e: io::Error| HeldError::Guardian { why: format!("{what}: {e}") };
    // Fails only if this process already leads a session.
    let _ = rustix::process::setsid();
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGABRT] {
        signal_hook::flag::register(signal, Arc::clone(&seen)).map_err(|e| wrong("signals", e))?;
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(|e| wrong("no stdin", e))?;
    let mut socket = UnixStream::from(stdin);
    let mut last = Journal::read(journal, what).ok().flatten();
    // The folder may have been removed, and another holder have begun in a new one.
    let holder = last.as_ref().map(|j| j.pid);
    let is_own = |j: &Journal| holder.is_none_or(|pid| j.pid == pid);
    // Fails if the holder has ended already; the loop below notices that.
    let _ = socket.write_all(READY);
    let mut byte = [0];
    let hangs = loop {
        match socket.read(&mut byte) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(n) if n > 0 && byte == [STAY] => return Ok(Stood::Idle),
            Ok(n) if n > 0 => {
                last = Journal::read(journal, what).ok().flatten().filter(is_own).or(last);
                socket.set_read_timeout(Some(HUNG)).map_err(|e| wrong("no time limit", e))?;
            }
            other => break other.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock),
        }
    };
    // The holder's next message fails, and what it has sent before counts.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    let mut sent = Vec::new();
    let _ = socket.read_to_end(&mut sent);
    if sent.contains(&STAY) {
        return Ok(Stood::Idle);
    }
    let left = match Journal::read(journal, what) {
        Ok(left) => left.filter(is_own).or(last),
        Err(e) => Some(last.ok_or(e)?),
    };
    let Some(left) = left else { return Ok(Stood::Idle) };
    restore(&left)?;
    if Journal::read(journal, what).ok().flatten().is_none_or(|j| is_own(&j)) {
        Journal::remove(journal)?;
    }
    Ok(Stood::Restored { pid: left.pid, hangs })
}
