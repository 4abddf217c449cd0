// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ChampSim's traces: a record of 64 bytes for each instruction, little-endian, most often packed by xz.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | address of the instruction |
//! | 8, 9 | whether it is a branch, and taken |
//! | 10..12, 12..16 | registers written and read |
//! | 16..32 | addresses written, 0 for none |
//! | 32..64 | addresses read, 0 for none |
//!
//! (`input_instr` in ChampSim's `inc/trace_instruction.h`; the wider records of its CloudSuite traces are
//! refused.) Records have no sizes, so no access reaches a second page. An instruction's loads come before
//! its stores.

use crate::input::Bytes;
use crate::{Fault, Step, fill};
use bifold_trace::Process;

const RECORD: usize = 64;
const REMEDY: &str =
    "ChampSim's traces are records of 64 bytes (`input_instr`), those of CloudSuite excepted";

/// A trace.
pub struct Champsim {
    bytes: Bytes,
    records: u64,
}

impl Champsim {
    pub fn new(bytes: Bytes) -> Champsim {
        Champsim { bytes, records: 0 }
    }

    pub fn place(&self) -> String {
        format!("record {} (byte {})", self.records, (self.records.saturating_sub(1)) * RECORD as u64)
    }

    pub fn step(&mut self, process: &mut Process) -> Result<Step, Fault> {
        let mut record = [0; RECORD];
        match fill(&mut self.bytes, &mut record)? {
            0 => return Ok(Step::End),
            n => {
                self.records += 1;
                if n < RECORD {
                    return Err(Fault::Truncated);
                }
            }
        }
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        if record[8] > 1 || record[9] > 1 {
            return Err(Fault::foreign("a branch that is neither 0 nor 1", REMEDY));
        }
        if word(0) == 0 {
            return Err(Fault::foreign("an instruction at address 0", REMEDY));
        }
        process.instruction(word(0), 1)?;
        for at in (32..64).step_by(8).filter(|at| word(*at) != 0) {
            process.load(word(at), 1)?;
        }
        for at in (16..32).step_by(8).filter(|at| word(*at) != 0) {
            process.store(word(at), 1)?;
        }
        Ok(Step::Access)
    }
}
