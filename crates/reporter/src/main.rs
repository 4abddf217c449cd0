// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs inside a Linux guest and tells the host what only the guest knows: its page faults, which nested
//! paging hides from the host, and how far its own work has come.
//!
//! Every interval, one line of JSON goes to a virtio-serial port. The port is opened without blocking: while
//! no program reads on the host, reports are dropped, and nothing in the guest waits.
#![forbid(unsafe_code)]

mod options;
mod report;
mod sender;

use options::{HELP, Options, Parsed};
use sender::Sender;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;

/// `O_NONBLOCK` of x86, Arm, RISC-V, s390 and POWER (`include/uapi/asm-generic/fcntl.h` in Linux).
const O_NONBLOCK: i32 = 0o4000;
/// The status for a machine that lacks what is needed, as of the command `bifold`.
const NOT_HERE: u8 = 77;

fn main() -> ExitCode {
    let options = match options::parse(std::env::args_os().skip(1)) {
        Ok(Parsed::Run(options)) => options,
        Ok(Parsed::Help) => return print(HELP),
        Ok(Parsed::Version) => return print(concat!("bifold-reporter ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(problem) => return fail(&format!("{problem} (--help lists the options)"), 2),
    };
    if let Err(e) = report::page_faults() {
        return fail(&format!("cannot read the page faults of {}: {e}", report::VMSTAT), NOT_HERE);
    }
    match open(&options.port) {
        Ok(port) => run(&options, Sender::new(port)),
        Err(e) => fail(&no_port(&options.port, &e), NOT_HERE),
    }
}

/// Reports for ever. A port that fails, as when it is unplugged, is opened again.
fn run(options: &Options, mut sender: Sender<File>) -> ! {
    let mut failed = false;
    loop {
        let line = report::line(options.progress.as_deref());
        if failed {
            if let Ok(port) = open(&options.port) {
                sender.reopened(port);
                failed = false;
            }
        }
        if !failed {
            if let Err(e) = sender.send(&line) {
                eprintln!("bifold-reporter: {}: {e}; trying again", options.port.display());
                failed = true;
            }
        }
        sleep(options.interval);
    }
}

fn open(port: &Path) -> io::Result<File> {
    let open = |path: &Path| OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path);
    open(port).or_else(|e| match device(port).filter(|_| e.kind() == io::ErrorKind::NotFound) {
        Some(device) => open(&device),
        None => Err(e),
    })
}

/// The device of a port in /dev/virtio-ports. The links there are made by udev, which small guests lack.
fn device(port: &Path) -> Option<PathBuf> {
    let name = port.strip_prefix("/dev/virtio-ports").ok()?.to_str()?;
    let is_it = |dir: &Path| fs::read_to_string(dir.join("name")).is_ok_and(|n| n.trim_end() == name);
    let mut ports = fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().map(|p| p.path());
    Some(Path::new("/dev").join(ports.find(|dir| is_it(dir))?.file_name()?))
}

fn no_port(port: &Path, e: &io::Error) -> String {
    let what = match e.kind() {
        io::ErrorKind::NotFound => {
            "; the guest has no such port. QEMU makes it with\n  -chardev socket,id=report,path=PATH,server=on,wait=off \
             -device virtio-serial -device virtserialport,chardev=report,name=org.bifold.report.0"
        }
        io::ErrorKind::PermissionDenied => "; only root may open it, unless a rule of udev says otherwise",
        io::ErrorKind::ResourceBusy => "; another program has it open, perhaps another bifold-reporter",
        _ => "",
    };
    format!("cannot open the port {}: {e}{what}", port.display())
}

fn print(text: &str) -> ExitCode {
    use io::Write;
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn fail(problem: &str, status: u8) -> ExitCode {
    eprintln!("bifold-reporter: error: {problem}");
    ExitCode::from(status)
}
