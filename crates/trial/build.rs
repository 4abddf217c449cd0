// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the programs of experiments' guests: static programs, which are embedded in the crate.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // These programs and the guest's init share the code for their side of a port.
    let shared = here.join("../guest/guest");
    println!("cargo::rerun-if-changed={}", shared.join("port.h").display());
    println!("cargo::rerun-if-env-changed=CC");
    let cc = env::var("CC").unwrap_or_else(|_| "cc".into());
    for program in ["workload", "load"] {
        let source = here.join(format!("guest/{program}.c"));
        println!("cargo::rerun-if-changed={}", source.display());
        let result = Command::new(&cc)
            .args(["-O2", "-static", "-s", "-std=gnu11", "-Wall", "-Wextra", "-I"])
            .arg(&shared)
            .arg("-o")
            .arg(out.join(program))
            .arg(&source)
            .output()
            .unwrap_or_else(|e| panic!("cannot run the C compiler `{cc}`: {e}; install gcc and libc6-dev"));
        let text = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "`{cc}` failed on {}:\n{text}", source.display());
        for line in text.lines() {
            println!("cargo::warning={line}");
        }
    }
}
