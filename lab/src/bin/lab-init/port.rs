// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connection between the laboratory's first process and the machine that started the laboratory.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bifold_lab::lab::job::{PORT, Poke, Word};
use bifold_lab::vendor::{Emulator, Vendor};

/// The connection to the machine that started the laboratory.
pub struct Port {
    pub to: Box<dyn Write>,
    /// The way in. Bochs has none, and writes memory for a program inside.
    from: Option<File>,
}

impl Port {
    /// Opens the connection, which under QEMU appears some time after the module of its driver.
    pub fn open(vendor: &Vendor) -> Result<Port> {
        if let Emulator::Bochs { .. } = vendor.emulator {
            return Ok(Port { to: Box::new(DebugPort::open()?), from: None });
        }
        for _ in 0..500 {
            for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
                let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
                if name.trim() == PORT {
                    let dev = Path::new("/dev").join(entry.file_name());
                    if let Ok(file) = OpenOptions::new().read(true).write(true).open(dev) {
                        return Ok(Port { to: Box::new(file.try_clone()?), from: Some(file) });
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("the port {PORT} did not appear")
    }

    pub fn say(&mut self, word: &Word) -> Result<()> {
        let mut line = serde_json::to_vec(word)?;
        line.push(b'\n');
        Ok(self.to.write_all(&line)?)
    }

    pub fn file(&mut self, name: &str, data: &[u8]) -> Result<()> {
        self.say(&Word::File { name: name.into(), bytes: data.len() as u64 })?;
        Ok(self.to.write_all(data)?)
    }

    /// The answer to a program's question.
    pub fn answer(&mut self, question: &str) -> Result<String> {
        if self.from.is_none() {
            DebugPort::poke(&serde_json::from_str(question).context("a question")?);
            return Ok(format!("{}\n", Poke::DONE));
        }
        self.say(&Word::Ask(question.trim_end().into()))?;
        self.line()
    }

    /// Reads a line from the other side.
    pub fn line(&mut self) -> Result<String> {
        let from = self.from.as_mut().context("this emulator has no way into the laboratory")?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte[0] != b'\n' {
            from.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8(line)?)
    }
}

/// The I/O port of Bochs whose bytes it prints.
struct DebugPort;

impl DebugPort {
    const NUMBER: u16 = 0xe9;
    /// Takes a physical address and a value, 8 bytes each, and writes the value there
    /// (lab/bochs/patches/80-words-of-memory.patch).
    const POKE: u16 = 0xec;

    fn open() -> Result<DebugPort> {
        for port in [Self::NUMBER, Self::POKE] {
            // SAFETY: the call lets this thread use the port, which affects no memory.
            if unsafe { libc::ioperm(port.into(), if port == Self::POKE { 4 } else { 1 }, 1) } != 0 {
                return Err(std::io::Error::last_os_error()).context("ioperm");
            }
        }
        Ok(DebugPort)
    }

    /// Writes words of memory.
    fn poke(words: &Poke) {
        for (address, value) in &words.poke {
            for word in [*address, address >> 32, *value, value >> 32] {
                // SAFETY: `open` was allowed to use the port. The words are entries of page tables whose A
                // and D bits change, as a walk may change them at any time.
                unsafe {
                    std::arch::asm!("out dx, eax", in("dx") Self::POKE, in("eax") word as u32,
                        options(nomem, nostack, preserves_flags));
                }
            }
        }
    }
}

impl Write for DebugPort {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        // SAFETY: `open` was allowed to use the port, and the bytes from RSI on are `data`'s.
        unsafe {
            std::arch::asm!("rep outsb", inout("rsi") data.as_ptr() => _, inout("rcx") data.len() => _,
                in("dx") Self::NUMBER, options(readonly, nostack, preserves_flags));
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
