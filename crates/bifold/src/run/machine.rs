// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile of a run for which the user names none: the one measured on this machine, else the built-in
//! one of this processor's family and model, else that of its vendor's newest server. KVM's rules are those
//! of this host's kernel.

use anyhow::{Context as _, bail};
use bifold_base::whole;
use bifold_model::{Chosen, ChosenBy, CpuId, KvmBy, KvmVersion, Profile, ProfileError, Unmeasured};
use std::path::{Path, PathBuf};

/// Most bytes of `/proc/cpuinfo` that are read: the first processor's lines are enough.
const MOST: u64 = 16 << 10;
/// The profile where the processor or its vendor is unknown.
const FALLBACK: &str = "granite-rapids";

/// What the choice of a profile depends on.
#[derive(Debug, Default)]
pub struct Machine {
    /// The processor; none if `/proc/cpuinfo` names none.
    pub cpu: Option<CpuId>,
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The folder of measured profiles; none if the environment names none.
    pub kept: Option<PathBuf>,
}

impl Machine {
    /// This machine.
    pub fn this() -> Machine {
        let host = bifold_host::Host::live();
        let text = bifold_host::read_up_to(&host.proc.join("cpuinfo"), MOST).unwrap_or_default();
        Machine {
            cpu: cpu(&String::from_utf8_lossy(&text)),
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            kept: folder(|name| std::env::var_os(name).map(PathBuf::from)),
        }
    }

    /// The profile of this machine, with these overrides.
    ///
    /// # Errors
    /// If an override cannot be, or the measured profile cannot be used.
    pub fn profile(&self, set: &[String]) -> Result<Profile, ProfileError> {
        let kept = self.cpu.as_ref().and_then(|cpu| Some((self.kept_file(cpu)?, cpu)));
        let mut measured = None;
        if let Some((file, cpu)) = kept.filter(|(file, _)| file.exists()) {
            let profile = Profile::load(&file.to_string_lossy(), set)?;
            // A file that was copied or edited may be of another machine.
            measured = is_of(&profile, cpu).then_some(profile);
        }
        let (by, mut profile) = match (measured, &self.cpu) {
            (Some(profile), _) => (ChosenBy::Measured, profile),
            (None, Some(cpu)) => match (Profile::builtin_of(cpu), Profile::newest_of(&cpu.vendor)) {
                (Some(name), _) => (ChosenBy::Processor, Profile::load(name, set)?),
                (None, Some(name)) => (ChosenBy::Vendor, Profile::load(name, set)?),
                (None, None) => (ChosenBy::Unknown, Profile::load(FALLBACK, set)?),
            },
            (None, None) => (ChosenBy::Unknown, Profile::load(FALLBACK, set)?),
        };
        let kvm_by = if sets_kvm(set) {
            KvmBy::Profile
        } else {
            let of_host = KvmVersion::of_release(&self.release);
            profile.kvm = of_host.unwrap_or(KvmVersion::NEWEST);
            of_host.map_or(KvmBy::Newest, |_| KvmBy::Host)
        };
        profile.chosen = Chosen { by, kvm_by };
        Ok(profile)
    }

    /// Checks that the profile that was measured on this machine can be read, if one is kept.
    ///
    /// # Errors
    /// If it cannot: what is wrong, with the file and the remedy.
    pub fn check_kept(&self) -> anyhow::Result<()> {
        let kept = self.cpu.as_ref().and_then(|cpu| self.kept_file(cpu));
        let Some(file) = kept.filter(|file| file.exists()) else { return Ok(()) };
        let problem = "the profile that `bifold profile measure` keeps of this machine, cannot be used: \
                       remove it, and measure again";
        let read = Profile::load(&file.to_string_lossy(), &[]);
        read.map(drop).with_context(|| format!("{}, {problem}", file.display()))
    }

