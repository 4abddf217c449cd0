// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times of programs on this machine, on 4 KB and on 2 MB pages by turns.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::process;
use crate::set::{Built, Program};
use crate::stats::{Median, median};

/// Size of the pages that a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 4 KB: no transparent huge pages for the process.
    Small,
    /// 2 MB where the program or its C library asks for them.
    Large,
}

impl Pages {
    fn word(self) -> &'static str {
        if self == Pages::Small { "4k" } else { "2m" }
    }
}

/// One run's region, as the program or its launcher prints it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Region {
    /// CPU time, s.
    pub cpu: f64,
    /// Wall time, s.
    pub wall: f64,
    /// Memory in 2 MB pages, KiB; the most that was seen. -1 where the kernel does not say.
    pub huge_kib: i64,
    /// A sum of what the program computed; 0 for a whole command.
    pub result: u64,
}

/// Reads the line `region cpu=S wall=S huge_kib=N result=N`.
pub fn parse(text: &str) -> Result<Region> {
    let line =
        text.lines().find_map(|l| l.strip_prefix("region ")).context("no line begins with `region`")?;
    let field = |name: &str| {
        let word = line.split(' ').find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        word.with_context(|| format!("the line `region {line}` has no {name}"))
    };
    let region = Region {
        cpu: field("cpu")?.parse()?,
        wall: field("wall")?.parse()?,
        huge_kib: field("huge_kib")?.parse()?,
        result: field("result")?.parse()?,
    };
    if !(region.cpu > 0.0 && region.wall > 0.0) {
        bail!("the line `region {line}` has no time: the program is too short to be timed");
    }
    Ok(region)
}

/// Runs a program once.
pub fn once(built: &Built, program: &Program, pages: Pages, limit: Duration) -> Result<Region> {
    let whole = tempfile::NamedTempFile::new()?;
    let mut c = Command::new(&built.launcher);
    c.arg(pages.word()).arg(whole.path()).args(built.command(program));
    let ended = process::run(&mut c, limit).with_context(|| program.name.clone())?;
    if !ended.status.success() {
        bail!("{}: {}\n{}", program.name, ended.status, ended.last_words());
    }
    let text = if program.has_markers() { ended.stdout } else { std::fs::read_to_string(whole.path())? };
    parse(&text).with_context(|| program.name.clone())
}

/// What pairs of runs gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Run time on 4 KB pages over that on 2 MB ones, CPU time.
    pub ratio: Median,
    /// The same of wall time.
    pub wall_ratio: Median,
    /// CPU time on 4 KB pages, s.
    pub small: Median,
    /// CPU time on 2 MB pages, s.
    pub large: Median,
    /// Memory in 2 MB pages in the runs that were to have them: the least of the runs, KiB.
    pub huge_kib: i64,
}

/// Summarizes pairs of runs (4 KB, 2 MB).
pub fn summarize(name: &str, pairs: &[(Region, Region)]) -> Result<Measured> {
    let (first, _) = pairs.first().context("no runs")?;
    for (small, large) in pairs {
        if small.huge_kib > 0 {
            bail!("{name}: a run on 4 KB pages had {} KiB in 2 MB pages", small.huge_kib);
        }
        if small.result != first.result || large.result != first.result {
            bail!("{name}: two runs computed different results");
        }
    }
    let of = |f: &dyn Fn(&(Region, Region)) -> f64| median(&pairs.iter().map(f).collect::<Vec<_>>());
    Ok(Measured {
        ratio: of(&|(s, l)| s.cpu / l.cpu),
        wall_ratio: of(&|(s, l)| s.wall / l.wall),
        small: of(&|(s, _)| s.cpu),
        large: of(&|(_, l)| l.cpu),
        huge_kib: pairs.iter().map(|(_, l)| l.huge_kib).min().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(cpu: f64, huge_kib: i64) -> Region {
        Region { cpu, wall: 2.0 * cpu, huge_kib, result: 7 }
    }

    #[test]
    fn a_region_is_read_from_its_line() {
        let r = parse("noise\nregion cpu=1.5 wall=2.25 huge_kib=-1 result=18446744073709551615\n").unwrap();
        assert_eq!(r, Region { cpu: 1.5, wall: 2.25, huge_kib: -1, result: u64::MAX });
        for bad in [
            "",
            "region cpu=1 wall=1 huge_kib=0",
            "region cpu=0 wall=1 huge_kib=0 result=1",
            "region cpu=x wall=1 huge_kib=0 result=1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        let pairs = [
            (region(1.0, 0), region(1.0, 10)),
            (region(6.0, 0), region(3.0, 8)),
            (region(3.0, 0), region(2.0, 9)),
        ];
        let m = summarize("p", &pairs).unwrap();
        assert_eq!(
            (m.ratio.middle, m.wall_ratio.middle, m.small.middle, m.large.middle),
            (1.5, 1.5, 3.0, 2.0)
        );
        assert_eq!(m.huge_kib, 8);
    }

    #[test]
    fn huge_pages_where_there_must_be_none_and_differing_results_are_errors() {
        assert!(summarize("p", &[(region(1.0, 2048), region(1.0, 0))]).is_err());
        let other = Region { result: 8, ..region(1.0, 0) };
        assert!(
            summarize("p", &[(region(1.0, 0), other)]).unwrap_err().to_string().contains("different results")
        );
    }
}
