// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The laboratory's first process: runs the jobs of `/lab/jobs.json` in order, sends their results over a
//! virtio-serial port, and powers off.

mod port;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bifold_guest::{GuestSpec, HostPage, Root};
use bifold_lab::lab::job::{ASK, Done, Inner, InnerBacking, Job, Jobs, Limited, Machine, NOTE, Word, at};
use bifold_lab::limit::Limiter;
use bifold_lab::vendor::Vendor;
use bifold_trace::CommandExit;
use port::Port;
use rustix::mount::{MountFlags, mount};

const TRACING: &str = "/sys/kernel/tracing";

fn mounts() -> Result<()> {
    let kinds = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", TRACING),
    ];
    for (kind, at) in kinds {
        mount(kind, at, kind, MountFlags::empty(), None).with_context(|| format!("mounting {kind}"))?;
    }
    Ok(())
}

fn load(path: &Path, params: &str) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let params = std::ffi::CString::new(params)?;
    match rustix::system::finit_module(file.as_fd(), &params, 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(anyhow!("loading {}: {e}", path.display())),
    }
}

fn vendor() -> Result<&'static Vendor> {
    Vendor::of_this_machine().context("this CPU's vendor is unknown (vendor.rs)")
}

/// Runs a program, passes its questions on while it waits for the answers, and tells what it says of its
/// progress.
fn run(command: &[String], port: &mut Port) -> Result<Done> {
    let [program, args @ ..] = command else { bail!("no program given") };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {program}"))?;
    let (mut to, from, mut errors) = match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(i), Some(o), Some(e)) => (i, o, e),
        _ => bail!("{program} has no pipes"),
    };
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut said = String::new();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        if text.starts_with(ASK) {
            to.write_all(port.answer(&text)?.as_bytes())?;
        } else if let Some(note) = text.strip_prefix(NOTE) {
            port.say(&Word::Note(note.trim_end().into()))?;
        } else {
            said.push_str(&text);
        }
    }
    drop(to);
    let status = child.wait()?;
    Ok(Done::of(status, said, errors.join().unwrap_or_default()))
}

/// The error of a job that needs what this processor has not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lacks(String);

/// Begins the parameters of `kvm`; the others are its vendor's module's.
const GENERAL: &str = "kvm.";

fn kvm(nested: bool) -> Result<()> {
    let vendor = vendor()?;
    let module = vendor.module;
    if Path::new("/sys/module").join(module).exists() {
        let name = std::ffi::CString::new(module)?;
        rustix::system::delete_module(&name, 0).with_context(|| format!("unloading {module}"))?;
    }
    let dir = Path::new(at::KVM);
    let switchable = dir.join(at::SWITCHABLE).exists();
    let (file, value) = match nested {
        _ if switchable => (at::SWITCHABLE, 1),
        true => ("nested.ko", 1),
        false => ("shadow.ko", 0),
    };
    let parameters = fs::read_to_string(at::PARAMETERS).context(at::PARAMETERS)?;
    let (general, others): (Vec<&str>, Vec<&str>) =
        parameters.split_ascii_whitespace().partition(|p| p.starts_with(GENERAL));
    load(&dir.join(file), &format!("{}={value} {}", vendor.nested_parameter, others.join(" ")))?;
    // kvm.ko is there already.
    for parameter in general {
        let (name, value) =
            parameter[GENERAL.len()..].split_once('=').context("a parameter is NAME=VALUE")?;
        let path = Path::new("/sys/module/kvm/parameters").join(name);
        fs::write(&path, value).with_context(|| path.display().to_string())?;
    }
    if switchable {
        fs::write(at::PAGING_MODE, if nested { "nested" } else { "shadow" }).context(at::PAGING_MODE)?;
    }
    // On a CPU without nested paging, the module changes the parameter to 0.
    let is = fs::read_to_string(vendor.nested_parameter_path())?;
    let want = if nested || switchable { "Y1" } else { "N0" };
    if !is.trim().chars().all(|c| want.contains(c)) {
        let why =
            format!("{module} runs with {}={}, as without nested paging", vendor.nested_parameter, is.trim());
        return Err(Lacks(why).into());
    }
    Ok(())
}

fn trace(file: &str, text: &str) -> Result<()> {
    fs::write(Path::new(TRACING).join(file), text).with_context(|| format!("{TRACING}/{file}: {text}"))
}

