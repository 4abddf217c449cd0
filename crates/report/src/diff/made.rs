// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a result was made: program, guest, hardware profile and versions, as words to be compared.

use crate::{Comparison, Guest};
use bifold_model::VmState;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// The property that differs with each commit. Most commits change no count.
pub(crate) const REVISION: &str = "revision";

/// How a result was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "made")]
pub struct Made {
    /// The command or the generator.
    pub program: String,
    /// Version of Bifold, with its revision.
    pub bifold: String,
    /// Name of the hardware profile.
    pub profile: String,
    /// Changes of the profile, `KEY=VALUE` each.
    pub overrides: Vec<String>,
    /// The host's KVM that is modelled; null if the result has none.
    pub kvm: Option<String>,
    /// XXH3-64 of the profile as resolved, overrides included.
    pub config_hash: String,
    /// Core frequency. Unit: Hz.
    pub frequency_hz: u64,
    /// Cycles per instruction assumed for the ideal run.
    pub base_cpi: f64,
    /// Seed of the host frames' placement.
    pub seed: u64,
    /// Nominal length of an interval in ideal cycles.
    pub interval_cycles: u64,
    /// XXH3-64 of the events of the first run.
    pub input_hash: String,
    /// State of the VM when the program began.
    pub vm: VmState,
    /// Whether the guest's own start is left out of the counts.
    pub without_start: bool,
    /// The guest; null for a generator.
    pub guest: Option<Guest>,
}

/// A property that differs between the sides, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Difference {
    /// The property.
    pub what: &'static str,
    /// Value of A.
    pub a: String,
    /// Value of B.
    pub b: String,
}

impl Made {
    pub(super) fn of(c: &Comparison) -> Made {
        let o = &c.outcome;
        Made {
            program: program(&c.meta.input, c.meta.guest.as_ref()),
            bifold: c.meta.bifold.clone(),
            profile: o.profile.clone(),
            overrides: c.meta.hardware.overrides.clone(),
            kvm: Some(c.meta.hardware.kvm.name().into()),
            config_hash: o.config_hash.clone(),
            frequency_hz: o.frequency_hz,
            base_cpi: o.base_cpi,
            seed: o.seed,
            interval_cycles: o.interval_cycles,
            input_hash: o.input_hash.clone(),
            vm: o.vm,
            without_start: o.start.is_some(),
            guest: c.meta.guest.clone(),
        }
    }

    /// The profile with its changes and the modelled KVM, as [`crate::profile_words`] has them.
    pub fn profile_words(&self) -> String {
        crate::meta::named_profile(&self.profile, &self.overrides, self.kvm.clone())
    }

    /// Properties and values, in the order of the output.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let (version, revision) = bifold_base::version::parts(&self.bifold);
        let mut out = vec![
            ("program", self.program.clone()),
            ("profile", self.profile.clone()),
            (
                "profile changes",
                if self.overrides.is_empty() { "nothing".into() } else { self.overrides.join(", ") },
            ),
            ("KVM", self.kvm.clone().unwrap_or_else(|| "not known".into())),
            ("profile hash", self.config_hash.clone()),
            ("clock", format!("{} GHz", self.frequency_hz as f64 / 1e9)),
            ("assumed CPI", self.base_cpi.to_string()),
            ("seed", self.seed.to_string()),
            ("interval", format!("{} cycles", self.interval_cycles)),
            ("VM", self.vm.name().to_string()),
            ("Bifold", version.into()),
            (REVISION, if revision.is_empty() { "not known".into() } else { revision.into() }),
        ];
        let unknown = || "not known".to_string();
        let g = self.guest.as_ref();
        let mut add = |what, value: Option<String>| out.push((what, value.unwrap_or_else(unknown)));
        add("kernel", g.and_then(|g| g.kernel.clone()));
        add("QEMU", g.and_then(|g| g.qemu.clone()));
        add("timing", g.and_then(|g| g.timing.clone()));
        add("vCPUs", g.map(|g| g.vcpus.to_string()));
        add("memory", g.and_then(|g| Some(format!("{} MiB", g.memory_mib?))));
        add("tables", g.map(|g| g.tables.name().to_string()));
        add("KPTI", g.and_then(|g| Some(if g.kpti? { "on" } else { "off" }.to_string())));
        add("THP", g.and_then(|g| g.thp.clone()));
        out.push(("hugetlbfs", format!("{} MiB", g.and_then(|g| g.hugetlb_mib).unwrap_or(0))));
        let mut add = |what, value: Option<String>| out.push((what, value.unwrap_or_else(unknown)));
        add("root", g.and_then(|g| g.root.clone()));
        out.push(("guest's start", if self.without_start { "left out" } else { "counted" }.into()));
        out.push(("region", g.and_then(|g| g.region.clone()).unwrap_or_else(|| "the whole program".into())));
        out
    }
}

