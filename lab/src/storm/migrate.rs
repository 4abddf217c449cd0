// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that moves to another QEMU of the same machine while it is switched: QEMU reads KVM's dirty
//! logs for as long as that takes, and the mode is no part of what it sends.
//!
//! It goes in nested paging. QEMU 10.0 does not send the error code of an exception that KVM is about to give
//! the guest (`cpu/error_code` is in later versions' `vmstate_x86_cpu`), and under shadow paging nearly each of the
//! guest's page faults is such an exception: a guest that went so met faults with error code 0.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bifold_guest::qmp::Qmp;
use serde_json::json;

use super::Storm;
use super::guest::Guest;

const SOCKET: &str = "unix:/tmp/migration";
/// For so long pages are sent, written again, sent again, and modes change.
const SENT: Duration = Duration::from_secs(5);
/// Its memory once.
const ONCE_SECONDS: u64 = 2;

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
        // A guest that writes does not come to its end so.
        let rate = (storm.memory_mib << 20) / ONCE_SECONDS;
        from.ask("migrate-set-parameters", json!({ "max-bandwidth": rate, "downtime-limit": 1 }))?;
        from.ask("migrate", json!({ "uri": SOCKET }))?;
        Ok(Migration { to, begun: Instant::now(), hurried: false })
    }

    /// Whether it was sent for long enough, and has not been told to end.
    pub(super) fn is_ripe(&self) -> bool {
        !self.hurried && self.begun.elapsed() > SENT
    }

    /// Has it come to its end.
    pub(super) fn hurry(&mut self, from: &mut Qmp) -> Result<()> {
        self.hurried = true;
        from.ask("migrate-set-parameters", json!({ "max-bandwidth": 0, "downtime-limit": 20_000 }))?;
        Ok(())
    }

    /// Whether the guest runs there. An error if it will not.
    pub(super) fn ended(&mut self, from: &mut Qmp) -> Result<bool> {
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
