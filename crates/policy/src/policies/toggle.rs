// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Toggle: switches at a fixed pace, whatever the program does.
//!
//! Toggle is a stress test rather than a policy. DSP's authors measured the cost of switching with it (Wang
//! et al., VEE 2011, tables 4 and 5). Here it checks the replay's cold starts against tables that are really
//! rebuilt.

use super::pair::{Pair, Rule};
use crate::{Counters, Log, ParameterError, Parameters, Policy, View};
use bifold_mmu::Mode;
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toggle {
    /// Seconds between two switches.
    pub interval_s: f64,
}

impl Parameters for Toggle {
    fn check(&self) -> Result<(), ParameterError> {
        Ok(())
    }

    fn needs(&self) -> Counters {
        Counters::NONE
    }

    fn policy(&self, _start: crate::Mode) -> Box<dyn Policy> {
        Box::new(Pair(*self))
    }
}

impl Rule for Toggle {
    fn decide(&mut self, mode: Mode, _view: &View, log: &mut Log) -> Mode {
        log.say(|| format!("every {} s the other mode.", self.interval_s));
        mode.other()
    }
}
