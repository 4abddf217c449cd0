// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics for Prometheus: a text file for node_exporter, and a loopback address that answers HTTP.

use crate::error::DaemonError;
use crate::status::{Status, VmStatus};
use bifold_host::{Mode, printable};
use bifold_live::columns::{self, Column, Type};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The labels of a series.
type Labels = Vec<(&'static str, String)>;

/// What the status of a VM has, if anything.
type Get = fn(&VmStatus) -> Option<f64>;

/// A metric of each VM: name, help, value.
type PerVm = (&'static str, &'static str, Get);
/// The same with a series for each mode; its value here is the name of the mode whose series is 1.
type PerMode = (&'static str, &'static str, fn(&VmStatus) -> Option<&str>);

/// A label's value. The owner of a VM chose the name, and the library writes values as they are: OpenMetrics
/// has backslash, quote and line feed escaped.
fn escaped(text: &str) -> String {
    printable(text).replace('\\', "\\\\").replace('"', "\\\"")
}

/// Modes: 1 for the VM's, 0 for the others. During a switch all are 0.
const MODES: [PerMode; 2] = [
    ("bifold_vm_paging_mode", "1 for the VM's paging mode, 0 for the others", |v| v.mode.as_deref()),
    ("bifold_vm_wanted_mode", "1 for the mode that the policy wanted last, 0 for the others", |v| {
        v.wants.as_deref()
    }),
];

/// Levels.
const GAUGES: [PerVm; 2] = [
    ("bifold_vm_away", "1 if the VM is not in the mode in which the daemon found it", |v| {
        Some(if v.own_mode.is_some() { 1.0 } else { 0.0 })
    }),
    ("bifold_vm_switches_last_hour", "Switches in the last hour, by the daemon and by others", |v| {
        Some(v.switches_in_hour as f64)
    }),
];

/// Counts. Prometheus adds `_total` to their names.
const COUNTERS: [PerVm; 4] = [
    ("bifold_vm_decisions", "Decisions of the VM's policy", |v| Some(v.totals.decisions as f64)),
    ("bifold_vm_switches", "Switches of the VM by the daemon", |v| Some(v.totals.switched as f64)),
    ("bifold_vm_refused", "Switches that KVM refused", |v| Some(v.totals.refused as f64)),
    ("bifold_vm_ended_early", "Stays in shadow paging that ended early", |v| {
        Some(v.totals.ended_early as f64)
    }),
];

/// Figures of `bifold stat` that are metrics too, by their names there, and what the status has of each.
/// Names, units and meanings of the metrics are the figures'.
const FIGURES: [(&str, Get); 4] = [
    ("load", |v| v.load),
    ("exits", |v| Some(v.totals.exits as f64)),
    ("run_ns", |v| Some(v.totals.ran_ns as f64)),
    ("wait_ns", |v| Some(v.totals.waited_ns as f64)),
];

/// A figure's name as a metric, and what the metric's unit is divided by: Prometheus has seconds for times,
/// and calls a share a ratio.
fn metric(figure: &Column) -> (String, f64) {
    match (figure.unit, figure.kind) {
        ("ns", _) => (format!("bifold_vm_{}_seconds", figure.name.trim_end_matches("_ns")), 1e9),
        ("1", Type::Number) => (format!("bifold_vm_{}_ratio", figure.name), 1.0),
        _ => (format!("bifold_vm_{}", figure.name), 1.0),
    }
}

/// The metric that names a VM's policy and what the daemon does with the VM.
const STATE: &str = "bifold_vm_state";
/// The metric that names why KVM would refuse a switch.
const REFUSAL: &str = "bifold_vm_refusal";
/// The help of the metric that tells of trouble.
const TROUBLE: &str = "1 if a file could not be written, or memory cannot be divided; the log says which";

type Level = Gauge<f64, AtomicU64>;
type Count = Counter<f64, AtomicU64>;

fn set(level: &Level, n: f64) {
    level.set(n);
}

fn add(count: &Count, n: f64) {
    count.inc_by(n);
}

/// The labels of a VM's series.
fn of<const N: usize>(v: &VmStatus, more: [(&'static str, &str); N]) -> Labels {
    let name = escaped(v.name.as_deref().unwrap_or_default());
    let more = more.map(|(label, value)| (label, value.to_owned()));
    [("vm", v.vm.clone()), ("name", name)].into_iter().chain(more).collect()
}

/// A metric with these series.
fn family<M: Default>(
    series: impl IntoIterator<Item = (Labels, f64)>,
    set: fn(&M, f64),
) -> Family<Labels, M> {
    let family = Family::<Labels, M>::default();
    series.into_iter().for_each(|(labels, n)| set(&family.get_or_create(&labels), n));
    family
}

/// A series for each VM whose value is known.
fn of_vms<M: Default>(
    vms: &[VmStatus],
    value: impl Fn(&VmStatus) -> Option<f64>,
    set: fn(&M, f64),
) -> Family<Labels, M> {
    family(vms.iter().filter_map(|v| Some((of(v, []), value(v)?))), set)
}

/// The metrics in Prometheus's text format.
///
/// # Errors
/// If a text cannot be formatted, which does not happen in memory.
pub fn text(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    let vms = &status.vms[..];
    for (name, help, mode) in MODES {
        let known = vms.iter().filter_map(|v| Some((v, mode(v)?)));
        // KVM has these two modes for a VM.
        let of_modes = |(v, now): (&VmStatus, &str)| {
            Mode::BOTH.map(|m| (of(v, [("mode", m.name())]), if now == m.name() { 1.0 } else { 0.0 }))
        };
        registry.register(name, help, family(known.flat_map(of_modes), set));
    }
    for (name, help, value) in GAUGES {
        registry.register(name, help, of_vms(vms, value, set));
    }
    for (name, help, value) in COUNTERS {
        registry.register(name, help, of_vms(vms, value, add));
    }
    let all = columns::all();
    for (figure, value) in FIGURES {
        // A test finds them all. A daemon that has switched VMs does not end for a name.
        let Some(figure) = all.iter().find(|c| c.name == figure) else { continue };
        let (name, parts) = metric(figure);
        let value = |v: &VmStatus| Some(value(v)? / parts);
        // The library ends a help with a full stop.
        let help = figure.doc.trim_end_matches('.');
        match figure.kind {
            // The status has the sum of an interval's counts.
            Type::Count => registry.register(name, help, of_vms(vms, value, add)),
            Type::Number | Type::Text => registry.register(name, help, of_vms(vms, value, set)),
        }
    }
    let states = vms.iter().map(|v| {
        let policy = escaped(v.policy.as_deref().unwrap_or_default());
        (of(v, [("policy", &policy), ("state", &v.state)]), 1.0)
    });
    let help = "1 for the VM's policy, and what the daemon does with the VM";
    registry.register(STATE, help, family(states, set));
    let refusals = vms.iter().filter_map(|v| Some((of(v, [("reason", v.refusal.as_deref()?)]), 1.0)));
    let help = "1 for the reason why KVM would refuse the switch that the policy wants";
    registry.register(REFUSAL, help, family(refusals, set));
    let trouble = if status.trouble.is_some() { 1.0 } else { 0.0 };
    for (name, help, value) in [
        ("bifold_daemon_up_seconds", "Time since the daemon's start", status.up_s),
        ("bifold_daemon_reading_seconds", "Time that the last reading of all VMs took", status.reading_s),
        ("bifold_daemon_trouble", TROUBLE, trouble),
    ] {
        let level = Level::default();
        level.set(value);
        registry.register(name, help, level);
    }
    let mut text = String::new();
    encode(&mut text, &registry).map(|()| text)
}

/// Replaces the text file; a reader finds all of it or the one before.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), DaemonError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // The folder may be another user's, who could put a link there.
    let made = match fs::remove_file(&new) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => File::options().write(true).create_new(true).open(&new),
    };
    made.and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&new, path))
        .map_err(|e| DaemonError::io(path, e))
}

