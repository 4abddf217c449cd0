// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders about the sizes of guests, on processes that answer as QEMU does: this test program, run again under QEMU's
//! name. Each has 512 MiB, uses 100, and follows orders at once.

use bifold_host::Host;
use bifold_host::guest_memory::{Machine, Monitor, MonitorPlace};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SOCKET: &str = "BIFOLD_TEST_QMP_SOCKET";
const MIB: u64 = 1 << 20;

/// A guest that is made of answers.
struct Qemu {
    child: Child,
    dir: tempfile::TempDir,
    name: String,
    started: u64,
}

impl Qemu {
    fn start(name: &str) -> Qemu {
        Qemu::with(name, |socket| ["-qmp".into(), format!("unix:{socket},server=on,wait=off")].into())
    }

    /// With these arguments for a monitor at the socket.
    fn with(name: &str, monitor: impl Fn(&str) -> Vec<String>) -> Qemu {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("{name}-{}", std::process::id());
        let socket = dir.path().join("qmp");
        let child = Command::new(std::env::current_exe().unwrap())
            .arg0("qemu-system-x86_64")
            .args(["--exact", "reclaim::a_process_that_answers_as_qemu", "--ignored", "--nocapture", "--"])
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

    fn monitor(&self) -> Monitor {
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
    fn state(&self) -> (u64, u64) {
        let balloon = Machine::ask(&mut self.monitor()).unwrap().balloon.unwrap();
        (balloon.actual.unwrap() / MIB, balloon.polling_s)
    }

    /// Changes what the process answers.
    fn tell(&self, name: &str, value: impl Into<Value>) {
        self.monitor().ask("x-set", json!({ name: value.into() })).unwrap();
    }

    fn order(&self, arguments: &[&str]) -> Command {
        let mut command = self.bifold("set");
        command.arg(&self.name).args(arguments);
        command
    }

    fn bifold(&self, verb: &str) -> Command {
        let mut command = Command::new("env");
        // A shell that starts the tests in the background has SIGINT ignored in all of them.
        command.arg("--default-signal=INT").arg(env!("CARGO_BIN_EXE_bifold")).args(["reclaim", verb]);
        command.env("XDG_RUNTIME_DIR", self.dir.path()).stdin(Stdio::null());
        command
    }

    /// The journal of the order about this guest.
    fn journal(&self) -> PathBuf {
        let root = rustix::process::geteuid().is_root();
        let own = self.dir.path().join("bifold-reclaim");
        let folder = if root { Path::new("/run/bifold/reclaim") } else { &own };
        folder.join(format!("{}-{}.journal", self.child.id(), self.started))
    }

    fn is_as_found(&self) -> bool {
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

fn until(mut so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !so() {
        if begun.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn text(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    format!("{:?}\n{}", output.status.code(), String::from_utf8_lossy(&text))
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The processes that this one has started.
fn children(pid: u32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until the process says a line with this word.
fn hears(lines: &mut impl Iterator<Item = std::io::Result<String>>, word: &str) {
    assert!(lines.any(|line| line.unwrap().contains(word)), "it does not say {word}");
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

#[test]
fn an_order_holds_its_size_for_its_time_and_gives_it_back() {
    let qemu = Qemu::start("for");
    let output = qemu.order(&["400", "--for", "1"]).output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "uses 100 MiB, least size 164 MiB",
        "512 MiB -> 448 MiB",
        "holds at 400 MiB",
        "everything is given back",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(qemu.is_as_found());
}

#[test]
fn what_an_order_may_not_do_is_refused_and_changes_nothing() {
    let qemu = Qemu::start("refused");
    let refused = |arguments: &[&str], status: i32, part: &str| {
        let output = qemu.order(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", text(&output));
        assert!(text(&output).contains(part), "{}", text(&output));
        assert!(qemu.is_as_found());
    };
    refused(&["150"], 1, "150 MiB are below its least size, 164 MiB");
    refused(&["600"], 1, "it has 512 MiB");
    refused(&["400", "--by", "virtio-mem"], 1, "no device of virtio-mem");
    refused(&["200", "--floor", "300"], 1, "--floor says so");
    if std::fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .any(|l| l.contains(" cgroup ") && l.contains("memory"))
    {
        refused(&["400", "--by", "cgroup"], 77, "cgroup v1");
    }
    qemu.tell("running", false);
    refused(&["400"], 1, "its vCPUs do not run (QEMU says `paused`)");
    let output = qemu.order(&["400", "--dry-run"]).output().unwrap();
    assert!(text(&output).contains("do not run"), "{}", text(&output));
    qemu.tell("running", true);
    let output = qemu.order(&["400", "--dry-run"]).output().unwrap();
    assert!(text(&output).contains("would go from 512 MiB to 400 MiB by balloon"), "{}", text(&output));
    assert!(qemu.is_as_found());
}

#[test]
fn a_guest_that_needs_its_memory_or_does_not_follow_gets_it_back() {
    let qemu = Qemu::start("needs");
    let mut order = qemu.order(&["300"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(order.stdout.take().unwrap()).lines();
    hears(&mut lines, "holds at 300 MiB");
    // Another order has to wait, and says for whom.
    let busy = text(&qemu.order(&["200"]).output().unwrap());
    assert!(busy.contains(&format!("held by process {}", order.id())), "{busy}");
    qemu.tell("used", 290);
    hears(&mut lines, "are available in it, less than 32 MiB: everything is given back");
    assert_eq!(order.wait().unwrap().code(), Some(1));
    assert!(qemu.is_as_found());
    qemu.tell("used", 100);
    qemu.tell("deaf", true);
    let stuck = text(&qemu.order(&["300"]).output().unwrap());
    assert!(stuck.starts_with("Some(1)") && stuck.contains("its size stays at 512 MiB"), "{stuck}");
    assert!(qemu.is_as_found());
}

#[test]
fn a_size_that_is_kept_stays_until_it_is_restored() {
    let qemu = Qemu::start("keep");
    let kept = qemu.order(&["448", "--keep", "--format", "jsonl"]).output().unwrap();
    let events = lines_of(&kept).into_iter().map(|l| l["event"].as_str().unwrap().to_owned());
    assert_eq!(events.collect::<Vec<_>>(), ["begin", "step", "hold"]);
    assert_eq!(qemu.state(), (448, 0));
    // A later order that is refused or stopped before its first step changes nothing.
    assert!(text(&qemu.order(&["150"]).output().unwrap()).contains("below its least size"));
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (448, 0)));
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(order.stdout.take().unwrap()).lines();
    hears(&mut lines, "has 448 MiB");
    signal(&order, Signal::INT);
    hears(&mut lines, "stays as an earlier order has left it");
    order.wait().unwrap();
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (448, 0)));
    // Another one goes on from there, and everything comes back to the first size.
    assert!(qemu.order(&["400", "--keep"]).output().unwrap().status.success());
    assert_eq!(qemu.state(), (400, 0));
    let restore = |more: &[&str]| qemu.bifold("restore").arg(&qemu.name).args(more).output().unwrap();
    qemu.monitor().ask("balloon", json!({ "value": 200 * MIB })).unwrap();
    let changed = restore(&[]);
    assert!(text(&changed).contains("has 200 MiB now, which no order asked for"), "{}", text(&changed));
    assert_eq!((changed.status.code(), qemu.state()), (Some(1), (200, 0)));
    // A further order would take that size for its own.
    let changed = text(&qemu.order(&["190", "--for", "1"]).output().unwrap());
    assert!(changed.contains("has 200 MiB now, which no order asked for"), "{changed}");
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (200, 0)));
    assert!(restore(&["--force"]).status.success());
    assert!(qemu.is_as_found());
    assert!(text(&restore(&[])).contains("no order has taken memory"));
    assert!(qemu.order(&["448", "--keep"]).output().unwrap().status.success());
    qemu.monitor().ask("balloon", json!({ "value": 300 * MIB })).unwrap();
    assert!(text(&restore(&["--keep"])).contains("stays at 300 MiB"));
    assert_eq!((qemu.journal().exists(), qemu.state()), (false, (300, 0)));
}

/// JSON lines on stdout.
fn lines_of(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(output));
    let stdout = std::str::from_utf8(&output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn watching_changes_nothing_unless_asked_and_then_sets_it_back() {
    let qemu = Qemu::start("watch");
    let watch = |more: &[&str]| {
        let mut command = qemu.bifold("watch");
        command.args([&qemu.name, "-i", "1", "--format", "jsonl"]).args(more);
        command
    };
    let lines = lines_of(&watch(&["-n", "2"]).output().unwrap());
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[1]["actual_bytes"], &lines[1]["guest_available_bytes"]),
        (&json!(512 * MIB), &Value::Null)
    );
    assert_eq!((lines[1]["process_faults_per_second"].is_number(), qemu.state()), (true, (512, 0)));
    let lines = lines_of(&watch(&["-n", "3", "--stats"]).output().unwrap());
    assert_eq!(lines[2]["guest_available_bytes"], json!(412 * MIB));
    assert!(qemu.is_as_found());
    let mut watching = watch(&["--stats"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(watching.stdout.take().unwrap()).lines(), &format!("{}", 412 * MIB));
    assert_eq!(qemu.state(), (512, 1));
    let busy = text(&qemu.order(&["400"]).output().unwrap());
    assert!(busy.contains("held by process"), "{busy}");
    signal(&watching, Signal::KILL);
    watching.wait().unwrap();
    assert!(qemu.is_as_found());
}

#[test]
fn advice_names_what_is_missing() {
    let qemu = Qemu::start("advise");
    let output = qemu.bifold("advise").args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let own = document["findings"].as_array().unwrap().iter().filter(|f| f["vm"] == json!(qemu.name));
    assert_eq!(own.map(|f| f["rule"].as_str().unwrap()).collect::<Vec<_>>(), ["statistics-off"]);
    assert_eq!(qemu.state(), (512, 0));
}

/// What a `virsh` of this test answers: the monitor of a paused guest.
const VIRSH: &str = r#"#!/bin/sh
case "$*" in
*"--domain 6c1f22d0-54f4-4c5c-9a4b-0c5a4f1e9a10 --cmd"*) ;;
*) echo "error: no domain" >&2; exit 1 ;;
esac
case "$*" in
*query-cpus-fast*) echo '{"return":[{"cpu-index":0,"thread-id":THREAD}]}' ;;
*query-status*) echo '{"return":{"status":"paused","running":false},"id":"libvirt-1"}' ;;
*query-memory-size-summary*) echo '{"return":{"base-memory":1048576}}' ;;
*) echo '{"id":"libvirt-2","error":{"class":"CommandNotFound","desc":"not here"}}' ;;
esac
"#;

