// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel series that the laboratory boots, and the newest package of each.

use std::path::Path;

use super::{PREFIX, numbers, tool, version_of};
use crate::apt::{Apt, Archive};
use crate::error::GuestError;

/// The kernel series that are built, tested and booted here; the file's head has the format.
const SERIES: &str = include_str!("../../../../kernel/series.txt");

/// A line of `kernel/series.txt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Series {
    /// `6.1`
    pub name: &'static str,
    /// Whose packages have these kernels.
    archive: Archive,
    /// Which release has it, in words.
    pub release: &'static str,
}

impl Series {
    /// The series of a package or a series' name, if it is in the list.
    fn of(wanted: &str) -> Option<Series> {
        let version = version_of(wanted);
        series().into_iter().find(|s| {
            version.strip_prefix(s.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// The apts that may have the series: this machine's, and one for the series.
    fn apts(self) -> impl Iterator<Item = Apt> {
        let other = (!self.archive.suites.is_empty()).then_some(Apt::Of(self.archive));
        [Apt::Own].into_iter().chain(other)
    }
}

/// All series in the order of `kernel/series.txt`.
pub fn series() -> Vec<Series> {
    let lines = SERIES.lines().filter(|l| !l.starts_with('#'));
    lines
        .filter_map(|l| {
            let (name, rest) = l.split_once(' ')?;
            let (archive, release) = rest.trim_start().split_once(' ')?;
            let (archive, suites) = archive.split_once(':').unwrap_or((archive, ""));
            Some(Series { name, archive: Archive { name: archive, suites }, release: release.trim() })
        })
        .collect()
}

/// The apt that has a package of a kernel.
pub(super) fn apt_with(package: &str, stage: &mut dyn FnMut(&str)) -> Apt {
    let known = |apt: &Apt| {
        let policy =
            apt.command("apt-cache").and_then(|mut c| tool(c.args(["policy", package]), "apt-cache policy"));
        policy.is_ok_and(|p| !downloadable(&String::from_utf8_lossy(&p)).is_empty())
    };
    let mut apts = Series::of(package).into_iter().flat_map(Series::apts);
    apts.find(|apt| apt.update(stage).is_ok() && known(apt)).unwrap_or(Apt::Own)
}

/// The newest package of a series, including backports and security updates, and the apt that has it. The
/// choice is that of `newest` in `kernel/packages.sh`, whose modules are for this kernel.
pub(super) fn newest_of_series(
    wanted: &str,
    stage: &mut dyn FnMut(&str),
) -> Result<(Apt, String), GuestError> {
    let line = Series::of(wanted);
    let none = |why| {
        let known: Vec<_> = series().iter().map(|s| format!("{}: {}", s.name, s.release)).collect();
        GuestError::NoSuchKernel { series: wanted.to_owned(), why, known: known.join("; ") }
    };
    if let Some(found) = newest_of(Apt::Own, line, wanted)? {
        return Ok((Apt::Own, found));
    }
    for apt in line.into_iter().flat_map(Series::apts).skip(1) {
        apt.update(stage).map_err(|e| none(e.to_string()))?;
        if let Some(found) = newest_of(apt, line, wanted)? {
            return Ok((apt, found));
        }
    }
    Err(none("run apt-get update or add the package source".into()))
}

fn newest_of(apt: Apt, line: Option<Series>, series: &str) -> Result<Option<String>, GuestError> {
    let kind = if line.is_some_and(|l| l.archive.name == "ubuntu") { "-generic" } else { "-amd64" };
    let stem = format!("{PREFIX}{series}.");
    let out = tool(apt.command("apt-cache")?.arg("pkgnames").arg(&stem), "apt-cache pkgnames")?;
    let names = String::from_utf8_lossy(&out).into_owned();
    let names: Vec<&str> = names
        .split_whitespace()
        // Leaves out cloud kernels, real-time kernels and debugging symbols.
        .filter(|n| version_of(n).ends_with(kind) && !n.contains("-cloud-") && !n.contains("-rt-"))
        .collect();
    if names.is_empty() {
        return Ok(None);
    }
    let policy = tool(apt.command("apt-cache")?.arg("policy").args(&names), "apt-cache policy")?;
    Ok(downloadable(&String::from_utf8_lossy(&policy)).into_iter().max_by_key(|n| numbers(Path::new(n))))
}

/// The packages in the output of `apt-cache policy` that can be downloaded. apt also knows names of packages
/// that no source has any more.
fn downloadable(policy: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut name = "";
    for line in policy.lines() {
        match line.strip_prefix("  Candidate: ") {
            Some(version) if version != "(none)" => found.push(name.to_owned()),
            _ if line.starts_with(PREFIX) => name = line.trim_end_matches(':'),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_says_which_release_has_it() {
        let all = series();
        assert!(all.len() > 1, "{all:?}");
        for s in all {
            assert!(
                s.name.split('.').count() == 2 && s.name.split('.').all(|n| n.parse::<u32>().is_ok()),
                "{s:?}"
            );
            let title = if s.archive.name == "ubuntu" { "Ubuntu " } else { "Debian " };
            assert!(s.release.starts_with(title), "{s:?}");
            assert!(["debian", "ubuntu"].contains(&s.archive.name), "{s:?}");
        }
    }

    #[test]
    fn a_package_belongs_to_its_series() {
        let of = |w| Series::of(w).map(|s| s.name);
        assert_eq!(of("6.1"), Some("6.1"));
        assert_eq!(of("linux-image-6.12.117+deb12-amd64"), Some("6.12"));
        assert_eq!(of("linux-image-7.0.0-44-generic"), Some("7.0"));
        assert_eq!(of("6.17"), None);
    }

    #[test]
    fn only_packages_with_a_candidate_can_be_had() {
        let policy = "linux-image-6.1.0-9-amd64:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n\
                      linux-image-6.1.0-56-amd64-unsigned:\n  Installed: (none)\n  Candidate: 6.1.192-2\n";
        assert_eq!(downloadable(policy), ["linux-image-6.1.0-56-amd64-unsigned"]);
        assert_eq!(version_of("linux-image-6.1.0-56-amd64-unsigned"), "6.1.0-56-amd64");
    }
}
