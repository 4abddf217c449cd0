// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's log: which messages came during a round, and a mark in it for each round.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};

const KMSG: &str = "/dev/kmsg";
/// Begins the marks.
const MARK: &str = "fuzz: seed ";

/// A reader of the log, from its end on.
pub struct Messages(File);

impl Messages {
    pub fn new() -> Result<Messages> {
        // Warnings, and the stack that comes with a lockup, go to the console, which is all that is left of a
        // machine that hangs.
        let _ = std::fs::write("/proc/sys/kernel/printk", "5");
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(KMSG).context(KMSG)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Messages(file))
    }

    /// Marks the begin of a round. As an error, which comes to the console: it is the last one there if the
    /// machine dies.
    pub fn mark(seed: u64, what: &str) {
        let what = what.chars().take(700).collect::<String>();
        let line = format!("<3>{MARK}{seed} {what}\n");
        // Without the mark, the run goes on.
        let _ = OpenOptions::new().write(true).open(KMSG).and_then(|mut f| f.write_all(line.as_bytes()));
    }

    /// Records since the last call, without marks.
    pub fn drain(&mut self) -> Result<Vec<String>> {
        let (mut out, mut bytes) = (Vec::new(), [0; 8192]);
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return Ok(out),
                Ok(n) => {
                    let record = String::from_utf8_lossy(&bytes[..n]).trim_end().to_owned();
                    if !record.contains(MARK) {
                        out.push(record);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(out),
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                    out.push("4,0,0,-;fuzz: messages were lost".into())
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
