// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may write after `bifold mode`.

use crate::policy::args::{ModeArg, ShortFormat};
use clap::Args;

/// Arguments of `mode`.
#[derive(Debug, Args)]
pub struct ModeArgs {
    /// The VM: its process id, its PID-FD, or its name if no other VM has it
    ///
    /// PID-FD is the name of the VM's directory in /sys/kernel/debug/kvm: the thread that made the VM
    /// and its file descriptor there. The name is the one that QEMU got by -name, else that of the
    /// process.
    #[arg(value_name = "VM")]
    pub vm: Option<String>,

    /// The mode to which it is switched
    #[arg(value_enum, value_name = "nested|shadow", hide_possible_values = true)]
    pub mode: Option<ModeArg>,

    /// Form of the data; times have their unit in `table` and are nanoseconds in `json`
    #[arg(long, value_enum, default_value_t = ShortFormat::Table, hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: ShortFormat,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}
