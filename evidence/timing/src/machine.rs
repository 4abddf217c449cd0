// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine that times come from, and the date.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process;

fn first_of(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A kernel's version without what its builder appended.
fn number(release: &str) -> &str {
    release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or(release)
}

/// What a reader has to know of the machine: lines for a list.
pub fn about() -> Vec<String> {
    let cpu = first_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let family = first_of("/proc/cpuinfo", "cpu family").unwrap_or_default();
    let model = first_of("/proc/cpuinfo", "model\t").unwrap_or_default();
    let guest = first_of("/proc/cpuinfo", "flags").is_some_and(|f| f.split(' ').any(|w| w == "hypervisor"));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = thp.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    vec![
        format!(
            "{cpu} (family {family}, model {model}), {cpus} CPUs, {}",
            if guest { "a virtual machine" } else { "no virtual machine" }
        ),
        format!("Linux {}, transparent huge pages `{chosen}`", number(&read("/proc/sys/kernel/osrelease"))),
        format!(
            "load average at the end of the run: {}",
            read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(", ")
        ),
    ]
}

/// Today, as YYYY-MM-DD.
pub fn date() -> String {
    day(Command::new("date").arg("+%Y-%m-%d"))
}

/// The day of a file's last change, as YYYY-MM-DD.
pub fn date_of(file: &Path) -> String {
    day(Command::new("date").arg("+%Y-%m-%d").arg("-r").arg(file))
}

fn day(command: &mut Command) -> String {
    let ended = process::run(command, Duration::from_secs(10));
    ended.map_or_else(|_| "an unknown day".into(), |e| e.stdout.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_told_by_its_number() {
        assert_eq!(number("6.12.41+deb13-amd64"), "6.12.41");
        assert_eq!(number("6.1.0-56-amd64"), "6.1.0");
    }
}
