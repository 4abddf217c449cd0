// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the programs of inner guests, the load of storms and the program with phases into static
//! binaries.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn cc() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// The C files of a folder.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display()))
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    sources
}

fn run_cc(dir: &Path, out: &Path, flags: &[&str]) -> std::io::Result<Output> {
    Command::new(cc())
        .args(["-O2", "-static", "-pthread", "-std=gnu11", "-Wall", "-Wextra"])
        .args(flags)
        .arg("-o")
        .arg(out)
        .args(sources(dir))
        .output()
}

/// The same programs for guests in 32-bit mode; an empty file where the compiler has no library for it.
fn compile_narrow(dir: &Path, out: &Path) {
    let flags = ["-m32", "-D_FILE_OFFSET_BITS=64", "-idirafter/usr/include/x86_64-linux-gnu"];
    if !run_cc(dir, out, &flags).is_ok_and(|o| o.status.success()) {
        fs::write(out, "").unwrap_or_else(|e| panic!("cannot write {}: {e}", out.display()));
    }
    println!("cargo::rerun-if-changed=/usr/lib32/libc.a");
}

fn compile(dir: &Path, out: &Path) {
    println!("cargo::rerun-if-changed={}", dir.display());
    println!("cargo::rerun-if-env-changed=CC");
    let cc = cc();
    let result = run_cc(dir, out, &[])
        .unwrap_or_else(|e| panic!("cannot run the C compiler `{cc}`: {e}; install gcc and libc6-dev"));
    let text = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "`{cc}` failed on {}:\n{text}", dir.display());
    for line in text.lines() {
        println!("cargo::warning={line}");
    }
}

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let programs = here.join("programs");
    compile(&programs, &out.join("suite"));
    compile_narrow(&programs, &out.join("suite32"));
    compile(&here.join("loads"), &out.join("storm"));
    compile(&here.join("phases"), &out.join("phases"));
    // The input of a real compiler run, preprocessed so that it needs no headers.
    let real = out.join("real.i");
    let made = Command::new(cc())
        .args(["-E", "-o"])
        .arg(&real)
        .arg(programs.join("suite.c"))
        .status()
        .unwrap_or_else(|e| panic!("cannot run the C compiler `{}`: {e}", cc()));
    assert!(made.success(), "`{}` -E failed on suite.c", cc());
}
