// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of `valgrind --tool=lackey --trace-mem=yes`: text, a line for each access.
//!
//! `I ADDR,SIZE` is an instruction, ` L`, ` S` and ` M` are its load, store, and load with a store; the
//! address is hexadecimal (comment in Valgrind's `lackey/lk_main.c`). Lines that begin with `==PID==` are
//! Valgrind's messages.

use crate::input::Bytes;
use crate::{Fault, Step};
use bifold_trace::Process;
use std::io::{BufRead as _, Read as _};

/// Longest line; an access has some 20 bytes, a message may have a command.
const MOST: u64 = 1 << 16;
const REMEDY: &str = "make one with `valgrind --tool=lackey --trace-mem=yes --log-file=FILE CMD`, so that no other output is in it";

/// A trace.
pub struct Lackey {
    bytes: Bytes,
    line: Vec<u8>,
    number: u64,
    /// The process that messages name.
    pid: Option<u64>,
    /// The last message but for figures: the program's end was seen.
    ended: bool,
}

impl Lackey {
    pub fn new(bytes: Bytes) -> Lackey {
        Lackey { bytes, line: Vec::new(), number: 0, pid: None, ended: false }
    }

    /// Whether these first bytes are of such a trace.
    pub fn is(first: &[u8]) -> bool {
        // The last line may be cut off.
        let mut lines = first.split(|b| *b == b'\n').filter(|line| !line.is_empty()).peekable();
        let first = lines.peek().is_some_and(|line| parse(line).is_some() || message(line).is_some());
        let whole = lines.clone().count().saturating_sub(1).max(1);
        first && lines.take(whole).all(|line| parse(line).is_some() || message(line).is_some())
    }

    /// The command, as Valgrind's messages at the trace's begin name it.
    pub fn command(first: &[u8]) -> Option<String> {
        let texts = first.split(|b| *b == b'\n').filter_map(message);
        let mut commands = texts.filter_map(|(_, text)| text.strip_prefix(b"Command: "));
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        commands.next().map(|c| String::from_utf8_lossy(c).trim().chars().map(clean).collect())
    }

    pub fn place(&self) -> String {
        format!("line {}", self.number)
    }

    /// Whether Valgrind said how the program ended, in a trace that has its messages.
    pub fn whole(&self) -> bool {
        self.ended || self.pid.is_none()
    }

    pub fn step(&mut self, process: &mut Process) -> Result<Step, Fault> {
        self.line.clear();
        let n = self.bytes.by_ref().take(MOST).read_until(b'\n', &mut self.line)?;
        if n == 0 {
            return Ok(Step::End);
        }
        self.number += 1;
        let line = match self.line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None if n as u64 == MOST => return Err(Fault::foreign("a line without an end", REMEDY)),
            None => return Err(Fault::Truncated),
        };
        if let Some(access) = parse(line) {
            let (va, bytes) = (access.va, access.bytes);
            match access.kind {
                b'I' => process.instruction(va, bytes)?,
                b'L' => process.load(va, bytes)?,
                b'S' => process.store(va, bytes)?,
                _ => {
                    process.load(va, bytes)?;
                    process.store(va, bytes)?;
                }
            }
            return Ok(Step::Access);
        }
        match message(line) {
            Some((pid, text)) => {
                if self.pid.is_some_and(|other| other != pid) {
                    let problem = "lines of a second process: each has its own addresses";
                    return Err(Fault::foreign(
                        problem,
                        "give each process a file with `--log-file=FILE.%p`",
                    ));
                }
                self.pid = Some(pid);
                self.ended |= text.starts_with(b"Exit code:");
                Ok(Step::Other(n))
            }
            None if line.is_empty() => Ok(Step::Other(n)),
            None => Err(Fault::foreign("no access and no message of Valgrind's", REMEDY)),
        }
    }
}

struct Access {
    kind: u8,
    va: u64,
    bytes: u64,
}

fn parse(line: &[u8]) -> Option<Access> {
    let (kind, rest) = match line {
        [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
        _ => return None,
    };
    let comma = rest.iter().position(|b| *b == b',')?;
    let va = number(&rest[..comma], 16)?;
    // No instruction accesses more than the state of a processor: XSAVE's area with AMX has 11 KB.
    let bytes = number(&rest[comma + 1..], 10).filter(|n| (1..=1 << 16).contains(n))?;
    Some(Access { kind, va, bytes })
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` takes a sign, too.
    if !digits.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Process and text of a message.
fn message(line: &[u8]) -> Option<(u64, &[u8])> {
    let rest = line.strip_prefix(b"==").or_else(|| line.strip_prefix(b"--"))?;
    let end = rest.iter().position(|b| !b.is_ascii_digit())?;
    let text = rest[end..].strip_prefix(b"==").or_else(|| rest[end..].strip_prefix(b"--"))?;
    Some((number(&rest[..end], 10)?, text.strip_prefix(b" ").unwrap_or(text)))
}
