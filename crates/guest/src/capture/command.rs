// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes QEMU's command line for a captured guest.
//!
//! One function describes the guest for the capture, for plain TCG and for KVM. The guest's CPU has the
//! features that both TCG and KVM on AMD's nested paging offer, so that the guest behaves the same under
//! either.
//!
//! `thread=single` runs all vCPUs on one thread, which gives events one exact order. `ioeventfd=off` serves
//! virtqueues at the guest's kick instead of on another thread, because exact runs must repeat.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bifold_trace::TableFormat;

use crate::boots::Registers;
use crate::error::GuestError;
use crate::kernel::Kernel;
use crate::nodes;
use crate::qemu::{self, BARE, MACHINE, Qemu, firmware, guest_cpu, path_of, quoted};
use crate::spec::{GuestSpec, HostPage, LOW_MIB, Record, Root, Timing};

/// Instructions between the first looks at a guest's memory. A look takes some 0.08 s in a guest of 2 GB of
/// which 0.2 GB are in use (by hand, 2026-11, on a busy machine), as 30 million instructions do.
const LOOK_INSNS: u64 = 100_000_000;

/// The capture plugin and its arguments.
#[derive(Clone, Copy)]
pub(super) struct Plugin<'a> {
    pub(super) path: &'a Path,
    pub(super) ring: BorrowedFd<'a>,
    /// The region's arguments, each after a comma.
    pub(super) region: &'a str,
}

/// What runs the guest.
#[derive(Clone, Copy)]
pub(super) enum Engine<'a> {
    /// TCG. Guest memory is the file `ram`, which the plugin maps too.
    Tcg { ram: BorrowedFd<'a>, plugin: Option<Plugin<'a>> },
    /// This machine's KVM, with guest memory in pages of this size.
    Kvm(HostPage),
}

/// Which part of a guest's life QEMU runs.
#[derive(Clone, Copy)]
pub(super) enum Stage<'a> {
    /// All of it.
    Whole {
        /// The initramfs, which has the command.
        initrd: BorrowedFd<'a>,
    },
    /// The boot, up to the instruction at which init stops the machine.
    Boot {
        /// The initramfs, which has no command.
        initrd: BorrowedFd<'a>,
        /// The socket of QEMU's machine protocol.
        qmp: BorrowedFd<'a>,
        /// For the machine's state.
        state: BorrowedFd<'a>,
    },
    /// What comes after a boot.
    Resumed {
        /// The socket of QEMU's machine protocol.
        qmp: BorrowedFd<'a>,
        /// The machine's state.
        state: BorrowedFd<'a>,
        /// Init's configuration for the command.
        config: BorrowedFd<'a>,
        /// The command's standard input.
        stdin: BorrowedFd<'a>,
        /// Those of the vCPU when the boot stopped.
        registers: Registers,
    },
}

/// Descriptors that QEMU opens by number.
pub(super) struct Inherited<'a> {
    pub(super) stage: Stage<'a>,
    pub(super) console: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    /// For the files that the command wrote, if the caller keeps them.
    pub(super) kept: Option<BorrowedFd<'a>>,
    pub(super) control: BorrowedFd<'a>,
    /// For symbols and perf maps, if costs are attributed.
    pub(super) places: Option<BorrowedFd<'a>>,
}

impl<'a> Stage<'a> {
    fn descriptors(&self) -> Vec<BorrowedFd<'a>> {
        match *self {
            Stage::Whole { initrd } => vec![initrd],
            Stage::Boot { initrd, qmp, state } => vec![initrd, qmp, state],
            Stage::Resumed { qmp, state, config, stdin, .. } => vec![qmp, state, config, stdin],
        }
    }

    /// The options in which the stages differ. Devices are equal in a boot and in what comes after: QEMU
    /// loads a state into the machine that wrote it.
    fn arguments(&self) -> Vec<(&'static str, String)> {
        let protocol = |qmp: BorrowedFd| {
            [
                // Init stops the machine by an event of this device.
                ("-device", "pvpanic".to_owned()),
                ("-chardev", format!("socket,id=qmp,fd={}", qmp.as_raw_fd())),
                ("-mon", "chardev=qmp,mode=control".into()),
            ]
        };
        let initrd = |fd| ("-initrd", path_of(fd));
        match self {
            Stage::Whole { initrd: fd } => vec![initrd(*fd)],
            Stage::Boot { initrd: fd, qmp, .. } => {
                let mut args = vec![initrd(*fd), ("-action", "panic=pause".into())];
                args.extend(protocol(*qmp));
                args
            }
            Stage::Resumed { qmp, config, stdin, .. } => {
                let mut args = protocol(*qmp).to_vec();
                for (name, fd) in [("config", config), ("stdin", stdin)] {
                    args.push(("-fw_cfg", format!("name=opt/bifold/{name},file={}", path_of(*fd))));
                }
                args.push(("-incoming", "defer".into()));
                args
            }
        }
    }

    /// The plugin's arguments, each after a comma.
    fn plugin_arguments(&self) -> String {
        let Stage::Resumed { registers, .. } = self else { return String::new() };
        format!(",cr3={:#x},cr4={:#x},idt={:#x}", registers.cr3, registers.cr4, registers.idt)
    }
}

