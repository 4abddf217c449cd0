// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NAS kernels of `lab/nas` on this machine. Without an MPI compiler the tests say loudly that nothing
//! was tested.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Builds the kernels, or says that there is no MPI.
fn built(test: &str) -> Option<TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let build = Command::new(nas("build")).arg(dir.path()).output().unwrap();
    if build.status.code() == Some(77) {
        // Not by eprintln!, whose output the test harness keeps from a test that passes.
        let _ = writeln!(
            std::io::stderr(),
            "\n*** SKIPPED {test}: no MPI compiler here; lab/nas/build installs one ***"
        );
        return None;
    }
    assert!(build.status.success(), "{build:?}");
    assert!(!String::from_utf8_lossy(&build.stderr).contains("warning"), "{build:?}");
    Some(dir)
}

fn nas(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nas").join(name)
}

fn run(dir: &TempDir, ranks: &str, kernel: &str, class: &str) -> Output {
    Command::new("timeout")
        .arg("300")
        .arg(nas("mpi"))
        .args([ranks.as_ref(), dir.path().join("nas").as_os_str(), kernel.as_ref(), class.as_ref()])
        // Open MPI makes sockets in there, whose paths must be short.
        .env("TMPDIR", "/tmp")
        .output()
        .unwrap()
}

#[test]
fn class_s_of_every_kernel_verifies_with_one_and_two_ranks() {
    let Some(dir) = built("class_s_of_every_kernel_verifies_with_one_and_two_ranks") else { return };
    for kernel in ["ep", "is", "cg", "mg", "ft"] {
        for ranks in ["1", "2"] {
            let output = run(&dir, ranks, kernel, "S");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{kernel}, {ranks} ranks: {output:?}");
            let last = said.lines().last().unwrap_or_default();
            assert!(last.starts_with(&format!("{kernel} class S, ranks {ranks}, ")), "{said}");
            assert!(last.ends_with(": verified"), "{said}");
            assert!(said.lines().filter(|l| l.ends_with(": ok")).count() >= 1, "{said}");
        }
    }
}

#[test]
fn wrong_classes_and_ranks_are_named() {
    let Some(dir) = built("wrong_classes_and_ranks_are_named") else { return };
    for (ranks, kernel, class, named) in [
        ("2", "cg", "X", "class X: this kernel has the classes SWA"),
        ("3", "is", "S", "the number of ranks is not a power of two"),
        ("32", "mg", "S", "32 ranks do not divide half of the planes, 16"),
        ("1", "lu", "S", "usage: mpirun"),
    ] {
        let output = run(&dir, ranks, kernel, class);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{output:?}");
    }
}
