// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the daemon. Each message says what is wrong and what to do.

use bifold_host::held::HeldError;
use std::io;
use std::path::PathBuf;

/// Why the daemon, or a request to the daemon, cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Another daemon has the lock.
    #[error(
        "a daemon runs already ({} is locked): `bifold ctl status` asks it, `systemctl stop bifoldd` or SIGTERM ends it",
        lock.display()
    )]
    Running {
        /// The lock's file.
        lock: PathBuf,
    },
    /// The journal, or the lock, cannot be used.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// Another program listens at the control socket.
    #[error("the socket {} is in use by another program: end that program, or choose another folder by --state", path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// No daemon answers at the control socket.
    #[error("no daemon answers at {}: is it running (systemctl status bifoldd), and is this root?", path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The daemon refused a request.
    #[error("{0}")]
    Refused(String),
    /// Any other error of a file or socket.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl DaemonError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> DaemonError {
        DaemonError::Io { path: path.into(), source }
    }

    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        match self {
            DaemonError::Held(HeldError::NotRoot { .. }) => true,
            DaemonError::NoDaemon { source, .. } | DaemonError::Io { source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}
