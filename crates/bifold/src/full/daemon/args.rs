// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `daemon`, and their help.

use crate::status;
use clap::Args;
use std::path::PathBuf;

/// The configuration that is read unless another is named.
pub const CONFIG: &str = "/etc/bifold/bifold.toml";
/// The daemon's folder unless another is named.
pub const STATE: &str = "/run/bifold";

const EXAMPLES: &str = "\
Examples:
  bifold daemon --check-config /etc/bifold/bifold.toml
  bifold daemon
  bifold daemon --config ./bifold.toml --state /run/bifold-test";

/// Let each VM of this host run in the paging mode that its policy wants, and divide the host's memory
///
/// Reads all VMs once a second, lets the policy of each decide, and says when a policy wants the other mode.
/// Switches only the VMs whose rule in the configuration says `act = true`, and these only as often as its
/// limits allow; a rule for a pattern of names needs `trusted = true` too. A VM that no rule switches any
/// more returns to the mode it had, and so do all at the daemon's end. If the daemon is killed, the VMs stay
/// in their modes, and the next start gives back what is to be given back.
///
/// KVM is not asked for a switch that it would refuse: the log names the reason, and the daemon looks again
/// after 10 s, then less and less often. Nor is KVM asked for shadow paging where a cgroup of the VM leaves
/// too little memory, or soon after a stay there that ended early. The daemon brings a VM back to nested
/// paging before its cgroup's memory runs out.
///
/// With the table `memory` in the configuration, a policy also divides memory among the VMs whose rules have
/// a table `vm.memory`. It takes memory by their balloons where that says `act = true`, as
/// `bifold reclaim set` does, and gives it back at the daemon's end. If the daemon is killed, guardians give
/// it back.
///
/// Runs in the foreground, and logs on stderr: what comes and goes, decisions that differ from the last with
/// their reasons, and switches. SIGHUP reads the configuration again; a configuration that is wrong changes
/// nothing. SIGTERM and Ctrl-C end the daemon. `bifold ctl` asks and commands it. The keys of the
/// configuration: bifold.toml(5).
///
/// Needs root. Memory needs QEMU with a monitor and a balloon. Switching needs the KVM modules that
/// `make kernel` builds; on another KVM the daemon observes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct DaemonArgs {
    /// The configuration [default: /etc/bifold/bifold.toml; if that does not exist, all VMs are only watched]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Say what a configuration means, or what is wrong in it, and end
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "state", "no_pmu"])]
    pub check_config: Option<PathBuf>,

    /// Folder of lock, journal and control socket; it must not survive a reboot
    #[arg(long, value_name = "DIR", default_value = STATE)]
    pub state: PathBuf,

    /// Use no hardware counters
    #[arg(long)]
    pub no_pmu: bool,
}
