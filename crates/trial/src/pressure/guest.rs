// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with a balloon, a disk for its swap and its files, and a load in phases.

use super::outcome::{GuestOutcome, LoadCounts};
use super::spec::{CaseSpec, GuestSpec, Phase, PlannedGuest, Spec};
use crate::guest::{Said, listen};
use bifold_guest::cpio::{Archive, Entry};
use bifold_guest::kernel::Kernel;
use bifold_guest::qemu::{Qemu, quoted};
use bifold_guest::vm::{GuestVm, GuestVmSpec, Initrd};
use bifold_guest::{GuestError, workload_initramfs};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

const LOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/load"));
const PROGRAM: &str = "/load";
/// The guest's disks, in the order of their devices.
const DEVICES: [&str; 2] = ["/dev/vda", "/dev/vdb"];

/// A guest from its start to its end.
#[derive(Debug)]
pub struct Guest {
    vm: Option<GuestVm>,
    /// QEMU's process, for as long as it runs.
    pub pid: Option<u32>,
    ready: bool,
    first: Option<LoadCounts>,
    /// The last counts, since the load began.
    pub counts: LoadCounts,
    /// The guest's outcome so far.
    pub outcome: GuestOutcome,
}

/// The sizes of a guest's disks in MiB, for swap and for files; 0 for none.
fn disks(spec: &GuestSpec) -> [u64; 2] {
    [spec.swap_mib, spec.phases.iter().map(|p| p.files_mib).max().unwrap_or(0)]
}

/// The arguments of the load's program, beginning with its name.
fn arguments(spec: &GuestSpec, planned: &PlannedGuest) -> Vec<String> {
    let mut devices = DEVICES.into_iter();
    let names = disks(spec).map(|mib| if mib > 0 { devices.next().unwrap_or_default() } else { "-" });
    let phase = |p: &Phase| {
        let ms = (p.seconds * 1000.0).round();
        format!("{ms}:{}:{}:{}:{}", p.memory_mib, p.used_mib.unwrap_or(p.memory_mib), p.files_mib, p.rate)
    };
    let own = [planned.seed.to_string(), planned.shift_ms.to_string(), names[0].into(), names[1].into()];
    ["load".to_owned()].into_iter().chain(own).chain(spec.phases.iter().map(phase)).collect()
}

/// The guest's socket of QEMU's monitor, in a folder of its own.
fn socket(folder: &Path) -> PathBuf {
    folder.join("qmp")
}

/// What a guest runs on.
pub struct Ground<'a> {
    pub qemu: &'a Qemu,
    pub kernel: &'a Kernel,
    /// Whether it runs under KVM, and is not emulated.
    pub kvm: bool,
    /// A folder of its own for its disks and its monitor's socket.
    pub folder: &'a Path,
    /// The open `cgroup.procs` of its group, where the host pages.
    pub group: Option<BorrowedFd<'a>>,
}

impl Guest {
    /// Starts the guest.
    pub fn start(
        ground: &Ground,
        experiment: &Spec,
        case: &CaseSpec,
        planned: &PlannedGuest,
    ) -> Result<Guest, GuestError> {
        let &Ground { qemu, kernel, kvm, folder, group } = ground;
        let spec = &experiment.guests[planned.kind];
        let mut archive = Archive::default();
        archive.add(PROGRAM.as_bytes(), Entry::File { mode: 0o755, data: LOAD.to_vec() });
        let mut modules = vec!["virtio_balloon"];
        if disks(spec).iter().any(|mib| *mib > 0) {
            modules.push("virtio_blk");
        }
        let memory_mib = case.memory_mib.unwrap_or(spec.memory_mib);
        let arguments = arguments(spec, planned);
        let initrd = Initrd::new(&workload_initramfs(kernel, archive, PROGRAM, &arguments, &modules)?)?;
        let more = extra(spec, case, folder, experiment.disk_us)?;
        let vm = GuestVm::start(
            qemu,
            &GuestVmSpec {
                name: &planned.name,
                memory_mib,
                kernel,
                initrd: &initrd,
                merge: case.sharing,
                huge_pages: false,
                kvm,
                group,
                more: &more,
            },
        )?;
        Ok(Guest {
            pid: Some(vm.pid()),
            vm: Some(vm),
            ready: false,
            first: None,
            counts: LoadCounts::default(),
            outcome: GuestOutcome {
                name: planned.name.clone(),
                memory_mib,
                kernel: kernel.version.clone(),
                ..GuestOutcome::default()
            },
        })
    }

