// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens to VMs: for the log, and for `explain`.

use bifold_host::VmId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of events that are kept of a VM.
const KEPT: usize = 50;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Seconds since 1970.
    pub time: f64,
    /// KVM's identifier of the VM, if the event is a VM's.
    pub vm: Option<String>,
    /// What happened, in a sentence.
    pub text: String,
}

/// What is to be logged, and when.
#[derive(Default)]
pub struct Log {
    /// Time of the present interval: seconds since 1970, and since the daemon's start.
    pub time: f64,
    pub up: Duration,
    /// What happened since the log was written.
    pub events: Vec<Event>,
}

impl Log {
    /// Notes something about a VM that KVM runs, or about another matter.
    pub fn say(&mut self, vm: Option<VmId>, text: String) {
        self.events.push(Event { time: self.time, vm: vm.map(|id| id.to_string()), text });
    }
}

/// The last events of a VM, oldest first.
#[derive(Debug, Clone, Default)]
pub struct RecentEvents(pub VecDeque<Event>);

impl RecentEvents {
    pub fn add(&mut self, time: f64, text: String) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Event { time, vm: None, text });
    }
}
