// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks apt for packages of this machine's architecture, or of i386.
//!
//! A machine's apt knows no i386 packages unless its administrator has added that architecture. For those,
//! apt runs with folders of its own in the cache, the machine's sources, and no look at what is installed. It
//! changes nothing of the machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::error::GuestError;
use crate::kernel::{cache_dir, tool};

/// Whose packages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Apt {
    /// This machine's architecture.
    Own,
    /// 32-bit x86.
    I386,
}

/// Age at which lists of packages are read again: Debian's updates come once a week or more seldom.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);

impl Apt {
    /// `apt-cache` or `apt-get`.
    pub(crate) fn command(self, program: &str) -> Result<Command, GuestError> {
        let mut command = Command::new(program);
        // As root apt would drop to user _apt, who may not write to the cache.
        command.args(["-o", "APT::Sandbox::User=root"]);
        if self == Apt::I386 {
            let dir = lists()?;
            for option in ["Architecture=i386", "Architectures=i386"] {
                command.args(["-o", &format!("APT::{option}")]);
            }
            command.args(["-o", &format!("Dir::State::lists={}", dir.join("lists").display())]);
            command.args(["-o", &format!("Dir::Cache={}", dir.join("cache").display())]);
            command.args(["-o", "Dir::State::status=/dev/null"]);
        }
        Ok(command)
    }

    /// Reads the lists of packages, where this machine does not keep them.
    pub(crate) fn update(self, stage: &mut dyn FnMut(&str)) -> Result<(), GuestError> {
        if self == Apt::Own {
            return Ok(());
        }
        let dir = lists()?;
        let read = dir.join("read");
        let age = fs::metadata(&read)
            .and_then(|m| m.modified())
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age < OLD) {
            return Ok(());
        }
        for folder in ["lists/partial", "cache/archives/partial"] {
            let at = dir.join(folder);
            fs::create_dir_all(&at).map_err(GuestError::file(&at, "cannot create"))?;
        }
        stage("reading apt's lists of i386 packages");
        // Sources without i386 packages make apt fail, and it keeps the lists of the others.
        match tool(self.command("apt-get")?.args(["-q", "update"]), "apt-get update") {
            Err(e) if !has_lists(&dir) => Err(e),
            _ => fs::write(&read, "").map_err(GuestError::file(&read, "cannot write")),
        }
    }

    /// The package that a package without content depends on: `linux-image-6.1.0-56-amd64` for
    /// `linux-image-amd64`.
    pub(crate) fn depends(self, package: &str, prefix: &str) -> Result<String, GuestError> {
        let none = || {
            let why = match self {
                Apt::Own => format!("apt knows no {package}; run apt-get update"),
                Apt::I386 => format!("this machine's sources of packages have no {package} for i386"),
            };
            GuestError::KernelFetch { why }
        };
        let out = tool(
            self.command("apt-cache")?.args(["depends", "--important", package]),
            &format!("apt-cache depends {package}"),
        );
        let out = match (out, self) {
            (Ok(out), _) => out,
            (Err(_), Apt::I386) => return Err(none()),
            (Err(e), Apt::Own) => return Err(e),
        };
        String::from_utf8_lossy(&out)
            .split_whitespace()
            .find(|w| w.starts_with(prefix) && *w != package)
            .map(|w| w.trim_end_matches("-unsigned").to_owned())
            .ok_or_else(none)
    }
}

fn lists() -> Result<PathBuf, GuestError> {
    cache_dir("apt-i386")
}

fn has_lists(dir: &std::path::Path) -> bool {
    let names = fs::read_dir(dir.join("lists")).into_iter().flatten().flatten();
    names.into_iter().any(|e| e.file_name().to_string_lossy().contains("_binary-i386_Packages"))
}