    /// Keeps a measured profile for later runs on this machine, and returns its file.
    ///
    /// # Errors
    /// If the environment names no folder, the profile is not of this machine, a kept one has more measured
    /// values, or the file cannot be written.
    pub fn keep(&self, text: &str) -> anyhow::Result<PathBuf> {
        let cpu = self.cpu.as_ref().context("/proc/cpuinfo names no processor")?;
        let file = self.kept_file(cpu).context("neither XDG_CONFIG_HOME nor HOME is set")?;
        let new = Profile::parse(text, "measured", &[])?;
        if !is_of(&new, cpu) {
            bail!("CPUID and /proc/cpuinfo name different processors");
        }
        let missing = |p: &Profile| p.unmeasured(Unmeasured::NotReached).len();
        if Profile::load(&file.to_string_lossy(), &[]).is_ok_and(|old| missing(&old) < missing(&new)) {
            bail!(
                "{} stays, as it has values that this measurement did not reach: measure again with a longer \
                 --limit",
                file.display()
            );
        }
        let write = || {
            std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
            whole::write(&file, &[text.as_bytes()])
        };
        write().with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// The file of the profile that was measured on a processor. Several machines may share a home folder.
    fn kept_file(&self, cpu: &CpuId) -> Option<PathBuf> {
        let guest = if cpu.guest { "guest" } else { "host" };
        let CpuId { vendor, family, model, stepping, name, .. } = cpu;
        let words = format!("{vendor} {family:#x} {model:#x} {stepping} {guest} {name}");
        let plain =
            words.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        Some(self.kept.as_ref()?.join(plain.collect::<String>() + ".toml"))
    }
}

/// Whether a profile is measured on this very processor.
fn is_of(profile: &Profile, cpu: &CpuId) -> bool {
    profile.processor.iter().any(|p| p.name.is_some() && p.guest.is_some() && p.serves(cpu))
}

/// Whether the overrides name KVM's rules.
pub fn sets_kvm(set: &[String]) -> bool {
    set.iter().any(|s| s.split('=').next().is_some_and(|key| key.trim() == "kvm"))
}

/// The folder of measured profiles: `$XDG_CONFIG_HOME/bifold/measured`, or `~/.config/bifold/measured`.
fn folder(env: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name| env(name).filter(|v| !v.as_os_str().is_empty());
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("bifold/measured"))
}

