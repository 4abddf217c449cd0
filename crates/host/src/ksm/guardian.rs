// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guardian: a process that restores KSM's settings when the guard's process is killed.
//!
//! It is the same program under a hidden verb. Its stdin is one end of a socket of which the guard has
//! the other: the kernel closes that when the guard's process ends, however it ends. Its stdout is the
//! lock's file: a lock of flock(2) belongs to the open file, so it is held until both have ended, and
//! nobody comes between the guard's death and the restoring. It makes a session of its own, where the
//! terminal's Ctrl-C does not reach it, and outlives the signals by which sessions and services are
//! ended, because the guard gets those too and may be busy restoring.

use super::restore::make;
use super::{Journal, Ksm, KsmError};
use crate::Host;
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

/// How a guardian is started: a program with words before the two that it is given here, sysfs and the
/// journal. It must call [`stand_guard`] with these two.
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
    pub fn this_program(verb: &str) -> Result<Guardian, KsmError> {
        // Not by its path, which may be another program's by now.
        let program = "/proc/self/exe";
        std::fs::metadata(program).map_err(|e| KsmError::io(Path::new(program), e))?;
        Ok(Guardian { program: program.into(), words: vec![verb.into()] })
    }

    /// Starts it and waits until it is ready.
    pub(crate) fn start(&self, sys: &Path, journal: &Path, lock: &File) -> Result<Standing, KsmError> {
        let failed = |what: &str, e: io::Error| KsmError::Guardian { why: format!("{what}: {e}") };
        let (mut ours, theirs) = UnixStream::pair().map_err(|e| failed("no socket", e))?;
        let lock = lock.try_clone().map_err(|e| failed("no copy of the lock", e))?;
        let child = Command::new(&self.program)
            .arg0("bifold")
            .args(&self.words)
            .arg(sys)
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
                Err(KsmError::Guardian { why })
            }
        }
    }
}

/// A guardian that waits.
#[derive(Debug)]
pub(crate) struct Standing {
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
    /// Nothing: the guard restored all.
    Idle,
    /// The settings that the guard of this process left behind are restored.
    Restored {
        /// The guard's process.
        pid: u32,
    },
}

/// The guardian's whole life: waits until stdin ends, then restores what the journal says, if it is
/// still there. `sys` is where sysfs is mounted.
///
/// # Errors
/// If the settings cannot be restored; the journal then stays for the next guard.
pub fn stand_guard(sys: &Path, journal: &Path) -> Result<Stood, KsmError> {
    let wrong = |what: &str, e: io::Error| KsmError::Guardian { why: format!("{what}: {e}") };
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
    let Some(left) = Journal::read(journal)? else { return Ok(Stood::Idle) };
    let ksm = Ksm::of(&Host { sys: sys.into(), ..Host::live() })?;
    make(&ksm, &left.found)?;
    Journal::remove(journal)?;
    Ok(Stood::Restored { pid: left.pid })
}
