// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Local and remote references of the same programs, by `bifold compare --placement`: what an emulated host
//! cannot time and does not count. A guest that knows its nodes and one that does not run each program once;
//! the model places both.
//!
//! Of the kernels, the region that the published programs time is recorded, without set-up and verification
//! (`region_begin` and `region_end` in `lab/nas/nas.h`). Of HPCC, the sections that the paper shows are
//! recorded: a library for LD_PRELOAD marks them (`lab/nas/section`). Recording ends the program at the end
//! of the region, so a kernel's results are compared only in the lab's other runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::guests::{NODES, VCPUS};
use super::world::{self, PROGRAMS};
use crate::lab::{beside, in_target};

/// Cycles of an access to memory of the other node, on the profile i5-7600: 1.6 times those of the own node.
pub const REMOTE_CYCLES: u64 = 352;
/// Class of the kernels: problems of class S fit into the caches.
pub const CLASS: &str = "W";
/// Order of HPCC's matrices, for the same reason.
const ORDER: u32 = 1200;
/// Instructions of a program that are recorded at most.
const MOST: &str = "3G";

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// A program of [`PROGRAMS`].
    pub program: &'static str,
    /// HPCC's section, if the program is HPCC.
    pub section: Option<&'static str>,
}

/// The parts that the paper shows of each program.
pub const PARTS: [Part; 8] = [
    Part { program: "ep", section: None },
    Part { program: "is", section: None },
    Part { program: "cg", section: None },
    Part { program: "mg", section: None },
    Part { program: "ft", section: None },
    Part { program: "hpcc", section: Some("StarSTREAM") },
    Part { program: "hpcc", section: Some("MPIRandomAccess") },
    Part { program: "hpcc", section: Some("HPL") },
];

impl Part {
    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        self.section.unwrap_or(self.program)
    }
}

/// The model's placements of a guest that knows no nodes.
const WITHOUT_NODES: [&str; 2] = ["smp", "interleaved"];
/// Those of a guest that knows them.
const WITH_NODES: [&str; 2] = ["guest-numa", "crossed"];

/// References of a part in one configuration and placement.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ReferenceRow {
    /// Paging mode and size of the host's pages.
    pub config: String,
    /// The placement.
    pub placement: String,
    guest_tables_local: u64,
    guest_tables_remote: u64,
    host_tables_local: u64,
    host_tables_remote: u64,
    data_local: u64,
    data_remote: u64,
    overhead_percent: Option<f64>,
    /// The overhead without placements, which [`rows`] adds.
    #[serde(skip)]
    unplaced_percent: Option<f64>,
}

/// The remote part of references in percent; `None` without references.
fn percent(local: u64, remote: u64) -> Option<f64> {
    (local + remote > 0).then(|| 100.0 * remote as f64 / (local + remote) as f64)
}

impl ReferenceRow {
    /// Remote data accesses, in percent of all.
    pub fn data(&self) -> Option<f64> {
        percent(self.data_local, self.data_remote)
    }

    /// Remote references of walks, in percent of all.
    pub fn tables(&self) -> Option<f64> {
        let local = self.guest_tables_local + self.host_tables_local;
        percent(local, self.guest_tables_remote + self.host_tables_remote)
    }

    /// Cycles that remote references take longer than local ones, in percent of the ideal run.
    pub fn longer(&self) -> Option<f64> {
        Some(self.overhead_percent? - self.unplaced_percent?)
    }
}

/// What `bifold compare --format jsonl` writes.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Total {
        config: String,
        overhead_percent: f64,
    },
    Placement(ReferenceRow),
    #[serde(other)]
    Other,
}

fn rows(text: &str) -> Result<Vec<ReferenceRow>> {
    let (mut out, mut totals) = (Vec::new(), BTreeMap::new());
    for line in text.lines() {
        match serde_json::from_str(line).with_context(|| format!("a row of bifold compare: {line}"))? {
            Line::Total { config, overhead_percent } => {
                totals.insert(config, overhead_percent);
            }
            Line::Placement(row) => {
                out.push(ReferenceRow { unplaced_percent: totals.get(&row.config).copied(), ..row });
            }
            Line::Other => {}
        }
    }
    Ok(out)
}

