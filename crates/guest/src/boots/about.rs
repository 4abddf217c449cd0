// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The text file that describes a kept boot.

use xxhash_rust::xxh3::xxh3_64;

use super::registers::Registers;

/// First line of the file. Another format gets another number, and a boot with another number is made again.
/// Boots with number 1 may have a timer interrupt waiting (`capture/boot.rs`).
const FORMAT: &str = "bifold-boot 2";

/// What `about` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    /// The guest in words.
    pub(crate) guest: String,
    pub(crate) registers: Registers,
    /// Length in bytes and checksum of the memory, holes included.
    pub(crate) memory: (u64, u64),
    /// The same of the state.
    pub(crate) state: (u64, u64),
}

impl About {
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{FORMAT}\nguest {}\n", self.guest);
        let r = self.registers;
        out += &format!("vcpu {:x} {:x} {:x}\n", r.cr3, r.cr4, r.idt);
        for (name, (bytes, sum)) in [("memory", self.memory), ("state", self.state)] {
            out += &format!("{name} {bytes:x} {sum:x}\n");
        }
        let sum = xxh3_64(out.as_bytes());
        out + &format!("sum {sum:x}\n")
    }

    /// `None` if the text is not whole or of another format.
    pub(crate) fn parse(text: &str) -> Option<About> {
        let (text, sum) = text.strip_suffix('\n')?.rsplit_once("sum ")?;
        let mut lines = text.lines();
        if lines.next()? != FORMAT || u64::from_str_radix(sum, 16) != Ok(xxh3_64(text.as_bytes())) {
            return None;
        }
        let mut about = About {
            guest: lines.next()?.strip_prefix("guest ")?.to_owned(),
            registers: Registers { cr3: 0, cr4: 0, idt: 0 },
            memory: (0, 0),
            state: (0, 0),
        };
        for line in lines {
            let mut words = line.split(' ');
            let name = words.next()?;
            let numbers: Option<Vec<u64>> = words.map(|w| u64::from_str_radix(w, 16).ok()).collect();
            match (name, &numbers?[..]) {
                ("vcpu", &[cr3, cr4, idt]) => about.registers = Registers { cr3, cr4, idt },
                ("memory", &[bytes, sum]) => about.memory = (bytes, sum),
                ("state", &[bytes, sum]) => about.state = (bytes, sum),
                _ => return None,
            }
        }
        (about.memory.0 > 0 && about.state.0 > 0).then_some(about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back_and_a_cut_text_is_not() {
        let registers = Registers { cr3: 3, cr4: 4, idt: u64::MAX };
        let about = About { guest: "Linux 6.1, 512 MiB".into(), registers, memory: (9, 8), state: (7, 6) };
        let text = about.text();
        assert_eq!(About::parse(&text), Some(about));
        for cut in 0..text.len() {
            assert_eq!(About::parse(&text[..cut]), None, "{}", &text[..cut]);
        }
        for (from, to) in [("boot 2", "boot 1"), ("vcpu 3", "vcpu 5"), ("memory 9", "memory 8")] {
            assert_eq!(About::parse(&text.replace(from, to)), None, "{from}");
        }
    }
}
