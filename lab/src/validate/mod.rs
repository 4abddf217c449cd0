// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the model with the real KVM. The same guest runs the same programs: once captured, where the
//! model predicts its exits, and several times as an inner guest under KVM, where its exits are counted.
//! `predict` and `count` give exits per program, configuration and reason, `table` compares them, `drive`
//! runs everything, and `document` writes the page.

pub mod count;
pub mod document;
pub mod drive;
pub mod predict;
pub mod table;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use bifold_guest::{GuestSpec, Root, TableFormat};
use bifold_model::{Config, Paging};

use crate::lab::job::InnerBacking;
use crate::vendor::Vendor;

/// The configurations that are compared.
pub const CONFIGS: [&str; 4] = ["nested-4k", "nested-2m", "shadow-4k", "shadow-2m"];

/// Those of guests within guests.
pub const INSIDE: [&str; 4] =
    ["nested-on-nested-4k", "nested-on-nested-2m", "shadow-on-nested-4k", "shadow-on-nested-2m"];

/// A program of the suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program's name.
    pub name: String,
    /// Number of the program's window.
    pub window: u64,
    /// What the program does.
    pub about: String,
}

/// All programs, in the suite's order.
pub fn programs() -> Result<Vec<Program>> {
    let out = Command::new(crate::SUITE).arg("--list").output().context("running the suite")?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let (Some(name), Some(window)) = (words.next(), words.next().and_then(|w| w.parse().ok())) else {
                bail!("the suite lists {line:?}");
            };
            Ok(Program { name: name.into(), window, about: words.collect::<Vec<_>>().join(" ") })
        })
        .collect()
}

/// The program that runs the user's command.
const RUN: &str = "run";
/// Why a guest with these tables cannot run a program; none if it can.
fn cannot(name: &str, tables: TableFormat) -> Option<&'static str> {
    match name {
        _ if tables.is_long() => None,
        RUN => Some("is this machine's gcc, of 64-bit mode"),
        "many-tables" => Some("maps 3.2 GB, and programs have 3 GB"),
        "thp-touch" | "thp-split" | "thp-again" if tables == TableFormat::TwoLevel => {
            Some("needs transparent huge pages, which Linux has in 32-bit mode with PAE only")
        }
        _ => None,
    }
}
/// Begins the names of programs for hosts that page out, which only [`crate::reclaim`] runs unless they are
/// named.
pub const RECLAIM: &str = "reclaim-";
/// Begins the names of programs that only [`crate::superfluous`] runs.
pub const SWAPS: &str = "swaps-";
/// Begins the names of programs for several vCPUs, which guests of one vCPU do not run unless they are named.
pub const VCPUS: &str = "vcpus-";

/// What a guest of the comparison runs, and the files for it.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Files beside the program.
    pub include: Vec<PathBuf>,
    /// The programs' windows.
    pub programs: Vec<Program>,
    /// Guest memory.
    pub memory_mib: u64,
    /// Number of the guest's vCPUs.
    pub vcpus: u32,
    /// The format of the guest's tables.
    pub tables: TableFormat,
}

/// The path of one of the C compiler's own programs.
fn compiler_part(name: &str) -> Result<PathBuf> {
    let out = Command::new("gcc").arg(format!("-print-prog-name={name}")).output().context("running gcc")?;
    let found = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
    let found = if found.is_absolute() { found } else { PathBuf::from("/usr/bin").join(found) };
    found.canonicalize().with_context(|| format!("gcc's {name}"))
}

impl Workload {
    /// The programs named, or all of them and a gcc run, in a guest with 4-level tables.
    pub fn new(only: &[String], memory_mib: u64, vcpus: u32) -> Result<Workload> {
        Workload::with_tables(only, memory_mib, vcpus, TableFormat::FourLevel)
    }

    /// The same in a guest with these tables. A guest in 32-bit mode runs no gcc, which is this machine's.
    pub fn with_tables(
        only: &[String],
        memory_mib: u64,
        vcpus: u32,
        tables: TableFormat,
    ) -> Result<Workload> {
        let suite = if tables.is_long() { crate::SUITE } else { crate::SUITE_32 };
        if std::fs::metadata(suite).is_ok_and(|m| m.len() == 0) {
            bail!(
                "the programs could not be built for 32-bit mode: install libc6-dev-i386 and lib32gcc-N-dev for gcc N, build again"
            );
        }
        if let Some((name, why)) = only.iter().find_map(|n| Some((n, cannot(n, tables)?))) {
            bail!("the program {name} {why}, and the guest's tables are of format {}", tables.name());
        }
        let all = programs()?;
        if let Some(unknown) = only.iter().find(|n| all.iter().all(|p| p.name != **n)) {
            bail!("no program is called {unknown}; `suite --list` names them");
        }
        let left_out = [Some(RECLAIM), Some(SWAPS), (vcpus == 1).then_some(VCPUS)];
        let by_default =
            |p: &Program| only.is_empty() && !left_out.iter().flatten().any(|kind| p.name.starts_with(kind));
        let runs = |p: &Program| cannot(&p.name, tables).is_none();
        let chosen: Vec<Program> =
            all.into_iter().filter(|p| runs(p) && by_default(p) || only.contains(&p.name)).collect();
        let mut command = vec![suite.to_owned()];
        command.extend(chosen.iter().filter(|p| p.name != RUN).map(|p| p.name.clone()));
        let mut include = Vec::new();
        if chosen.iter().any(|p| p.name == RUN) {
            let gcc = PathBuf::from("/usr/bin/gcc").canonicalize().context("/usr/bin/gcc")?;
            let source = PathBuf::from(crate::REAL_SOURCE);
            let object = "/tmp/real.o".to_owned();
            let shown = |p: &PathBuf| p.to_string_lossy().into_owned();
            command.extend([RUN.into(), "--".into(), shown(&gcc), "-O1".into(), "-c".into()]);
            command.extend([shown(&source), "-o".into(), object]);
            // The driver looks for cc1 at the place of its installation, not where links lead.
            include = vec![gcc, compiler_part("cc1")?, compiler_part("as")?, source];
            include.push(PathBuf::from("/usr/bin/as"));
        }
        Ok(Workload { command, include, programs: chosen, memory_mib, vcpus, tables })
    }

    /// The window of one of its programs.
    pub fn window(&self, program: &str) -> Option<u64> {
        self.programs.iter().find(|p| p.name == program).map(|p| p.window)
    }

    /// The guest that runs the workload.
    pub fn guest(&self, vendor: &Vendor, kpti: bool) -> GuestSpec {
        GuestSpec {
            command: self.command.iter().map(Into::into).collect(),
            root: Root::Initramfs { include: self.include.clone() },
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            kpti,
            tables: self.tables,
            ..crate::guest(vendor)
        }
    }
}

/// A configuration by name.
pub fn config(name: &str) -> Result<(Config, InnerBacking)> {
    let config = Config::from_name(name).with_context(|| format!("no configuration is called {name}"))?;
    if config.mode == Paging::Native {
        bail!("KVM has no configuration {name}");
    }
    let backing = if name.ends_with("2m") { InnerBacking::Huge } else { InnerBacking::Small };
    Ok((config, backing))
}
