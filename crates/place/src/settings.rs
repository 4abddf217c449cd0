// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of the host that a plan may have: which files they are, and when two values are the same.
//!
//! A plan is a file from outside, and root applies it. So only files of the list here are ever written: huge
//! pages of a node, KSM, transparent huge pages, NUMA balancing, interrupts, halt polling, frequencies,
//! timers, and where the kernel's own workers run.
//!
//! Each of them can be restored by writing its old value. Files without that property are left out: `online`
//! of a CPU also moves the threads that are pinned to the CPU, and `/proc/sys/vm/nr_hugepages` is a sum over
//! the nodes.

use bifold_host::Host;
use bifold_host::topology::NumberSet;
use std::path::{Path, PathBuf};

/// The files. `*` stands for any text within a name.
const ALLOWED: &[&str] = &[
    "/sys/devices/system/node/node*/hugepages/hugepages-*kB/nr_hugepages",
    "/sys/kernel/mm/hugepages/hugepages-*kB/nr_overcommit_hugepages",
    "/sys/kernel/mm/ksm/*",
    "/sys/kernel/mm/transparent_hugepage/*",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/*",
    "/sys/module/kvm/parameters/halt_poll_ns*",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "/sys/devices/virtual/workqueue/cpumask",
    "/sys/bus/workqueue/devices/writeback/cpumask",
    "/proc/irq/*/smp_affinity",
    "/proc/irq/*/smp_affinity_list",
    "/proc/irq/default_smp_affinity",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/timer_migration",
    "/proc/sys/vm/stat_interval",
    "/proc/sys/vm/zone_reclaim_mode",
];

/// Longest value.
const MOST_VALUE: usize = 4096;

/// Why a step of a plan is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the plan's step `{}` is refused: {why}", .path.escape_debug())]
pub struct BadStep {
    /// The step's path.
    pub path: String,
    /// What is wrong.
    pub why: &'static str,
}

/// Checks a step's path and value.
///
/// # Errors
/// If the path is not one of the files that a plan may set, or the value is not one line.
pub fn allowed(path: &str, value: &str) -> Result<(), BadStep> {
    let bad = |why| Err(BadStep { path: path.into(), why });
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    let known = ALLOWED.iter().any(|pattern| is_like(pattern, path));
    if !path.chars().all(plain) || path.contains("..") || !known {
        return bad(
            "`bifold place apply` sets only files of a node's huge pages, KSM, NUMA balancing, interrupts, halt polling, frequencies, timers and workers",
        );
    }
    if value.is_empty() || value.len() > MOST_VALUE || value.chars().any(char::is_control) {
        return bad("its value is not one line of text");
    }
    Ok(())
}

/// Whether a path has the form of a pattern.
fn is_like(pattern: &str, path: &str) -> bool {
    let name = |pattern: &str, name: &str| match pattern.split_once('*') {
        None => pattern == name,
        Some((first, last)) => {
            name.len() > first.len() + last.len() && name.starts_with(first) && name.ends_with(last)
                || (name.len() == first.len() + last.len()
                    && !first.is_empty()
                    && name == format!("{first}{last}"))
        }
    };
    let (mut patterns, mut names) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), names.next()) {
            (None, None) => return true,
            (Some(pattern), Some(text)) if name(pattern, text) => {}
            _ => return false,
        }
    }
}

/// The file of a step on this host.
pub fn file(host: &Host, path: &str) -> PathBuf {
    let below = |root: &Path, path: &str| root.join(path.trim_start_matches('/'));
    match (path.strip_prefix("/sys/"), path.strip_prefix("/proc/")) {
        (Some(rest), _) => below(&host.sys, rest),
        (_, Some(rest)) => below(&host.proc, rest),
        _ => PathBuf::from(path),
    }
}

/// A setting's value: the text of the file, of which `[madvise]` is the choice among several.
pub fn value(text: &str) -> String {
    let text = text.trim();
    let chosen = text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or(text).to_owned()
}