/// The first processor in the text of `/proc/cpuinfo`.
fn cpu(cpuinfo: &str) -> Option<CpuId> {
    let first = cpuinfo.lines().take_while(|line| !line.trim().is_empty());
    let lines: Vec<(&str, &str)> =
        first.filter_map(|line| line.split_once(':')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let field = |name: &str| lines.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    let number = |name| field(name).and_then(|v| v.parse().ok());
    Some(CpuId {
        vendor: field("vendor_id")?.into(),
        family: number("cpu family")?,
        model: number("model")?,
        stepping: number("stepping")?,
        name: field("model name").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
        guest: field("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_model::{Processor, Quality};

    const EMERALD: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n\
        model name\t: INTEL(R)  XEON(R) PLATINUM 8581C\nstepping\t: 2\nflags\t\t: fpu vme hypervisor lahf_lm\n\
        \nprocessor\t: 1\nvendor_id\t: AuthenticAMD\n";

    fn machine(cpuinfo: &str, release: &str) -> Machine {
        Machine { cpu: cpu(cpuinfo), release: release.into(), kept: None }
    }

    fn chosen(m: &Machine) -> (String, ChosenBy, Quality) {
        let p = m.profile(&[]).unwrap();
        (p.name.clone(), p.chosen.by, p.quality())
    }

    #[test]
    fn the_first_processor_is_read_with_name_and_guest() {
        let read = cpu(EMERALD).unwrap();
        assert_eq!((&read.vendor[..], read.family, read.model, read.stepping), ("GenuineIntel", 6, 207, 2));
        assert_eq!((&read.name[..], read.guest), ("INTEL(R) XEON(R) PLATINUM 8581C", true));
        assert!(!cpu(&EMERALD.replace(" hypervisor", "")).unwrap().guest);
        for text in ["", "processor\t: 0\ncpu\t\t: POWER9", "vendor_id\t: GenuineIntel\ncpu family\t: six\n"]
        {
            assert_eq!(cpu(text), None, "{text}");
        }
    }

    #[test]
    fn without_a_measured_profile_family_then_vendor_then_the_fallback_decide() {
        use ChosenBy::{Processor, Unknown, Vendor};
        use Quality::{BuiltIn, Guessed};
        let of = |text: &str| chosen(&machine(text, "6.1.0"));
        assert_eq!(of(EMERALD), ("emerald-rapids".into(), Processor, BuiltIn));
        let later = EMERALD.replace("model\t\t: 207", "model\t\t: 250");
        assert_eq!(of(&later), ("granite-rapids".into(), Vendor, Guessed));
        let amd = EMERALD.replace("GenuineIntel", "AuthenticAMD").replace("family\t: 6", "family\t: 26");
        assert_eq!(of(&amd), ("zen5".into(), Vendor, Guessed));
        assert_eq!(of(&amd.replace("\t: 207", "\t: 2")), ("zen5".into(), Processor, BuiltIn));
        assert_eq!(of(&EMERALD.replace("GenuineIntel", "CentaurHauls")), (FALLBACK.into(), Unknown, Guessed));
        assert_eq!(of(""), (FALLBACK.into(), Unknown, Guessed));
    }

    #[test]
    fn kvm_s_rules_are_the_kernel_s_unless_the_user_names_them() {
        let kvm = |release: &str, set: &[&str]| {
            let set: Vec<String> = set.iter().map(|s| (*s).into()).collect();
            let p = machine(EMERALD, release).profile(&set).unwrap();
            (p.kvm.name(), p.chosen.kvm_by)
        };
        assert_eq!(kvm("6.1.0-40-amd64", &[]), ("linux-6.1", KvmBy::Host));
        assert_eq!(kvm("6.12.8+", &["cpu.base_cpi=1.0"]), ("linux-6.12", KvmBy::Host));
        assert_eq!(kvm("6.18.1", &[]), ("linux-6.12", KvmBy::Newest));
        assert_eq!(kvm("", &[]), ("linux-6.12", KvmBy::Newest));
        assert_eq!(kvm("6.12.8", &["kvm=linux-6.1"]), ("linux-6.1", KvmBy::Profile));
    }

    /// A measured profile of a machine, as `profile measure` writes it.
    fn measured(cpu: &CpuId) -> String {
        let mut p = Profile::load("sapphire-rapids", &["memory.cycles=400".into()]).unwrap();
        p.name = "measured".into();
        p.cpu.source = Some("frequency measured 2026-11-28: 2.10 GHz".into());
        p.processor = vec![Processor::exactly(cpu)];
        p.to_toml()
    }

    #[test]
    fn a_measured_profile_is_used_on_its_own_machine_alone() {
        let home = tempfile::tempdir().unwrap();
        let at = |cpuinfo: &str| Machine { kept: Some(home.path().join("m")), ..machine(cpuinfo, "6.1") };
        let own = at(EMERALD);
        let text = measured(own.cpu.as_ref().unwrap());
        let file = own.keep(&text).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        assert_eq!(chosen(&own), ("measured".into(), ChosenBy::Measured, Quality::Measured));
        // One that --limit ended does not replace a whole one.
        let mut part = Profile::parse(&text, "measured", &[]).unwrap();
        part.memory.as_mut().unwrap().prior = Some("cycles: not reached: as sapphire-rapids's".into());
        assert!(own.keep(&part.to_toml()).unwrap_err().to_string().contains("did not reach"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        own.keep(&text).unwrap();
        let p = own.profile(&["memory.cycles=500".into()]).unwrap();
        assert_eq!((p.memory.unwrap().cycles, p.kvm.name()), (500, "linux-6.1"));
        for other in [
            EMERALD.replace(" hypervisor", ""),
            EMERALD.replace("8581C", "8592+"),
            EMERALD.replace("stepping\t: 2", "stepping\t: 1"),
        ] {
            assert_eq!(chosen(&at(&other)).0, "emerald-rapids", "{other}");
            // A home folder that was copied has a file of another machine's name at most.
            let there = at(&other);
            std::fs::copy(&file, there.kept_file(there.cpu.as_ref().unwrap()).unwrap()).unwrap();
            assert_eq!(chosen(&there).0, "emerald-rapids", "{other}");
            assert!(there.keep(&text).unwrap_err().to_string().contains("different processors"));
        }
    }

    #[test]
    fn a_measured_profile_that_cannot_be_used_is_named() {
        let home = tempfile::tempdir().unwrap();
        let m = Machine { kept: Some(home.path().into()), ..machine(EMERALD, "6.1") };
        let file = m.kept_file(m.cpu.as_ref().unwrap()).unwrap();
        std::fs::write(&file, "name = 3").unwrap();
        let e = m.profile(&[]).unwrap_err().to_string();
        assert!(e.contains(&*file.to_string_lossy()), "{e}");
        let kept = m.check_kept().unwrap_err().to_string();
        assert!(kept.contains("profile measure` keeps") && kept.contains(&*file.to_string_lossy()), "{kept}");
        std::fs::remove_file(&file).unwrap();
        m.check_kept().unwrap();
        let nowhere = machine(EMERALD, "6.1").keep("x").unwrap_err().to_string();
        assert_eq!(nowhere, "neither XDG_CONFIG_HOME nor HOME is set");
    }

    #[test]
    fn measured_profiles_lie_in_the_folder_for_configuration() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            folder(|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from))
        };
        assert_eq!(of(Some("/c"), Some("/h")), Some("/c/bifold/measured".into()));
        assert_eq!(of(Some(""), Some("/h")), Some("/h/.config/bifold/measured".into()));
        assert_eq!(of(None, None), None);
    }
}
