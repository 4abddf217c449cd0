// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is refused before anything boots.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bifold_guest::{Kind, kernel::Kernel};
use bifold_lab::lab::{Lab, LabError};
use bifold_lab::vendor::AMD;

use crate::support::{children, lab_command, names, plan, run};

/// A laboratory with a kernel that has an empty directory of modules.
fn without_kvm(dir: &Path) -> Option<Lab> {
    let kernel = Kernel { image: "/none".into(), modules: Some(dir.into()), version: "6.1.0-none".into() };
    match Lab::with(kernel) {
        Ok(lab) => Some(lab),
        Err(e) if e.kind() == Kind::CannotWorkHere => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn refused(lab: &Lab, programs: Vec<PathBuf>) -> LabError {
    let plan = bifold_lab::lab::Plan { programs, ..plan(vec![run("exit 0")], 60) };
    let e = lab.boot(&plan, &mut |_, _| String::new()).unwrap_err();
    assert_eq!(children(), "");
    e
}

#[test]
fn a_kernel_without_kvm_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let Some(lab) = without_kvm(dir.path()) else { return };
    let e = refused(&lab, Vec::new());
    assert!(matches!(e, LabError::NoKvm { .. }));
    assert_eq!(e.kind(), Kind::CannotWorkHere);
    assert!(e.to_string().starts_with("6.1.0-none has no module kvm-amd: "), "{e}");
}

/// A program that needs a missing library.
fn with_missing_library(dir: &Path) -> PathBuf {
    let cc = |args: &[&str]| {
        assert!(Command::new("cc").current_dir(dir).args(args).status().unwrap().success());
    };
    std::fs::write(dir.join("l.c"), "int f(void) { return 0; }\n").unwrap();
    std::fs::write(dir.join("p.c"), "int f(void); int main(void) { return f(); }\n").unwrap();
    cc(&["-shared", "-fPIC", "-o", "libbifoldnone.so", "l.c"]);
    cc(&["-o", "p", "p.c", "-L.", "-lbifoldnone"]);
    std::fs::remove_file(dir.join("libbifoldnone.so")).unwrap();
    dir.join("p")
}

#[test]
fn programs_that_could_not_run_there_are_named_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let Some(lab) = without_kvm(dir.path()) else { return };
    std::fs::write(dir.path().join("p.c"), "").unwrap();
    let text = refused(&lab, vec![dir.path().join("p.c")]).to_string();
    assert!(text.ends_with("p.c: not an executable file"), "{text}");
    let text = refused(&lab, vec!["/no/such".into()]).to_string();
    assert_eq!(text, "/no/such: not an executable file");
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let Some(lab) = without_kvm(dir.path()) else { return };
    let program = with_missing_library(dir.path());
    let text = refused(&lab, vec![program.clone()]).to_string();
    assert!(text.starts_with(&program.display().to_string()) && text.contains("libbifoldnone.so"), "{text}");
}

/// What the command says and its status, with this as its emulator.
fn with_qemu(qemu: &Path) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let out =
        lab_command(&["test", "lab"]).env("BIFOLD_QEMU", qemu).env("TMPDIR", dir.path()).output().unwrap();
    assert!(out.stdout.is_empty() && names(dir.path()).is_empty());
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn a_machine_without_a_usable_qemu_is_told_what_to_install() {
    let dir = tempfile::tempdir().unwrap();
    let stub = dir.path().join("qemu");
    std::fs::write(&stub, "#!/bin/sh\necho 'QEMU emulator version 7.2.0 (stub)'\n").unwrap();
    std::fs::set_permissions(&stub, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (status, text) = with_qemu(&stub);
    assert_eq!(status, Some(77), "{text}");
    assert!(text.contains("qemu 7.2.0 is too old") && text.contains("install qemu-system-x86"), "{text}");
    let (status, text) = with_qemu(Path::new("/no/such"));
    assert_eq!(status, Some(77), "{text}");
    assert!(text.contains("qemu-system-x86_64 not found; install"), "{text}");
}

#[test]
fn a_kernel_that_apt_does_not_know_is_named() {
    let out = lab_command(&["test", "lab", "--kernel", "2.4"]).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(77), "{text}");
}

#[test]
fn tests_are_listed_and_unknown_names_refused() {
    let out = lab_command(&["test", "--list"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text.lines().count(), bifold_lab::quick::ALL.len());
    assert!(text.lines().all(|l| l.split_whitespace().count() > 4), "{text}");
    let out = lab_command(&["test", "no-such"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("inner-shadow"));
}

#[test]
fn a_model_of_cpu_that_the_emulator_does_not_have_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(lab) = without_kvm(dir.path()) else { return };
    let e = lab.of(&AMD, Some("tigerlake".into()), Vec::new()).unwrap_err();
    assert_eq!(
        e.to_string(),
        "--model tigerlake: the emulator of AMD's processors has one model here, with or without flags such as +la57 or \
         -xsave,+la57"
    );
    let Some(lab) = without_kvm(dir.path()) else { return };
    assert!(lab.of(&AMD, Some("+la57,-pcid".into()), Vec::new()).is_ok());
}

#[test]
fn without_bochs_intels_laboratory_says_how_to_get_it() {
    let out =
        lab_command(&["switch", "--vendor", "intel"]).env("BIFOLD_BOCHS", "/none/bochs").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    if !said.contains("Bochs") && out.status.code() == Some(77) {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(out.status.code(), Some(77), "{said}");
    assert!(
        said.contains("/none/bochs: there is no emulator of Intel's virtualization; run lab/bochs/build"),
        "{said}"
    );
}
