// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What placed guests run: the NAS kernels of `lab/nas` and Debian's HPCC, under Open MPI. An initramfs has
//! them with Open MPI's plugins, except those for networks, which a guest lacks and whose libraries are
//! large.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bifold_guest::cpio::Entry;
use bifold_guest::image;

use crate::lab::{Lab, in_target};

/// A program of the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The kernel's name, or `hpcc`: in tables, files and commands.
    pub name: &'static str,
    /// The end of a line that the program says if its checks pass.
    pub passed: &'static str,
}

const fn kernel(name: &'static str) -> Program {
    Program { name, passed: ": verified" }
}

/// The kernels, and HPCC with all its parts.
pub const PROGRAMS: [Program; 6] = [
    kernel("ep"),
    kernel("is"),
    kernel("cg"),
    kernel("mg"),
    kernel("ft"),
    Program { name: HPCC, passed: "Success=1" },
];
/// The name of HPCC among the programs.
pub const HPCC: &str = "hpcc";

/// Classes of problems, and the order of HPCC's matrices with each. HPCC's other parts take memory by that
/// order.
pub const CLASSES: [(&str, u32); 2] = [("S", 200), ("W", 600)];

impl Program {
    /// The command with this binary of kernels.
    pub fn command(&self, nas: &str, class: &str) -> String {
        if self.name == HPCC { INSTALLED.into() } else { format!("{nas} {} {class}", self.name) }
    }
}

/// Parts of names of plugins that are for networks.
const NETWORKS: [&str; 5] = ["_ofi", "openib", "psm", "ucx", "slurm"];
/// Where Open MPI and its process manager have plugins.
const PLUGINS: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3", "/usr/lib/x86_64-linux-gnu/pmix2/lib/pmix"];
/// Its configuration and messages.
const SETTINGS: [&str; 2] = ["/etc/openmpi/openmpi-mca-params.conf", "/usr/share/openmpi"];
const MPIRUN: &str = "/usr/bin/mpirun";
const INSTALLED: &str = "/usr/bin/hpcc";
/// The kernels in a guest.
pub const NAS: &str = "/lab/nas";
/// The script that runs a command under Open MPI.
const MPI: &str = include_str!("../../nas/mpi");

/// The binary of kernels that `lab/nas/build` makes.
///
/// # Errors
/// If it is not there.
pub fn kernels() -> Result<PathBuf> {
    installed(in_target("nas/nas"), "target/nas/nas")
}

/// A program that `make lab-place` installs or builds.
pub(super) fn installed(path: Option<PathBuf>, what: &str) -> Result<PathBuf> {
    let path = path.filter(|p| p.is_file());
    path.with_context(|| {
        format!("{what} is not there: run make lab-place, or lab/nas/build and apt-get install hpcc")
    })
}

/// The guests' initramfs with this first process, for runs with so many ranks.
///
/// # Errors
/// If Open MPI, HPCC or the kernels are not there, or a file cannot be read.
pub fn initramfs(lab: &Lab, init: &str, ranks: u32, order: u32) -> Result<Vec<u8>> {
    let nas = kernels()?;
    let mpirun = installed(Some(MPIRUN.into()), MPIRUN)?;
    let hpcc = installed(Some(INSTALLED.into()), INSTALLED)?;
    let mut archive = lab.script_guest_archive(init, &[&mpirun, &hpcc, &nas])?;
    let mut plugins: Vec<PathBuf> = Vec::new();
    for dir in PLUGINS {
        let entries = fs::read_dir(dir).with_context(|| dir.to_owned())?;
        plugins.extend(entries.flatten().map(|e| e.path()));
    }
    plugins.sort();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plugins = plugins.iter().filter(|p| p.extension().is_some_and(|e| e == "so"));
    let plugins: Vec<_> = plugins.filter(|p| !NETWORKS.iter().any(|n| name(p).contains(n))).collect();
    ensure!(!plugins.is_empty(), "{}: no plugins of Open MPI", PLUGINS[0]);
    for plugin in plugins {
        image::add_shared(&mut archive, plugin)?;
    }
    for path in SETTINGS {
        image::add_tree(&mut archive, Path::new(path))?;
    }
    let mut add = |at: &str, mode, data: Vec<u8>| archive.add(at.as_bytes(), Entry::File { mode, data });
    add(&NAS[1..], 0o755, fs::read(&nas).with_context(|| nas.display().to_string())?);
    add("lab/mpi", 0o755, MPI.into());
    add("bin/sh", 0o755, fs::read(crate::BUSYBOX).context(crate::BUSYBOX)?);
    add("lab/work/hpccinf.txt", 0o644, hpcc_input(ranks, order).into_bytes());
    Ok(archive.bytes())
}

/// HPCC's input: one matrix of this order, the processes in a row.
pub(super) fn hpcc_input(ranks: u32, order: u32) -> String {
    let lines = [
        ("title".into(), "one small problem"),
        ("title".into(), "written by lab place"),
        ("HPL.out".into(), "file of the output"),
        ("6".into(), "its kind"),
        ("1".into(), "number of orders"),
        (order.to_string(), "orders"),
        ("1".into(), "number of blocks"),
        ("32".into(), "blocks"),
        ("0".into(), "rows first"),
        ("1".into(), "number of grids of processes"),
        ("1".into(), "their rows"),
        (ranks.to_string(), "their columns"),
        ("16.0".into(), "largest residual"),
        ("1".into(), "number of factorizations of panels"),
        ("2".into(), "right-looking"),
        ("1".into(), "number of ends of the recursion"),
        ("4".into(), "columns there"),
        ("1".into(), "number of divisions"),
        ("2".into(), "panels of a division"),
        ("1".into(), "number of recursive factorizations"),
        ("1".into(), "Crout"),
        ("1".into(), "number of broadcasts"),
        ("1".into(), "ring, modified"),
        ("1".into(), "number of depths"),
        ("1".into(), "depth of looking ahead"),
        ("2".into(), "exchange of rows: both kinds"),
        ("64".into(), "columns from which on it is the second"),
        ("0".into(), "L transposed"),
        ("0".into(), "U transposed"),
        ("1".into(), "equilibration"),
        ("8".into(), "alignment"),
        ("-----".into(), ""),
        ("0".into(), "number of further orders for transposition"),
        ("100".into(), "orders"),
        ("0".into(), "number of further blocks"),
        ("32".into(), "blocks"),
    ];
    lines.iter().map(|(value, what): &(String, &str)| format!("{value:<12} {what}\n")).collect()
}
