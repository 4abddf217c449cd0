// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `mode`, and their help.

use crate::status;
use crate::words;
use bifold_host::Mode;
use bifold_report::Format;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  bifold mode
  bifold mode web
  bifold mode web shadow
  bifold mode 4242-12 nested --format json";

/// Show the paging modes of this host's VMs, or switch one
///
/// Without VM, lists the VMs of this host's KVM: name, process, vCPUs, paging mode (`nested -> shadow` during
/// a switch), the number of switches each way, and why KVM would refuse to switch a VM now. With VM, shows
/// what KVM counts of the VM's switches. With VM and a mode, switches the VM, and prints how long the switch
/// took and what it dropped. The VM keeps running, except for a short pause of its vCPUs.
///
/// Shadow paging takes kernel memory of up to 4.4 % of the guest's, which is charged to the VM's cgroup. A VM
/// whose cgroup leaves less is not switched (`room`). A guest in shadow paging reaches code of KVM that
/// `nested=0` closes to others: switch only guests that you trust. A note names the public holes whose fixes
/// the loaded modules may lack.
///
/// Needs root, KVM and debugfs. Switching needs the KVM modules that `make kernel` builds; an
/// unmodified KVM has one mode for all VMs, and this verb shows it.
#[derive(Debug, Args)]
#[command(
    override_usage = "bifold mode [OPTIONS]\n       \
                      bifold mode [OPTIONS] VM\n       \
                      bifold mode [OPTIONS] VM nested|shadow",
    after_help = EXAMPLES,
    after_long_help = status::below(EXAMPLES)
)]
pub struct ModeArgs {
    /// The VM: its process id, its PID-FD, or its name if the name is unique
    ///
    /// PID-FD is the name of the VM's directory in /sys/kernel/debug/kvm: the thread that created the
    /// VM, and its file descriptor. The name is that of QEMU's -name, or else that of the process.
    #[arg(value_name = "VM")]
    pub vm: Option<String>,

    /// The mode to switch to
    #[arg(value_parser = words::mode(), value_name = "nested|shadow", hide_possible_values = true)]
    pub mode: Option<Mode>,

    /// Output format; times in `json` are nanoseconds
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}
