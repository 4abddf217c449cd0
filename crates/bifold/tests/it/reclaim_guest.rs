// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders about the size of a real guest: an emulated Linux with a balloon, where there are QEMU and such a
//! kernel.
//!
//! No time is asserted: the guest is slow on a busy machine.

use crate::daemon::Daemon;
use bifold_guest::cpio::{Archive, Entry};
use bifold_guest::kernel::{self, Kernel};
use bifold_guest::vm::{GuestLine, GuestVm, GuestVmSpec, Initrd};
use bifold_guest::{GuestError, workload_initramfs};
use bifold_host::Host;
use bifold_host::guest_memory::{Machine, MonitorPlace, VirtioMem};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// More than any step here takes on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// A kernel with a balloon, or nothing if this machine cannot get one.
fn kernel() -> Option<(bifold_guest::qemu::Qemu, Kernel)> {
    let skip = |why: &str| {
        eprintln!("skipped: {why}");
        None
    };
    let Ok(qemu) = bifold_guest::qemu::find() else { return skip("no emulator") };
    match kernel::for_guest(Some("6.1"), &mut |_| {}) {
        Ok(kernel) => Some((qemu, kernel)),
        Err(e) => skip(&format!("no kernel: {e}")),
    }
}

fn program(dir: &Path) -> Vec<u8> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = dir.join("program");
    let made = Command::new("cc")
        .args(["-O2", "-static", "-s", "-Wall", "-Werror", "-I"])
        .arg(here.join("../guest/guest"))
        .arg("-o")
        .arg(&out)
        .arg(here.join("tests/it/guest_memory.c"))
        .status();
    assert!(made.unwrap().success(), "cc fails");
    std::fs::read(out).unwrap()
}

struct Guest {
    vm: GuestVm,
    place: MonitorPlace,
    cycles: u64,
    phase: String,
}

impl Guest {
    fn resident(&self) -> u64 {
        Host::live().process_memory(self.vm.pid()).resident.unwrap() / MIB
    }

    fn machine(&self) -> Machine {
        Machine::ask(&mut self.place.open(&Host::live(), self.vm.pid()).unwrap()).unwrap()
    }

    /// Size in MiB, and seconds between two statistics.
    fn state(&self) -> (u64, u64) {
        let balloon = self.machine().balloon.unwrap();
        (balloon.actual.unwrap() / MIB, balloon.polling_s)
    }

    /// What is asked of virtio-mem and what it has, in MiB.
    fn plugged(&self) -> (u64, u64) {
        let device = &self.machine().virtio_mem[0];
        (device.requested / MIB, device.size / MIB)
    }

    fn read(&mut self) {
        for line in self.vm.new_lines() {
            let GuestLine::Workload(line) = line else { continue };
            match line.strip_prefix("cycle ") {
                Some(n) => self.cycles = n.parse().unwrap(),
                None => self.phase = line,
            }
        }
        let ended = self.vm.ended().unwrap();
        assert!(ended.is_none(), "the guest has ended: {}", self.vm.last_words());
    }

