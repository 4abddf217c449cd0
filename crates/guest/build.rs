// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the two parts in C: the guest's init, which is embedded in the crate, and QEMU's plugin, which is
//! GPL-2.0-or-later like QEMU and therefore a separate file beside the executable, where
//! `capture::plugin::find` finds it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn compiler() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".into())
}

fn compile(output: &Path, sources: &[PathBuf], flags: &[&str]) -> std::io::Result<Output> {
    // `__FILE__` has a path within the repository: a build in another folder gives the same bytes.
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    Command::new(compiler())
        .args(["-O2", "-Wall", "-Wextra", "-std=gnu11"])
        .arg(format!("-ffile-prefix-map={here}/../../="))
        .args(flags)
        .arg("-o")
        .arg(output)
        .args(sources)
        .output()
}

/// The init of guests in 32-bit mode needs Debian's libc6-dev-i386 and gcc's library for -m32, which no other
/// part needs. Without them the file is empty, and such guests are refused.
fn narrow_init(output: &Path, source: &Path) {
    // Debian's headers of the kernel for both modes are in the folder of 64-bit mode.
    const FLAGS: [&str; 5] =
        ["-m32", "-static", "-s", "-D_FILE_OFFSET_BITS=64", "-idirafter/usr/include/x86_64-linux-gnu"];
    let built = compile(output, &[source.to_path_buf()], &FLAGS).is_ok_and(|o| o.status.success());
    if !built {
        fs::write(output, "").unwrap_or_else(|e| panic!("cannot write {}: {e}", output.display()));
    }
    for file in ["/usr/lib32/libc.a", "/usr/include/x86_64-linux-gnu/gnu/stubs-32.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
}

fn cc(what: &str, output: &Path, sources: &[PathBuf], flags: &[&str]) {
    let compiler = compiler();
    match compile(output, sources, flags) {
        Err(e) => {
            panic!("cannot run the C compiler `{compiler}` to build {what}: {e}; install gcc and libc6-dev")
        }
        Ok(o) if !o.status.success() => {
            panic!("`{compiler}` failed on {what}:\n{}", String::from_utf8_lossy(&o.stderr))
        }
        Ok(o) => {
            for line in String::from_utf8_lossy(&o.stderr).lines() {
                println!("cargo::warning={line}");
            }
        }
    }
}

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-env-changed=CC");

    let init = here.join("guest/init.c");
    println!("cargo::rerun-if-changed={}", here.join("guest").display());
    narrow_init(&out.join("init32"), &init);
    cc("the guest's init (static: needs libc.a)", &out.join("init"), &[init], &["-static", "-s"]);

    let plugin = here.join("../../qemu-plugin");
    println!("cargo::rerun-if-changed={}", plugin.display());
    let mut sources: Vec<PathBuf> = fs::read_dir(&plugin)
        .unwrap_or_else(|e| panic!("cannot read {}: {e}", plugin.display()))
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    let so = out.join("libbifold_capture_plugin.so");
    cc("QEMU's plugin", &so, &sources, &["-shared", "-fPIC", "-fvisibility=hidden"]);
    // OUT_DIR is PROFILE/build/bifold-capture-HASH/out. A running QEMU may have the old file
    // mapped, so it is replaced, not overwritten.
    let profile = out.ancestors().nth(3).expect("OUT_DIR lies below the profile's directory");
    let (new, at) = (profile.join(".bifold-plugin.new"), profile.join("libbifold_capture_plugin.so"));
    fs::copy(&so, &new)
        .and_then(|_| fs::rename(&new, &at))
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", at.display()));
}
