// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Always: one mode for the whole run, as an unmodified KVM fixes it when its module is loaded.

use crate::{Counters, Log, Mode, ParameterError, Parameters, Policy, View};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Always {
    /// The mode. A VM that starts in another mode is switched after its first interval.
    pub mode: Mode,
}

impl Parameters for Always {
    fn check(&self) -> Result<(), ParameterError> {
        match self.mode {
            Mode::Native => Err(ParameterError::Native),
            _ => Ok(()),
        }
    }

    fn needs(&self) -> Counters {
        Counters::NONE
    }

    fn policy(&self, _start: Mode) -> Box<dyn Policy> {
        Box::new(*self)
    }
}

impl Policy for Always {
    fn decide(&mut self, _view: &View, log: &mut Log) -> Mode {
        log.say(|| format!("always {}.", self.mode.name()));
        self.mode
    }
}
