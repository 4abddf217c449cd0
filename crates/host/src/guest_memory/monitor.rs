// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds and opens the monitor of a guest's QEMU.
//!
//! A QMP socket has one client at a time, and QEMU answers the next one only when that client has gone. So a
//! connection is kept for a moment: the operator's own tools use the same socket. libvirt keeps the monitor
//! of its guests to itself; `virsh qemu-monitor-command` leads to it, and libvirt then notes in its log that
//! the guest is tainted.

use crate::process::name_of;
use crate::qmp::{self, Qmp};
use crate::{CommandLine, Host, Pairs};
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, setsockopt};
use nix::sys::time::TimeVal;
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit of each answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time limit of `virsh`, which connects to libvirt's daemon first.
const VIRSH: Duration = Duration::from_secs(10);
/// Longest answer of `virsh`.
const MOST: u64 = 4 << 20;
/// The name that libvirt gives to the monitor's character device.
const OF_LIBVIRT: &str = "charmonitor";

/// Where a guest's monitor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorPlace {
    /// A socket on which QEMU listens.
    Socket(PathBuf),
    /// libvirt has the monitor of the domain with this UUID.
    Libvirt(String),
}

impl MonitorPlace {
    /// The monitor on a command line of QEMU: `-qmp unix:PATH,server=on`, or `-mon` with
    /// `-chardev socket,path=PATH,server=on`. `None` if the command line has no monitor that a program can
    /// connect to.
    pub fn of(line: &CommandLine) -> Option<MonitorPlace> {
        if controls(line).any(|mon| mon.get("chardev") == Some(OF_LIBVIRT)) {
            let (_, uuid) = line.options().find(|(name, _)| *name == "uuid")?;
            let plain = uuid.len() == 36 && uuid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
            return plain.then(|| MonitorPlace::Libvirt(uuid.to_owned()));
        }
        MonitorPlace::socket_of(line).map(MonitorPlace::Socket)
    }

    /// The socket of a monitor that is not libvirt's, on a command line of QEMU.
    pub fn socket_of(line: &CommandLine) -> Option<PathBuf> {
        let controls: Vec<Pairs> =
            controls(line).filter(|mon| mon.get("chardev") != Some(OF_LIBVIRT)).collect();
        let is_control =
            |id: Option<&str>| id.is_some() && controls.iter().any(|mon| mon.get("chardev") == id);
        let direct = line.options().filter(|(name, _)| *name == "qmp").filter_map(|(_, value)| {
            let socket = format!("socket,path={}", value.strip_prefix("unix:")?);
            Some(Pairs::parse(&socket, "backend"))
        });
        let through = line.pairs("chardev", "backend").filter(|chardev| is_control(chardev.get("id")));
        direct.chain(through).find_map(|chardev| {
            // A path of QEMU's own folder is unknown here, and a new line would not fit into a journal.
            let path = chardev.listening_socket().filter(|p| p.starts_with('/') && !p.contains('\n'))?;
            Some(PathBuf::from(path))
        })
    }

    /// Parses what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<MonitorPlace> {
        match text.split_once(' ')? {
            ("unix", path) if path.starts_with('/') => Some(MonitorPlace::Socket(path.into())),
            ("libvirt", uuid) if !uuid.is_empty() => Some(MonitorPlace::Libvirt(uuid.into())),
            _ => None,
        }
    }

    /// Connects to the monitor.
    ///
    /// # Errors
    /// If nothing listens, another program has the connection, or another process than the guest's answers.
    pub fn open(&self, host: &Host, pid: u32) -> io::Result<Monitor> {
        self.open_until(host, pid, None)
    }

    /// As [`open`](MonitorPlace::open), but all that is asked of the monitor together has a time limit: for a
    /// process that must not be held up for longer.
    ///
    /// # Errors
    /// As of [`open`](MonitorPlace::open).
    pub fn open_within(&self, host: &Host, pid: u32, limit: Duration) -> io::Result<Monitor> {
        self.open_until(host, pid, Some(Instant::now() + limit))
    }

    fn open_until(&self, host: &Host, pid: u32, end: Option<Instant>) -> io::Result<Monitor> {
        match self {
            MonitorPlace::Socket(path) => {
                let stream = connect(path, PATIENCE)?;
                is_of(host, &stream, pid)?;
                Ok(Monitor { way: Way::Qmp(Box::new(Qmp::greet(&stream, PATIENCE)?)), end })
            }
            MonitorPlace::Libvirt(uuid) => {
                let mut monitor = Monitor { way: Way::Virsh(uuid.clone()), end };
                let cpus = monitor.ask("query-cpus-fast", json!({}))?;
                if !runs_in(host, &cpus, pid) {
                    let why = format!("libvirt's domain {uuid} does not run in process {pid}");
                    return Err(io::Error::other(why));
                }
                Ok(monitor)
            }
        }
    }
}

