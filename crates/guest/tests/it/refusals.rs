// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What cannot work is refused with one clear message.

use bifold_guest::{GuestError, Kind};

use crate::support::{children, qemu_missing, run, spec};

#[test]
fn a_missing_program_and_one_that_is_not_executable_are_told_apart() {
    let e = run(&spec(&["no-such-program-here"])).unwrap_err();
    assert_eq!(e.to_string(), "no-such-program-here: program not found");
    assert_eq!(e.kind(), Kind::Failed);
    let e = run(&spec(&["/etc/passwd"])).unwrap_err();
    assert_eq!(e.to_string(), "/etc/passwd: not an executable file");
}

#[test]
fn an_unreadable_kernel_is_named() {
    if qemu_missing() {
        return;
    }
    let mut s = spec(&["true"]);
    s.kernel = Some("/no/such/vmlinuz".into());
    let e = run(&s).unwrap_err().to_string();
    assert!(e.starts_with("kernel /no/such/vmlinuz: cannot be read"), "{e}");
    s.kernel = Some("/etc/passwd".into());
    let e = run(&s).unwrap_err().to_string();
    assert!(e.contains("neither a bzImage nor an ELF vmlinux"), "{e}");
}

#[test]
fn a_sink_that_fails_ends_the_guest_with_its_error() {
    if qemu_missing() {
        return;
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let e =
        bifold_guest::capture(
            &spec(&["busybox", "ls"]),
            &stop,
            &mut |_| {},
            &mut |_| Err("disk full".into()),
        )
        .unwrap_err();
    assert!(matches!(&e, GuestError::Sink(why) if why.to_string() == "disk full"), "{e}");
    assert_eq!(children(), "");
}

/// Run by the tests below in a process of its own, whose environment they set.
#[test]
#[ignore = "a helper"]
fn print_the_error() {
    let e = run(&spec(&["true"])).unwrap_err();
    println!("<{e}> {:?}", e.kind());
}

fn error_with(variable: &str, value: &std::path::Path) -> String {
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "refusals::print_the_error", "--ignored", "--nocapture"])
        .env(variable, value)
        .output()
        .unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A script that pretends to be an emulator.
fn fake_qemu(dir: &std::path::Path, version: &str, help: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join(format!("qemu-{version}"));
    let text = format!(
        "#!/bin/sh\ncase $1 in\n--version) echo 'QEMU emulator version {version} (fake)';;\n\
         -help) echo '{help}';;\n*) echo 'cannot start' >&2; exit 3;;\nesac\n"
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_qemu_that_is_missing_old_without_plugins_or_broken_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let text = error_with("BIFOLD_QEMU", &dir.path().join("none"));
    assert!(
        text.contains("qemu-system-x86_64 not found; install") && text.contains("CannotWorkHere"),
        "{text}"
    );
    let text = error_with("BIFOLD_QEMU", &fake_qemu(dir.path(), "7.2.19", ""));
    assert!(
        text.contains("qemu 7.2.19 is too old: 9.0 or later") && text.contains("bookworm-backports"),
        "{text}"
    );
    let text = error_with("BIFOLD_QEMU", &fake_qemu(dir.path(), "11.0.0", "-plugin x"));
    assert!(text.contains("qemu 11.0.0 is too new") && text.contains("CannotWorkHere"), "{text}");
    let text = error_with("BIFOLD_QEMU", &fake_qemu(dir.path(), "9.1.0", "-kernel x"));
    assert!(text.contains("no plugin support") && text.contains("CannotWorkHere"), "{text}");
    let text = error_with("BIFOLD_QEMU", &fake_qemu(dir.path(), "10.0.0", "-plugin x"));
    assert!(
        text.contains("qemu ended before the guest did (exit status: 3)") && text.contains("cannot start"),
        "{text}"
    );
    let text = error_with("BIFOLD_PLUGIN", &dir.path().join("none.so"));
    assert!(text.contains("libbifold_capture_plugin.so not found"), "{text}");
}

#[test]
fn a_command_that_panics_or_powers_off_the_guest_is_told_from_one_that_ends() {
    if qemu_missing() {
        return;
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root may crash a guest");
        return;
    }
    let e = run(&spec(&["busybox", "sh", "-c", "echo c > /proc/sysrq-trigger"])).unwrap_err();
    assert!(matches!(&e, GuestError::Panic(text) if text.contains("Kernel panic")), "{e}");
    let e = run(&spec(&["busybox", "poweroff", "-f"])).unwrap_err();
    assert_eq!(e.to_string(), "in the guest: the guest was shut down while the command ran");
}

#[test]
fn vcpus_and_nodes_beyond_what_a_capture_takes_are_refused() {
    for (vcpus, nodes, says) in [
        (0, 1, "0 vCPUs: 1 to 8"),
        (9, 1, "9 vCPUs: 1 to 8"),
        (2, 3, "3 NUMA nodes in a guest of 2 vCPUs"),
        (2, 0, "0 NUMA nodes in a guest of 2 vCPUs"),
    ] {
        let mut s = spec(&["true"]);
        (s.vcpus, s.nodes) = (vcpus, nodes);
        let e = run(&s).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
}
