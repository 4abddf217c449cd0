// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's configuration: which VMs have which policy, whether the daemon may switch them, and how
//! often.
//!
//! ```
//! use bifold_daemon::Config;
//!
//! let config = Config::parse(
//!     r#"
//!     never = ["db-*"]
//!     [[vm]]
//!     name = "web-*"
//!     policy = "dsp"
//!     parameters = { interval_s = 2.0 }
//!     act = true
//!     trusted = true
//!     "#,
//!     "bifold.toml".as_ref(),
//! )?;
//! let id = bifold_host::VmId { thread: 4242, fd: 13 };
//! assert_eq!(config.rule(id, Some("web-1")).unwrap().policy(), Some("dsp"));
//! assert!(config.rule(id, Some("db-1")).is_none());
//! # Ok::<(), bifold_daemon::ConfigError>(())
//! ```

mod check;
mod error;
mod file;
mod memory;

pub use error::ConfigError;
pub use file::{EXAMPLE, TABLES};
pub use memory::{Most, OrderLimits, ShareMemory, VmMemory};

use crate::probe::Probing;
use bifold_base::bounded;
use bifold_host::VmId;
use bifold_policy::{Estimator, Named};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use wildmatch::WildMatch;

/// The configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Nominal time between two readings of a VM, in seconds.
    pub interval_s: f64,
    /// VMs that are never switched, and of which no memory is taken.
    pub never: Vec<Pattern>,
    /// The rules, in the order of the file: the first that fits a VM is the VM's.
    pub rules: Vec<Rule>,
    /// What is not wrong, but perhaps not intended.
    pub notes: Vec<String>,
    /// Where readings and decisions are recorded.
    pub recording: Option<Recording>,
    /// Where metrics go.
    pub metrics: Metrics,
    /// How the memory of VMs is divided.
    pub memory: Option<ShareMemory>,
    /// Tells policies that need it what the other mode would cost.
    pub estimator: Estimator,
}

/// What the daemon does with the VMs of a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The VMs.
    pub vms: Pattern,
    /// What decides over the mode; `None` in a rule for memory alone.
    pub decides: Option<Decides>,
    /// Whether the daemon switches the VMs; else it only says what it would do.
    pub act: bool,
    /// Whether the daemon does not switch the VMs for one reason alone: they are named by a pattern, and the
    /// rule does not say that they are trusted.
    pub untrusted: bool,
    /// How often a VM may be switched.
    pub limits: Limits,
    /// The socket of the VM's reporter; `{name}` stands for the VM's name. Without it, the VMM's command line
    /// tells.
    pub reporter: Option<String>,
    /// What the daemon does about the VMs' memory.
    pub memory: Option<VmMemory>,
}

impl Rule {
    /// The name of what decides over the mode.
    pub fn policy(&self) -> Option<&str> {
        self.decides.as_ref().map(Decides::name)
    }
}

/// What decides over a VM.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a configuration has few rules")]
pub enum Decides {
    /// A policy, by counters.
    Policy(Named),
    /// Probes, by the guest's progress.
    Probes(Probing),
}

impl Decides {
    /// The policy's name, or `probes`.
    pub fn name(&self) -> &str {
        match self {
            Decides::Policy(named) => &named.name,
            Decides::Probes(_) => "probes",
        }
    }
}

/// How often a VM may be switched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Least time in a mode, in seconds.
    pub min_stay_s: f64,
    /// Most switches in any hour. Giving a VM back to its own mode is always allowed, and counts.
    pub most_switches_per_hour: u64,
    /// Time after a switch that the policy does not see, in seconds: TLBs and tables are cold.
    pub blackout_s: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { min_stay_s: 10.0, most_switches_per_hour: 60, blackout_s: 1.0 }
    }
}

/// A file of readings and decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// The file. A full one is renamed: `.1` is added to its name.
    pub file: PathBuf,
    /// Size at which the file is full, in MiB.
    pub most_mib: u64,
}

/// Where metrics go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metrics {
    /// A text file, replaced after every interval.
    pub file: Option<PathBuf>,
    /// A loopback address that answers HTTP.
    pub listen: Option<SocketAddr>,
}

/// A VM's identifier, or a pattern of names: `*` stands for any characters, `?` for one.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    text: String,
    id: Option<VmId>,
    names: WildMatch,
}