/// The next midnight (UTC), in seconds since 1970. All exact runs of a day begin at this date, so they
/// repeat. No file of the host is newer than the guest's clock; make(1) would complain about such files.
pub(super) fn next_midnight(now: SystemTime) -> u64 {
    const DAY: u64 = 86_400;
    (now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() / DAY + 1) * DAY
}

/// The date of a midnight in seconds since 1970, as `-rtc base=` takes dates.
fn rtc_date(midnight: u64) -> String {
    let days = midnight / 86_400;
    // Days since 0000-03-01 to a date, by the Gregorian calendar's cycle of 400 years.
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}T00:00:00", era * 400 + year + u64::from(month <= 2))
}

fn kernel_arguments(spec: &GuestSpec) -> String {
    // The TSC is the only clock, because a watchdog that reads the HPET would be recorded. In exact
    // mode the TSC counts nanoseconds and needs no calibration. Self-tests only cost time.
    let tsc = match spec.timing {
        Timing::Exact => " tsc_early_khz=1000000",
        Timing::Fast => "",
    };
    let hugetlb = match spec.hugetlb_mib {
        0 => String::new(),
        mib => format!(" hugepages={}", mib / 2),
    };
    let addresses = match spec.record {
        Record::Boot => " norandmaps",
        Record::Command => "",
    };
    format!(
        "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init random.trust_cpu=on \
         cryptomgr.notests=1 no_timer_check tsc=reliable{tsc} pti={} transparent_hugepage={}{hugetlb}{addresses}",
        if spec.kpti { "on" } else { "off" },
        spec.thp.word(),
    )
}

/// The objects that hold the guest's memory, and the nodes that they belong to. `backend` begins an object's
/// options, and `file` is added where all objects are parts of one file.
fn memory_arguments(backend: &str, file: Option<&str>, spec: &GuestSpec) -> Vec<(&'static str, String)> {
    let object = |id: String, mib: Range<u64>| {
        let mut text = format!("{backend},id={id},size={}", (mib.end - mib.start) << 20);
        if let Some(file) = file {
            text += file;
        }
        if mib.start > 0 && file.is_some() {
            text += &format!(",offset={}", mib.start << 20);
        }
        ("-object", text)
    };
    if spec.nodes == 1 {
        return vec![object("ram".into(), 0..spec.memory_mib)];
    }
    let node = |n| {
        let vcpus = nodes::vcpus(spec, n);
        let numa = format!("node,nodeid={n},cpus={}-{},memdev=ram{n}", vcpus.start, vcpus.end - 1);
        [object(format!("ram{n}"), nodes::memory(spec, n)), ("-numa", numa)]
    };
    (0..spec.nodes).flat_map(node).collect()
}

/// The options that depend on the engine: memory and accelerator.
fn engine_arguments(engine: Engine, stage: Stage, spec: &GuestSpec) -> Vec<(&'static str, String)> {
    let bytes = spec.memory_mib << 20;
    let mut args = Vec::new();
    match engine {
        Engine::Tcg { ram, plugin } => {
            let path = path_of(ram);
            let file = format!(",mem-path={path},share=on");
            args.extend(memory_arguments("memory-backend-file", Some(&file), spec));
            args.push(("-accel", "tcg,thread=single".into()));
            if spec.timing == Timing::Exact {
                // An instruction takes 1 ns, the least that QEMU can give.
                args.push(("-icount", "shift=0,sleep=off".into()));
            }
            if let Some(Plugin { path, ring, region }) = plugin {
                args.push((
                    "-plugin",
                    format!(
                        "{},ring={},ram={},bytes={bytes},below4g={},vcpus={},check={},kpti={},levels={},boot={},files={},\
                         where={},stacks={},looks={}{region}{}",
                        quoted(path),
                        ring.as_raw_fd(),
                        ram.as_raw_fd(),
                        spec.memory_mib.min(LOW_MIB) << 20,
                        spec.vcpus,
                        spec.check_every,
                        u8::from(spec.kpti),
                        spec.tables.levels(),
                        u8::from(spec.record == Record::Boot),
                        u8::from(spec.timing == Timing::Exact && spec.root == Root::Host),
                        u8::from(spec.attribute),
                        u8::from(spec.stacks),
                        if spec.looks { LOOK_INSNS } else { 0 },
                        stage.plugin_arguments(),
                    ),
                ));
            }
        }
        Engine::Kvm(page) => {
            // Neither backend touches memory before the guest does.
            let backend = match page {
                HostPage::Size4K => "memory-backend-ram,merge=off",
                HostPage::Size2M => "memory-backend-memfd,hugetlb=on,hugetlbsize=2M,merge=off",
            };
            args.extend(memory_arguments(backend, None, spec));
            args.push(("-accel", "kvm".into()));
        }
    }
    args
}

