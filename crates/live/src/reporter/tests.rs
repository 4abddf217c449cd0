// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections over real sockets: this process is QEMU and reader at once.

use super::*;
use crate::columns::{self};
use crate::fake_host::FakeHost;
use crate::files::{Format, RowWriter};
use crate::hardware::HardwareCounts;
use crate::row::IntervalRow;
use crate::{HardwareSource, Interval, Watch, recording, replay};
use bifold_host::{Host, VmId};
use bifold_policy::{Counters, Named};
use nix::sys::socket as raw;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A folder, its socket, and a reporter of this process that is connected since second 0.
struct Guest {
    _dir: tempfile::TempDir,
    path: PathBuf,
    listener: UnixListener,
    qemu: UnixStream,
    reporter: Reporter,
}

impl Guest {
    fn new() -> Guest {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut reporter = Reporter::of(&Host::live(), std::process::id(), path.clone());
        reporter.connect(s(0));
        assert!(reporter.is_connected(), "{:?}", reporter.problem());
        let (qemu, _) = listener.accept().unwrap();
        Guest { _dir: dir, path, listener, qemu, reporter }
    }

    fn send(&mut self, text: &str) {
        self.qemu.write_all(text.as_bytes()).unwrap();
    }

    /// Reports of these times of the guest, in seconds; each second has ten page faults.
    fn report(&mut self, times: &[f64]) {
        times.iter().for_each(|t| self.send(&line(*t)));
    }

    fn faults(&mut self, at: u64) -> Option<u64> {
        self.reporter.read(s(at))?.report.page_faults
    }

    fn problem(&self) -> String {
        self.reporter.problem().map(ToString::to_string).unwrap_or_default()
    }
}

fn line(t: f64) -> String {
    let ms = (1000.0 * t) as u64;
    format!("{{\"schema\":\"bifold.report/1\",\"uptime_ms\":{ms},\"page_faults\":{}}}\n", ms / 100)
}

#[test]
fn a_reading_has_the_last_report_and_without_one_it_is_unknown() {
    let mut guest = Guest::new();
    guest.report(&[10.1, 10.5, 10.9]);
    let reading = guest.reporter.read(s(1)).unwrap();
    assert_eq!((reading.report.page_faults, reading.age), (Some(109), Duration::from_millis(200)));
    assert_eq!(guest.faults(2), None);
    assert!(guest.problem().contains("no report came from socket"), "{}", guest.problem());
    // A line in pieces is of the reading in which its end comes.
    let (start, end) = (line(12.9)[..30].to_owned(), line(12.9)[30..].to_owned());
    guest.report(&[12.1]);
    guest.send(&start);
    assert_eq!(guest.faults(3), None, "one report spans no time");
    assert!(guest.problem().contains("span less than a third"), "{}", guest.problem());
    guest.send(&format!("{end}bad\n"));
    guest.report(&[13.5]);
    assert_eq!((guest.faults(4), guest.reporter.bad_lines(), guest.problem()), (Some(135), 1, String::new()));
}

#[test]
fn reports_of_a_socket_that_was_full_are_not_taken_for_new() {
    let mut guest = Guest::new();
    let written = (0..50).map(|n| f64::from(n) / 5.0).collect::<Vec<_>>();
    guest.report(&written);
    assert_eq!(guest.faults(60), None, "they are of the first ten seconds");
    guest.report(&[100.0, 100.9]);
    assert_eq!(guest.faults(61), Some(1009));
}

#[test]
fn a_reporter_without_time_is_believed() {
    let mut guest = Guest::new();
    guest.send("{\"schema\":\"bifold.report/1\",\"page_faults\":5}\n");
    let reading = guest.reporter.read(s(1)).unwrap();
    assert_eq!((reading.report.page_faults, reading.age), (Some(5), s(1)));
}

#[test]
fn a_boot_of_the_guest_and_a_new_connection_begin_a_new_epoch() {
    let mut guest = Guest::new();
    guest.report(&[50.1, 50.9]);
    let before = guest.reporter.read(s(1)).unwrap().epoch;
    guest.report(&[51.0, 0.2, 0.9]);
    let booted = guest.reporter.read(s(2)).unwrap();
    assert_eq!((booted.epoch, booted.report.page_faults), (before + 1, Some(9)));
    guest.report(&[0.1, 0.9]);
    assert_eq!(guest.reporter.read(s(3)).unwrap().epoch, before + 2, "booted again, between two readings");
    guest.send("half a li");
    let other = guest.listener.try_clone().unwrap();
    guest.qemu = UnixStream::pair().unwrap().0;
    assert_eq!((guest.faults(4), guest.faults(5)), (None, None));
    assert!(!guest.reporter.is_connected());
    guest.reporter.connect(s(5));
    guest.qemu = other.accept().unwrap().0;
    guest.report(&[90.1, 90.9]);
    let again = guest.reporter.read(s(6)).unwrap();
    assert_eq!((again.epoch, guest.reporter.bad_lines()), (before + 3, 0));
}

