// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of the model: profile, configurations, interval and seed.

use super::machine::Machine;
use crate::usage::{UsageError, to_blame};
use crate::words;
use bifold_mmu::Format;
use bifold_mmu::format::{X86_64_4_LEVEL, X86_64_5_LEVEL};
use bifold_model::{CacheMode, Config, Cost, Frames, Paging, Profile, ProfileError, VmState};
use clap::{Args, ValueEnum};
use std::cell::OnceCell;
use std::path::Path;

/// The default seed of the host frames' placement.
const DEFAULT_SEED: u64 = 1;

/// The variable of the environment that names the profile.
pub const PROFILE_VARIABLE: &str = "BIFOLD_PROFILE";

/// The hardware profile.
#[derive(Debug, Clone, Default, Args)]
pub struct ProfileArg {
    /// Hardware profile: a built-in name or a TOML file [default: this machine's]
    #[arg(long, value_name = "NAME|FILE", env = PROFILE_VARIABLE, hide_env_values = true,
          long_help = profile_help(), help_heading = "Model")]
    profile: Option<String>,
}

impl ProfileArg {
    /// The profile of this name.
    pub fn of(name: String) -> ProfileArg {
        ProfileArg { profile: Some(name) }
    }

    /// The profile that the user names, if any. An empty variable of the environment names none.
    pub fn name(&self) -> Option<&str> {
        self.profile.as_deref().filter(|name| !name.is_empty())
    }

    /// Whether the option names the profile, and not the environment.
    fn is_option(&self) -> bool {
        self.name().is_some_and(|name| std::env::var_os(PROFILE_VARIABLE).is_none_or(|of_env| of_env != name))
    }

    /// The profile's file; none for a built-in profile, and where none is named.
    pub fn file(&self) -> Option<&Path> {
        let name = self.name()?;
        let builtin = Profile::builtin_names().any(|builtin| builtin == name);
        (!builtin).then(|| Path::new(name))
    }
}

/// Options of the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The profile; this machine's if none is named.
    #[command(flatten)]
    pub named: ProfileArg,

    /// Change one value of the profile (repeatable)
    ///
    /// KEY is the value's dotted name in the profile's TOML, as in `--set cpu.base_cpi=1.0` or
    /// `--set tlb.l2.ways=6`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Configurations to model [default: the first five]
    ///
    /// LIST is separated by commas: native, nested-4k, nested-2m, shadow-4k, shadow-2m. `nested` and `shadow`
    /// stand for both sizes. The size is that of the host's pages. Only if named: nested-1g and shadow-1g;
    /// agile-4k and agile-2m, whose walks begin in shadow tables and go on in nested mode where the guest
    /// writes its tables; direct, in which the guest's tables hold the machine's addresses and are changed by
    /// hypercalls; offset, in which the guest's memory is a contiguous region of the host's, found by base
    /// and limit; and guests within guests, whose hypervisor runs in a virtual machine under nested paging:
    /// shadow-on-nested, nested-on-nested and pvm, each with -4k or -2m, or with -4k-2m or -2m-4k where the
    /// pages below the guest's hypervisor have another size than the guest's.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub configs: Vec<String>,

    /// Length of the timeline's intervals, in seconds of the ideal run [default: 0.01]
    #[arg(short, long, value_name = "SECS", value_parser = words::timeline_interval)]
    pub interval: Option<f64>,

    /// Simulate data caches: sampled (the default), exact or off
    ///
    /// Data and page walks go through the caches of the profile, and percentages relate to an ideal run that
    /// waits for its data, too. `sampled` simulates 9 of the 64 lines of each page and states the error;
    /// `exact` simulates all and takes several times as long. With `off`, and for a profile without
    /// `[[cache]]`, references of walks have fixed costs, and the ideal run never waits.
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true,
        value_name = "sampled|exact|off"
    )]
    pub caches: CachesArg,

    /// Seed for the placement of host frames
    #[arg(long, default_value_t = DEFAULT_SEED)]
    pub seed: u64,

    /// How long the host has run: aged (the default) or fresh
    ///
    /// An aged host's free memory lies in pieces, so 4 KB frames come singly and in blocks of up to 64 KB; a
    /// fresh host's come in blocks of 2 MB. That decides which pages share a set of a data cache. Without
    /// data caches, the option changes nothing. evidence/pages/host-frames.md has what hosts were measured.
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true,
        value_name = "aged|fresh"
    )]
    pub host_frames: HostFrames,

    /// Levels of nested tables: 4 (the default) or 5
    ///
    /// Under AMD-V, KVM gives nested tables the levels of the host's own tables. Under VT-x, they have 5 only
    /// where the guest's physical addresses have more than 48 bits.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(4..=5))]
    pub nested_levels: Option<u8>,

    /// State of the VM when the program begins: long-lived (the default), started, restored or restored-uffd
    ///
    /// `long-lived`: the host has backed all of the guest's memory, and the nested tables map that memory.
    /// Shadow tables still grow with the guest's. `started`: the host has backed nothing, so the first touch
    /// of each host page costs an exit and the host's work, as in the first minutes of a VM, in serverless
    /// and in CI guests. `restored`: the VM resumed from a snapshot's file, from which memory comes at its
    /// first touch; only with 4 KB host pages. `restored-uffd`: a process of the host copies each page of the
    /// snapshot (userfaultfd). The profile needs the costs of such faults (exit.file_frame; exit.uffd_frame
    /// and exit.uffd_huge). docs/guide/vm-states.md says what each state counts.
    #[arg(long, value_parser = words::vm_state, default_value = VmState::default().name(), hide_default_value = true,
          value_name = "STATE")]
    pub vm: VmState,
}

