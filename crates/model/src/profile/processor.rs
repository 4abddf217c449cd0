// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processors a profile stands for, and how a run came to its profile.

use super::keys::Processor;
use super::{BUILTIN, Profile};
use schemars::JsonSchema;
use serde::Serialize;

/// A processor, as CPUID numbers it and `/proc/cpuinfo` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuId {
    /// `GenuineIntel`, `AuthenticAMD`, ...
    pub vendor: String,
    /// The family, extended family added.
    pub family: u32,
    /// The model, extended model added.
    pub model: u32,
    /// The stepping.
    pub stepping: u32,
    /// The model's name, with single blanks between words.
    pub name: String,
    /// Whether a hypervisor says that it is there (leaf 1, ECX bit 31).
    pub guest: bool,
}

impl Processor {
    /// This processor and no other: what a measured profile stands for.
    pub fn exactly(cpu: &CpuId) -> Processor {
        Processor {
            vendor: cpu.vendor.clone(),
            family: cpu.family,
            models: [cpu.model; 2],
            steppings: Some([cpu.stepping; 2]),
            name: Some(cpu.name.clone()),
            guest: Some(cpu.guest),
        }
    }

    /// Whether the processor is among these.
    pub fn serves(&self, cpu: &CpuId) -> bool {
        let within = |[first, last]: [u32; 2], n| (first..=last).contains(&n);
        (&self.vendor, self.family) == (&cpu.vendor, cpu.family)
            && within(self.models, cpu.model)
            && self.steppings.is_none_or(|s| within(s, cpu.stepping))
            && self.name.as_ref().is_none_or(|name| *name == cpu.name)
            && self.guest.is_none_or(|guest| guest == cpu.guest)
    }

    /// What is wrong: the key and the problem.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let empty = |[first, last]: [u32; 2]| first > last;
        match () {
            () if self.vendor.is_empty() => Some(("vendor", "is empty: use CPUID's, as `GenuineIntel`")),
            () if empty(self.models) => Some(("models", "must be the first and the last model")),
            () if self.steppings.is_some_and(empty) => {
                Some(("steppings", "must be the first and the last stepping"))
            }
            () => None,
        }
    }
}

/// The built-in profile of each vendor's newest server.
const NEWEST: [(&str, &str); 3] =
    [("GenuineIntel", "granite-rapids"), ("AuthenticAMD", "zen5"), ("HygonGenuine", "zen5")];

impl Profile {
    /// The built-in profile that stands for this processor.
    pub fn builtin_of(cpu: &CpuId) -> Option<&'static str> {
        BUILTIN.iter().map(|(name, _)| *name).find(|name| {
            let profile = Profile::load(name, &[]).expect("built-in profiles load");
            profile.processor.iter().any(|p| p.serves(cpu))
        })
    }

    /// The built-in profile of a vendor's newest server.
    pub fn newest_of(vendor: &str) -> Option<&'static str> {
        NEWEST.iter().find(|(of, _)| *of == vendor).map(|(_, name)| *name)
    }
}

/// How a run came to its profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChosenBy {
    /// The user named it.
    #[default]
    Name,
    /// The baseline has it, or the result beside which a recording is modelled.
    Baseline,
    /// The file of `tune --state` has it.
    State,
    /// It was measured on this machine, and kept.
    Measured,
    /// It stands for this processor's family and model.
    Processor,
    /// No built-in profile stands for this processor: it is that of the vendor's newest server.
    Vendor,
    /// The processor or its vendor is unknown.
    Unknown,
}

/// Whose rules of KVM a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KvmBy {
    /// The profile or the user says so.
    #[default]
    Profile,
    /// This host's kernel is of the series.
    Host,
    /// The newest series that was compared with real KVM, as this host's kernel is of none that was.
    Newest,
}

/// How a run came to its profile and its rules of KVM. No part of a profile's file or hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Chosen {
    /// The user named the profile; or the baseline or the file of `tune --state` has it; or it was measured
    /// on this machine and kept; or it is built in for this processor's family and model; or it is that of
    /// the vendor's newest server; or the processor is unknown.
    pub by: ChosenBy,
    /// Whose rules of KVM these are: those that the profile or --set names, those of this host's kernel
    /// series, or those of the newest series that was compared with real KVM.
    pub kvm_by: KvmBy,
}

/// How well a profile knows the machine that it was chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Quality {
    /// Values were measured on the machine that the profile is of.
    Measured,
    /// Values are of the processor's kind.
    BuiltIn,
    /// The profile is another processor's.
    Guessed,
    /// The profile is from a user's file and not measured.
    File,
}