#[test]
fn a_flood_is_read_in_bounded_steps_and_unknown() {
    let mut guest = Guest::new();
    // 100 KB, in writes that are long enough for a socket's buffer.
    guest.send(&line(1.0).repeat(1 + 100_000 / line(1.0).len()));
    assert_eq!(guest.faults(1), None);
    assert!(guest.problem().contains("exceed 64 KiB in an interval"), "{}", guest.problem());
    guest.report(&[2.0]);
    assert_eq!(guest.faults(2), None, "the rest of the flood");
    guest.report(&[3.1, 3.9]);
    assert_eq!((guest.faults(3), guest.problem().is_empty()), (Some(39), true));
}

#[test]
fn a_socket_of_another_process_is_refused() {
    let guest = Guest::new();
    let mut other = Reporter::of(&Host::live(), 1, guest.path.clone());
    other.connect(s(0));
    assert!(!other.is_connected());
    let told = other.problem().unwrap().to_string();
    let this = std::process::id();
    assert!(told.contains(&format!("belongs to process {this}, not to the VM's process 1")), "{told}");
    assert!(other.read(s(1)).is_none());
    // The caller named it: libvirt's own process listens on it for QEMU.
    let mut named = Reporter::named(guest.path.clone());
    named.connect(s(0));
    assert!(named.is_connected());
}

#[test]
fn what_is_no_socket_or_has_no_place_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let told = |path: &Path| {
        let mut reporter = Reporter::of(&Host::live(), std::process::id(), path.into());
        reporter.connect(s(0));
        assert!(!reporter.is_connected());
        reporter.problem().unwrap().to_string()
    };
    let missing = told(&dir.path().join("a\u{1b}[2J"));
    assert!(missing.contains("a\\u{1b}[2J: No such file"), "{missing}");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(told(&file).contains("Connection refused"));
    // A listener that accepts no connection.
    let full = dir.path().join("full");
    let (unix, stream, none) = (raw::AddressFamily::Unix, raw::SockType::Stream, raw::SockFlag::empty());
    let listener = raw::socket(unix, stream, none, None).unwrap();
    raw::bind(listener.as_raw_fd(), &raw::UnixAddr::new(&full).unwrap()).unwrap();
    raw::listen(&listener, raw::Backlog::new(0).unwrap()).unwrap();
    let waiting = UnixStream::connect(&full).unwrap();
    let mut reporter = Reporter::named(full);
    reporter.connect(s(0));
    let Some(ReporterError::Connect { source, .. }) = reporter.problem() else { panic!() };
    assert_eq!(source.kind(), ErrorKind::WouldBlock);
    drop(waiting);
}

/// Intervals of a watched VM, whose guest makes a page fault each 10 ms and `steps` of progress.
fn watched(fake: &FakeHost, watch: &mut Watch, qemu: impl FnOnce() -> UnixStream, id: VmId) -> Vec<Interval> {
    let mut now = 0;
    let mut tick = |watch: &mut Watch| {
        now += 1;
        fake.vcpu(id, 0, now * 500_000_000, 0);
        watch.tick(&|| s(now)).intervals
    };
    assert!(tick(watch).is_empty());
    let mut qemu = qemu();
    let mut all = Vec::new();
    for second in 1..4 {
        for part in [2, 9] {
            let (ms, faults) = (1000 * second + 100 * part, 100 * second + 10 * part);
            let report = format!(
                "{{\"schema\":\"bifold.report/1\",\"uptime_ms\":{ms},\"page_faults\":{faults},\"progress\":{{\"steps\":{second}}}}}\n"
            );
            qemu.write_all(report.as_bytes()).unwrap();
        }
        all.extend(tick(watch).into_iter().map(|(_, interval)| interval));
    }
    all
}

