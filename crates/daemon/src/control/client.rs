// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The asking side of the control socket.

use super::{Answer, MOST_ANSWER, Request, SOCKET};
use crate::error::DaemonError;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take: a switch of each of many VMs may come first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the daemon of a folder.
///
/// # Errors
/// If no daemon answers, or the daemon refuses.
pub fn ask(folder: &Path, request: &Request) -> Result<Answer, DaemonError> {
    let path = folder.join(SOCKET);
    let io = |e| DaemonError::io(&path, e);
    let mut stream =
        UnixStream::connect(&path).map_err(|source| DaemonError::NoDaemon { path: path.clone(), source })?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    let mut line = serde_json::to_vec(request).map_err(|e| io(e.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(io)?;
    let mut text = Vec::new();
    stream.take(MOST_ANSWER).read_to_end(&mut text).map_err(io)?;
    match serde_json::from_slice(&text).map_err(|e| io(e.into()))? {
        Answer::Refused(why) => Err(DaemonError::Refused(why)),
        answer => Ok(answer),
    }
}
