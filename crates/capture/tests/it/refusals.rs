// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What cannot work is refused with one clear message.

use bifold_capture::{CaptureError, Kind};

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
    let e = bifold_capture::capture(&spec(&["busybox", "ls"]), &stop, &mut |_| {}, &mut |_| {
        Err("disk full".into())
    })
    .unwrap_err();
    assert!(matches!(&e, CaptureError::Sink(why) if why.to_string() == "disk full"), "{e}");
    assert_eq!(children(), "");
}
