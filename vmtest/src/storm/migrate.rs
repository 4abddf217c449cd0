// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that moves to another QEMU of the same machine while it is switched: QEMU reads KVM's dirty
//! logs for as long as that takes, and the mode is no part of what it sends.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::Storm;
use super::guest::{Guest, Qmp};

const SOCKET: &str = "unix:/tmp/migration";
/// Its memory is sent in so many seconds, so that meanwhile pages are written again and modes change.
const SECONDS: u64 = 4;
/// A guest that writes faster than that is then sent as fast as can be, or it never arrives.
const PATIENCE: Duration = Duration::from_secs(15);

/// One under way.
pub(super) struct Migration {
    to: Guest,
    begun: Instant,
    hurried: bool,
}

impl Migration {
    /// Starts the other QEMU, and has the guest sent there.
    pub(super) fn begin(storm: &Storm, from: &mut Qmp) -> Result<Migration> {
        let mut to = Guest::awaited(storm)?;
        let monitor = to.qmp.as_mut().context("no monitor")?;
        monitor.ask("migrate-incoming", json!({ "uri": SOCKET }))?;
        let rate = (storm.memory_mib << 20) / SECONDS;
        from.ask("migrate-set-parameters", json!({ "max-bandwidth": rate, "downtime-limit": 300 }))?;
        from.ask("migrate", json!({ "uri": SOCKET }))?;
        Ok(Migration { to, begun: Instant::now(), hurried: false })
    }

    /// Whether the guest runs there. An error if it will not.
    pub(super) fn ended(&mut self, from: &mut Qmp) -> Result<bool> {
        if !self.hurried && self.begun.elapsed() > PATIENCE {
            self.hurried = true;
            from.ask("migrate-set-parameters", json!({ "max-bandwidth": 0, "downtime-limit": 20_000 }))?;
        }
        let state = from.ask("query-migrate", json!({}))?;
        match state["status"].as_str().unwrap_or_default() {
            // This side is done a moment before the other runs.
            "completed" => {
                let monitor = self.to.qmp.as_mut().context("no monitor")?;
                Ok(monitor.ask("query-status", json!({}))?["running"] == true)
            }
            "failed" | "cancelled" => bail!("the migration failed: {state}"),
            _ => Ok(false),
        }
    }

    /// The guest where it is now.
    pub(super) fn arrived(self, before: &mut Guest) -> Guest {
        self.to.after(before)
    }
}
