// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs `bifold reclaim run` in the laboratory, whose host has a disk for swapping, cgroup v2 and KVM: what
//! this machine cannot or must not do to its own memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::lab::job::{Job, at};
use crate::lab::{Lab, Plan, beside};
use crate::{BUSYBOX, sh};

/// The laboratory and what runs in it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The experiment's file.
    pub experiment: PathBuf,
    /// Cases to run; all if there are none.
    pub cases: Vec<String>,
    /// Memory of the laboratory, MiB.
    pub memory_mib: u64,
    /// Its disk for swapping, MiB.
    pub swap_mib: u64,
    /// Most reads and writes of that disk in a second; 0 for no limit.
    pub swap_iops: u64,
    /// Whether the guests run in nested paging, and not in shadow paging.
    pub nested: bool,
    /// Time limit in seconds.
    pub seconds: u64,
}

/// What the run left.
#[derive(Debug)]
pub struct Results {
    /// The tables, as Markdown.
    pub tables: String,
    /// The document of schema `bifold.reclaim-run/1`.
    pub json: Vec<u8>,
    /// The page with curves over time.
    pub page: Vec<u8>,
}

/// `$B` is busybox, `$OUT` the folder whose files come back.
const SCRIPT: &str = r#"
set -e
$B mkdir -p /run
$B mkswap /dev/vda >/dev/null
$B swapon /dev/vda
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
$BIFOLD reclaim run --kvm --format json -o $OUT/run.json --report $OUT/run.html --markdown $OUT/run.md "$@" /lab/experiment.toml
"#;

/// Runs the experiment.
///
/// # Errors
/// If the boot fails, or the run is not whole.
pub fn run(lab: &Lab, settings: &Settings) -> Result<Results> {
    lab.needs_qemu("Bochs's machine has no disk to swap to")?;
    let text =
        std::fs::read(&settings.experiment).with_context(|| settings.experiment.display().to_string())?;
    let bifold = beside("bifold")?;
    // `bifold` finds the guests' kernel by its series, in a cache like this machine's.
    let kernel = lab.inner().image.parent().context("the kernel's folder")?.to_owned();
    let cache = kernel.ancestors().nth(3).context("the cache's folder")?;
    let set = format!(
        "B={BUSYBOX} OUT={} BIFOLD={}; export HOME=/root XDG_CACHE_HOME={}\n{SCRIPT}",
        at::OUT,
        bifold.display(),
        cache.display()
    );
    let cases = settings.cases.iter().flat_map(|name| ["--case".to_owned(), name.clone()]);
    let command = [sh(&set), vec!["run".into()], cases.collect()].concat();
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: settings.nested }, Job::Run { command }].into(),
        programs: vec![BUSYBOX.into(), bifold],
        files: vec![kernel],
        made: vec![("/lab/experiment.toml".into(), text)],
        emulator: true,
        // What this machine does besides takes no time of the guests.
        sleeps: true,
        memory_mib: settings.memory_mib,
        swap_mib: settings.swap_mib,
        swap_iops: settings.swap_iops,
        seconds: settings.seconds,
        notes: |what| eprintln!("lab: {what}"),
        ..Plan::default()
    };
    let mut output = lab.boot_for_last(&plan).context("bifold reclaim run")?;
    let mut file = |name: &str| output.files.remove(name).with_context(|| format!("the run left no {name}"));
    Ok(Results {
        tables: String::from_utf8_lossy(&file("run.md")?).into_owned(),
        json: file("run.json")?,
        page: file("run.html")?,
    })
}

/// The page: where the run was, and its tables.
pub fn document(lab: &Lab, settings: &Settings, results: &Results, experiment: &Path) -> String {
    let disk = match settings.swap_iops {
        0 => "without a limit of its speed".to_owned(),
        n => format!("of {n} reads and writes a second"),
    };
    format!(
        "# {}\n\nWritten by `lab pressure {}`. Kernel of laboratory and guests: Debian's {}; emulator of AMD's processor: {}; guests under KVM in \
         {} paging. The host executes 500 million instructions in a second of its time, and swaps to a disk {disk}.\n\n{}",
        "A guest on a host that pages",
        experiment.display(),
        lab.kernel().version,
        lab.emulator(),
        if settings.nested { "nested" } else { "shadow" },
        results.tables
    )
}
