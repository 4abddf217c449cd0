// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks apt for packages of this machine, of i386, or of another release.
//!
//! A machine's apt knows no i386 packages unless its administrator has added that architecture, and none of
//! another release. For those, apt runs with folders of its own in the cache and no look at what is
//! installed. It changes nothing of the machine. For i386 it has the machine's sources, for another release a
//! source of its own, in the folders that `kernel/archives.sh` uses too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::error::GuestError;
use crate::kernel::{cache_dir, tool};

/// Whose packages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Apt {
    /// This machine's release and architecture.
    Own,
    /// 32-bit x86.
    I386,
    /// Another release.
    Of(Archive),
}

/// Some suites of a distribution's archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Archive {
    /// `debian` or `ubuntu`.
    pub(crate) name: &'static str,
    /// Separated by commas, as in `kernel/series.txt`.
    pub(crate) suites: &'static str,
}

/// Age at which lists of packages are read again: Debian's updates come once a week or more seldom.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);

impl Apt {
    /// `apt-cache` or `apt-get`.
    pub(crate) fn command(self, program: &str) -> Result<Command, GuestError> {
        let mut command = Command::new(program);
        // As root apt would drop to user _apt, who may not write to the cache.
        command.args(["-o", "APT::Sandbox::User=root"]);
        let Some(dir) = self.dir()? else { return Ok(command) };
        let architecture = if self == Apt::I386 { "i386" } else { "amd64" };
        let mut options = vec![
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures={architecture}"),
            format!("Dir::State::lists={}", dir.join("lists").display()),
            format!("Dir::Cache={}", dir.join("cache").display()),
            "Dir::State::status=/dev/null".into(),
        ];
        if let Apt::Of(_) = self {
            options.push(format!("Dir::Etc::sourcelist={}", dir.join(SOURCES).display()));
            options.extend(
                ["sourceparts", "preferences", "preferencesparts"]
                    .map(|o| format!("Dir::Etc::{o}=/dev/null")),
            );
            options.extend(["Acquire::Languages=none".into(), "APT::Update::Error-Mode=any".into()]);
        }
        for option in options {
            command.args(["-o", &option]);
        }
        Ok(command)
    }

    /// Where apt's own folders are, if they are not the machine's.
    fn dir(self) -> Result<Option<PathBuf>, GuestError> {
        match self {
            Apt::Own => Ok(None),
            Apt::I386 => cache_dir("apt-i386").map(Some),
            Apt::Of(archive) => cache_dir(&archive.folder()).map(Some),
        }
    }

    /// Reads the lists of packages, where this machine does not keep them.
    ///
    /// # Errors
    /// If there are none and they cannot be read, or it is not known where an archive is.
    pub(crate) fn update(self, stage: &mut dyn FnMut(&str)) -> Result<(), GuestError> {
        let Some(dir) = self.dir()? else { return Ok(()) };
        for folder in ["lists/partial", "cache/archives/partial"] {
            let at = dir.join(folder);
            fs::create_dir_all(&at).map_err(GuestError::file(&at, "cannot create"))?;
        }
        let read = dir.join("read");
        let (what, changed) = match self {
            Apt::Of(archive) => (archive.words(), archive.write_source(&dir)?),
            _ => ("i386 packages".into(), false),
        };
        let age = fs::metadata(&read)
            .and_then(|m| m.modified())
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        if !changed && age.is_some_and(|age| age < OLD) {
            return Ok(());
        }
        stage(&format!("reading apt's lists of {what}"));
        // The machine's sources without i386 packages make apt fail, and it keeps the lists of the others.
        match tool(self.command("apt-get")?.args(["-q", "update"]), "apt-get update") {
            Err(e) if changed || !has_lists(&dir) => Err(e),
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
                Apt::Of(archive) => format!("{} has no {package}", archive.words()),
            };
            GuestError::KernelFetch { why }
        };
        let out = tool(
            self.command("apt-cache")?.args(["depends", "--important", package]),
            &format!("apt-cache depends {package}"),
        );
        let out = match (out, self) {
            (Ok(out), _) => out,
            (Err(e), Apt::Own) => return Err(e),
            (Err(_), _) => return Err(none()),
        };
        String::from_utf8_lossy(&out)
            .split_whitespace()
            .find(|w| w.starts_with(prefix) && *w != package)
            .map(|w| w.trim_end_matches("-unsigned").to_owned())
            .ok_or_else(none)
    }
}

/// apt's source of an archive, in the folder for the archive.
const SOURCES: &str = "archive.sources";

impl Archive {
    fn folder(self) -> String {
        format!("apt-{}-{}", self.name, self.release())
    }