/// How long the host has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[allow(missing_docs)] // documented at `--host-frames`
pub enum HostFrames {
    #[default]
    Aged,
    Fresh,
}

impl From<HostFrames> for Frames {
    fn from(arg: HostFrames) -> Frames {
        match arg {
            HostFrames::Aged => Frames::Aged,
            HostFrames::Fresh => Frames::Fresh,
        }
    }
}

/// Which lines go through data caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[allow(missing_docs)] // documented at `--caches`
pub enum CachesArg {
    #[default]
    Sampled,
    Exact,
    Off,
}

impl From<CachesArg> for CacheMode {
    fn from(arg: CachesArg) -> CacheMode {
        match arg {
            CachesArg::Sampled => CacheMode::Sampled,
            CachesArg::Exact => CacheMode::Exact,
            CachesArg::Off => CacheMode::Off,
        }
    }
}

/// `--help` of `--profile`: the first line of `-h`, and the built-in profiles with their descriptions.
pub fn profile_help() -> String {
    let list: Vec<String> = Profile::builtin_descriptions()
        .map(|(name, description)| format!("`{name}`, {description}"))
        .collect();
    format!(
        "Hardware profile: a built-in name or a TOML file\n\nWithout it, the profile that `bifold profile measure` \
         kept of this machine; else the built-in one of this processor's family and model; else that of its \
         vendor's newest server. KVM's rules are then those of this host's kernel, or else of the newest kernel \
         that was compared.\n\nBuilt in: {}.",
        list.join("; ")
    )
}

impl ModelArgs {
    /// The defaults, with this profile and these changes of its values.
    pub fn of_profile(named: ProfileArg, set: Vec<String>) -> ModelArgs {
        ModelArgs {
            named,
            set,
            configs: Vec::new(),
            interval: None,
            caches: CachesArg::default(),
            seed: DEFAULT_SEED,
            host_frames: HostFrames::default(),
            nested_levels: None,
            vm: VmState::default(),
        }
    }

    /// The profile with its overrides: the one that is named, or this machine's.
    ///
    /// # Errors
    /// A usage error if there is no profile of that name, or if a `--set` is to blame; else what is wrong
    /// with the file.
    pub fn profile(&self) -> anyhow::Result<Profile> {
        let machine = OnceCell::new();
        let this = || machine.get_or_init(Machine::this);
        let made = self.profile_or(|set| this().profile(set));
        // A kept profile that is damaged is no fault of the options.
        made.map_err(|e| match self.named.name() {
            Some(_) => e,
            None => this().check_kept().err().unwrap_or(e),
        })
    }

    /// The profile with its overrides: the one that is named, or `otherwise` with these overrides.
    ///
    /// # Errors
    /// As [`ModelArgs::profile`].
    pub fn profile_or(
        &self,
        otherwise: impl Fn(&[String]) -> Result<Profile, ProfileError>,
    ) -> anyhow::Result<Profile> {
        let load = |set: &[String]| match self.named.name() {
            Some(name) => Profile::load(name, set),
            None => otherwise(set),
        };
        let error = match load(&self.set) {
            Ok(profile) => return Ok(profile),
            Err(error) => error,
        };
        let (argument, problem) = match error {
            ProfileError::Unreadable { name, builtin, source } => {
                let problem = format!("neither a built-in profile ({builtin}) nor a readable file: {source}");
                let option = if self.named.is_option() { "--profile " } else { "BIFOLD_PROFILE=" };
                (format!("{option}{name}"), problem)
            }
            ProfileError::Override { origin, setting, problem } => {
                (format!("--set {setting}"), format!("{problem} (profile {origin})"))
            }
            other if load(&[]).is_ok() => {
                let argument = to_blame(&self.set, |set| load(set).is_ok());
                (argument, format!("{:#}", anyhow::Error::from(other)))
            }
            other => return Err(other.into()),
        };
        Err(UsageError::value(argument, problem.trim_end()).failing().into())
    }