impl fmt::Display for MonitorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MonitorPlace::Socket(path) => write!(f, "unix {}", path.display()),
            MonitorPlace::Libvirt(uuid) => write!(f, "libvirt {uuid}"),
        }
    }
}

impl Host {
    /// Where the monitor of a guest's process is.
    pub fn monitor_place(&self, pid: u32) -> Option<MonitorPlace> {
        MonitorPlace::of(&self.command_line(pid)?)
    }
}

/// An open monitor.
#[derive(Debug)]
pub struct Monitor {
    way: Way,
    /// When it has to have given its last answer.
    end: Option<Instant>,
}

#[derive(Debug)]
enum Way {
    Qmp(Box<Qmp>),
    Virsh(String),
}

impl Monitor {
    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// If QEMU refuses the command ([`qmp::Refusal`]), has ended, is silent for too long, or the monitor is
    /// open for too long.
    pub fn ask(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        if self.end.is_some_and(|end| Instant::now() > end) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its answers take too long"));
        }
        match &mut self.way {
            Way::Qmp(qmp) => qmp.ask(command, arguments),
            Way::Virsh(uuid) => virsh(uuid, command, arguments, self.end),
        }
    }
}

/// The monitors for programs on a command line.
fn controls(line: &CommandLine) -> impl Iterator<Item = Pairs> + '_ {
    line.pairs("mon", "chardev").filter(|mon| mon.get("mode") == Some("control"))
}

/// Connects within a time limit: connect(2) waits without one while the socket's queue is full.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // It counts for connect(2), too, which then fails with EAGAIN.
    let wait = TimeVal::new(patience.as_secs() as i64, patience.subsec_micros().into());
    setsockopt(&socket, SendTimeout, &wait)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

/// Refuses a socket on which another process than the guest's listens: a command line is what its owner
/// wrote, and could name the monitor of another guest. A process that listened before it became a daemon has
/// ended.
fn is_of(host: &Host, stream: &UnixStream, pid: u32) -> io::Result<()> {
    let peer = getsockopt(stream, PeerCredentials)?;
    let (other, user) = (peer.pid(), peer.uid());
    let lives = other > 0 && host.proc.join(other.to_string()).is_dir();
    if other as u32 == pid || (!lives && Some(user) == host.user(pid)) {
        return Ok(());
    }
    let name = name_of(&host.proc, other as u32).map_or("?".into(), |n| crate::printable(&n));
    Err(io::Error::other(format!("process {other} ({name}) listens there, not the guest's process {pid}")))
}

/// Whether all vCPUs in an answer of `query-cpus-fast` are threads of a process. A UUID on a command line is
/// what its owner wrote, and libvirt may have started the domain again meanwhile.
fn runs_in(host: &Host, cpus: &Value, pid: u32) -> bool {
    let task = host.proc.join(format!("{pid}/task"));
    let is_own = |cpu: &Value| {
        cpu.get("thread-id").and_then(Value::as_u64).is_some_and(|id| task.join(id.to_string()).is_dir())
    };
    cpus.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_own))
}