    fn until(&mut self, what: &str, so: impl Fn(&Guest) -> bool) {
        let begun = Instant::now();
        loop {
            self.read();
            if so(self) {
                return;
            }
            assert!(
                begun.elapsed() < LONG,
                "not {what}: {} {:?} {}",
                self.phase,
                self.state(),
                self.resident()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether the program in the guest still works.
    fn works_on(&mut self) {
        let cycles = self.cycles;
        self.until("working", |g| g.cycles > cycles + 1);
    }
}

/// A guest in which the program runs, with these arguments; nothing if this machine cannot have one.
fn start(dir: &Path, name: &str, arguments: &[String]) -> Option<Guest> {
    let (qemu, kernel) = kernel()?;
    let mut files = Archive::default();
    files.add(b"program", Entry::File { mode: 0o755, data: program(dir) });
    let arguments: Vec<String> = ["program".to_owned()].iter().chain(arguments).cloned().collect();
    let modules = ["virtio_balloon", "virtio_mem"];
    let initrd = match workload_initramfs(&kernel, files, "/program", &arguments, &modules) {
        Err(GuestError::NoModule { module, .. }) => {
            eprintln!("skipped: the stored kernel has no {module}, and no newer one can be fetched");
            return None;
        }
        other => Initrd::new(&other.unwrap()).unwrap(),
    };
    let socket = dir.join("qmp");
    let more = [
        "-device",
        "virtio-balloon-pci,id=b0,deflate-on-oom=on,free-page-reporting=on",
        "-m",
        "512M,maxmem=1G",
        "-object",
        "memory-backend-ram,id=plugged,size=256M",
        "-device",
        "virtio-mem-pci,id=vm0,memdev=plugged,requested-size=0",
        "-qmp",
        &format!("unix:{},server=on,wait=off", socket.display()),
    ]
    .map(String::from);
    let spec = GuestVmSpec {
        name,
        memory_mib: 512,
        kernel: &kernel,
        initrd: &initrd,
        merge: false,
        huge_pages: false,
        kvm: false,
        group: None,
        more: &more,
    };
    let vm = GuestVm::start(&qemu, &spec).unwrap();
    Some(Guest { vm, place: MonitorPlace::Socket(socket), cycles: 0, phase: String::new() })
}

#[test]
#[ignore = "takes minutes: random orders on loaded guests, as many as BIFOLD_TEST_ORDERS says"]
fn random_orders_on_loaded_guests_kill_nothing() {
    let orders: u64 = std::env::var("BIFOLD_TEST_ORDERS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let one = |seed: u64| {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("loaded-{seed}-{}", std::process::id());
        let Some(mut guest) = start(dir.path(), &name, &["loaded".into(), (seed + 1).to_string()]) else {
            return;
        };
        guest.until("running", |g| g.cycles > 2);
        let mut random = seed * 7919 + 17;
        let (mut held, mut refused, mut early) = (0, 0, 0);
        for _ in 0..orders {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = 120 + (random >> 33) % 390;
            let seconds = 1 + (random >> 20) % 8;
            let mut order = Command::new(env!("CARGO_BIN_EXE_bifold"));
            order.args(["reclaim", "set", &name, &size.to_string(), "--for", &seconds.to_string()]);
            let output = order.env("XDG_RUNTIME_DIR", dir.path()).stdin(Stdio::null()).output().unwrap();
            let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
            match () {
                () if text.contains("below its least size") => refused += 1,
                () if text.contains("ended early") => early += 1,
                () if text.contains("holds at") => held += 1,
                () => panic!("{text}"),
            }
            guest.until("as it was", |g| g.state() == (512, 0));
            guest.works_on();
        }
        eprintln!(
            "{name}: {held} orders were held, {refused} refused, {early} given back early; {} cycles",
            guest.cycles
        );
    };
    std::thread::scope(|scope| (0..3).for_each(|seed| _ = scope.spawn(move || one(seed))));
}

#[test]
fn the_daemon_takes_what_is_free_in_a_real_guest_and_a_kill_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("divides-real-{}", std::process::id());
    let Some(mut guest) = start(dir.path(), &name, &[]) else { return };
    guest.until("freed", |g| g.phase == "freed");
    let config = format!(
        "[memory]\nlimit = \"320M\"\npolicy = \"equal\"\ninterval_s = 1\nmin_stay_s = 0\n\
         [[vm]]\nname = \"{name}\"\n[vm.memory]\nact = true\n"
    );
    std::fs::write(dir.path().join("c.toml"), config).unwrap();
    let daemon = Daemon::start(dir.path()).unheard();
    guest.until("smaller", |g| g.state().0 <= 321);
    guest.works_on();
    daemon.signal("-KILL");
    daemon.ends();
    guest.until("as it was after a kill", |g| g.state() == (512, 0));
    let daemon = Daemon::start(dir.path()).unheard();
    guest.until("smaller again", |g| g.state().0 < 500);
    daemon.signal("-TERM");
    let (status, log) = daemon.ends();
    assert_eq!(status, Some(0), "{log}");
    guest.until("as it was", |g| g.state() == (512, 0));
    guest.works_on();
}

#[test]
fn memory_of_a_real_guest_is_taken_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("reclaim-{}", std::process::id());
    let Some(mut guest) = start(dir.path(), &name, &[]) else { return };
    guest.until("full", |g| g.phase == "full");
    let full = guest.resident();
    guest.until("freed", |g| g.phase == "freed");
    // The guest reports what it has freed, and QEMU gives it to the host.
    guest.until("given to the host", |g| g.resident() + 150 < full);
    let order = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bifold"));
        command.args(["reclaim", "set", &name]).args(more).env("XDG_RUNTIME_DIR", dir.path());
        command.stdin(Stdio::null());
        command
    };
    let output = order(&["256", "--for", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    eprintln!("resident {full} MiB, then {} MiB\n{text}", guest.resident());
    assert!(output.status.success() && text.contains("holds at 256 MiB"), "{text}");
    guest.until("as it was", |g| g.state() == (512, 0));
    guest.works_on();
    // The floor holds in a real guest, too.
    let output = order(&["64"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("below its least size"), "{text}");
    for seconds in [1, 4, 8, 16] {
        let mut order = order(&["256"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        order.kill().unwrap();
        order.wait().unwrap();
        guest.until("as it was after a kill", |g| g.state() == (512, 0));
        guest.works_on();
    }
    // While the size is held, the program takes more than there is.
    let held = order(&["256"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    guest.until("grown", |g| g.phase == "grown");
    guest.until("as it was after its program grew", |g| g.state() == (512, 0));
    let output = held.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    eprintln!("{text}");
    assert!(!output.status.success() && text.contains("the order has ended early"), "{text}");
    guest.works_on();
    // The same by virtio-mem: 256 MiB are plugged, and half of them go.
    VirtioMem::order(&mut guest.place.open(&Host::live(), guest.vm.pid()).unwrap(), "vm0", 256 * MIB)
        .unwrap();
    guest.until("plugged", |g| g.plugged() == (256, 256));
    let output = order(&["640", "--by", "virtio-mem", "--for", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    eprintln!("{text}");
    assert!(output.status.success() && text.contains("holds at 640 MiB"), "{text}");
    guest.until("plugged again", |g| (g.plugged(), g.state()) == ((256, 256), (512, 0)));
    let mut order =
        order(&["600", "--by", "virtio-mem"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    guest.until("unplugged in part", |g| g.plugged().0 < 256);
    order.kill().unwrap();
    order.wait().unwrap();
    guest.until("plugged after a kill", |g| (g.plugged(), g.state()) == ((256, 256), (512, 0)));
    guest.works_on();
}