    /// The configurations of `--configs`, for host pages that the VM's state has, and costs that the profile
    /// has.
    ///
    /// # Errors
    /// A usage error that names both sides.
    pub fn configs(&self, profile: &Profile) -> Result<Vec<Config>, UsageError> {
        let vm = format!("--vm {}", self.vm.name());
        let mut configs = configs(&self.configs)?;
        let has = |c: &Config| c.mode == Paging::Native || self.vm.has_pages(c.host_page);
        match configs.iter().find(|c| !has(c)) {
            Some(_) if self.configs.is_empty() => configs.retain(has),
            Some(c) => {
                let problem = format!(
                    "has 4 KB host pages only, as a file is mapped by these, and {} has larger ones: leave {0} out of --configs, or \
                     give --vm restored-uffd",
                    c.name()
                );
                return Err(UsageError::conflict(vm, problem));
            }
            None => {}
        }
        let exit = &profile.exit;
        let needs: &[(&str, &Cost)] = match self.vm {
            VmState::LongLived | VmState::Started => &[],
            VmState::Restored => &[("file_frame", &exit.file_frame)],
            VmState::RestoredUffd => &[("uffd_frame", &exit.uffd_frame), ("uffd_huge", &exit.uffd_huge)],
        };
        match needs.iter().find(|(_, cost)| cost.is_none()) {
            None => Ok(configs),
            Some((key, _)) => {
                let problem = format!(
                    "needs the cost of a snapshot's page, and profile {} has no exit.{key}: give --set exit.{key}.cycles=N \
                     and --set exit.{key}.prior=WHENCE",
                    profile.name
                );
                Err(UsageError::conflict(vm, problem))
            }
        }
    }

    /// The format of nested tables.
    pub fn nested_format(&self) -> &'static Format {
        if self.nested_levels == Some(5) { &X86_64_5_LEVEL } else { &X86_64_4_LEVEL }
    }

    /// The name of the first of these options that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        [
            (self.named.is_option(), "--profile"),
            (!self.set.is_empty(), "--set"),
            (!self.configs.is_empty(), "--configs"),
            (self.interval.is_some(), "--interval"),
            (self.caches != CachesArg::default(), "--caches"),
            (self.seed != DEFAULT_SEED, "--seed"),
            (self.host_frames != HostFrames::default(), "--host-frames"),
            (self.nested_levels.is_some(), "--nested-levels"),
            (self.vm != VmState::default(), "--vm"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

/// The configurations that `--configs` names, singly or by mode; all without names.
pub fn configs(names: &[String]) -> Result<Vec<Config>, UsageError> {
    // Of a mode with configurations that are shown unnamed, its name stands for these.
    let stands = |c: &Config| Config::ALL.contains(c) || Config::ALL.iter().all(|shown| shown.mode != c.mode);
    let of_mode = |c: &Config, name: &str| c.name() == name || c.mode.name() == name && stands(c);
    if let Some(unknown) = names.iter().find(|n| !Config::KNOWN.iter().any(|c| of_mode(c, n))) {
        let all: Vec<String> = Config::KNOWN[1..].iter().map(|c| c.name()).collect();
        let problem = format!(
            "there is no configuration `{unknown}`: use native, nested, shadow, agile, pvm, {}",
            all.join(", ")
        );
        return Err(UsageError::value("--configs", problem));
    }
    if names.is_empty() {
        return Ok(Config::ALL.into());
    }
    Ok(Config::KNOWN.into_iter().filter(|c| names.iter().any(|n| of_mode(c, n))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Result<String, UsageError> {
        let list: Vec<String> = list.iter().map(|s| s.to_string()).collect();
        match configs(&list) {
            Ok(c) => Ok(c.iter().map(|c| c.name()).collect::<Vec<_>>().join(" ")),
            Err(e) => Err(e),
        }
    }

    #[test]
    fn configurations_are_named_singly_or_by_mode_and_keep_their_order() {
        assert_eq!(names(&[]).unwrap().split(' ').count(), Config::ALL.len());
        assert_eq!(names(&["shadow", "native"]).unwrap(), "native shadow-4k shadow-2m");
        assert_eq!(names(&["nested-2m", "nested"]).unwrap(), "nested-4k nested-2m");
        assert_eq!(names(&["direct", "agile", "native"]).unwrap(), "native agile-4k agile-2m direct");
        assert!(names(&["native", "agile-1g"]).unwrap_err().to_string().contains("`agile-1g`"));
        assert_eq!(
            names(&["offset", "shadow-1g", "nested-1g", "shadow-4k"]).unwrap(),
            "nested-1g shadow-4k shadow-1g offset"
        );
    }
}