impl Profile {
    /// How good the profile is, for the machine that it was chosen for.
    pub fn quality(&self) -> Quality {
        let source = || self.memory.as_ref().and_then(|m| m.source.as_deref());
        match self.chosen.by {
            ChosenBy::Vendor | ChosenBy::Unknown => Quality::Guessed,
            ChosenBy::Measured => Quality::Measured,
            _ if Profile::builtin_text(&self.name).is_some() => Quality::BuiltIn,
            // As `bifold profile measure` begins the source.
            _ if source().is_some_and(|s| s.starts_with("measured ")) => Quality::Measured,
            _ => Quality::File,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(vendor: &str, family: u32, model: u32, stepping: u32) -> CpuId {
        CpuId { vendor: vendor.into(), family, model, stepping, name: "a name".into(), guest: true }
    }

    #[test]
    fn servers_that_people_rent_have_profiles_of_their_own() {
        // Linux 6.12: arch/x86/include/asm/intel-family.h, arch/x86/kernel/cpu/amd.c.
        for (vendor, family, model, stepping, expected) in [
            ("GenuineIntel", 6, 0x55, 4, Some("skylake-sp")),
            ("GenuineIntel", 6, 0x55, 7, Some("xeon-8269cy")),
            ("GenuineIntel", 6, 0x6a, 6, Some("ice-lake-sp")),
            ("GenuineIntel", 6, 0x8f, 8, Some("sapphire-rapids")),
            ("GenuineIntel", 6, 0xcf, 2, Some("emerald-rapids")),
            ("GenuineIntel", 6, 0xad, 1, Some("granite-rapids")),
            ("GenuineIntel", 6, 0x9e, 9, Some("i5-7600")),
            ("AuthenticAMD", 0x19, 0x01, 1, Some("zen3")),
            ("AuthenticAMD", 0x19, 0x11, 1, Some("zen4")),
            ("AuthenticAMD", 0x19, 0xa0, 2, Some("zen4")),
            ("AuthenticAMD", 0x1a, 0x02, 1, Some("zen5")),
            ("AuthenticAMD", 0x1a, 0x11, 0, Some("zen5")),
            ("AuthenticAMD", 0x17, 0x31, 0, None),
            ("GenuineIntel", 6, 0x8c, 1, None),
            ("AuthenticAMD", 6, 0x8f, 8, None),
        ] {
            assert_eq!(
                Profile::builtin_of(&cpu(vendor, family, model, stepping)),
                expected,
                "{vendor} {family:#x} {model:#x} {stepping}"
            );
        }
    }

    #[test]
    fn no_processor_has_two_built_in_profiles_and_every_vendor_has_a_newest_one() {
        let all: Vec<Profile> = Profile::builtin_names().map(|n| Profile::load(n, &[]).unwrap()).collect();
        for vendor in ["GenuineIntel", "AuthenticAMD"] {
            for (family, model) in [6, 0x19, 0x1a].into_iter().flat_map(|f| (0..256).map(move |m| (f, m))) {
                for stepping in 0..16 {
                    let cpu = cpu(vendor, family, model, stepping);
                    let serve = all.iter().filter(|p| p.processor.iter().any(|own| own.serves(&cpu)));
                    assert!(serve.count() <= 1, "{cpu:?}");
                }
            }
        }
        for (vendor, name) in NEWEST {
            assert!(Profile::builtin_text(name).is_some(), "{vendor}");
        }
    }

    #[test]
    fn a_measured_profile_stands_for_its_own_processor_alone() {
        let own = cpu("GenuineIntel", 6, 0xcf, 2);
        let exactly = Processor::exactly(&own);
        assert!(exactly.serves(&own));
        for other in [
            CpuId { vendor: "AuthenticAMD".into(), ..own.clone() },
            CpuId { family: 7, ..own.clone() },
            CpuId { model: 0xce, ..own.clone() },
            CpuId { stepping: 1, ..own.clone() },
            CpuId { name: "another".into(), ..own.clone() },
            CpuId { guest: false, ..own.clone() },
        ] {
            assert!(!exactly.serves(&other), "{other:?}");
        }
    }

    #[test]
    fn ranges_that_hold_nothing_are_refused_by_name() {
        let text =
            include_str!("../../../../profiles/geometry-g.toml").replacen("\"geometry-g\"", "\"mine\"", 1);
        for (lines, says) in [
            ("family = 6\nmodels = [2, 1]", "processor.models must be the first and the last model"),
            ("family = 6\nmodels = [1, 1]\nsteppings = [3, 2]", "processor.steppings must be"),
            ("models = [1, 1]", "missing field `family`"),
            ("family = 6\nmodels = [1, 1]\ncores = 2", "unknown field `cores`"),
        ] {
            let text = format!("{text}\n[[processor]]\nvendor = \"GenuineIntel\"\n{lines}\n");
            let e = Profile::parse(&text, "x", &[]).unwrap_err();
            let source = std::error::Error::source(&e).map(|s| s.to_string()).unwrap_or_default();
            assert!(format!("{e} {source}").contains(says), "{lines}: {e} {source}");
        }
    }

    #[test]
    fn a_guess_is_no_built_in_of_the_machine() {
        let mut p = Profile::load("zen4", &[]).unwrap();
        assert_eq!(p.quality(), Quality::BuiltIn);
        p.chosen.by = ChosenBy::Vendor;
        assert_eq!(p.quality(), Quality::Guessed);
        let (hash, text) = (p.hash(), p.to_toml());
        assert!(!text.contains("chosen"));
        p.chosen.by = ChosenBy::Name;
        p.name = "mine".into();
        assert_eq!(p.quality(), Quality::File);
        p.name = "zen4".into();
        p.processor.clear();
        assert_eq!(p.hash(), hash, "no figure depends on whose profile it is");
    }
}