/// A policy that needs page faults and TLB misses sees them in nested paging, now and in a recording.
#[test]
fn a_recording_in_nested_paging_has_what_dsp_needs() {
    let (fake, dir) = (FakeHost::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("report.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let id = VmId { thread: 100, fd: 7 };
    fake.vm(id, "web");
    let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
    watch.report_from(move |_| Some(path.clone()));
    let mut intervals = watched(&fake, &mut watch, || listener.accept().unwrap().0, id);
    let mut file = RowWriter::new(Format::Jsonl, columns::all(), Vec::new()).unwrap();
    for interval in &mut intervals {
        interval.vcpus[0].hardware = HardwareCounts { instructions: Some(1 << 20), ..HardwareCounts::ZERO };
        file.row(&IntervalRow::of_vm(0.0, watch.vm(id).unwrap(), interval)).unwrap();
    }
    let text = String::from_utf8(file.finish().unwrap()).unwrap();
    let reported =
        r#""reported_page_faults":100,"reported_progress":1,"reported_progress_by_name":"steps=1""#;
    assert_eq!(text.matches(reported).count(), 2, "{text}");
    let vms = recording::parse(text.as_bytes(), Path::new("r")).unwrap();
    let counts = vms[0].intervals.iter().map(|i| {
        let known = Counters::PAGE_FAULTS.less(i.seen.measured.known) == Counters::NONE;
        known.then_some(i.seen.measured.sample.guest_page_faults)
    });
    assert_eq!(counts.collect::<Vec<_>>(), [None, Some(100), Some(100)]);
    let dsp = Named::load("dsp").unwrap().spec;
    assert_eq!(replay::replay(&vms[0], &dsp, None).unwrap().left_out, 1);
}

/// A source that counts VMs, here by the progress that a guest reports, is named in the VM's row.
#[test]
fn a_source_of_whole_vms_stands_for_hardware_counters() {
    let (fake, dir) = (FakeHost::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("report.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let id = VmId { thread: 100, fd: 7 };
    fake.vm(id, "web");
    let count = |interval: &Interval| match &interval.guest {
        Some(guest) => {
            HardwareCounts { tlb_misses_4k: Some(30 * guest.progress["steps"]), ..HardwareCounts::UNKNOWN }
        }
        None => HardwareCounts::UNKNOWN,
    };
    let source = HardwareSource::Vm { name: "by progress", count: Box::new(count) };
    let mut watch = Watch::new(fake.host(), source).unwrap();
    watch.report_from(move |_| Some(path.clone()));
    let mut intervals = watched(&fake, &mut watch, || listener.accept().unwrap().0, id);
    let misses = |i: &Interval| i.hardware().tlb_misses_4k;
    assert_eq!(
        intervals.iter().map(misses).collect::<Vec<_>>(),
        [None, Some(30), Some(30)],
        "the first interval has no report before it"
    );
    let named = |interval: &Interval, vcpu: bool| {
        let column = columns::all().into_iter().find(|c| c.name == "pmu").unwrap();
        let vm = watch.vm(id).unwrap();
        let row = if vcpu {
            IntervalRow::of_vcpus(0.0, vm, interval).next().unwrap()
        } else {
            IntervalRow::of_vm(0.0, vm, interval)
        };
        match column.value(&row) {
            columns::Value::Text(text) => Some(text.into_owned()),
            _ => None,
        }
    };
    assert_eq!(
        intervals.iter().map(|i| named(i, false)).collect::<Vec<_>>(),
        vec![Some("by progress".into()); 3]
    );
    assert_eq!(named(&intervals[2], true), None, "a vCPU has no counts");
    intervals[2].counted = None;
    assert_eq!(named(&intervals[2], false), None);
    intervals[2].vcpus[0].hardware = HardwareCounts::ZERO;
    assert_eq!(named(&intervals[2], false).as_deref(), Some("hardware"));
}

fn check(intervals: &[Interval]) {
    let faults: Vec<_> = intervals.iter().map(|i| i.guest.as_ref().map(|g| g.page_faults)).collect();
    assert_eq!(faults, [None, Some(Some(100)), Some(Some(100))]);
    assert_eq!(intervals[2].guest.as_ref().unwrap().progress, [("steps".to_owned(), 1)].into());
}

#[test]
fn the_command_line_names_the_socket() {
    let (fake, dir) = (FakeHost::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("report.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let id = VmId { thread: std::process::id(), fd: 7 };
    fake.vm(id, "web");
    let cmdline = format!(
        "qemu\0-chardev\0socket,id=r,path={},server=on,wait=off\0-device\0virtserialport,chardev=r,name=org.bifold.report.0\0",
        path.display()
    );
    std::fs::write(fake.host().proc.join(format!("{}/cmdline", id.thread)), cmdline).unwrap();
    let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
    watch.tick(&|| s(0));
    let reporter = watch.vm(id).unwrap().reporter().unwrap();
    assert_eq!((reporter.path(), reporter.is_connected()), (path.as_path(), true));
    assert!(reporter.problem().is_none(), "no report could have come yet");
    let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
    drop(listener.accept().unwrap());
    check(&watched(&fake, &mut watch, || listener.accept().unwrap().0, id));
}

#[test]
fn the_caller_names_the_socket_and_it_may_come_later() {
    let (fake, dir) = (FakeHost::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("report.sock");
    let id = VmId { thread: 100, fd: 7 };
    fake.vm(id, "web");
    fake.vm(VmId { thread: 200, fd: 7 }, "db");
    let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
    let named = path.clone();
    watch.report_from(move |vm| (vm.name.as_deref() == Some("web")).then(|| named.clone()));
    watch.tick(&|| s(0));
    let reporter = |watch: &Watch| watch.vm(id).unwrap().reporter().unwrap().is_connected();
    assert!(!reporter(&watch), "no program listens yet");
    assert!(watch.vm(VmId { thread: 200, fd: 7 }).unwrap().reporter().is_none());
    let _listener = UnixListener::bind(&path).unwrap();
    watch.tick(&|| s(5));
    assert!(!reporter(&watch), "looked for every ten seconds");
    watch.tick(&|| s(11));
    assert!(reporter(&watch));
    // Connected from the first tick on.
    fake.end(VmId { thread: 200, fd: 7 });
    let mut watch = Watch::new(fake.host(), HardwareSource::None).unwrap();
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    watch.report_from(move |_| Some(path.clone()));
    check(&watched(&fake, &mut watch, || listener.accept().unwrap().0, id));
}
