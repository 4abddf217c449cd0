// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records KVM's last events in the kernel's trace buffer during a storm, to show what a guest did before it
//! died or hung. Recording stops when a vCPU shuts down, so that earlier events are not overwritten.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::vendor::Vendor;

const INSTANCE: &str = "/sys/kernel/tracing/instances/storm";
/// Buffer per CPU, for some thousand events or about a second.
const KIB: u32 = 512;
const EXITS: &str = "kvm/kvm_exit";
const EVENTS: [&str; 3] = [EXITS, "kvm/kvm_inj_exception", "kvm/kvm_inj_virq"];

/// Records until dropped.
pub(super) struct Recorder(PathBuf);

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("tracing_on"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

impl Recorder {
    pub(super) fn start() -> Result<Recorder> {
        let at = Path::new(INSTANCE);
        fs::create_dir(at).context(INSTANCE)?;
        let recorder = Recorder(at.to_owned());
        recorder.set("buffer_size_kb", &KIB.to_string())?;
        let vendor = Vendor::of_this_machine().context("this CPU's vendor is unknown (vendor.rs)")?;
        let (halt, shutdown) = (vendor.halt, vendor.shutdown);
        recorder
            .set(&format!("events/{EXITS}/trigger"), &format!("traceoff if exit_reason == {shutdown:#x}"))?;
        // An idle guest would fill the buffer with halts.
        recorder.set(&format!("events/{EXITS}/filter"), &format!("exit_reason != {halt:#x}"))?;
        for event in EVENTS {
            recorder.set(&format!("events/{event}/enable"), "1")?;
        }
        Ok(recorder)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| format!("{} = {value}", path.display()))
    }

    /// The last events of all CPUs, in order of time.
    pub(super) fn last(&self, lines: usize) -> Result<Vec<String>> {
        self.set("tracing_on", "0")?;
        let text = fs::read_to_string(self.0.join("trace")).context(INSTANCE)?;
        let all: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        Ok(all[all.len().saturating_sub(lines)..].iter().map(|l| (*l).to_owned()).collect())
    }
}
