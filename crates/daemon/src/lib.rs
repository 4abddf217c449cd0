// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lets each VM of a host run in the paging mode that its policy wants.
//!
//! An [`Engine`] reads the host's VMs interval by interval ([`bifold_live::Watch`]). Each VM that a rule of
//! the [`Config`] fits has a pilot: a policy, and limits on how often the VM may be switched. The engine
//! switches a VM only if its rule says so, writes down the VM's own mode before ([`Homes`]), and gives the VM
//! back when the rule goes, when asked, and at its end.
//!
//! The memory of VMs is divided as their modes are chosen: a policy decides, and the engine has orders
//! carried out whose rule says so ([`bifold_live::order`]).
//!
//! [`control`] is the socket by which `bifold ctl` talks to the daemon, [`metrics`] are those for Prometheus,
//! [`replay`] goes over a recording with the pilots of a configuration. A [`Service`] is the engine's loop in
//! a process.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
mod engine;
mod error;
#[cfg(test)]
#[path = "../../live/src/fake_host.rs"]
mod fake_host;
mod homes;
mod log;
mod memory;
pub mod metrics;
mod pilot;
mod probe;
mod record;
pub mod replay;
mod service;
mod status;
mod vm;

pub use config::{Config, ConfigError};
pub use engine::{Engine, Source};
pub use error::DaemonError;
pub use homes::Homes;
pub use log::Event;
pub use memory::Place;
pub use pilot::{Choice, Verdict};
pub use probe::Probing;
pub use record::{DecisionLine, MemoryLine, StartLine};
pub use service::{Service, Signals};
pub use status::{
    Explanation, GuestStatus, GuestTotals, MemoryStatus, SCHEMA as STATUS_SCHEMA, Status, Totals, VmStatus,
};