/// Sends a command through libvirt.
fn virsh(uuid: &str, command: &str, arguments: Value, end: Option<Instant>) -> io::Result<Value> {
    let line = json!({ "execute": command, "arguments": arguments }).to_string();
    let uri = if rustix::process::geteuid().is_root() { "qemu:///system" } else { "qemu:///session" };
    let mut child = Command::new("virsh")
        .args(["-q", "-c", uri, "qemu-monitor-command", "--domain", uuid, "--cmd", &line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            io::Error::new(e.kind(), format!("libvirt has the monitor, and virsh does not run: {e}"))
        })?;
    let (to, from) = mpsc::channel();
    for (first, stream) in [
        (true, child.stdout.take().map(|s| Box::new(s) as Box<dyn io::Read + Send>)),
        (false, child.stderr.take().map(|s| Box::new(s) as Box<dyn io::Read + Send>)),
    ] {
        let (to, stream) = (to.clone(), stream.expect("the stream is piped"));
        let read = move || {
            let mut bytes = Vec::new();
            let _ = stream.take(MOST).read_to_end(&mut bytes);
            to.send((first, bytes))
        };
        // A limit of processes counts threads.
        if let Err(e) = std::thread::Builder::new().spawn(read) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(e);
        }
    }
    let (mut out, mut wrong) = (Vec::new(), Vec::new());
    let limit = Instant::now() + VIRSH;
    let end = end.map_or(limit, |end| end.min(limit));
    for _ in 0..2 {
        match from.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok((true, bytes)) => out = bytes,
            Ok((false, bytes)) => wrong = bytes,
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::new(io::ErrorKind::TimedOut, "virsh does not answer"));
            }
        }
    }
    if !child.wait()?.success() {
        return Err(io::Error::other(format!("virsh: {}", crate::one_line(&wrong))));
    }
    let mut line = serde_json::from_slice(&out).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    qmp::answer(command, &mut line)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "virsh gives no answer of QEMU"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    fn of(line: &str) -> Option<String> {
        MonitorPlace::of(&CommandLine::parse(line.replace(' ', "\0").as_bytes())).map(|p| p.to_string())
    }

    #[test]
    fn a_monitor_is_found_however_the_command_line_names_it() {
        for (line, place) in [
            ("qemu -qmp unix:/run/a,,b,server=on,wait=off", Some("unix /run/a,b")),
            ("qemu --qmp unix:/run/a,server,nowait", Some("unix /run/a")),
            // Proxmox.
            (
                "kvm -chardev socket,id=qmp,path=/run/100.qmp,server=on,wait=off -mon chardev=qmp,mode=control",
                Some("unix /run/100.qmp"),
            ),
            ("qemu -chardev socket,id=m,path=/m,server=on -mon m,mode=control", Some("unix /m")),
            // A human's monitor, a client, a file descriptor, a path of a folder that is unknown.
            ("qemu -chardev socket,id=m,path=/m,server=on -mon chardev=m", None),
            ("qemu -qmp unix:/run/a", None),
            ("qemu -chardev socket,id=m,fd=7 -mon chardev=m,mode=control", None),
            ("qemu -qmp unix:a,server=on", None),
            ("qemu -qmp tcp:localhost:44,server=on", None),
            (
                "qemu -uuid 6c1f22d0-54f4-4c5c-9a4b-0c5a4f1e9a10 -chardev socket,id=charmonitor,fd=25,server=on \
                 -mon chardev=charmonitor,id=monitor,mode=control",
                Some("libvirt 6c1f22d0-54f4-4c5c-9a4b-0c5a4f1e9a10"),
            ),
            ("qemu -uuid --help -mon chardev=charmonitor,mode=control", None),
            ("qemu", None),
        ] {
            assert_eq!(of(line).as_deref(), place, "{line}");
            let parsed = place.map(|p| MonitorPlace::parse(p).unwrap().to_string());
            assert_eq!(parsed.as_deref(), place);
        }
        assert_eq!(MonitorPlace::parse("unix relative"), None);
    }

    #[test]
    fn a_socket_beside_libvirt_s_monitor_is_found_and_libvirt_s_own_is_not() {
        let socket =
            |line: &str| MonitorPlace::socket_of(&CommandLine::parse(line.replace(' ', "\0").as_bytes()));
        let libvirt =
            "qemu -chardev socket,id=charmonitor,path=/l,server=on -mon chardev=charmonitor,mode=control";
        assert_eq!(socket(libvirt), None);
        let own = format!("{libvirt} -qmp unix:/own,server=on");
        assert_eq!(socket(&own).as_deref(), Some(Path::new("/own")));
    }

    #[test]
    fn a_domain_is_known_by_the_threads_of_its_vcpus() {
        let (host, own) = (Host::live(), std::process::id());
        let cpus = |ids: &[u32]| json!(ids.iter().map(|id| json!({ "thread-id": id })).collect::<Vec<_>>());
        assert!(runs_in(&host, &cpus(&[own]), own));
        assert!(!runs_in(&host, &cpus(&[own, 1]), own));
        assert!(!runs_in(&host, &cpus(&[]), own) && !runs_in(&host, &json!({}), own));
    }

    #[test]
    fn a_full_queue_is_waited_for_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        socket::listen(&listener, socket::Backlog::new(0).unwrap()).unwrap();
        let mut clients = Vec::new();
        let full = loop {
            match connect(&path, Duration::from_millis(20)) {
                Ok(client) => clients.push(client),
                Err(e) => break e,
            }
            assert!(clients.len() < 10, "the queue is never full");
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
    }

    #[test]
    fn a_socket_of_another_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        let place = MonitorPlace::Socket(path.clone());
        let error = place.open(&Host::live(), 1).unwrap_err().to_string();
        assert!(error.contains("listens there, not the guest's process 1"), "{error}");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"{\"QMP\": {}}\n{\"return\": {}}\n{\"return\": {}}\n").unwrap();
        let way = Way::Qmp(Box::new(Qmp::greet(&ours, PATIENCE).unwrap()));
        let mut late = Monitor { way, end: Some(Instant::now() - Duration::from_millis(1)) };
        assert_eq!(late.ask("query-status", json!({})).unwrap_err().kind(), io::ErrorKind::TimedOut);
        // The right process, which does not greet.
        let error = place.open(&Host::live(), std::process::id()).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(place.open(&Host::live(), 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
