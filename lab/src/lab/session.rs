// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows a running boot: reads init's messages, and turns an early end into an error with the console's
//! log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use bifold_host::qmp::Qmp;
use serde_json::json;

use super::job::Word;
use super::{Answer, LabError, Output};

/// Ends the emulator when dropped.
pub(crate) struct Emulator(pub(crate) Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Saves a log to a file with a unique name.
fn keep(text: &str) -> std::io::Result<PathBuf> {
    let dir = std::env::temp_dir();
    let mut n = 0;
    loop {
        let at = dir.join(format!("bifold-lab-{}-{n}.log", std::process::id()));
        match File::create_new(&at) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
            file => return file.and_then(|mut f| f.write_all(text.as_bytes())).map(|()| at),
        }
    }
}

/// How the emulator ended.
fn ended(status: &std::io::Result<Option<std::process::ExitStatus>>) -> String {
    match status {
        Ok(Some(status)) => format!("the emulator ended with {status}"),
        Ok(None) => "the emulator closed its connection".into(),
        Err(e) => e.to_string(),
    }
}

/// Why the conversation ended.
pub(super) enum End {
    Late,
    Lacks(String),
    Failed(String),
    Garbled(String),
}

pub(super) struct Session {
    pub(super) child: Emulator,
    pub(super) from: BufReader<UnixStream>,
    pub(super) to: UnixStream,
    pub(super) ram: File,
    /// Our end of QEMU's machine protocol. Bochs has none, and closed its end.
    pub(super) monitor: UnixStream,
    pub(super) until: Instant,
    /// The limit for the kernel to start init.
    pub(super) up_until: Instant,
    /// Whether init runs.
    pub(super) up: bool,
    /// When the current job began.
    pub(super) begun: Instant,
    /// The current job's output so far.
    pub(super) now: Output,
    pub(super) outputs: Vec<Output>,
    pub(super) notes: fn(&str),
}

impl Session {
    /// Waits for input until the time limit. `None` at the end of input.
    fn wait(&mut self) -> Result<Option<()>, End> {
        if !self.from.buffer().is_empty() {
            return Ok(Some(()));
        }
        let until = if self.up { self.until } else { self.until.min(self.up_until) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Late);
        }
        let garbled = |e: std::io::Error| End::Garbled(e.to_string());
        self.from.get_ref().set_read_timeout(Some(left)).map_err(garbled)?;
        match self.from.fill_buf() {
            Ok([]) => Ok(None),
            Ok(_) => Ok(Some(())),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Err(End::Late),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(Some(())),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            Err(e) => Err(garbled(e)),
        }
    }

    fn take(&mut self, bytes: u64, delimiter: Option<u8>) -> Result<Option<Vec<u8>>, End> {
        let mut out = Vec::new();
        loop {
            if delimiter.is_none() && out.len() as u64 == bytes {
                return Ok(Some(out));
            }
            if self.wait()?.is_none() {
                return Ok(None);
            }
            let have = self.from.buffer();
            let room = (bytes - out.len() as u64).min(have.len() as u64) as usize;
            let end = delimiter.and_then(|d| have[..room].iter().position(|b| *b == d));
            let n = end.map_or(room, |e| e + 1);
            out.extend_from_slice(&have[..n]);
            self.from.consume(n);
            if end.is_some() {
                return Ok(Some(out));
            }
            if delimiter.is_some() && out.len() as u64 >= bytes {
                return Err(End::Garbled("a line without an end".into()));
            }
        }
    }

    pub(super) fn follow(&mut self, answer: &mut Answer) -> Result<(), End> {
        while let Some(line) = self.take(1 << 30, Some(b'\n'))? {
            let text = String::from_utf8_lossy(&line);
            // Bochs prints its name first.
            if !self.up && !text.starts_with('{') {
                continue;
            }
            self.up = true;
            let word: Word = serde_json::from_str(&text).map_err(|e| {
                End::Garbled(format!("{e} in {:?}", text.chars().take(200).collect::<String>()))
            })?;
            match word {
                Word::Up(_) => {}
                Word::Note(text) => (self.notes)(&text),
                Word::Ask(line) => {
                    let reply = answer(&line, &mut self.ram);
                    if reply.is_empty() {
                        let line: String = line.chars().take(200).collect();
                        return Err(End::Failed(format!("the laboratory has no answer to {line}")));
                    }
                    let sent = self.to.write_all((reply + "\n").as_bytes());
                    sent.map_err(|e| End::Garbled(e.to_string()))?;
                }
                Word::File { name, bytes } => {
                    let Some(data) = self.take(bytes, None)? else { return Ok(()) };
                    self.now.files.insert(name, data);
                }
                Word::Done(done) => {
                    let mut output = std::mem::take(&mut self.now);
                    output.done = done;
                    output.seconds = self.begun.elapsed().as_secs_f64();
                    self.begun = Instant::now();
                    self.outputs.push(output);
                }
                Word::Lacks(why) => return Err(End::Lacks(why)),
                Word::Failed(why) => return Err(End::Failed(why)),
                Word::End => return Ok(()),
            }
        }
        Ok(())
    }

    /// The CPUs' registers, which tell where a machine that came to no end stands.
    fn registers(&self) -> String {
        let asked = Qmp::greet(&self.monitor, Duration::from_secs(5)).and_then(|mut qmp| {
            qmp.ask("human-monitor-command", json!({ "command-line": "info registers -a" }))
        });
        match asked {
            Ok(text) => text.as_str().unwrap_or_default().replace('\r', ""),
            Err(e) => format!("registers: {e}"),
        }
    }

    pub(super) fn trouble(&mut self, end: Option<End>, seconds: u64, console: &File, log: &File) -> LabError {
        let job = self.outputs.len();
        // The emulator's end of the connection closes a moment before the process ends.
        let mut status = self.child.0.try_wait();
        for _ in 0..100 {
            if end.is_some() || !matches!(status, Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            status = self.child.0.try_wait();
        }
        let registers = matches!(end, Some(End::Late)).then(|| self.registers());
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
        if let Some(End::Lacks(why)) = end {
            return LabError::Processor { why };
        }
        let contents = |mut f: &File| {
            let mut data = Vec::new();
            let _ = f.rewind().and_then(|()| f.read_to_end(&mut data));
            String::from_utf8_lossy(&data).into_owned()
        };
        let (said, own) = (contents(console), contents(log));
        let at = keep(&format!("{said}\n--- the emulator ---\n{own}\n{}", registers.unwrap_or_default()))
            .unwrap_or_else(|e| format!("no file, as none can be written: {e}").into());
        match end {
            Some(End::Late) => LabError::Timeout { seconds, job, log: at },
            Some(End::Lacks(why) | End::Failed(why)) => LabError::Job { job, why, log: at },
            Some(End::Garbled(why)) => LabError::Died { job, why, log: at },
            None => {
                let panic = said.lines().find(|l| l.contains("Kernel panic")).map(str::trim);
                let why = panic.or(own.lines().next()).map_or_else(|| ended(&status), str::to_owned);
                LabError::Died { job, why, log: at }
            }
        }
    }
}
