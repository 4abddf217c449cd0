// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads Bifold's standard input to its end, for the command in the guest.
//!
//! The guest gets the whole input before it starts, so that a run does not depend on when bytes arrive. A
//! terminal is not read: the command gets an empty input, as in the background. An input that gives nothing
//! for some seconds counts as empty, because services and test runners leave inputs open to which no
//! program writes.

use anyhow::Context as _;
use std::fs::File;
use std::io::{IsTerminal as _, Read as _, stdin};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long the first byte may take.
const FIRST: Duration = Duration::from_secs(10);
/// How long each further piece may take.
const NEXT: Duration = Duration::from_secs(600);
const PIECE: usize = 1 << 16;

/// Reads standard input to its end. A note on stderr says if nothing came.
///
/// Returns at most slightly more than `most` bytes; the capture refuses more than `most`.
///
/// # Errors
/// If standard input cannot be read, or pauses for minutes before its end.
pub fn read(most: u64) -> anyhow::Result<Vec<u8>> {
    if stdin().is_terminal() {
        return Ok(Vec::new());
    }
    let file = File::from(stdin().as_fd().try_clone_to_owned().context("cannot read standard input")?);
    if file.metadata().is_ok_and(|m| m.is_file() || is_null(&m)) {
        return whole(file, most);
    }
    // In a thread, because a read from a pipe has no time limit. The thread ends with the process.
    let (to, from) = channel();
    std::thread::spawn(move || {
        let mut file = file;
        loop {
            let mut piece = vec![0; PIECE];
            let n = match file.read(&mut piece) {
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return drop(to.send(Err(e))),
            };
            piece.truncate(n);
            if n == 0 || to.send(Ok(piece)).is_err() {
                return;
            }
        }
    });
    let mut limit = FIRST;
    let pieces = std::iter::from_fn(|| match from.recv_timeout(limit) {
        Ok(Ok(piece)) => {
            limit = NEXT;
            Some(Ok(piece))
        }
        Ok(Err(e)) => Some(Err(anyhow::Error::from(e).context("cannot read standard input"))),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) if limit == FIRST => {
            eprintln!(
                "bifold: standard input is open but gave nothing for {} s: the command gets an empty one \
                 (`< /dev/null` spares the wait)",
                FIRST.as_secs()
            );
            None
        }
        Err(RecvTimeoutError::Timeout) => {
            Some(Err(anyhow::anyhow!("standard input gave nothing for {} s and did not end", NEXT.as_secs())))
        }
    });
    collect(pieces, most)
}

fn is_null(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == meta.rdev() && meta.rdev() != 0)
}

fn whole(file: File, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::new();
    file.take(most + 1).read_to_end(&mut all).context("cannot read standard input")?;
    Ok(all)
}

fn collect(pieces: impl Iterator<Item = anyhow::Result<Vec<u8>>>, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::new();
    for piece in pieces {
        all.extend(piece?);
        if all.len() as u64 > most {
            break;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lengths: &[usize]) -> impl Iterator<Item = anyhow::Result<Vec<u8>>> {
        lengths.iter().map(|&n| Ok(vec![7; n])).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn pieces_are_joined_and_reading_ends_above_the_limit() {
        assert!(collect(pieces(&[]), 10).unwrap().is_empty());
        assert_eq!(collect(pieces(&[3, 7]), 10).unwrap(), [7; 10]);
        assert_eq!(collect(pieces(&[3, 8, 9]), 10).unwrap().len(), 11);
    }
}
