// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Migrates a guest to another QEMU of the same machine while it is switched. QEMU reads KVM's dirty logs
//! during the migration. The paging mode is not part of the migrated state.
//!
//! The guest leaves in nested paging. QEMU 10.0 does not send the error code of an exception that KVM is
//! about to inject (later versions have `cpu/error_code` in `vmstate_x86_cpu`). Under shadow paging nearly
//! every page fault of the guest is such an exception, and migrated guests got faults with error code 0.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bifold_host::qmp::Qmp;
use serde_json::json;

use super::Storm;
use super::guest::Guest;

const SOCKET: &str = "unix:/tmp/migration";
/// Time in which pages are sent, written and sent again while modes change.
const SENT: Duration = Duration::from_secs(5);
/// Time to send the guest's memory once.
const ONCE_SECONDS: u64 = 2;

/// A migration under way.
pub(super) struct Migration {
    to: Guest,
    begun: Instant,
    hurried: bool,
}

impl Migration {
    /// Starts the other QEMU and begins to send the guest.
    pub(super) fn begin(storm: &Storm, from: &mut Qmp) -> Result<Migration> {
        let mut to = Guest::awaited(storm)?;
        let monitor = to.qmp.as_mut().context("no monitor")?;
        monitor.ask("migrate-incoming", json!({ "uri": SOCKET }))?;
        // At this rate the migration of a guest that writes does not complete.
        let rate = (storm.memory_mib << 20) / ONCE_SECONDS;
        from.ask("migrate-set-parameters", json!({ "max-bandwidth": rate, "downtime-limit": 1 }))?;
        from.ask("migrate", json!({ "uri": SOCKET }))?;
        Ok(Migration { to, begun: Instant::now(), hurried: false })
    }

    /// Whether the migration has lasted long enough and was not asked to complete yet.
    pub(super) fn is_ripe(&self) -> bool {
        !self.hurried && self.begun.elapsed() > SENT
    }

    /// Lets the migration complete.
    pub(super) fn hurry(&mut self, from: &mut Qmp) -> Result<()> {
        self.hurried = true;
        from.ask("migrate-set-parameters", json!({ "max-bandwidth": 0, "downtime-limit": 20_000 }))?;
        Ok(())
    }

    /// Whether the guest runs in the other QEMU. An error if the migration failed.
    pub(super) fn ended(&mut self, from: &mut Qmp) -> Result<bool> {
        let state = from.ask("query-migrate", json!({}))?;
        match state["status"].as_str().unwrap_or_default() {
            // This side completes a moment before the guest runs on the other side.
            "completed" => {
                let monitor = self.to.qmp.as_mut().context("no monitor")?;
                Ok(monitor.ask("query-status", json!({}))?["running"] == true)
            }
            "failed" | "cancelled" => bail!("the migration failed: {state}"),
            _ => Ok(false),
        }
    }

    /// The guest in its new QEMU.
    pub(super) fn arrived(self, before: &mut Guest) -> Guest {
        self.to.after(before)
    }
}
