// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that answer as QEMU does: this test program, run again under QEMU's name. Each has 512 MiB, uses
//! 100, and follows orders at once.

use bifold_host::Host;
use bifold_host::guest_memory::{Machine, Monitor, MonitorPlace};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SOCKET: &str = "BIFOLD_TEST_QMP_SOCKET";
pub const MIB: u64 = 1 << 20;

/// A guest that is made of answers.
pub struct Qemu {
    pub child: Child,
    pub dir: tempfile::TempDir,
    pub name: String,
    pub started: u64,
}

impl Qemu {
    pub fn start(name: &str) -> Qemu {
        Qemu::with(name, |socket| ["-qmp".into(), format!("unix:{socket},server=on,wait=off")].into())
    }

    /// With these arguments for a monitor at the socket.
    pub fn with(name: &str, monitor: impl Fn(&str) -> Vec<String>) -> Qemu {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("{name}-{}", std::process::id());
        let socket = dir.path().join("qmp");
        let child = Command::new(std::env::current_exe().unwrap())
            .arg0("qemu-system-x86_64")
            .args([
                "--exact",
                "reclaim_qemu::a_process_that_answers_as_qemu",
                "--ignored",
                "--nocapture",
                "--",
            ])
            .args(["-name", &name])
            .args(monitor(socket.to_str().unwrap()))
            .env(SOCKET, &socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Host::live().started(child.id()).unwrap();
        let qemu = Qemu { child, dir, name, started };
        assert!(until(|| socket.exists()), "the process does not listen");
        qemu
    }

    pub fn monitor(&self) -> Monitor {
        let place = MonitorPlace::Socket(self.dir.path().join("qmp"));
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match place.open(&Host::live(), self.child.id()) {
                Ok(monitor) => return monitor,
                Err(e) if Instant::now() > end => panic!("{e}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Size in MiB, and seconds between two statistics.
    pub fn state(&self) -> (u64, u64) {
        let balloon = Machine::ask(&mut self.monitor()).unwrap().balloon.unwrap();
        (balloon.actual.unwrap() / MIB, balloon.polling_s)
    }

    /// Changes what the process answers.
    pub fn tell(&self, name: &str, value: impl Into<Value>) {
        self.monitor().ask("x-set", json!({ name: value.into() })).unwrap();
    }

    pub fn order(&self, arguments: &[&str]) -> Command {
        let mut command = self.bifold("set");
        command.arg(&self.name).args(arguments);
        command
    }

    pub fn bifold(&self, verb: &str) -> Command {
        let mut command = Command::new("env");
        // A shell that starts the tests in the background has SIGINT ignored in all of them.
        command.arg("--default-signal=INT").arg(env!("CARGO_BIN_EXE_bifold")).args(["reclaim", verb]);
        command.env("XDG_RUNTIME_DIR", self.dir.path()).stdin(Stdio::null());
        command
    }

    /// The journal of the order about this guest.
    pub fn journal(&self) -> PathBuf {
        let root = rustix::process::geteuid().is_root();
        let own = self.dir.path().join("bifold-reclaim");
        let folder = if root { Path::new("/run/bifold/reclaim") } else { &own };
        folder.join(format!("{}-{}.journal", self.child.id(), self.started))
    }

    pub fn is_as_found(&self) -> bool {
        until(|| !self.journal().exists()) && self.state() == (512, 0)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.journal().with_extension("lock"));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn until(mut so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !so() {
        if begun.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

pub fn text(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    format!("{:?}\n{}", output.status.code(), String::from_utf8_lossy(&text))
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A lock between daemons and tests that leave an order without its guardian: the journals of all orders of
/// root lie in one folder, and every daemon gives back what any of them has left. Daemons share the lock. It
/// is held until the file is closed.
pub fn orphans(operation: FlockOperation) -> File {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(std::env::temp_dir().join("bifold-test-orphans"));
    let file = file.unwrap();
    let begun = Instant::now();
    while flock(&file, operation).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(600), "other tests hold the lock");
        std::thread::sleep(Duration::from_millis(50));
    }
    file
}

/// Stops a process, and waits until each of its threads stands still: one that is not scheduled answers on
/// for a moment.
pub fn stop(child: &Child) {
    signal(child, Signal::STOP);
    let stands = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().flatten();
    assert!(until(|| tasks().all(stands)), "the process does not stop");
}

/// The processes that the threads of this one have started.
pub fn children(pid: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let list =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.flatten().map(list).collect();
    all.iter().flat_map(|list| list.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until the process says a line with this word.
pub fn hears(lines: &mut impl Iterator<Item = std::io::Result<String>>, word: &str) {
    let mut others = Vec::new();
    for line in lines.map(Result::unwrap) {
        if line.contains(word) {
            return;
        }
        others.push(line);
    }
    panic!("it does not say {word}, but {others:?}");
}

#[test]
#[ignore = "a part of other tests, which run it as a process of its own"]
fn a_process_that_answers_as_qemu() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let listener = UnixListener::bind(path).unwrap();
    let mut state = State {
        running: true,
        polling: 0,
        size: 512 * MIB,
        target: 512 * MIB,
        used: 100 * MIB,
        deaf: false,
        dimms: 0,
        late: 0,
        wait: 0,
    };
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let Ok(copy) = stream.try_clone() else { continue };
        let _ = writeln!(stream, "{}", json!({ "QMP": { "version": {}, "capabilities": [] } }));
        for line in BufReader::new(copy).lines() {
            let Ok(order) = line.map_err(drop).and_then(|l| serde_json::from_str::<Value>(&l).map_err(drop))
            else {
                break;
            };
            let answer = state.answer(order["execute"].as_str().unwrap_or_default(), &order["arguments"]);
            let line = answer.map_or_else(
                || json!({ "error": { "class": "GenericError", "desc": "not here" } }),
                |value| json!({ "return": value }),
            );
            if writeln!(stream, "{line}").is_err() {
                break;
            }
        }
    }
}

/// What the process answers from.
struct State {
    running: bool,
    polling: u64,
    size: u64,
    target: u64,
    used: u64,
    /// Whether the guest follows no order.
    deaf: bool,
    /// Bytes of plugged DIMMs.
    dimms: u64,
    /// How often its size is asked for before it follows an order, and how often that still is.
    late: u64,
    wait: u64,
}

impl State {
    fn answer(&mut self, command: &str, arguments: &Value) -> Option<Value> {
        if !self.deaf && self.wait == 0 {
            self.size = self.target;
        }
        let number = |name: &str| arguments[name].as_u64();
        match command {
            "query-status" => Some(
                json!({ "running": self.running, "status": if self.running { "running" } else { "paused" } }),
            ),
            "query-memory-size-summary" => Some(json!({ "base-memory": 512 * MIB, "plugged-memory": 0 })),
            "query-memory-devices" => {
                Some(json!([{ "type": "dimm", "data": { "id": "d0", "size": self.dimms } }]))
            }
            "qom-list" => Some(json!([{ "name": "b0", "type": "child<virtio-balloon-pci>" }])),
            "query-balloon" => {
                self.wait = self.wait.saturating_sub(1);
                Some(json!({ "actual": self.size }))
            }
            "balloon" => {
                self.wait = self.late;
                self.target = number("value")?.min(512 * MIB + self.dimms);
                Some(json!({}))
            }
            "qom-get" => self.property(arguments["property"].as_str()?),
            "qom-set" => {
                self.polling = number("value")?;
                Some(json!({}))
            }
            "qmp_capabilities" | "query-migrate" => Some(json!({})),
            "x-set" => {
                self.running = arguments["running"].as_bool().unwrap_or(self.running);
                self.deaf = arguments["deaf"].as_bool().unwrap_or(self.deaf);
                if let Some(mib) = number("dimms") {
                    // QEMU's figure leaves out what the balloon holds, and that stays.
                    self.target += mib * MIB - self.dimms;
                    self.dimms = mib * MIB;
                }
                self.polling = number("polling").unwrap_or(self.polling);
                self.late = number("late").unwrap_or(self.late);
                self.used = number("used").map_or(self.used, |mib| mib * MIB);
                Some(json!({}))
            }
            _ => None,
        }
    }

    fn property(&self, name: &str) -> Option<Value> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        match name {
            "deflate-on-oom" => Some(true.into()),
            "guest-stats-polling-interval" => Some(self.polling.into()),
            "guest-stats" if self.polling == 0 => Some(json!({ "stats": {}, "last-update": 0 })),
            "guest-stats" => Some(json!({
                "stats": {
                    "stat-available-memory": self.size.saturating_sub(self.used),
                    "stat-major-faults": 0,
                    "stat-swap-in": u64::MAX,
                },
                "last-update": now,
            })),
            _ => None,
        }
    }
}

/// JSON lines on stdout.
pub fn lines_of(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(output));
    let stdout = std::str::from_utf8(&output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
