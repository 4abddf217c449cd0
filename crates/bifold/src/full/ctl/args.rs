// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `ctl`, and their help.

use crate::full::daemon::STATE;
use crate::{status, words};
use bifold_report::Format;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold ctl status
  bifold ctl explain web
  bifold ctl hold web --for 600
  bifold ctl undo";

/// Ask or command the daemon that is running on this host
///
/// A VM is named by its process id, by KVM's identifier PID-FD, or by its name if no other VM has the name.
/// What `hold`, `release` and `undo` set lasts until the daemon ends; the configuration has what is to last.
/// Needs root, as the daemon does.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct CtlArgs {
    #[command(subcommand)]
    pub ask: Ask,

    /// The daemon's folder
    #[arg(long, value_name = "DIR", default_value = STATE, global = true)]
    pub state: PathBuf,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", global = true)]
    pub format: Format,
}

/// What the daemon is asked.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Show all VMs: mode and memory, policy, what the policy wants, and what the daemon does
    Status,
    /// Show why a VM is in its mode and has its memory: the last decisions, their reasons, and what was done
    Explain {
        /// The VM: process id, PID-FD, or name
        vm: String,
    },
    /// Hold a VM in its mode, with the memory that it has; its policy goes on deciding, and nothing is done
    Hold {
        /// The VM: process id, PID-FD, or name
        vm: String,
        /// Seconds after which the hold ends [default: at `release`]
        #[arg(long = "for", value_name = "SECS", value_parser = words::seconds)]
        seconds: Option<f64>,
    },
    /// Let the policy switch a VM, and take its memory, again
    Release {
        /// The VM: process id, PID-FD, or name
        vm: String,
    },
    /// Give a VM, or all VMs, back to the modes in which the daemon found them, with all their memory, and
    /// hold them so
    Undo {
        /// The VM: process id, PID-FD, or name [default: all]
        vm: Option<String>,
    },
    /// Read the configuration again
    Reload,
}
