// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the superfluous swap operations that the model predicts (`bifold_model::Swaps`) with those of the
//! real kernel, for a guest that reads a file and one that allocates. The guest is captured once, where the
//! model predicts, and runs as an inner guest in a cgroup with a limit, where trace events of the
//! laboratory's kernel are counted. Both have a root over 9p, whose transfers the capture sees.

pub mod count;
pub mod document;
pub mod events;
pub mod predict;
pub mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::reclaim::LIMIT;
use crate::validate::{SWAPS, Workload, programs};

/// The configuration that is compared: under nested paging, an exit has the frame that its fault brings back.
pub const CONFIG: &str = "nested-4k";

/// Pages of the file that a guest reads (`lab/programs/superfluous.c`).
const FILE_PAGES: u64 = 12288;

/// The file that a guest reads, at the same path here and in the laboratory. It is removed in the end.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
}

impl SwapFile {
    /// Makes it. No two pages are the same, and none is zero.
    pub fn new() -> Result<SwapFile> {
        let path = std::env::temp_dir().join(format!("bifold-lab-swaps-{}", std::process::id()));
        let made = SwapFile { path };
        std::fs::write(&made.path, Self::content()).with_context(|| made.path.display().to_string())?;
        Ok(made)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn content() -> Vec<u8> {
        (0..FILE_PAGES).flat_map(|page| (page + 1).to_le_bytes().repeat(512)).collect()
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A workload for each of the programs named, or of all, after the one in which the limit begins.
pub fn workloads(file: &SwapFile, only: &[String], memory_mib: u64) -> Result<Vec<Workload>> {
    let names: Vec<String> = match only {
        [] => programs()?.into_iter().map(|p| p.name).filter(|name| name.starts_with(SWAPS)).collect(),
        _ => only.to_vec(),
    };
    names
        .into_iter()
        .map(|name| {
            let mut workload = Workload::new(&[LIMIT.to_owned(), name], memory_mib, 1)?;
            let path = file.path().to_str().context("a path in UTF-8")?;
            workload.command.splice(1..1, ["--file".to_owned(), path.to_owned()]);
            Ok(workload)
        })
        .collect()
}

/// The program under test of a workload.
fn program(workload: &Workload) -> Result<&crate::validate::Program> {
    workload.programs.iter().find(|p| p.name != LIMIT).context("a workload without a program")
}
