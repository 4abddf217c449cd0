// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guardian: a process that restores settings when the process that holds them is killed.
//!
//! The guardian is the same program under a hidden verb. Its stdin is one end of a socket, and the holder
//! has the other end: the kernel closes that one when the holder's process ends, however it ends. Its
//! stdout is the lock's file: a lock of flock(2) belongs to the open file, so the lock stays until both
//! processes have ended, and nobody comes between the holder's death and the restoring. The guardian makes
//! a session of its own, where the terminal's Ctrl-C does not reach it. It outlives the signals by which
//! sessions and services are ended, because the holder gets those too and may be busy restoring.

use super::{HeldError, Journal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What the guardian says once signals cannot end it.
const READY: &[u8] = b"ready\n";
/// How long it may take to say so.
const START: Duration = Duration::from_secs(20);

/// How a guardian is started: a program and its first arguments. The holder adds its own, the journal's
/// path last. The program must call [`stand_guard`] with that path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guardian {
    /// The program.
    pub program: OsString,
    /// Its first arguments.
    pub words: Vec<OsString>,
}

impl Guardian {
    /// This program under a verb.
    ///
    /// # Errors
    /// If the kernel does not say which program this is.
    pub fn this_program(verb: &str) -> Result<Guardian, HeldError> {
        // Not by its path, which may be another program's by now.
        let program = "/proc/self/exe";
        std::fs::metadata(program).map_err(|e| HeldError::io(Path::new(program), e))?;
        Ok(Guardian { program: program.into(), words: vec![verb.into()] })
    }

    /// Starts it and waits until it is ready.
    pub(super) fn start(&self, words: &[&Path], journal: &Path, lock: &File) -> Result<Standing, HeldError> {
        let failed = |what: &str, e: io::Error| HeldError::Guardian { why: format!("{what}: {e}") };
        let (mut ours, theirs) = UnixStream::pair().map_err(|e| failed("no socket", e))?;
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
        let mut standing =
            Standing { child, socket: Some(ours.try_clone().map_err(|e| failed("no socket", e))?) };
        let mut said = [0; READY.len()];
        let heard = ours.set_read_timeout(Some(START)).and_then(|()| ours.read_exact(&mut said));
        match heard {
            Ok(()) if said == READY => Ok(standing),
            other => {
                drop(ours);
                standing.dismiss();
                let why =
                    other.err().map_or("it said something else".into(), |e| format!("it said nothing: {e}"));
                Err(HeldError::Guardian { why })
            }
        }
    }
}

/// A guardian that waits.
#[derive(Debug)]
pub(super) struct Standing {
    child: Child,
    socket: Option<UnixStream>,
}

impl Standing {
    /// Closes the socket and waits until the guardian has ended.
    pub fn dismiss(&mut self) {
        self.socket = None;
        let _ = self.child.wait();
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// What a guardian had to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stood {
    /// Nothing: the holder restored all settings.
    Idle,
    /// It restored the settings that this process left changed.
    Restored {
        /// The holder's process.
        pid: u32,
    },
}

/// The guardian's whole life: waits until stdin ends, then restores, by `restore`, what the journal says
/// if it still exists.
///
/// # Errors
/// If the settings cannot be restored; the journal then stays for the next holder.
pub fn stand_guard<E: From<HeldError>>(
    what: &str,
    journal: &Path,
    restore: impl FnOnce(&Journal) -> Result<(), E>,
) -> Result<Stood, E> {
    let wrong = |what: &str, e: io::Error| HeldError::Guardian { why: format!("{what}: {e}") };
    // It fails for the first process of a session, which then has one of its own already.
    let _ = rustix::process::setsid();
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&seen)).map_err(|e| wrong("signals", e))?;
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(|e| wrong("no stdin", e))?;
    let mut socket = UnixStream::from(stdin);
    // A guard that is gone already does not hear it; its end is seen below.
    let _ = socket.write_all(READY);
    let mut byte = [0];
    loop {
        match socket.read(&mut byte) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(n) if n > 0 => {}
            _ => break,
        }
    }
    let Some(left) = Journal::read(journal, what)? else { return Ok(Stood::Idle) };
    restore(&left)?;
    Journal::remove(journal)?;
    Ok(Stood::Restored { pid: left.pid })
}