impl Pattern {
    /// The pattern of this text.
    pub fn new(text: &str) -> Pattern {
        Pattern { text: text.into(), id: VmId::parse(text), names: WildMatch::new(text) }
    }

    /// Whether the pattern can fit several names, and so the name of a VM that its author did not know.
    pub fn is_wildcard(&self) -> bool {
        self.text.contains(['*', '?'])
    }

    /// The pattern's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the pattern fits this VM. Only an identifier fits a VM without a visible name.
    pub fn fits(&self, id: impl Into<Option<VmId>>, name: Option<&str>) -> bool {
        let id = id.into();
        (id.is_some() && self.id == id) || name.is_some_and(|name| self.names.matches(name))
    }
}

/// Longest configuration, in bytes.
const MOST: u64 = 1 << 20;

/// Most files in the folder of parts.
const MOST_PARTS: usize = 10_000;

fn read(path: &Path) -> Result<String, ConfigError> {
    bounded::read_to_string(path, MOST).map_err(|source| ConfigError::Io { path: path.into(), source })
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    toml::from_str(text)
        .map_err(|e| ConfigError::Syntax { path: path.into(), message: e.to_string().trim_end().into() })
}

fn checked(file: file::File, path: &Path) -> Result<Config, ConfigError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    check::config(file, folder).map_err(|wrong| ConfigError::Wrong { path: path.into(), wrong })
}

/// The files in the folder of parts, in the order of their names; none if there is no such folder.
fn parts(path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut folder = path.as_os_str().to_owned();
    folder.push(".d");
    let folder = PathBuf::from(folder);
    let io = |source| ConfigError::Io { path: folder.clone(), source };
    let entries = match std::fs::read_dir(&folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io)?,
    };
    let mut parts: Vec<PathBuf> = Vec::new();
    for entry in entries.take(MOST_PARTS) {
        let part = entry.map_err(io)?.path();
        parts.extend(Some(part).filter(|p| p.extension().is_some_and(|e| e == "toml")));
    }
    parts.sort();
    Ok(parts)
}

impl Config {
    /// Reads a file, and the rules in its folder of parts: `PATH.d/*.toml`, in the order of their names. The
    /// parts' rules come before those of the file. Paths in the file are relative to its folder.
    ///
    /// # Errors
    /// If a file cannot be read, or something in it is wrong: all that is wrong beyond the syntax is listed.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let mut file: file::File = parsed(&read(path)?, path)?;
        let mut rules = Vec::new();
        for part in parts(path)? {
            let more: file::Part = parsed(&read(&part)?, &part)?;
            rules.extend(more.vm);
        }
        rules.append(&mut file.vm);
        file.vm = rules;
        checked(file, path)
    }

    /// The configuration of a text; errors name `path`.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        checked(parsed(text, path)?, path)
    }

    /// The rule for a VM; `None` if no rule fits, or the VM is never to be touched. A guest without KVM has
    /// no identifier.
    pub fn rule(&self, id: impl Into<Option<VmId>>, name: Option<&str>) -> Option<&Rule> {
        self.rule_of(id.into().as_slice(), name)
    }

    /// The same for a process that holds several VMs: `never` holds if one of them is of it.
    pub fn rule_of(&self, ids: &[VmId], name: Option<&str>) -> Option<&Rule> {
        let fits =
            |pattern: &Pattern| pattern.fits(None, name) || ids.iter().any(|id| pattern.fits(*id, None));
        if self.never.iter().any(fits) {
            return None;
        }
        self.rules.iter().find(|rule| fits(&rule.vms))
    }

    /// The socket of the VM's reporter, if the VM's rule names one. A name that would lead to another folder
    /// names none.
    pub fn reporter(&self, id: VmId, name: Option<&str>) -> Option<PathBuf> {
        let path = self.rule(id, name)?.reporter.as_ref()?;
        let name = name.filter(|n| !n.contains(['/', '\0']) && !matches!(*n, "." | ".."));
        match (path.contains("{name}"), name) {
            (true, Some(name)) => Some(path.replace("{name}", name).into()),
            (true, None) => None,
            (false, _) => Some(path.into()),
        }
    }

    /// Whether the VM is never to be touched.
    pub fn is_never(&self, id: impl Into<Option<VmId>>, name: Option<&str>) -> bool {
        let id = id.into();
        self.never.iter().any(|pattern| pattern.fits(id, name))
    }
}

#[cfg(test)]
mod tests;
