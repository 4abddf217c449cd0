// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold daemon` and `bifold ctl` as systemd and an operator use them. Without a rule the daemon switches
//! nothing, whatever VMs this machine runs.

use crate::command::{bifold_in, command};
use crate::reclaim_qemu::orphans;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that was started as systemd starts a unit of type notify.
pub struct Daemon {
    pub child: Child,
    notices: UnixDatagram,
    /// Beside no order that a test leaves, unless the test is this one's.
    _orphans: Option<File>,
}

impl Daemon {
    pub fn start(dir: &Path) -> Daemon {
        let orphans = orphans(FlockOperation::NonBlockingLockShared);
        Daemon { _orphans: Some(orphans), ..Daemon::start_beside_orphans(dir) }
    }

    /// The caller holds the lock of [`orphans`].
    pub fn start_beside_orphans(dir: &Path) -> Daemon {
        let socket = dir.join("notify");
        let _ = std::fs::remove_file(&socket);
        let notices = UnixDatagram::bind(&socket).unwrap();
        notices.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut c = command(["daemon", "--no-pmu", "--config", "c.toml", "--state", "state"]);
        c.current_dir(dir).env("NOTIFY_SOCKET", &socket).env("XDG_RUNTIME_DIR", dir).stderr(Stdio::piped());
        Daemon { child: c.spawn().unwrap(), notices, _orphans: None }
    }

    /// Waits for a notice that contains this text, and returns the notice.
    pub fn waits_for(&self, text: &str) -> String {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let mut notice = [0; 1000];
            let length = match self.notices.recv(&mut notice) {
                // The end of another test's child.
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                length => length.unwrap_or_else(|e| panic!("no {text}: {e}")),
            };
            let notice = String::from_utf8(notice[..length].to_vec()).unwrap();
            if notice.contains(text) {
                return notice;
            }
        }
        panic!("no {text}");
    }

    /// Closes the socket of notices: a daemon waits at a full one, which systemd empties.
    pub fn unheard(self) -> Daemon {
        Daemon { notices: UnixDatagram::unbound().unwrap(), ..self }
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(signal).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end. Returns status and log.
    pub fn ends(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

#[test]
fn systemd_hears_of_start_reload_life_and_end() {
    let dir = tempfile::tempdir().unwrap();
    // An interval that is longer than a watchdog's patience.
    std::fs::write(dir.path().join("c.toml"), "interval_s = 3600.0\n").unwrap();
    let daemon = Daemon::start(dir.path());
    daemon.waits_for("READY=1\n");
    daemon.waits_for("WATCHDOG=1\n");
    daemon.waits_for("WATCHDOG=1\n");
    daemon.signal("-HUP");
    assert!(daemon.waits_for("RELOADING=1\n").contains("MONOTONIC_USEC="));
    daemon.waits_for("READY=1\n");
    daemon.signal("-TERM");
    daemon.waits_for("STOPPING=1\n");
    let (status, log) = daemon.ends();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("bifold: has read its configuration\n"), "{log}");
    assert!(!dir.path().join("state/control").exists());
}

#[test]
fn a_folder_has_one_daemon_and_what_a_killed_one_left_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let ctl = |ask: &str| bifold_in(dir.path(), &format!("ctl --state state {ask}"));
    std::fs::write(dir.path().join("c.toml"), "").unwrap();
    let first = Daemon::start(dir.path());
    first.waits_for("READY=1\n");
    let status: serde_json::Value = serde_json::from_str(&ctl("status --format json").quietly()).unwrap();
    assert_eq!(status["pid"], first.child.id());
    let second = bifold_in(dir.path(), "daemon --no-pmu --config c.toml --state state").refused();
    assert!(second.starts_with("status 1\nbifold: a daemon runs already (state/lock is locked)"), "{second}");
    let nobody = ctl("explain no-such-vm").refused();
    assert!(nobody.starts_with("status 1\nbifold: the daemon sees no VM `no-such-vm`"), "{nobody}");
    std::fs::write(dir.path().join("c.toml"), "interval_s = 0.0\n").unwrap();
    let wrong = ctl("reload").refused();
    assert!(wrong.contains("interval_s = 0 is not 0.05 to 3600"), "{wrong}");
    std::fs::write(dir.path().join("c.toml"), "").unwrap();
    assert_eq!(ctl("reload").quietly(), "has read its configuration\n");
    first.signal("-KILL");
    first.ends();
    assert!(dir.path().join("state/control").exists(), "as a daemon that was killed leaves the socket");
    let next = Daemon::start(dir.path());
    next.waits_for("READY=1\n");
    ctl("status").quietly();
    next.signal("-INT");
    assert_eq!(next.ends().0, Some(0));
}

#[test]
fn configurations_of_the_daemon_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("unknown.toml", "[[vm]]\nname = \"web\"\npolicy = \"dsp\"\nacts = true\n");
    write("not.toml", "vm = [[[");
    write(
        "wrong.toml",
        "interval_s = 0.0\nnever = [\"\"]\n[limits]\nmin_stay_s = 1\nblackout_s = 5\n[metrics]\nlisten = \"0.0.0.0:9178\"\n\
         [[vm]]\nname = \"we\\u001b[2Jb\"\npolicy = \"dps\"\n",
    );
    write("huge.toml", &"#".repeat((1 << 20) + 1));
    let mut all = String::new();
    for name in ["missing.toml", "unknown.toml", "not.toml", "wrong.toml", "huge.toml", "/dev/zero", "."] {
        for option in ["--check-config", "--state state --config"] {
            let text = bifold_in(dir.path(), &format!("daemon {option} {name}")).refused();
            assert!(text.starts_with("status 1\nbifold: "), "{name}: {text}");
            assert!(!dir.path().join("state").exists(), "nothing is made before the configuration is read");
            if option == "--check-config" {
                all += &format!("$ bifold daemon --check-config {name}\n{text}\n");
            }
        }
    }
    insta::assert_snapshot!(all);
}

#[test]
fn without_a_daemon_every_request_says_so() {
    let dir = tempfile::tempdir().unwrap();
    // As a daemon that was killed leaves the socket.
    std::fs::create_dir(dir.path().join("old")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("old/control")).unwrap());
    for ask in ["status", "explain web", "hold web", "release web", "undo", "reload"] {
        for (folder, why) in [("none", "No such file"), ("old", "Connection refused")] {
            let text = bifold_in(dir.path(), &format!("ctl --state {folder} {ask}")).refused();
            assert!(text.starts_with("status 1\nbifold: no daemon answers at "), "{ask}: {text}");
            assert!(text.contains(why), "{ask}: {text}");
        }
    }
}