/// The command or the generator, also if its events come from a recording.
pub(crate) fn program(input: &crate::Input, guest: Option<&Guest>) -> String {
    let generator = match input {
        crate::Input::Generator { name } => Some(name),
        crate::Input::Recording { generator, .. } => generator.as_ref(),
        crate::Input::Guest => None,
    };
    match (guest, generator, input) {
        (Some(g), ..) => crate::shell_words(&g.command),
        (None, Some(name), _) => format!("generator {name}"),
        (None, None, crate::Input::Recording { imported: Some(tool), program: Some(program), .. }) => {
            format!("{tool} trace of {program}")
        }
        // Older recordings do not say of which program they are: the recording's name has to.
        (None, None, crate::Input::Recording { path, imported: Some(tool), .. }) => {
            let name = Path::new(path).file_name().unwrap_or(path.as_ref());
            format!("{tool} trace in {}", name.to_string_lossy())
        }
        (None, None, _) => "a guest".into(),
    }
}

/// Properties that differ.
pub(crate) fn differences(a: &Made, b: &Made) -> Vec<Difference> {
    let both = a.facts().into_iter().zip(b.facts());
    both.filter(|((_, x), (_, y))| x != y).map(|((what, a), (_, b))| Difference { what, a, b }).collect()
}

/// Reasons why figures are not comparable.
pub(super) fn warnings(a: &Made, b: &Made) -> Vec<String> {
    let mut out = Vec::new();
    if a.profile != b.profile {
        out.push(format!(
            "not comparable: A is modelled on profile {}, B on {}; run both on one profile",
            a.profile, b.profile
        ));
    } else if a.config_hash != b.config_hash {
        out.push(format!(
            "not comparable: profile {} has other values in A than in B (see --set); run both with the same \
             values",
            a.profile
        ));
    }
    if a.vm != b.vm {
        out.push(format!(
            "the VM of A is {}, that of B {}: first touches may be in one side's time alone; run both with \
             one --vm",
            a.vm.name(),
            b.vm.name()
        ));
    }
    if a.frequency_hz != b.frequency_hz || a.base_cpi != b.base_cpi {
        out.push(
            "times and percentages are not comparable, because clock or CPI differ; extra cycles per 1000 instructions are"
                .into(),
        );
    }
    if a.seed != b.seed {
        out.push(
            "the seeds of the host frames' placement differ: small differences may come from the placement"
                .into(),
        );
    }
    if a.interval_cycles != b.interval_cycles {
        out.push("the interval lengths differ: cold exits and cold cycles are not comparable".into());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_of_two_programs_have_two_names() {
        let of = |path: &str| {
            let (path, imported) = (path.to_owned(), Some("lackey".to_owned()));
            let input = |name| crate::Input::Recording {
                path: path.clone(),
                generator: None,
                imported: imported.clone(),
                program: name,
            };
            assert_eq!(program(&input(Some("ls -l".into())), None), "lackey trace of ls -l");
            program(&input(None), None)
        };
        assert_eq!(of("traces/ls.bifold"), "lackey trace in ls.bifold");
        assert_ne!(of("ls.bifold"), of("sort.bifold"));
    }
}
