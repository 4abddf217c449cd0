// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes out of a captured guest: the reports of its init, and files in memory that QEMU writes to.

use super::run::LOG_LINES;
use crate::error::GuestError;
use crate::memfd::memfd;
use bifold_trace::CommandExit;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Files in memory that QEMU writes to.
pub(super) struct Files {
    pub(super) console: File,
    pub(super) stdout: File,
    pub(super) stderr: File,
    pub(super) kept: File,
    pub(super) log: File,
    pub(super) places: File,
}

impl Files {
    pub(super) fn new() -> Result<Self, GuestError> {
        let new = |name| -> Result<File, GuestError> {
            let fd: OwnedFd = memfd(name, 0)?;
            Ok(File::from(fd))
        };
        Ok(Files {
            console: new("bifold-console")?,
            stdout: new("bifold-stdout")?,
            stderr: new("bifold-stderr")?,
            kept: new("bifold-files")?,
            log: new("bifold-log")?,
            places: new("bifold-where")?,
        })
    }
}

pub(super) fn contents(file: &mut File) -> Vec<u8> {
    let mut data = Vec::new();
    // A memfd's reads do not fail; what was read until then is the best there is.
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut data));
    data
}

/// All lines that are not empty, without control characters.
pub(super) fn printable(file: &mut File) -> Vec<String> {
    String::from_utf8_lossy(&contents(file))
        .lines()
        .map(|l| l.chars().filter(|c| !c.is_control()).collect::<String>().trim_end().to_owned())
        .filter(|l| !l.is_empty())
        .collect()
}

pub(super) fn tail(file: &mut File) -> String {
    let lines = printable(file);
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// What the guest's init has reported.
#[derive(Default)]
pub(super) struct InitReport {
    buffer: Vec<u8>,
    pub(super) started: bool,
    pub(super) ended: bool,
    pub(super) exit: Option<CommandExit>,
    pub(super) oom: bool,
    pub(super) error: Option<String>,
    /// Guest time and idle time, in nanoseconds.
    pub(super) time: Option<(u64, u64)>,
    pub(super) written: Option<(u64, u64)>,
    pub(super) full: bool,
    pub(super) done: bool,
}

impl InitReport {
    pub(super) fn listen(&mut self, control: &mut UnixStream) {
        let mut bytes = [0; 1024];
        while let Ok(n) = control.read(&mut bytes) {
            if n == 0 {
                break;
            }
            self.buffer.extend_from_slice(&bytes[..n]);
        }
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            self.line(String::from_utf8_lossy(&line).trim());
        }
    }

    fn line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse().unwrap_or(-1);
        match word {
            "start" => self.started = true,
            "end" => self.ended = true,
            "exit" => self.exit = Some(CommandExit::Code(number())),
            "signal" => self.exit = Some(CommandExit::Signal(number())),
            "oom" => self.oom = true,
            "time" => self.time = two(rest),
            "full" => self.full = true,
            "written" => self.written = two(rest),
            "error" => self.error = Some(rest.to_owned()),
            "done" => self.done = true,
            _ => {}
        }
    }
}

/// Parses two numbers with a space between them.
fn two(text: &str) -> Option<(u64, u64)> {
    let (a, b) = text.split_once(' ')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}