/// The machine. Where the guest has nodes, each has its memory, and the machine has none of its own.
fn machine(spec: &GuestSpec) -> String {
    if spec.nodes > 1 { MACHINE.replace("memory-backend=ram,", "") } else { MACHINE.into() }
}

pub(super) fn arguments(engine: Engine, kernel: &Kernel, spec: &GuestSpec, fds: &Inherited) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
    opt(
        "-machine",
        // Not mergeable, so that a capture does not depend on this host's KSM.
        format!("{},max-ram-below-4g={LOW_MIB}M,mem-merge=off", machine(spec)),
    );
    opt("-name", "bifold,debug-threads=on".into());
    let vendor = format!("vendor={}", spec.cpu_vendor);
    let levels = (spec.tables == TableFormat::FiveLevel).then_some("+la57");
    let flags: Vec<&str> = [vendor.as_str(), "kvm=off"].into_iter().chain(levels).collect();
    opt("-cpu", guest_cpu(&flags));
    if !spec.tables.is_long() {
        // Linux 6.1 with PAE reads no feature bits from virtio devices whose registers lie above 4 GB, where
        // it would place them.
        opt("-global", "q35-pcihost.pci-hole64-size=0".into());
    }
    opt("-smp", spec.vcpus.to_string());
    opt("-m", format!("{}M", spec.memory_mib));
    for (name, value) in engine_arguments(engine, fds.stage, spec) {
        opt(name, value);
    }
    if spec.timing == Timing::Exact {
        opt("-seed", "1".into());
    }
    opt("-rtc", rtc(spec, matches!(fds.stage, Stage::Whole { .. })));
    opt("-kernel", kernel.image.to_string_lossy().into_owned());
    for (name, value) in fds.stage.arguments() {
        opt(name, value);
    }
    if let Some([name, image]) = firmware() {
        opt(&name, image);
    }
    opt("-append", kernel_arguments(spec));
    opt("-chardev", format!("file,id=console,path={}", path_of(fds.console)));
    opt("-serial", "chardev:console".into());
    opt("-device", "virtio-serial-pci,ioeventfd=off".into());
    opt("-chardev", format!("socket,id=control,fd={}", fds.control.as_raw_fd()));
    opt("-device", "virtserialport,chardev=control,name=bifold.control".into());
    let outputs = [
        ("stdout", Some(fds.stdout)),
        ("stderr", Some(fds.stderr)),
        ("files", fds.kept),
        ("where", fds.places),
    ];
    for (id, fd) in outputs.into_iter().filter_map(|(id, fd)| Some((id, fd?))) {
        opt("-chardev", format!("file,id={id},path={}", path_of(fd)));
        opt("-device", format!("virtserialport,chardev={id},name=bifold.{id}"));
    }
    if spec.root == Root::Host {
        opt("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap".into());
        opt("-device", "virtio-9p-pci,id=files,fsdev=root,mount_tag=root,ioeventfd=off".into());
    }
    args.extend(BARE.map(String::from));
    args
}

/// What the guest's clock begins with; init sets the date where the machine goes on.
fn rtc(spec: &GuestSpec, whole: bool) -> String {
    match (spec.timing, &spec.root) {
        _ if !whole => "base=2026-01-01,clock=vm".into(),
        (Timing::Exact, Root::Initramfs { .. }) => "base=2026-01-01,clock=vm".into(),
        (Timing::Exact, Root::Host) => {
            format!("base={},clock=vm", rtc_date(next_midnight(SystemTime::now())))
        }
        (Timing::Fast, _) => "base=utc".to_owned(),
    }
}

