// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes words of the host kernel's memory with the laboratory's help.
//!
//! The host's kernel lets no program write its page tables. But the kernel runs in an emulator whose memory
//! the laboratory can write. This module asks with one line on standard output,
//!
//! ```text
//! {"poke":[[PA,VALUE],...]}
//! ```
//!
//! with physical addresses of 8-byte words and their new values (little-endian in memory) as decimal numbers.
//! It then waits for the line `poked` on standard input, which means that all words are written. Other lines
//! are ignored; the end of standard input is an error. The words are entries of page tables whose A and D
//! bits have to be cleared. The emulated CPU caches no entry over the next VMRUN.

use anyhow::{Result, bail};
use std::io::{BufRead, Write};

/// Asks for the words to be written and waits until they are.
pub fn poke(out: &mut impl Write, answers: &mut impl BufRead, words: &[(u64, u64)]) -> Result<()> {
    let line = serde_json::json!({ "poke": words });
    writeln!(out, "{line}")?;
    out.flush()?;
    let mut answer = String::new();
    loop {
        answer.clear();
        if answers.read_line(&mut answer)? == 0 {
            bail!("`poke` was not answered: this needs the laboratory's help");
        }
        if answer.trim() == "poked" {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_and_ends_with_its_answer() {
        let mut out = Vec::new();
        poke(&mut out, &mut &b"noise\npoked\n"[..], &[(0x1000, 7), (8, 0)]).unwrap();
        assert_eq!(out, b"{\"poke\":[[4096,7],[8,0]]}\n");
        assert!(poke(&mut out, &mut &b"noise\n"[..], &[]).is_err());
    }
}
