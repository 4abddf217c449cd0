// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much of QEMU's machine protocol (docs/interop/qmp-spec.rst) as stops a guest and lets it go on:
//! one JSON object per line, a greeting, one negotiation, then commands; events come in between.

use serde_json::Value;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long QEMU may take for an answer: it shares the machine with all the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection on which commands can be given.
#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Greets.
    pub fn greet(stream: &UnixStream) -> io::Result<Qmp> {
        let stream = stream.try_clone()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut qmp = Qmp { lines: BufReader::new(stream) };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            return Err(io::Error::other("QEMU does not greet as QMP does"));
        }
        qmp.command("qmp_capabilities")?;
        Ok(qmp)
    }

    /// Gives a command without arguments and waits for its answer.
    pub fn command(&mut self, name: &str) -> io::Result<Value> {
        let stream = self.lines.get_mut();
        stream.write_all(format!("{}\n", serde_json::json!({ "execute": name })).as_bytes())?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
                return Err(io::Error::other(format!("QEMU refused {name}: {why}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
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
    fn events_are_passed_over_and_errors_are_told() {
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
        let mut qmp = Qmp::greet(&ours).unwrap();
        assert_eq!(qmp.command("stop").unwrap()["n"], 1);
        assert!(qmp.command("cont").unwrap_err().to_string().contains("refused cont: not now"));
        drop(theirs);
        assert!(qmp.command("stop").is_err());
    }
}
