// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's clock, its input and what it writes.

use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use bifold_guest::{GuestError, Root, capture};
use bifold_trace::CommandExit;

use crate::support::{compile, exact, qemu_missing, run};

/// Reads every file that its arguments name, twice, and says by its own clock how long that took.
const READER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    struct timespec a, b;
    char buffer[8192];
    long bytes = 0;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 1; i < argc; i++) {
        int fd = open(argv[i], O_RDONLY);
        long n;
        if (fd < 0)
            return 1;
        while ((n = read(fd, buffer, sizeof buffer)) > 0)
            bytes += n;
        close(fd);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%ld %ld\n", bytes, (b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec);
}
"#;

#[test]
fn reading_the_hosts_files_takes_instructions_only_and_repeats_to_the_bit() {
    if qemu_missing() {
        return;
    }
    let reader = compile("reader", READER);
    let dir = tempfile::tempdir().unwrap();
    let mut command = vec![reader.to_str().unwrap().to_owned()];
    for i in 0..60 {
        let file = dir.path().join(format!("f{i}"));
        std::fs::write(&file, vec![i as u8; 3000]).unwrap();
        command.push(file.to_str().unwrap().to_owned());
    }
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let s = exact(&command);
    let (first, words) = run(&s).unwrap();
    let (second, again) = run(&s).unwrap();
    assert!(first.clock.in_step && first.complete);
    assert_eq!(first.exit, CommandExit::Code(0));
    assert!(words == again, "{} and {} words", words.len(), again.len());
    assert_eq!(first.clock.guest_ns, second.clock.guest_ns);
    assert_eq!(first.stdout, second.stdout);
    // 2 ns for an instruction, and no time for the files: repeated string instructions and the
    // few instructions outside the recording are what is left.
    let (guest, idle) = (first.clock.guest_ns.unwrap(), first.clock.idle_ns.unwrap());
    assert!(guest < 2 * (2 * first.stats.instructions + idle), "{:?} {:?}", first.clock, first.stats);
    let text = String::from_utf8(first.stdout).unwrap();
    let (bytes, ns) = text.trim().split_once(' ').unwrap();
    assert_eq!(bytes, "180000");
    assert!(ns.parse::<u64>().unwrap() <= guest, "{text}");
}

#[test]
fn a_sleep_is_idle_time_of_the_guest_and_takes_none_of_the_hosts() {
    if qemu_missing() {
        return;
    }
    let (r, _) = run(&exact(&["sleep", "600"])).unwrap();
    let (guest, idle) = (r.clock.guest_ns.unwrap(), r.clock.idle_ns.unwrap());
    assert!(guest > 600_000_000_000 && idle > 599_000_000_000 && idle <= guest, "{:?}", r.clock);
    assert!(r.clock.timer_ticks.unwrap() < 10_000, "{:?}", r.clock);
}

#[test]
fn the_command_reads_what_it_is_given() {
    if qemu_missing() {
        return;
    }
    let mut s = exact(&["wc"]);
    s.stdin = b"1 2 3\n4\n".to_vec();
    let (r, _) = run(&s).unwrap();
    let counts: Vec<&str> = std::str::from_utf8(&r.stdout).unwrap().split_whitespace().collect();
    assert_eq!(counts, ["2", "4", "8"]);
    s.root = Root::Initramfs { include: Vec::new() };
    assert_eq!(run(&s).unwrap().0.stdout, r.stdout);
    s.stdin = vec![0; 64 << 20 | 1];
    let e = run(&s).unwrap_err();
    assert!(e.to_string().contains("--memory"), "{e}");
}

#[test]
fn written_files_are_counted_and_handed_over_if_asked_for() {
    if qemu_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (long, at) = ("n".repeat(120), dir.path().display());
    let script = format!("cd {at} && mkdir d && echo text > d/{long} && ln -s {long} d/link && echo x > y");
    let mut s = exact(&["sh", "-c", &script]);
    s.keep = true;
    let (r, _) = run(&s).unwrap();
    assert_eq!((r.exit, r.stderr.len()), (CommandExit::Code(0), 0));
    let written = r.written.unwrap();
    assert_eq!((written.files, written.full), (3, false));
    let mut kept = r.kept.unwrap();
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut kept).unwrap();
    kept.read_to_end(&mut bytes).unwrap();
    let mut archive = tar::Archive::new(&bytes[..]);
    let below = dir.path().strip_prefix("/").unwrap();
    let mut found = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let link = entry.link_name().unwrap().map(|l| l.display().to_string()).unwrap_or_default();
        let path = entry.path().unwrap().into_owned();
        if let Ok(path) = path.strip_prefix(below) {
            found.push((path.display().to_string(), text, link));
        }
    }
    found.sort();
    let row = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    let file = format!("d/{long}");
    let expected = [
        row("", "", ""),
        row("d", "", ""),
        row("d/link", "", &long),
        row(&file, "text\n", ""),
        row("y", "x\n", ""),
    ];
    assert_eq!(found, expected);
    assert!(!Path::new(&format!("{at}/y")).exists(), "nothing is written on the host");
}

#[test]
fn a_layer_without_room_is_told() {
    if qemu_missing() {
        return;
    }
    let script = "dd if=/dev/zero of=/tmp/bifold-fills-the-guest bs=1M";
    let (r, _) = run(&exact(&["sh", "-c", script])).unwrap();
    // The shell's and dd's own memory may be what is short.
    assert!(r.exit == CommandExit::OutOfMemory || r.written.unwrap().full, "{r:?}");
}

#[test]
fn a_working_directory_that_the_guest_lacks_is_named() {
    if qemu_missing() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = exact(&["true"]);
    s.cwd = dir.path().into();
    let e = run(&s).unwrap_err().to_string();
    assert!(e.contains(dir.path().to_str().unwrap()) && e.contains("guest's own"), "{e}");
}

#[test]
fn a_stop_before_the_start_is_no_failure_of_the_emulator() {
    let stop = AtomicBool::new(true);
    let stopped = capture(&exact(&["true"]), &stop, &mut |_| {}, &mut |_| Ok(()));
    let missing = matches!(stopped, Err(GuestError::QemuMissing));
    assert!(missing || matches!(stopped, Err(GuestError::InterruptedEarly)), "{stopped:?}");
}