/// Reads the trace buffer page by page.
fn drain() -> Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("{TRACING}/per_cpu/cpu0/trace_pipe_raw");
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut pipe = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let (mut all, mut page) = (Vec::new(), [0; 4096]);
    loop {
        match pipe.read(&mut page) {
            Ok(0) => return Ok(all),
            Ok(n) => {
                all.extend_from_slice(&page[..n]);
                all.resize(all.len().next_multiple_of(4096), 0);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(all),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Records trace events, of which `probes` are defined first.
fn begin_trace(events: &[String], probes: &[String], mib: u64) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    trace("tracing_on", "0")?;
    trace("trace", "")?;
    trace("buffer_size_kb", &(mib << 10).to_string())?;
    if !probes.is_empty() {
        trace("kprobe_events", &probes.join("\n"))?;
    }
    for event in events {
        trace(&format!("events/{}/enable", event.replace(':', "/")), "1")?;
    }
    trace("tracing_on", "1")
}

/// Ends the trace and sends it.
fn end_trace(events: &[String], probes: &[String], port: &mut Port) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    trace("tracing_on", "0")?;
    for event in events {
        let name = event.replace(':', "/");
        trace(&format!("events/{name}/enable"), "0")?;
        let format = fs::read(format!("{TRACING}/events/{name}/format"))?;
        port.file(&format!("format/{name}"), &format)?;
    }
    let stats = fs::read(format!("{TRACING}/per_cpu/cpu0/stats"))?;
    port.file("stats", &stats)?;
    port.file("trace", &drain()?)?;
    if !probes.is_empty() {
        port.file(Inner::SYMBOLS, &fs::read("/proc/kallsyms")?)?;
    }
    Ok(())
}

/// Runs a laboratory inside, and passes its outputs on as files.
fn machine(job: &Machine, port: &mut Port) -> Result<Done> {
    begin_trace(&job.trace, &[], job.trace_mib)?;
    let mut number = 0;
    let ended = bifold_lab::machine::run(job, vendor()?, &mut |word, data| match word {
        Word::File { name, .. } => port.file(&(Machine::of_job(number) + name), data),
        Word::Done(done) => {
            port.file(&Machine::done(number), &serde_json::to_vec(done)?)?;
            number += 1;
            Ok(())
        }
        other => port.say(other),
    });
    end_trace(&job.trace, &[], port)?;
    ended.map(|()| Done::default())
}

fn inner(job: &Inner, port: &mut Port) -> Result<Done> {
    let spec = GuestSpec {
        command: job.command.iter().map(Into::into).collect(),
        root: if job.host_root {
            Root::Host
        } else {
            Root::Initramfs { include: job.include.iter().map(PathBuf::from).collect() }
        },
        memory_mib: job.memory_mib,
        vcpus: job.vcpus,
        kpti: job.kpti,
        tables: job.tables,
        kernel: Some(at::INNER_KERNEL.into()),
        modules: Some(at::INNER_MODULES.into()),
        ..bifold_lab::guest(vendor()?)
    };
    let page = match job.backing {
        InnerBacking::Small => HostPage::Size4K,
        InnerBacking::Huge => HostPage::Size2M,
    };
    let limiter = job.limit.map(|limit| Limiter::new(limit, job.memory_mib << 20)).transpose()?;
    if let Some(limiter) = &limiter {
        // SAFETY: this is the only thread.
        unsafe { std::env::set_var("BIFOLD_QEMU", limiter.qemu()) };
    }
    let limiter = limiter.map(Limiter::start);
    begin_trace(&job.trace, &job.probes, job.trace_mib)?;
    std::thread::sleep(Duration::from_micros(job.delay_us));
    let report = bifold_guest::under_kvm(&spec, page, &AtomicBool::new(false), &mut |_| ());
    end_trace(&job.trace, &job.probes, port)?;
    let report = report?;
    if let Some(limiter) = limiter {
        port.file(Limited::FILE, &serde_json::to_vec(&limiter.end()?)?)?;
    }
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let status = match report.exit {
        CommandExit::Code(n) => n,
        CommandExit::Signal(n) => -n,
        other => bail!("the inner guest's command ended with {other:?}"),
    };
    Ok(Done { status, stdout: text(&report.stdout), stderr: text(&report.stderr) })
}

/// Sends the files that a job left in its directory.
fn bring(port: &mut Port) -> Result<()> {
    for entry in fs::read_dir(at::OUT)?.flatten() {
        port.file(&entry.file_name().to_string_lossy(), &fs::read(entry.path())?)?;
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

fn work(port: &mut Port) -> Result<()> {
    let jobs: Jobs = serde_json::from_slice(&fs::read(at::JOBS)?)?;
    if jobs.huge_pages > 0 {
        fs::write("/proc/sys/vm/nr_hugepages", jobs.huge_pages.to_string())?;
    }
    for job in &jobs.jobs {
        let mut say = |what: &Word, data: &[u8]| {
            port.say(what)?;
            Ok(port.to.write_all(data)?)
        };
        let result = match job {
            Job::Kvm { nested } => kvm(*nested).map(|()| Done::default()),
            Job::Run { command } => run(command, port),
            Job::Inner(job) => inner(job, port),
            Job::Machine(job) => machine(job, port),
            Job::Storm(job) => bifold_lab::storm::run::run(job, &mut say).map(|()| Done::default()),
            Job::Trial(job) => bifold_lab::kvm_tests::run::run(job, &mut say),
        };
        bring(port)?;
        port.say(&Word::Done(result?))?;
    }
    Ok(())
}

fn start() -> Result<Port> {
    mounts()?;
    let mut modules: Vec<PathBuf> = fs::read_dir(at::MODULES)?.flatten().map(|e| e.path()).collect();
    modules.sort();
    for module in modules {
        load(&module, "")?;
    }
    Port::open(vendor()?)
}

fn main() {
    match start() {
        Ok(mut port) => {
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            let _ = port.say(&Word::Up(release.trim().into()));
            let last = match work(&mut port) {
                Ok(()) => Word::End,
                Err(e) if e.is::<Lacks>() => Word::Lacks(e.to_string()),
                Err(e) => Word::Failed(format!("{e:#}")),
            };
            let _ = port.say(&last);
            // The kernel completes a write before QEMU has passed it on, so powering off now could lose it.
            // The reader ends the emulator.
            let _ = port.line();
        }
        Err(e) => eprintln!("lab-init: {e:#}"),
    }
    // Both emulators end at a reset.
    let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
}
