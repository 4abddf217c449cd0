// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The case of a VM whose cgroup has little room: a stay in shadow paging needs memory, which the cgroup may
//! refuse when the stay begins or later. Neither may end the VM.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Notes;
use super::host::Cgroup;
use super::machine::{Args, DATA_GPA, Machine, MachineSpec, SPARSE, STOP};
use super::routines::Routine;

/// Pages of data.
const PAGES: u64 = 16_384;
/// Leaf tables, each of which needs a shadow page: more than most rooms hold, and less than the largest.
const TABLES: u64 = 128;
/// The guest's memory is this data and 32 MB of tables.
const MEMORY: u64 = (PAGES << 12) + (32 << 20);
/// Rounds of a switch to shadow paging and one back.
const ROUNDS: u32 = 100;
const TAG: u64 = 0x5eed;

/// The program that `limited` starts in a cgroup. Its guest writes to a page behind each table until the
/// program's input ends; then the program prints how many pages do not hold what the guest wrote.
pub fn limited_vm() -> Result<()> {
    let m = Machine::new(MachineSpec { pages: PAGES, sparse: TABLES, ..MachineSpec::default() })?;
    // As for a VM whose tables are all in use: KVM's own limit goes by the memory, which is small here.
    // SAFETY: no memory is passed. _IO(KVMIO, 0x44)
    let end = unsafe { libc::ioctl(m.fd.as_raw_fd(), 0xae44, 2 * TABLES) };
    ensure!(end == 0, "KVM_SET_NR_MMU_PAGES: {}", std::io::Error::last_os_error());
    let args = Args { rax: TAG, rdi: SPARSE, rsi: TABLES, rdx: 2 << 20, r8: STOP, ..Args::default() };
    m.go(0, Routine::Sweep, args)?;
    // Once it has been everywhere, it runs without anything of this program.
    let last = TABLES - 1;
    while m.memory.read(DATA_GPA + (last << 12))? != TAG + SPARSE + (last << 21) {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{}", m.mode_file().display());
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    m.stop(0)?;
    println!("{}", m.wrong(0, SPARSE, 2 << 20, TABLES, TAG)?);
    Ok(())
}

/// A number of the cgroup's file `memory.events`.
fn events(cgroup: &Cgroup, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(cgroup.path().join("memory.events"))?;
    let of = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    Ok(of.with_context(|| format!("memory.events has no {name}"))?.parse()?)
}

/// Sets a limit that leaves `room` bytes, rounded to pages as the kernel counts.
fn leave(cgroup: &Cgroup, room: u64) -> Result<()> {
    let current: u64 = std::fs::read_to_string(cgroup.path().join("memory.current"))?.trim().parse()?;
    Ok(std::fs::write(cgroup.path().join("memory.max"), (current + room).to_string())?)
}

/// Switches the VM with rooms from a page to 2 % of its memory, and counts how the switches end.
fn switch(n: &mut Notes, vm: &Cgroup, child: &mut Child, path: &Path) -> Result<()> {
    let stats = || -> Result<BTreeMap<String, u64>> {
        let text = std::fs::read_to_string(path.with_file_name("paging_stats"))?;
        text.lines()
            .map(|l| {
                let (name, value) = l.split_once(' ').context("a line of paging_stats")?;
                Ok((name.to_owned(), value.parse()?))
            })
            .collect()
    };
    let most = (MEMORY / 50) as f64;
    let (mut refused, mut came_back) = (0u64, 0u64);
    for round in 0..ROUNDS {
        let room = 4096.0 * (most / 4096.0).powf(f64::from(round) / f64::from(ROUNDS - 1));
        leave(vm, room as u64)?;
        let before = stats()?["back_for_memory"];
        match std::fs::write(path, "shadow") {
            Ok(()) => std::thread::sleep(Duration::from_millis(30)),
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => refused += 1,
            Err(e) => n.expect(false, || format!("round {round}, {room} bytes: {e}")),
        }
        ensure!(child.try_wait()?.is_none(), "round {round}, {room} bytes of room: the VM has ended");
        came_back += u64::from(stats()?["back_for_memory"] > before);
        std::fs::write(path, "nested").with_context(|| format!("round {round}: back"))?;
        std::fs::write(vm.path().join("memory.max"), "max")?;
    }
    let end = stats()?;
    n.number("switches to shadow paging", end["switches_to_shadow"]);
    n.number("refused for want of memory", refused);
    n.number("gone back for want of memory", came_back);
    n.expect(refused > 0, || "no switch met the limit".into());
    n.expect(came_back > 0, || "no stay met the limit".into());
    n.expect(end["switches_to_shadow"] > came_back, || "each stay met the limit".into());
    n.same("counted as refused for want of memory", end["no_memory"], refused);
    Ok(())
}

/// A VM near its cgroup's limit is switched from outside of the cgroup.
pub fn limited(n: &mut Notes) -> Result<()> {
    let Some(root) = Cgroup::memory_root()? else {
        n.skip("this kernel has no memory cgroups");
        return Ok(());
    };
    let vm = Cgroup::new(&root, "limited")?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("switch-limited")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let run = (|| {
        // What it has so far is charged elsewhere, and what it makes as its guest runs here.
        vm.take(child.id())?;
        let mut said = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let path = said.next().context("the VM does not begin")??;
        switch(n, &vm, &mut child, Path::new(&path))?;
        drop(child.stdin.take());
        let wrong: u64 = said.next().context("the VM does not end")??.parse()?;
        n.same("pages with other contents than the guest wrote", wrong, 0);
        Ok::<_, anyhow::Error>(())
    })();
    n.same("processes that the OOM killer ended", events(&vm, "oom_kill")?, 0);
    let _ = child.kill();
    child.wait()?;
    run
}