/// Whether the kernel's text of a setting has the meaning of a planned value.
pub fn same(path: &str, is: &str, planned: &str) -> bool {
    let (is, planned) = (value(is), value(planned));
    if is == planned {
        return true;
    }
    if path.ends_with("_list") {
        let list = |text: &str| text.parse::<NumberSet>();
        return list(&is).is_ok_and(|is| Ok(is) == list(&planned));
    }
    if path.ends_with("smp_affinity") || path.ends_with("cpumask") {
        let mask = |text: &str| text.replace(',', "").trim_start_matches('0').to_ascii_lowercase();
        return mask(&is) == mask(&planned);
    }
    let number = |text: &str| match text {
        "Y" | "y" => Some(1),
        "N" | "n" => Some(0),
        text => text.parse::<u64>().ok(),
    };
    number(&is).is_some_and(|is| Some(is) == number(&planned))
}

/// Whether a setting is as planned: it has the planned value, or, for a pool of huge pages, at least as many
/// pages. Others may have reserved the rest.
pub fn as_planned(path: &str, is: &str, planned: &str) -> bool {
    let pages = |text: &str| value(text).parse::<u64>().ok();
    let enough = || pages(is).zip(pages(planned)).is_some_and(|(is, planned)| is >= planned);
    same(path, is, planned) || path.ends_with("/nr_hugepages") && enough()
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.:@+,=".contains(c);
    match word {
        "" => "''".into(),
        word if word.chars().all(plain) => word.into(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_sets_only_files_of_the_list() {
        for path in [
            "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
            "/sys/kernel/mm/ksm/run",
            "/proc/irq/24/smp_affinity_list",
            "/sys/module/kvm/parameters/halt_poll_ns",
            "/sys/module/kvm/parameters/halt_poll_ns_grow",
        ] {
            assert_eq!(allowed(path, "1"), Ok(()), "{path}");
        }
        for path in [
            "/proc/sys/kernel/core_pattern",
            "/sys/kernel/mm/ksm/../../../../etc/passwd",
            "/sys/kernel/mm/ksm/a/b",
            "/sys/kernel/mm/ksm/",
            "/etc/passwd",
            "/sys/devices/system/cpu/cpu3/online",
            "/proc/sys/vm/nr_hugepages",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "sys/kernel/mm/ksm/run",
            "/proc/irq/24/x y",
            "",
        ] {
            assert!(allowed(path, "1").is_err(), "{path}");
        }
        for value in ["", "1\n2", "\u{1b}[2J"] {
            assert!(allowed("/sys/kernel/mm/ksm/run", value).is_err());
        }
    }

    #[test]
    fn values_are_compared_by_meaning() {
        for (path, is, planned, expected) in [
            ("enabled", "always [madvise] never\n", "madvise", true),
            ("smp_affinity_list", "0-3\n", "0,1,2,3", true),
            ("smp_affinity", "00000000,0000000f\n", "f", true),
            ("numa_balancing", "0\n", "0", true),
            ("parameters/x", "N\n", "0", true),
            ("nr_hugepages", "60\n", "64", false),
            ("enabled", "[always] madvise never\n", "madvise", false),
        ] {
            assert_eq!(same(path, is, planned), expected, "{path} {is}");
        }
    }

    #[test]
    fn a_larger_pool_is_as_planned() {
        let pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
        assert!(as_planned(pool, "512\n", "64") && as_planned(pool, "64\n", "64"));
        assert!(!as_planned(pool, "60\n", "64"));
        assert!(!as_planned("/sys/kernel/mm/ksm/run", "1\n", "0"));
    }

    #[test]
    fn a_word_with_markup_is_quoted() {
        assert_eq!(quoted("/sys/fs/cgroup/a.slice"), "/sys/fs/cgroup/a.slice");
        assert_eq!(quoted("a b'; rm"), r"'a b'\''; rm'");
    }
}