    /// Reads the lines that the guest has sent, and notices its end. Returns news for the user, as text.
    pub fn poll(&mut self, now: f64) -> Result<Option<String>, GuestError> {
        let mut end = None;
        let ended = listen(&mut self.vm, |said| match said {
            Said::Load("ready", _) => self.ready = true,
            Said::Load("count", numbers) => {
                if let Some(counts) = LoadCounts::parse(numbers) {
                    // The kernel counts from its boot, and the load from its begin.
                    let zero = LoadCounts { operations: 0, busy_us: 0, kills: 0, ..counts };
                    self.counts = counts.since(self.first.get_or_insert(zero));
                }
            }
            Said::Load("failed", why) => end = Some(format!("its load failed: {why}")),
            // The load goes on after its kernel has killed it for lack of memory.
            Said::End(word, line) if word != "oom" => end = Some(format!("its load ended: {line}")),
            _ => {}
        })?;
        if ended.is_some() {
            (end, self.pid) = (ended, None);
        }
        let Some(why) = end.filter(|_| self.outcome.ended.is_none()) else { return Ok(None) };
        let news = format!("{} ended at {now:.1} s: {why}", self.outcome.name);
        self.outcome.ended = Some((now, why));
        Ok(Some(news))
    }

    /// Whether the load waits for its begin, or never will.
    pub fn is_decided(&self) -> bool {
        self.ready || self.outcome.ended.is_some()
    }

    /// Lets the load begin.
    pub fn go(&mut self) -> Result<(), GuestError> {
        self.vm.as_mut().map_or(Ok(()), |vm| vm.send("go"))
    }
}

/// QEMU's extra arguments: the balloon, the monitor and the disks. Makes the file of the disk for swap.
fn extra(spec: &GuestSpec, case: &CaseSpec, folder: &Path, disk_us: u64) -> Result<Vec<String>, GuestError> {
    let reporting = if case.reporting { "on" } else { "off" };
    let mut more = vec![
        "-device".into(),
        format!("virtio-balloon-pci,deflate-on-oom=on,free-page-reporting={reporting}"),
        "-qmp".into(),
        format!("unix:{},server=on,wait=off", quoted(&socket(folder))),
    ];
    let [swap, files] = disks(spec).map(|mib| mib << 20);
    let mut disk = |name: &str, node: String| {
        let device = format!("virtio-blk-pci,drive={name}");
        more.extend(["-blockdev".into(), format!("{node},node-name={name}"), "-device".into(), device]);
    };
    if swap > 0 {
        let path = folder.join("swap");
        let made = File::create(&path).and_then(|file| file.set_len(swap));
        made.map_err(|source| GuestError::File {
            path: path.clone(),
            what: "cannot make a guest's disk",
            source,
        })?;
        disk("swap", format!("driver=file,filename={}", quoted(&path)));
    }
    if files > 0 {
        // All zero and nowhere on this host, with the time of a disk.
        let ns = disk_us * 1000;
        disk("files", format!("driver=null-co,size={files},read-zeroes=on,latency-ns={ns}"));
    }
    Ok(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::Spec;

    #[test]
    fn the_load_gets_phases_and_devices() {
        let text = |more: &str, files: u64| {
            format!(
                "title = 'x'\nhost_memory_mib = 500\n[time]\nlength = 10\ninterval = 1\n[[guest]]\nname = 'a'\ncount = 1\n\
                 memory_mib = 256\nleast_mib = 100\n{more}phases = [{{ seconds = 2.5, memory_mib = 100, files_mib = {files}, \
                 rate = 10 }}, {{ seconds = 1, memory_mib = 80, used_mib = 8, rate = 0 }}]\n[[case]]\nname = 'all'\n"
            )
        };
        let words = |text: String| {
            let spec = Spec::parse(Path::new("x"), &text).unwrap();
            arguments(&spec.guests[0], &spec.plan()[0])[1..].join(" ")
        };
        assert_eq!(words(text("", 0)), "0 0 - - 2500:100:100:0:10 1000:80:8:0:0");
        assert_eq!(words(text("", 64)), "0 0 - /dev/vda 2500:100:100:64:10 1000:80:8:0:0");
        assert_eq!(
            words(text("swap_mib = 32\n", 64)),
            "0 0 /dev/vda /dev/vdb 2500:100:100:64:10 1000:80:8:0:0"
        );
    }
}
