// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of QEMU's machine protocol, QMP (docs/interop/qmp-spec.rst).
//!
//! Each message is a line with one JSON object. QEMU sends a greeting, the client negotiates once and then
//! sends commands. Events that arrive between answers are kept.

use serde_json::{Value, json};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A QMP connection after its negotiation.
#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<UnixStream>,
    events: Vec<Value>,
}

impl Qmp {
    /// Reads the greeting and negotiates. `patience` is the time limit of each answer. QEMU answers when its
    /// main loop runs, which can take long on a busy machine.
    ///
    /// # Errors
    /// If QEMU has ended, is silent for too long, or does not speak QMP.
    pub fn greet(stream: &UnixStream, patience: Duration) -> io::Result<Qmp> {
        let stream = stream.try_clone()?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut qmp = Qmp { lines: BufReader::new(stream), events: Vec::new() };
        let greeting = qmp.line()?;
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
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
                return Err(io::Error::other(format!("QEMU refused {command}: {why}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            self.events.push(answer);
        }
    }

    /// All events so far.
    pub fn events(&self) -> &[Value] {
        &self.events
    }

    fn line(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&line).map_err(io::Error::other)
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
        assert_eq!(qmp.ask("cont", json!({})).unwrap_err().to_string(), "QEMU refused cont: not now");
        let mut asked = String::new();
        BufReader::new(&theirs).read_line(&mut asked).unwrap();
        assert_eq!(asked, "{\"execute\":\"qmp_capabilities\",\"arguments\":{}}\n");
        drop(theirs);
        assert!(qmp.ask("stop", json!({})).is_err());
    }
}