/// Answers HTTP with the metrics that were set last, in a thread.
pub struct Listener {
    text: Arc<Mutex<String>>,
    server: Arc<tiny_http::Server>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens at a loopback address.
    ///
    /// # Errors
    /// If the address cannot be listened at.
    pub fn start(address: SocketAddr) -> Result<Listener, DaemonError> {
        let failed = |e: Box<dyn std::error::Error + Send + Sync>| {
            DaemonError::io(format!("address {address}"), std::io::Error::other(e))
        };
        // The listener before this one may just be ending.
        let start = Instant::now();
        let server = loop {
            match tiny_http::Server::http(address) {
                Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
                made => break made.map_err(failed)?,
            }
        };
        let (server, text) = (Arc::new(server), Arc::new(Mutex::new(String::new())));
        let of_thread = (Arc::clone(&server), Arc::clone(&text));
        let thread = std::thread::spawn(move || {
            for request in of_thread.0.incoming_requests() {
                let text = of_thread.1.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // A client that has gone misses its answer.
                let _ = request.respond(answer(text));
            }
        });
        Ok(Listener { text, server, thread: Some(thread) })
    }

    /// Where metrics are answered.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.server_addr().to_ip()
    }

    /// Sets what is answered from now on.
    pub fn set(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.server.unblock();
        // A client that does not take its answer holds the thread; the socket stays open then.
        let start = Instant::now();
        while self.thread.as_ref().is_some_and(|t| !t.is_finished()) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.thread = None;
    }
}

