// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the programs that run in inner guests into one static binary.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("suite");
    let dir = here.join("programs");
    println!("cargo::rerun-if-changed={}", dir.display());
    println!("cargo::rerun-if-env-changed=CC");
    let mut sources: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display()))
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    let cc = env::var("CC").unwrap_or_else(|_| "cc".into());
    let result = Command::new(&cc)
        .args(["-O2", "-static", "-std=gnu11", "-Wall", "-Wextra", "-o"])
        .arg(&out)
        .args(&sources)
        .output()
        .unwrap_or_else(|e| panic!("cannot run the C compiler `{cc}`: {e}; install gcc and libc6-dev"));
    // What a real compiler run compiles: with its headers, so that it needs no file besides.
    let real = out.with_file_name("real.i");
    let made = Command::new(&cc)
        .args(["-E", "-o"])
        .arg(&real)
        .arg(dir.join("suite.c"))
        .status()
        .unwrap_or_else(|e| panic!("cannot run the C compiler `{cc}`: {e}"));
    assert!(made.success(), "`{cc}` -E failed on suite.c");
    let text = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "`{cc}` failed on {}:\n{text}", dir.display());
    for line in text.lines() {
        println!("cargo::warning={line}");
    }
}
