// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's side of the control socket.

use super::{Answer, MOST_REQUEST, Request, SOCKET};
use crate::error::DaemonError;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a client may take for its request, and for taking the answer. Readings of VMs wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(300);
/// Most requests that are answered between two readings of the VMs.
const MOST_AT_ONCE: usize = 16;

/// The listening socket, which is removed at the end.
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
}

impl Control {
    /// Listens in the daemon's folder. The caller holds the folder's lock, so a socket without an answer is
    /// an old one.
    ///
    /// # Errors
    /// If another program answers at the socket, or the socket cannot be made.
    pub fn listen(folder: &Path) -> Result<Control, DaemonError> {
        let path = folder.join(SOCKET);
        if UnixStream::connect(&path).is_ok() {
            return Err(DaemonError::SocketInUse { path });
        }
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(DaemonError::io(path, e)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(|e| DaemonError::io(&path, e))?;
        let control = Control { path, listener };
        let made = fs::set_permissions(&control.path, fs::Permissions::from_mode(0o600));
        made.and_then(|()| control.listener.set_nonblocking(true))
            .map_err(|e| DaemonError::io(&control.path, e))?;
        Ok(control)
    }

    /// Answers the requests that wait.
    pub fn answer(&self, mut by: impl FnMut(Request) -> Answer) {
        for _ in 0..MOST_AT_ONCE {
            let Ok((stream, _)) = self.listener.accept() else { return };
            // A client that is slow or gone gets no answer.
            let _ = talk(stream, &mut by);
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn talk(mut stream: UnixStream, by: &mut impl FnMut(Request) -> Answer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new((&stream).take(MOST_REQUEST)).read_until(b'\n', &mut line)?;
    let answer = match serde_json::from_slice(&line) {
        Ok(request) => by(request),
        Err(e) => Answer::Refused(format!("the request cannot be read: {e}; are both of one version?")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text)
}
