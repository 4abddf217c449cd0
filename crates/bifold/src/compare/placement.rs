// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of placements: where a host of several nodes has the guest's memory and tables.

use crate::usage::UsageError;
use bifold_model::{Placement, PlacementOptions, placement};
use bifold_trace::file::Header;
use clap::Args;

/// Options of placements.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct PlacementArgs {
    /// Count local and remote references for each of these placements on a host of several nodes
    ///
    /// LIST is separated by commas; `all` stands for those that the guest allows. `guest-numa`: each guest
    /// node's memory is bound to a host node of its own. `smp`: the host backs a page on the node of the vCPU
    /// that touches it first. `interleaved`: pages and tables in turn over the nodes. `crossed`: each guest
    /// node's memory is bound to the wrong host node. `one-node`: all memory and tables on the first node.
    /// `remote-guest-tables`, `remote-host-tables`, `remote-tables`: data is local, these page tables are
    /// not. vCPUs are pinned; the hypervisor's tables lie with the vCPU that faulted. Cycles need data caches
    /// and `memory.remote_cycles` of the profile.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub placement: Vec<String>,

    /// NUMA nodes of the host for --placement [default: those of the guest, at least 2]
    #[arg(long, value_name = "N", requires = "placement",
          value_parser = clap::value_parser!(u8).range(2..=i64::from(placement::MOST_NODES)))]
    pub host_nodes: Option<u8>,
}

impl PlacementArgs {
    /// What the model is asked for, of the guest that the header describes; none without `--placement`.
    pub fn options(&self, header: &Header) -> Result<Option<PlacementOptions>, UsageError> {
        if self.placement.is_empty() {
            return Ok(None);
        }
        let guest_nodes = header.guest_nodes.clone();
        let allowed = |p: Placement| !guest_nodes.is_empty() || !p.needs_guest_nodes();
        for name in self.placement.iter().filter(|n| *n != "all") {
            let Some(known) = Placement::from_name(name) else {
                let names = Placement::ALL.map(Placement::name).join(", ");
                let problem = format!("there is no placement `{name}`: use all, {names}");
                return Err(UsageError::value("--placement", problem));
            };
            if !allowed(known) {
                let problem = format!(
                    "`{name}` binds the guest's nodes, and this guest knows none: capture with --guest-nodes 2"
                );
                return Err(UsageError::value("--placement", problem));
            }
        }
        let asked = |p: &Placement| self.placement.iter().any(|n| n == p.name() || n == "all" && allowed(*p));
        Ok(Some(PlacementOptions {
            placements: Placement::ALL.into_iter().filter(asked).collect(),
            host_nodes: self.host_nodes.unwrap_or_else(|| guest_nodes.len().max(2) as u8),
            guest_nodes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_trace::{Frames, GuestNode};

    fn options(list: &[&str], guest_nodes: u64, host_nodes: Option<u8>) -> Result<PlacementOptions, String> {
        let node = |n| GuestNode { frames: vec![Frames { first: 64 * n, count: 64 }], vcpus: vec![n as u32] };
        let header = Header { guest_nodes: (0..guest_nodes).map(node).collect(), ..Header::default() };
        let placement = list.iter().map(|s| s.to_string()).collect();
        let args = PlacementArgs { placement, host_nodes };
        args.options(&header).map(Option::unwrap).map_err(|e| e.to_string())
    }

    #[test]
    fn placements_are_named_and_keep_their_order() {
        let names = |o: PlacementOptions| o.placements.iter().map(|p| p.name()).collect::<Vec<_>>().join(" ");
        assert_eq!(names(options(&["smp", "guest-numa", "smp"], 2, None).unwrap()), "guest-numa smp");
        assert_eq!(options(&["all"], 2, None).unwrap().placements, Placement::ALL);
        assert_eq!(options(&["all"], 0, None).unwrap().placements.len(), Placement::ALL.len() - 2);
        assert_eq!(options(&["all"], 3, None).unwrap().host_nodes, 3);
        assert_eq!(options(&["all"], 0, None).unwrap().host_nodes, 2);
        assert_eq!(options(&["all"], 2, Some(4)).unwrap().host_nodes, 4);
    }

    #[test]
    fn unknown_placements_and_guests_without_nodes_are_refused() {
        assert!(
            options(&["numa"], 2, None).unwrap_err().contains("no placement `numa`: use all, guest-numa")
        );
        let e = options(&["smp", "crossed"], 0, None).unwrap_err();
        assert!(e.contains("`crossed`") && e.contains("--guest-nodes 2"), "{e}");
    }
}