/// A folder that ends with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One run of a part, in a guest that knows nodes or not.
fn capture(part: &Part, nodes: bool, work: &Path) -> Result<Vec<ReferenceRow>> {
    let program = PROGRAMS.iter().find(|p| p.name == part.program).context("an unknown program")?;
    let nas = world::kernels()?.canonicalize().context("target/nas/nas")?;
    let command = program.command(&nas.to_string_lossy(), CLASS);
    let mut compare = Command::new(beside("bifold")?);
    // A vCPU's first touch decides where the host places a page.
    let options = "compare -q --profile i5-7600 --vm started --format jsonl --from-marker --regions 1 --for";
    compare.args(options.split(' '));
    compare.args([MOST, "--vcpus", &VCPUS.to_string()]);
    compare.args(["--set", &format!("memory.remote_cycles={REMOTE_CYCLES}")]);
    if nodes {
        compare.args(["--guest-nodes", &NODES.to_string(), "--placement", &WITH_NODES.join(",")]);
    } else {
        compare.args(["--placement", &WITHOUT_NODES.join(",")]);
    }
    compare.arg("--").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("nas/mpi")).arg(VCPUS.to_string());
    if let Some(section) = part.section {
        let library = world::installed(in_target("nas/section.so"), "target/nas/section.so")?;
        let library = library.canonicalize().with_context(|| library.display().to_string())?;
        compare.args([
            "env",
            &format!("HPCC_SECTION={section}"),
            &format!("LD_PRELOAD={}", library.display()),
        ]);
    }
    compare.args(command.split(' ')).current_dir(work).env("MPI_BIND", "core").stdin(Stdio::null());
    let output = compare.output().context("running bifold compare")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "bifold compare of {}: {}: {said}", part.name(), output.status);
    let rows = rows(&String::from_utf8_lossy(&output.stdout))?;
    ensure!(!rows.is_empty(), "bifold compare of {} counted no references: {said}", part.name());
    Ok(rows)
}

/// The references of a part in all placements of the model.
///
/// # Errors
/// If a program is missing, or `bifold compare` fails.
pub fn references(part: &Part) -> Result<Vec<ReferenceRow>> {
    let name = format!("bifold-lab-place-{}", std::process::id());
    let work = Folder(std::env::temp_dir().join(name));
    fs::create_dir_all(&work.0).with_context(|| work.0.display().to_string())?;
    fs::write(work.0.join("hpccinf.txt"), world::hpcc_input(VCPUS, ORDER)).context("HPCC's input")?;
    Ok([capture(part, false, &work.0)?, capture(part, true, &work.0)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_shares_and_the_cost_of_remote_references() {
        let text = r#"{"type":"run","profile":"x"}
{"type":"total","config":"nested-2m","instructions":9,"overhead_percent":1.5}
{"type":"placement","config":"nested-2m","placement":"smp","guest_tables_local":3,"guest_tables_remote":1,"host_tables_local":3,"host_tables_remote":1,"data_local":60,"data_remote":40,"remote_walk_cycles":1,"remote_data_cycles":2,"overhead_percent":2.0}
{"type":"placement","config":"native","placement":"smp","guest_tables_local":0,"guest_tables_remote":0,"host_tables_local":0,"host_tables_remote":0,"data_local":0,"data_remote":0,"remote_walk_cycles":null,"remote_data_cycles":null,"overhead_percent":null}
{"type":"interval","config":"native"}
"#;
        let rows = rows(text).unwrap();
        let [placed, empty] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((placed.data(), placed.tables(), placed.longer()), (Some(40.0), Some(25.0), Some(0.5)));
        assert_eq!((empty.data(), empty.tables(), empty.longer()), (None, None, None));
        assert!(super::rows("no json").is_err());
    }

    #[test]
    fn every_part_is_of_a_program() {
        assert!(PARTS.iter().all(|part| PROGRAMS.iter().any(|p| p.name == part.program)));
    }
}
