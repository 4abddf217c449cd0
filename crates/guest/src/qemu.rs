// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The emulator: which one, what it can, and its command line.
//!
//! One function describes the guest, whoever runs it: a capture, plain TCG or KVM.
//! Its CPU is the largest set of features that QEMU's TCG and KVM on AMD's nested
//! paging both have, so that the same guest does the same under either.
//!
//! `thread=single` runs all vCPUs on one thread, so events have one exact
//! order. Virtqueues are served where the guest kicks them (`ioeventfd=off`),
//! not when another thread gets to it, because exact runs must repeat.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::CaptureError;
use crate::kernel::Kernel;
use crate::{GuestSpec, HostPage, LOW_MIB, Record, Root, Timing};

/// Where a recent QEMU comes from.
pub(crate) const WHERE: &str = "(Debian 13: in main; Debian 12: from bookworm-backports, apt-get install -t bookworm-backports qemu-system-x86)";
/// A firmware that does next to nothing; SeaBIOS takes 0.2 s under emulation.
pub(crate) const QBOOT: &str = "/usr/share/qemu/qboot.rom";
const OLDEST: (u32, u32) = (9, 0);
/// What TCG lacks of an EPYC and what KVM would add or drop by itself is off by name; so are
/// paravirtual clocks and the like (kvm=off).
pub(crate) const CPU: &str =
    "EPYC,-fxsr-opt,-misalignsse,-osvw,-topoext,-xsavec,-svm,-vme,-monitor,-x2apic,-tsc-deadline,kvm=off";

/// An emulator that can do what is needed.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// Its file.
    pub path: PathBuf,
    /// Its version, as it says itself.
    pub version: String,
}

fn search() -> Result<PathBuf, CaptureError> {
    if let Some(path) = std::env::var_os("BIFOLD_QEMU").filter(|p| !p.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|d| d.join("qemu-system-x86_64"))
        .find(|p| p.is_file())
        .ok_or(CaptureError::QemuMissing)
}

/// Finds the emulator and checks its version and abilities.
pub fn find() -> Result<Qemu, CaptureError> {
    let path = search()?;
    let ask = |arg| {
        // A process group of its own: the terminal's Ctrl-C is for us, and we have not started yet.
        Command::new(&path).arg(arg).stdin(Stdio::null()).process_group(0).output().map_err(|e| {
            match e.kind() {
                std::io::ErrorKind::NotFound => CaptureError::QemuMissing,
                _ => CaptureError::file(&path, "cannot run")(e),
            }
        })
    };
    let text = String::from_utf8_lossy(&ask("--version")?.stdout).into_owned();
    let version = text
        .split_whitespace()
        .skip_while(|w| *w != "version")
        .nth(1)
        .unwrap_or("of unknown version")
        .to_owned();
    let mut parts = version.split('.').map_while(|p| p.parse().ok());
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
        return Err(CaptureError::QemuTooOld { found: version });
    }
    let help = String::from_utf8_lossy(&ask("-help")?.stdout).into_owned();
    if !help.lines().any(|l| l.starts_with("-plugin ")) {
        return Err(CaptureError::NoPlugins { path });
    }
    Ok(Qemu { path, version })
}

/// The plugin and what it is told beside the guest.
#[derive(Clone, Copy)]
pub(crate) struct Plugin<'a> {
    pub(crate) path: &'a Path,
    pub(crate) ring: BorrowedFd<'a>,
    /// Arguments of the region, each after a comma.
    pub(crate) region: &'a str,
}

/// What runs the guest.
#[derive(Clone, Copy)]
pub(crate) enum Engine<'a> {
    /// TCG; its memory is this file, shared with whoever looks at it.
    Tcg { ram: BorrowedFd<'a>, plugin: Option<Plugin<'a>> },
    /// The machine's KVM, over memory of these pages.
    Kvm(HostPage),
}

/// Descriptors that QEMU opens by number.
pub(crate) struct Inherited<'a> {
    pub(crate) initrd: BorrowedFd<'a>,
    pub(crate) console: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// For the files that the command wrote, if they are wanted.
    pub(crate) kept: Option<BorrowedFd<'a>>,
    pub(crate) control: BorrowedFd<'a>,
    /// What init says of addresses, if it is asked to.
    pub(crate) places: Option<BorrowedFd<'a>>,
}

