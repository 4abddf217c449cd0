// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Validates an experiment's values; an error names the field by its dotted name.

use super::{GuestSpec, Spec, StartSpec, WorkloadSpec};
use crate::spec::{Refusal, SMALLEST_MIB, refuse};
use bifold_host::ksm::Settings;
use std::collections::BTreeMap;

/// Most guests of an experiment.
const MOST_GUESTS: u32 = 256;

impl Spec {
    /// Finds the first invalid field.
    pub(super) fn validate(&self) -> Result<(), Refusal> {
        self.validate_times()?;
        refuse(self.guests.is_empty(), "guest", "there must be one")?;
        let mut all = 0u32;
        for (n, g) in self.guests.iter().enumerate() {
            let field = |name: &str| format!("guest[{n}].{name}");
            refuse(self.guests[..n].iter().any(|o| o.name == g.name), field("name"), "another guest has it")?;
            all = all.saturating_add(g.count);
            refuse(g.count == 0 || all > MOST_GUESTS, field("count"), "not from 1 to 256 in all")?;
            g.validate(&field)?;
        }
        settings(&self.ksm).map_err(|(name, why)| (format!("ksm.{name}"), why))?;
        self.start.check("start")?;
        self.validate_cases()?;
        for (n, p) in self.published.iter().enumerate() {
            if let Some(case) = &p.case {
                let wrong = !self.cases.iter().any(|c| c.name == *case);
                refuse(wrong, format!("published[{n}].case"), "there is no such case")?;
            }
        }
        Ok(())
    }

    fn validate_times(&self) -> Result<(), Refusal> {
        let seconds = |field: &str, s: f64| {
            let within = s > 0.0 && s <= 1e6;
            refuse(!within, field, "not a number of seconds above 0")
        };
        seconds("time.length", self.time.length)?;
        seconds("time.sample", self.time.sample)?;
        refuse(self.time.sample > self.time.length, "time.sample", "longer than time.length")?;
        for at in &self.time.potential {
            seconds("time.potential", *at)?;
            refuse(*at > self.time.length, "time.potential", "after time.length")?;
        }
        Ok(())
    }

    fn validate_cases(&self) -> Result<(), Refusal> {
        for (n, c) in self.cases.iter().enumerate() {
            let field = |name: &str| format!("case[{n}].{name}");
            let wrong = c.name.is_empty() || self.cases[..n].iter().any(|o| o.name == c.name);
            refuse(wrong, field("name"), "empty, or another case has it")?;
            settings(&c.ksm).map_err(|(name, why)| (field(&format!("ksm.{name}")), why))?;
            if let Some(start) = &c.start {
                start.check(&field("start"))?;
            }
            let synthetic = |g: &GuestSpec| matches!(g.workload, WorkloadSpec::Synthetic { .. });
            let wrong = c.write_rate.is_some() && !self.guests.iter().any(synthetic);
            refuse(wrong, field("write_rate"), "no guest has a synthetic workload")?;
        }
        Ok(())
    }
}

impl GuestSpec {
    fn validate(&self, field: &dyn Fn(&str) -> String) -> Result<(), Refusal> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let wrong = self.name.is_empty() || !self.name.chars().all(plain);
        refuse(wrong, field("name"), "not letters, digits, `-`, `_` and `.` alone")?;
        let wrong = !(SMALLEST_MIB..=1 << 20).contains(&self.memory_mib);
        refuse(wrong, field("memory_mib"), "not from 96 to 1048576")?;
        let wrong = !self.files.is_empty() && self.packages.is_empty();
        refuse(wrong, field("files"), "files come out of packages: name them in `packages`")?;
        self.workload.validate(self.memory_mib, field)
    }
}

impl WorkloadSpec {
    fn validate(&self, memory_mib: u64, field: &dyn Fn(&str) -> String) -> Result<(), Refusal> {
        match self {
            WorkloadSpec::Synthetic { buffer_mib, sleep, write_rate } => {
                let wrong = *buffer_mib == 0 || *buffer_mib >= memory_mib;
                refuse(wrong, field("workload.buffer_mib"), "not above 0 and below memory_mib")?;
                refuse(!(0.0..=1e6).contains(sleep), field("workload.sleep"), "not a number of seconds")?;
                let wrong = write_rate.value() > 1000.0;
                refuse(wrong, field("workload.write_rate"), "above 1000 writes per page")?;
            }
            WorkloadSpec::Database { clients, iterations, queries_per_client, engine, .. } => {
                let wrong = [clients, iterations, queries_per_client].iter().any(|n| **n == 0);
                refuse(wrong, field("workload"), "clients, iterations and queries_per_client are above 0")?;
                let wrong = engine.is_empty() || !engine.chars().all(|c| c.is_ascii_alphanumeric());
                refuse(wrong, field("workload.engine"), "not an engine's name")?;
            }
            WorkloadSpec::Command { command, sleep } => {
                let wrong = !command.first().is_some_and(|c| c.starts_with('/'));
                refuse(wrong, field("workload.command"), "does not begin with an absolute path")?;
                let wrong = command.iter().any(|c| c == "--" || c.contains('\0'));
                refuse(wrong, field("workload.command"), "has a word `--`, or a NUL byte")?;
                refuse(!(0.0..=1e6).contains(sleep), field("workload.sleep"), "not a number of seconds")?;
            }
            WorkloadSpec::Idle => {}
        }
        Ok(())
    }
}

impl StartSpec {
    fn check(&self, field: &str) -> Result<(), Refusal> {
        let no_share = self.free_below.is_some_and(|f| !(0.0..=1.0).contains(&f));
        refuse(no_share, format!("{field}.free_below"), "not a share from 0 to 1")?;
        let Some(t) = self.tuner else { return Ok(()) };
        refuse(self.free_below.is_none(), format!("{field}.tuner"), "needs free_below to tell pressure")?;
        let well = t.min > 0 && t.min <= t.max && t.max <= 1 << 24 && t.every > 0.0 && t.every <= 1e6;
        let well = well && t.boost <= t.max && t.decay <= t.max;
        refuse(!well, format!("{field}.tuner"), "min, max, boost, decay or every is out of range")
    }
}

/// KSM's settings from TOML: numbers, booleans, or the kernel's words.
pub(super) fn settings(values: &BTreeMap<String, toml::Value>) -> Result<Settings, (String, String)> {
    let mut settings = Settings::default();
    for (name, value) in values {
        let text = match value {
            toml::Value::Integer(n) => n.to_string(),
            toml::Value::Boolean(b) => u8::from(*b).to_string(),
            toml::Value::String(s) => s.clone(),
            _ => return Err((name.clone(), "neither a number nor a word".into())),
        };
        if name == "run" {
            return Err((name.clone(), "is set by the experiment: see `start`".into()));
        }
        settings.put_text(name, &text).map_err(|e| (name.clone(), e.to_string()))?;
    }
    Ok(settings)
}