    /// The first suite, which the others add to.
    fn release(self) -> &'static str {
        self.suites.split(',').next().unwrap_or_default()
    }

    /// `Ubuntu`
    fn title(self) -> &'static str {
        if self.name == "ubuntu" { "Ubuntu" } else { "Debian" }
    }

    fn words(self) -> String {
        format!("{}'s {}", self.title(), self.release())
    }

    /// Writes apt's source. Returns whether it differs from the one that was there.
    fn write_source(self, dir: &Path) -> Result<bool, GuestError> {
        let at = dir.join(SOURCES);
        let old = fs::read_to_string(&at).unwrap_or_default();
        let variable = self.name.to_uppercase();
        let uri = std::env::var(&variable)
            .ok()
            .filter(|uri| !uri.is_empty())
            .or_else(|| self.of_machine())
            // As given before.
            .or_else(|| old.lines().find_map(|l| l.strip_prefix("URIs: ")).map(str::to_owned))
            .ok_or_else(|| GuestError::KernelFetch {
                why: format!("{variable}=URI names no archive of {}", self.title()),
            })?;
        let new = self.source(&uri, &self.keyring(dir)?);
        if new == old {
            return Ok(false);
        }
        fs::write(&at, new).map_err(GuestError::file(&at, "cannot write"))?;
        Ok(true)
    }

    fn source(self, uri: &str, keyring: &Path) -> String {
        format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nArchitectures: amd64\nSigned-By: {}\n",
            uri.trim_end_matches('/'),
            self.suites.replace(',', " "),
            keyring.display()
        )
    }

    /// Where this machine has its own packages from, if they are of the same archive.
    fn of_machine(self) -> Option<String> {
        let format = "$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SUITE)";
        let mut command = Command::new("apt-get");
        command.args(["indextargets", "--format", format, "Created-By: Packages"]);
        let out = tool(&mut command, "apt-get indextargets").ok()?;
        self.among(&String::from_utf8_lossy(&out))
    }

    /// The archive's URI among lines of `apt-get indextargets`.
    fn among(self, targets: &str) -> Option<String> {
        targets.lines().find_map(|line| {
            let [uri, origin, label, component, suite] = line.split('|').collect::<Vec<_>>()[..] else {
                return None;
            };
            // Suites such as -security may have an archive of their own.
            let fits = [origin, label].iter().all(|w| w.eq_ignore_ascii_case(self.name));
            (fits && component == "main" && !suite.contains('-')).then(|| uri.to_owned())
        })
    }

    /// The file with the keys that sign the archive. If this machine has none, out of its package, which this
    /// machine's apt has checked.
    fn keyring(self, dir: &Path) -> Result<PathBuf, GuestError> {
        let name = format!("usr/share/keyrings/{}-archive-keyring.gpg", self.name);
        let unpacked = dir.join("keyring");
        let places = [Path::new("/").join(&name), unpacked.join(&name)];
        if let Some(found) = places.iter().find(|p| p.exists()) {
            return Ok(found.clone());
        }
        let package = if self.name == "ubuntu" { "ubuntu-keyring" } else { "debian-archive-keyring" };
        let tmp = dir.join(format!(".new-{}", std::process::id()));
        fs::create_dir_all(&tmp).map_err(GuestError::file(&tmp, "cannot create"))?;
        let result = crate::kernel::download(Apt::Own, package, &tmp)
            .and_then(|deb| tool(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked), "dpkg-deb -x"));
        let _ = fs::remove_dir_all(&tmp);
        result?;
        let [_, found] = places;
        Ok(found)
    }
}

fn has_lists(dir: &Path) -> bool {
    let names = fs::read_dir(dir.join("lists")).into_iter().flatten().flatten();
    names.into_iter().any(|e| e.file_name().to_string_lossy().ends_with("_Packages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UBUNTU: Archive = Archive { name: "ubuntu", suites: "resolute,resolute-updates" };
    const DEBIAN: Archive = Archive { name: "debian", suites: "trixie,trixie-backports" };

    #[test]
    fn an_archive_is_where_the_machine_has_its_release_from() {
        let targets = "http://a/security|Debian|Debian-Security|main|oldstable-security\n\
                       http://a/backports|Debian Backports|Debian Backports|main|oldstable-backports\n\
                       http://a/updates|Debian|Debian|main|oldstable-updates\n\
                       http://a/contrib|Debian|Debian|contrib|oldstable\n\
                       http://a/debian|Debian|Debian|main|oldstable\n";
        assert_eq!(DEBIAN.among(targets).as_deref(), Some("http://a/debian"));
        assert_eq!(UBUNTU.among(targets), None);
        assert_eq!(UBUNTU.among("http://u/|Ubuntu|Ubuntu|main|resolute\n").as_deref(), Some("http://u/"));
    }

    /// Byte by byte as `open_archive` of `kernel/archives.sh` writes it: else both read the lists by turns.
    #[test]
    fn the_source_is_that_of_the_kernels_scripts() {
        assert_eq!(
            UBUNTU.source("http://u/ubuntu/", Path::new("/k.gpg")),
            "Types: deb\nURIs: http://u/ubuntu\nSuites: resolute resolute-updates\nComponents: main\n\
             Architectures: amd64\nSigned-By: /k.gpg\n"
        );
        let script =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/archives.sh"))
                .unwrap();
        let line =
            r"'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: amd64\nSigned-By: %s\n'";
        assert!(script.contains(line));
        assert_eq!(UBUNTU.folder(), "apt-ubuntu-resolute");
        assert!(script.contains("root=$CACHE/apt-$1-${2%%,*}"));
    }

    #[test]
    fn apt_of_another_release_reads_nothing_of_this_machine() {
        let command = Apt::Of(DEBIAN).command("apt-get").unwrap();
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        for part in
            ["Dir::Etc::sourceparts=/dev/null", "Dir::State::status=/dev/null", "APT::Architectures=amd64"]
        {
            assert!(args.iter().any(|a| a == part), "{part}: {args:?}");
        }
        assert!(
            Apt::Own.command("apt-get").unwrap().get_args().all(|a| !a.to_string_lossy().contains("Dir::"))
        );
    }
}