pub(crate) fn path_of(fd: BorrowedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// QEMU doubles commas within a value.
fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The next midnight (UTC), as `-rtc base=` takes it. All exact runs of a day have the same date, so
/// that they repeat, and no file of the host's is newer than the guest's clock, which make(1) minds.
fn next_midnight(now: SystemTime) -> String {
    const DAY: u64 = 86_400;
    let days = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() / DAY + 1;
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
    // The TSC is the only clock: a watchdog that reads the HPET would be recorded. In exact
    // mode it counts nanoseconds, so there is nothing to calibrate. Self-tests only cost time.
    let tsc = match spec.timing {
        Timing::Exact => " tsc_early_khz=1000000",
        Timing::Fast => "",
    };
    let addresses = match spec.record {
        Record::Boot => " norandmaps",
        Record::Command => "",
    };
    format!(
        "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init random.trust_cpu=on \
         cryptomgr.notests=1 no_timer_check tsc=reliable{tsc} pti={} transparent_hugepage={}{addresses}",
        if spec.kpti { "on" } else { "off" },
        spec.thp.word(),
    )
}

/// The part that depends on what runs the guest: memory and accelerator.
fn engine_arguments(engine: Engine, spec: &GuestSpec) -> Vec<(&'static str, String)> {
    let bytes = spec.memory_mib << 20;
    let mut args = Vec::new();
    match engine {
        Engine::Tcg { ram, plugin } => {
            let path = path_of(ram);
            args.push((
                "-object",
                format!("memory-backend-file,id=ram,size={bytes},mem-path={path},share=on"),
            ));
            args.push(("-accel", "tcg,thread=single".into()));
            if spec.timing == Timing::Exact {
                args.push(("-icount", "shift=1,sleep=off".into()));
            }
            if let Some(Plugin { path, ring, region }) = plugin {
                args.push((
                    "-plugin",
                    format!(
                        "{},ring={},ram={},bytes={bytes},below4g={},vcpus={},check={},kpti={},boot={},files={},\
                         where={}{region}",
                        quoted(path),
                        ring.as_raw_fd(),
                        ram.as_raw_fd(),
                        spec.memory_mib.min(LOW_MIB) << 20,
                        spec.vcpus,
                        spec.check_every,
                        u8::from(spec.kpti),
                        u8::from(spec.record == Record::Boot),
                        u8::from(spec.timing == Timing::Exact && spec.root == Root::Host),
                        u8::from(spec.attribute),
                    ),
                ));
            }
        }
        Engine::Kvm(page) => {
            // Neither touches memory before the guest does.
            let backend = match page {
                HostPage::Size4K => "memory-backend-ram",
                HostPage::Size2M => "memory-backend-memfd,hugetlb=on,hugetlbsize=2M",
            };
            args.push(("-object", format!("{backend},id=ram,size={bytes},merge=off")));
            args.push(("-accel", "kvm".into()));
        }
    }
    args
}

fn command(qemu: &Qemu, engine: Engine, kernel: &Kernel, spec: &GuestSpec, fds: &Inherited) -> Command {
    let mut c = Command::new(&qemu.path);
    let mut opt = |name: &str, value: String| {
        c.arg(name).arg(value);
    };
    opt(
        "-machine",
        // Not mergeable: KSM on this host is none of a capture's business.
        format!(
            "q35,memory-backend=ram,max-ram-below-4g={LOW_MIB}M,smm=off,usb=off,sata=off,hpet=off,mem-merge=off"
        ),
    );
    opt("-name", "bifold,debug-threads=on".into());
    opt("-cpu", CPU.into());
    opt("-smp", spec.vcpus.to_string());
    opt("-m", format!("{}M", spec.memory_mib));
    for (name, value) in engine_arguments(engine, spec) {
        opt(name, value);
    }
    if spec.timing == Timing::Exact {
        opt("-seed", "1".into());
    }
    opt(
        "-rtc",
        match (spec.timing, &spec.root) {
            (Timing::Exact, Root::Initramfs { .. }) => "base=2026-01-01,clock=vm".into(),
            (Timing::Exact, Root::Host) => format!("base={},clock=vm", next_midnight(SystemTime::now())),
            (Timing::Fast, _) => "base=utc".to_owned(),
        },
    );
    opt("-kernel", kernel.image.to_string_lossy().into_owned());
    opt("-initrd", path_of(fds.initrd));
    if Path::new(QBOOT).exists() {
        opt("-bios", QBOOT.into());
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
    c.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    c
}

/// Starts the emulator; it ends with the calling thread.
pub(crate) fn spawn(
    qemu: &Qemu,
    engine: Engine,
    kernel: &Kernel,
    spec: &GuestSpec,
    fds: &Inherited,
    log: OwnedFd,
) -> Result<Child, CaptureError> {
    let mut c = command(qemu, engine, kernel, spec, fds);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let mut keep = vec![fds.initrd, fds.console, fds.stdout, fds.stderr, fds.control];
    keep.extend(fds.kept);
    keep.extend(fds.places);
    if let Engine::Tcg { ram, plugin } = engine {
        keep.push(ram);
        keep.extend(plugin.map(|p| p.ring));
    }
    let keep: Vec<i32> = keep.iter().map(|f| f.as_raw_fd()).collect();
    let small_pages = matches!(engine, Engine::Kvm(HostPage::Size4K));
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl and fcntl, on
    // descriptors that the caller's `fds` keep open.
    unsafe {
        c.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if small_pages {
                // QEMU asks for huge pages for every guest's memory.
                rustix::thread::disable_transparent_huge_pages(true)?;
            }
            for fd in &keep {
                let fd = BorrowedFd::borrow_raw(*fd);
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    c.spawn().map_err(CaptureError::file(&qemu.path, "cannot run"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Thp;
    use std::collections::BTreeSet;
    use std::os::fd::AsFd;

    #[test]
    fn the_guests_date_is_the_next_midnight() {
        let at = |seconds| next_midnight(UNIX_EPOCH + Duration::from_secs(seconds));
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
        let fds = Inherited { initrd: fd, console: fd, stdout: fd, stderr: fd, kept, control: fd, places };
        let qemu = Qemu { path: "qemu".into(), version: "10.0".into() };
        let kernel = Kernel { image: "/k".into(), modules: None, version: "6.1".into() };
        let spec = GuestSpec {
            command: vec!["true".into()],
            cwd: "/".into(),
            env: Vec::new(),
            timing: Timing::Exact,
            vcpus: 1,
            kpti: false,
            thp: Thp::Never,
            memory_mib: 256,
            kernel: None,
            modules: None,
            root: Root::Initramfs { include: Vec::new() },
            timeout: None,
            check_every: 0,
            record: Record::Boot,
            stdin: Vec::new(),
            keep: false,
            attribute: false,
            region: crate::Region::default(),
        };
        let arguments = |engine| -> BTreeSet<String> {
            let c = command(&qemu, engine, &kernel, &spec, &fds);
            let words: Vec<String> = c.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
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
}