/// How long the end of a listener waits for its last client, and a new one for the address.
const PATIENCE: Duration = Duration::from_millis(500);

fn answer(text: String) -> tiny_http::Response<std::io::Cursor<Vec<u8>>> {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let kind = tiny_http::Header::from_bytes("Content-Type", TYPE).ok();
    let answer = tiny_http::Response::from_string(text);
    match kind {
        Some(kind) => answer.with_header(kind),
        None => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io::Read as _;

    fn status() -> Status {
        let vm = VmStatus {
            vm: "100-7".into(),
            name: Some("we\"b\n\u{1b}[2J".into()),
            mode: Some("shadow".into()),
            policy: Some("dsp".into()),
            state: "acts".into(),
            load: Some(0.5),
            refusal: Some("real-mode".into()),
            ..VmStatus::default()
        };
        Status { vms: vec![vm], up_s: 3.0, ..Status::default() }
    }

    #[test]
    fn a_vm_is_a_line_of_each_metric_and_its_name_cannot_break_the_line() {
        let text = text(&status()).unwrap();
        let mode = |mode, value| {
            format!(
                r#"bifold_vm_paging_mode{{vm="100-7",name="we\"b\\n\\u{{1b}}[2J",mode="{mode}"}} {value}"#
            )
        };
        assert!(text.contains(&mode("shadow", "1.0")) && text.contains(&mode("nested", "0.0")), "{text}");
        assert!(text.contains("bifold_vm_switches_total{"), "{text}");
        for figure in ["load_ratio", "exits_total", "run_seconds_total", "wait_seconds_total"] {
            assert!(text.contains(&format!("bifold_vm_{figure}{{")), "{figure}: {text}");
        }
        assert!(
            text.contains("# HELP bifold_vm_load_ratio Share of the interval during which vCPUs ran.\n"),
            "{text}"
        );
        assert!(text.contains(r#"policy="dsp",state="acts"} 1.0"#), "{text}");
        assert!(
            text.contains(
                r#"bifold_vm_refusal{vm="100-7",name="we\"b\\n\\u{1b}[2J",reason="real-mode"} 1.0"#
            ),
            "{text}"
        );
        assert!(!text.contains("bifold_vm_wanted_mode{"), "unknown is no line: {text}");
        assert!(text.lines().all(|l| l.starts_with(['#', 'b'])), "{text}");
    }

    #[test]
    fn a_vm_that_is_being_switched_is_in_no_mode() {
        let mut switching = status();
        switching.vms[0].mode = Some("nested -> shadow".into());
        let text = text(&switching).unwrap();
        let modes = text.lines().filter(|l| l.starts_with("bifold_vm_paging_mode{"));
        assert_eq!(modes.map(|l| l.ends_with(" 0.0")).collect::<Vec<_>>(), [true; 2], "{text}");
    }

    /// The names of metrics in a text.
    fn names(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.filter(|w| w.starts_with("bifold_")).collect()
    }

    /// Every string below a key of this name.
    fn texts<'a>(json: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
        match json {
            serde_json::Value::Object(map) => {
                found.extend(map.get(key).and_then(|v| v.as_str()));
                map.values().for_each(|v| texts(v, key, found));
            }
            serde_json::Value::Array(all) => all.iter().for_each(|v| texts(v, key, found)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_asks_for_the_metrics_that_there_are() {
        let dashboard = serde_json::from_str(include_str!("../install/grafana.json")).unwrap();
        let mut asked = Vec::new();
        texts(&dashboard, "expr", &mut asked);
        texts(&dashboard, "definition", &mut asked);
        let asked: BTreeSet<&str> = asked.into_iter().flat_map(names).collect();
        let mut all = status();
        all.vms[0].wants = Some("nested".into());
        let text = text(&all).unwrap();
        let told = text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| names(l).pop_first());
        assert_eq!(asked, told.collect());
        assert_eq!(dashboard["schemaVersion"], 39, "as docs/guide/daemon.md says");
    }

    #[test]
    fn the_listener_answers_what_was_set_last() {
        let listener = Listener::start("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.set("first".into());
        listener.set("bifold_daemon_up_seconds 1\n".into());
        let mut stream = std::net::TcpStream::connect(listener.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.0 200") && answer.ends_with("bifold_daemon_up_seconds 1\n"),
            "{answer}"
        );
        let address = listener.address().unwrap();
        drop((stream, listener));
        Listener::start(address).expect("the address is free again");
    }

    #[test]
    fn the_file_is_replaced_whole_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bifold.prom");
        let other = dir.path().join("journal");
        write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("bifold.prom.new")).unwrap();
        write(&path, "old").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        fs::remove_file(&other).unwrap();
        write(&path, "old").unwrap();
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("none/x.prom"), "x").is_err());
    }
}