/// Starts QEMU, which ends with the calling thread.
pub(super) fn spawn(
    qemu: &Qemu,
    engine: Engine,
    kernel: &Kernel,
    spec: &GuestSpec,
    fds: &Inherited,
    log: OwnedFd,
) -> Result<Child, GuestError> {
    let mut keep = fds.stage.descriptors();
    keep.extend([fds.console, fds.stdout, fds.stderr, fds.control]);
    keep.extend(fds.kept);
    keep.extend(fds.places);
    if let Engine::Tcg { ram, plugin } = engine {
        keep.push(ram);
        keep.extend(plugin.map(|p| p.ring));
    }
    let small_pages = matches!(engine, Engine::Kvm(HostPage::Size4K));
    qemu::spawn(
        &qemu.path,
        &arguments(engine, kernel, spec, fds),
        &keep,
        (Stdio::null(), log),
        small_pages,
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Thp;
    use std::collections::BTreeSet;
    use std::os::fd::AsFd;

    #[test]
    fn the_guests_date_is_the_next_midnight() {
        let at = |seconds| rtc_date(next_midnight(UNIX_EPOCH + Duration::from_secs(seconds)));
        assert_eq!(at(0), "1970-01-02T00:00:00");
        assert_eq!(at(951_782_399), "2000-02-29T00:00:00");
        assert_eq!(at(951_782_400), "2000-03-01T00:00:00");
        assert_eq!(at(1_798_675_200 - 1), "2026-12-31T00:00:00");
        assert_eq!(at(1_798_761_599), "2027-01-01T00:00:00");
    }

    #[test]
    fn kvm_gets_the_very_guest_that_tcg_gets() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = file.as_fd();
        let (kept, places) = (None, None);
        let stage = Stage::Whole { initrd: fd };
        let fds = Inherited { stage, console: fd, stdout: fd, stderr: fd, kept, control: fd, places };
        let kernel = Kernel { image: "/k".into(), modules: None, version: "6.1".into() };
        let spec = GuestSpec {
            thp: Thp::Never,
            record: Record::Boot,
            root: Root::Initramfs { include: Vec::new() },
            ..GuestSpec::new(vec!["true".into()])
        };
        let arguments = |engine| -> BTreeSet<String> {
            let words = super::arguments(engine, &kernel, &spec, &fds);
            words.windows(2).map(|w| w.join(" ")).filter(|w| w.starts_with('-')).collect()
        };
        let tcg = arguments(Engine::Tcg {
            ram: fd,
            plugin: Some(Plugin { path: Path::new("/p"), ring: fd, region: "" }),
        });
        for page in [HostPage::Size4K, HostPage::Size2M] {
            let kvm = arguments(Engine::Kvm(page));
            let names = |of: &BTreeSet<String>, than: &BTreeSet<String>| -> Vec<String> {
                of.difference(than).map(|w| w.split(' ').next().unwrap_or_default().to_owned()).collect()
            };
            assert_eq!(names(&tcg, &kvm), ["-accel", "-icount", "-object", "-plugin"]);
            assert_eq!(names(&kvm, &tcg), ["-accel", "-object"]);
        }
    }

    #[test]
    fn nodes_are_parts_of_one_file_and_take_the_machines_memory() {
        let spec = GuestSpec { vcpus: 4, nodes: 2, memory_mib: 513, ..GuestSpec::new(vec!["true".into()]) };
        let file = std::fs::File::open("/dev/null").unwrap();
        let engine = Engine::Tcg { ram: file.as_fd(), plugin: None };
        let stage = Stage::Whole { initrd: file.as_fd() };
        let words: Vec<String> =
            engine_arguments(engine, stage, &spec).into_iter().map(|(o, v)| format!("{o} {v}")).collect();
        let path = path_of(file.as_fd());
        assert_eq!(
            words[0],
            format!("-object memory-backend-file,id=ram0,size=268435456,mem-path={path},share=on")
        );
        assert_eq!(words[1], "-numa node,nodeid=0,cpus=0-1,memdev=ram0");
        let second = "id=ram1,size=269484032,mem-path=PATH,share=on,offset=268435456".replace("PATH", &path);
        assert_eq!(words[2], format!("-object memory-backend-file,{second}"));
        assert_eq!(words[3], "-numa node,nodeid=1,cpus=2-3,memdev=ram1");
        assert!(!machine(&spec).contains("memory-backend"), "{}", machine(&spec));
        assert!(machine(&GuestSpec { nodes: 1, ..spec }).contains("memory-backend=ram"));
    }
}
