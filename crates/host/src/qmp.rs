// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of QEMU's machine protocol, QMP (docs/interop/qmp-spec.rst).
//!
//! Each message is a line with one JSON object. QEMU sends a greeting, the client negotiates once and then
//! sends commands. Events that arrive between answers are kept.

use serde_json::{Value, json};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest line that is read. QEMU's longest answers, of `query-qmp-schema`, have less than 1 MiB.
const MOST_LINE: usize = 16 << 20;
/// Most events that are kept, and most that may come before one answer.
const MOST_EVENTS: usize = 10_000;

/// A QMP connection after its negotiation.
#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<UnixStream>,
    patience: Duration,
    events: Vec<Value>,
}

/// QEMU's refusal of a command. It is the inner error of the [`io::Error`] that [`Qmp::ask`] returns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("QEMU refused {command}: {why}")]
pub struct Refusal {
    /// The command.
    pub command: String,
    /// QEMU's reason.
    pub why: String,
}

impl Refusal {
    /// The refusal in an error of [`Qmp::ask`]; `None` for an error of the connection.
    pub fn in_error(e: &io::Error) -> Option<&Refusal> {
        e.get_ref()?.downcast_ref()
    }
}

/// The value of an answer's line; `None` for an event.
///
/// # Errors
/// A [`Refusal`], if QEMU refused the command.
pub fn answer(command: &str, line: &mut Value) -> io::Result<Option<Value>> {
    if let Some(error) = line.get("error") {
        let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
        let refusal = Refusal { command: command.into(), why: crate::printable(why) };
        return Err(io::Error::other(refusal));
    }
    Ok(line.get_mut("return").map(Value::take))
}

impl Qmp {
    /// Reads the greeting and negotiates. `patience` is the time limit of each answer. QEMU answers when its
    /// main loop runs, which can take long on a busy machine. After an error the connection has no use: the
    /// answer of an earlier command may still come.
    ///
    /// # Errors
    /// If QEMU has ended, is silent for too long, or does not speak QMP.
    pub fn greet(stream: &UnixStream, patience: Duration) -> io::Result<Qmp> {
        let stream = stream.try_clone()?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut qmp = Qmp { lines: BufReader::new(stream), patience, events: Vec::new() };
        let greeting = qmp.line(Instant::now() + patience)?;
        if greeting.get("QMP").is_none() {
            return Err(io::Error::other("QEMU does not greet as QMP does"));
        }
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// If QEMU refuses the command, has ended (`UnexpectedEof`), or is silent for too long.
    pub fn ask(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.lines.get_mut().write_all(line.as_bytes())?;
        let until = Instant::now() + self.patience;
        for _ in 0..MOST_EVENTS {
            let mut line = self.line(until)?;
            if let Some(value) = answer(command, &mut line)? {
                return Ok(value);
            }
            if self.events.len() < MOST_EVENTS {
                self.events.push(line);
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "QEMU sends events and no answer"))
    }

    /// All events so far.
    pub fn events(&self) -> &[Value] {
        &self.events
    }

    /// The next line. Time and length are limited, because the process at the other end may be another than
    /// QEMU.
    fn line(&mut self, until: Instant) -> io::Result<Value> {
        let mut line = Vec::new();
        loop {
            let part = match self.lines.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = part.iter().position(|b| *b == b'\n');
            let length = end.map_or(part.len(), |at| at + 1);
            line.extend_from_slice(&part[..length]);
            self.lines.consume(length);
            if end.is_some() {
                return serde_json::from_slice(&line)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e));
            }
            if line.len() > MOST_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line of QEMU has no end"));
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_and_refusals_are_errors() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for line in [
            r#"{"QMP": {"version": {}, "capabilities": []}}"#,
            r#"{"return": {}}"#,
            r#"{"timestamp": {}, "event": "STOP"}"#,
            r#"{"return": {"n": 1}}"#,
            r#"{"error": {"class": "GenericError", "desc": "not now"}}"#,
        ] {
            writeln!(theirs, "{line}").unwrap();
        }
        let mut qmp = Qmp::greet(&ours, Duration::from_secs(5)).unwrap();
        assert_eq!(qmp.ask("stop", json!({})).unwrap()["n"], 1);
        assert_eq!(qmp.events()[0]["event"], "STOP");
        let refused = qmp.ask("cont", json!({})).unwrap_err();
        assert_eq!(refused.to_string(), "QEMU refused cont: not now");
        assert_eq!(Refusal::in_error(&refused).unwrap().why, "not now");
        let mut asked = String::new();
        BufReader::new(&theirs).read_line(&mut asked).unwrap();
        assert_eq!(asked, "{\"execute\":\"qmp_capabilities\",\"arguments\":{}}\n");
        drop(theirs);
        assert!(qmp.ask("stop", json!({})).is_err());
    }

    #[test]
    fn a_line_that_trickles_or_has_no_end_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            while theirs.write_all(b"[").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = Qmp::greet(&ours, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(ours);
        writer.join().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || while theirs.write_all(&[b'['; 1 << 16]).is_ok() {});
        let error = Qmp::greet(&ours, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(ours);
        writer.join().unwrap();
    }
}