#[test]
fn libvirts_monitor_is_asked_through_virsh() {
    let qemu = Qemu::with("libvirt", |_| {
        let line = "-uuid 6c1f22d0-54f4-4c5c-9a4b-0c5a4f1e9a10 -chardev socket,id=charmonitor,fd=25,server=on \
                    -mon chardev=charmonitor,id=monitor,mode=control";
        line.split_whitespace().map(String::from).collect()
    });
    let virsh = qemu.dir.path().join("virsh");
    let path = format!("{}:{}", qemu.dir.path().display(), std::env::var("PATH").unwrap());
    let refused = |path: &str| text(&qemu.order(&["400"]).env("PATH", path).output().unwrap());
    let missing = refused("/usr/bin:/bin");
    if !Path::new("/usr/bin/virsh").exists() {
        assert!(missing.contains("libvirt has the monitor, and virsh does not run"), "{missing}");
    }
    let answers = |thread: u32| {
        std::fs::write(&virsh, VIRSH.replace("THREAD", &thread.to_string())).unwrap();
        std::fs::set_permissions(&virsh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    answers(1);
    let another = refused(&path);
    assert!(another.contains("does not run in process"), "{another}");
    answers(qemu.child.id());
    let paused = refused(&path);
    assert!(paused.contains("QEMU says `paused`"), "{paused}");
    let mut watch = qemu.bifold("watch");
    let lines = lines_of(
        &watch.args([&qemu.name, "-n", "1", "--format", "jsonl"]).env("PATH", path).output().unwrap(),
    );
    assert_eq!((&lines[0]["state"], &lines[0]["size_bytes"]), (&json!("paused"), &json!(1 << 20)));
}

/// How many kills the test makes, all at once: each has its own guest.
fn kills() -> u64 {
    std::env::var("BIFOLD_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

#[test]
fn a_size_comes_back_when_its_order_is_killed_at_any_moment() {
    let count = kills();
    let threads = (0..count).map(|n| {
        std::thread::spawn(move || {
            let qemu = Qemu::start(&format!("kill{n}"));
            let mut order = qemu.order(&["300"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(12_000 * n / count));
            signal(&order, Signal::KILL);
            order.wait().unwrap();
            assert!(qemu.is_as_found(), "kill {n} of {count}: {:?}", qemu.state());
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn when_order_and_guardian_are_killed_the_journal_stays_for_restore() {
    let qemu = Qemu::start("both");
    killed_with_its_guardian(&qemu);
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (400, 1)));
    assert!(qemu.bifold("restore").arg(&qemu.name).output().unwrap().status.success());
    assert!(qemu.is_as_found());
}

#[test]
fn a_long_interval_of_statistics_is_shortened_for_the_order() {
    let qemu = Qemu::start("seldom");
    qemu.tell("polling", 3600);
    let start = || {
        let mut order = qemu.order(&["448"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 448 MiB");
        assert_eq!(qemu.state(), (448, 1));
        order
    };
    let mut order = start();
    signal(&order, Signal::KILL);
    order.wait().unwrap();
    assert!(until(|| !qemu.journal().exists()));
    assert_eq!(qemu.state(), (512, 3600));
    // Another program's interval stays.
    let mut order = start();
    qemu.tell("polling", 2);
    signal(&order, Signal::INT);
    order.wait().unwrap();
    assert_eq!(qemu.state(), (512, 2));
}

#[test]
fn a_guest_that_has_ended_is_found_by_its_name() {
    let mut qemu = Qemu::start("ended");
    assert!(qemu.order(&["448", "--keep"]).output().unwrap().status.success());
    qemu.child.kill().unwrap();
    qemu.child.wait().unwrap();
    let restored = text(&qemu.bifold("restore").arg(&qemu.name).output().unwrap());
    assert!(restored.contains(&format!("VM {}: the guest has ended", qemu.name)), "{restored}");
    assert!(!qemu.journal().exists());
}

#[test]
fn what_a_balloon_holds_comes_back_though_a_dimm_was_plugged() {
    let qemu = Qemu::start("dimm");
    assert!(qemu.order(&["448", "--keep"]).output().unwrap().status.success());
    qemu.tell("dimms", 1024);
    assert_eq!(qemu.state(), (1472, 0));
    assert!(qemu.order(&["1400", "--keep"]).output().unwrap().status.success());
    assert!(qemu.bifold("restore").arg(&qemu.name).output().unwrap().status.success());
    assert_eq!((qemu.journal().exists(), qemu.state()), (false, (1536, 0)));
    let mut order = qemu.order(&["1472"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(order.stdout.take().unwrap()).lines();
    hears(&mut lines, "holds at 1472 MiB");
    qemu.tell("dimms", 2048);
    hears(&mut lines, "everything is given back");
    order.wait().unwrap();
    assert_eq!((qemu.journal().exists(), qemu.state()), (false, (2560, 0)));
}

#[test]
fn a_size_comes_back_though_the_journals_folder_is_removed() {
    let qemu = Qemu::start("logout");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    std::fs::remove_file(qemu.journal()).unwrap();
    signal(&order, Signal::KILL);
    order.wait().unwrap();
    assert!(until(|| qemu.state() == (512, 0)), "{:?}", qemu.state());
}

#[test]
fn a_guardian_does_not_take_another_orders_journal_for_its_own() {
    let qemu = Qemu::start("foreign");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    let own = std::fs::read_to_string(qemu.journal()).unwrap();
    let found = |mib: u64| format!("\nfound {}\n", mib * MIB);
    let other =
        own.replace(&format!("\npid {}\n", order.id()), "\npid 1\n").replace(&found(512), &found(400));
    assert!(other.contains("\npid 1\n") && other.contains(&found(400)), "{own}");
    std::fs::write(qemu.journal(), &other).unwrap();
    let guardian = format!("/proc/{}/cmdline", children(order.id())[0]);
    signal(&order, Signal::KILL);
    order.wait().unwrap();
    assert!(until(|| qemu.state() == (512, 0)), "{:?}", qemu.state());
    // A zombie has no words.
    assert!(until(|| std::fs::read(&guardian).unwrap_or_default().is_empty()));
    assert_eq!(std::fs::read_to_string(qemu.journal()).unwrap(), other);
    std::fs::remove_file(qemu.journal()).unwrap();
}

/// An order that holds 400 MiB and is killed with its guardian.
fn killed_with_its_guardian(qemu: &Qemu) {
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    // It must not see its guardian's end.
    signal(&order, Signal::STOP);
    for guardian in children(order.id()) {
        kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    }
    signal(&order, Signal::KILL);
    order.wait().unwrap();
}

#[test]
fn an_order_whose_guardian_is_killed_gives_back_and_ends() {
    let qemu = Qemu::start("alone");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    for guardian in children(order.id()) {
        kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    }
    let output = order.wait_with_output().unwrap();
    assert!(text(&output).contains("runs no longer"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(qemu.is_as_found());
}

#[test]
fn a_guardian_that_cannot_give_back_says_so_and_ends_at_a_signal() {
    let qemu = Qemu::start("stuck");
    let mut order = qemu.order(&["400"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 400 MiB");
    let guardian = Pid::from_raw(children(order.id())[0]).unwrap();
    signal(&qemu.child, Signal::STOP);
    signal(&order, Signal::KILL);
    let mut lines = BufReader::new(order.stderr.take().unwrap()).lines();
    order.wait().unwrap();
    hears(&mut lines, &format!("process {} tries", guardian.as_raw_pid()));
    kill_process(guardian, Signal::TERM).unwrap();
    hears(&mut lines, "is not given back");
    signal(&qemu.child, Signal::CONT);
    assert_eq!((qemu.journal().exists(), qemu.state()), (true, (400, 1)));
    let restored = qemu.bifold("restore").args([&qemu.name, "--force"]).output().unwrap();
    assert!(restored.status.success() && qemu.is_as_found(), "{}", text(&restored));
}

#[test]
fn an_order_that_stands_still_loses_its_guest() {
    let qemu = Qemu::start("still");
    let mut order = qemu.order(&["300"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "-> ");
    signal(&order, Signal::STOP);
    assert!(until(|| qemu.state() == (512, 0)), "{:?}", qemu.state());
    // It orders nothing when it goes on.
    signal(&order, Signal::CONT);
    let output = order.wait_with_output().unwrap();
    assert!(text(&output).contains("stands still during an order"), "{}", text(&output));
    assert!(text(&output).contains("runs no longer"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(qemu.is_as_found());
}

#[test]
fn the_size_of_a_guest_on_its_way_is_not_taken_for_its_own() {
    let qemu = Qemu::start("way");
    killed_with_its_guardian(&qemu);
    // The next order gives 512 MiB back, sees 400, and then 512.
    qemu.tell("late", 1);
    let moves = text(&qemu.order(&["350", "--for", "1"]).output().unwrap());
    assert!(moves.contains("its size moves, from 400 to 512 MiB"), "{moves}");
    assert!(qemu.is_as_found());
    qemu.tell("late", 0);
    killed_with_its_guardian(&qemu);
    // A guest that does not follow: the next order's end still gives back what the first one found.
    qemu.tell("deaf", true);
    let mut order = qemu.order(&["350"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "has 400 MiB");
    signal(&order, Signal::INT);
    order.wait().unwrap();
    qemu.tell("deaf", false);
    assert!(qemu.is_as_found());
}

#[test]
fn ctrl_c_gives_back_and_a_guest_that_ends_is_an_end() {
    let mut qemu = Qemu::start("ctrl-c");
    let start = |qemu: &Qemu| {
        let mut order = qemu.order(&["448"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        hears(&mut BufReader::new(order.stdout.take().unwrap()).lines(), "holds at 448 MiB");
        order
    };
    let mut order = start(&qemu);
    signal(&order, Signal::INT);
    order.wait().unwrap();
    assert!(qemu.is_as_found());
    let mut order = start(&qemu);
    let journal = qemu.journal();
    qemu.child.kill().unwrap();
    qemu.child.wait().unwrap();
    assert_eq!(order.wait().unwrap().code(), Some(1));
    assert!(!journal.exists());
    let _ = std::fs::remove_file(journal.with_extension("lock"));
}
