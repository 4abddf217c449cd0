// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Captures a command and counts its words, to measure the speed of captures.
//! `cargo run --release -p bifold-guest --example count -- [fast|exact] [host|initramfs] CMD...`

use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bifold_guest::{CaptureProgress, GuestSpec, Record, Region, Root, Timing, boots, capture, plain};
use bifold_trace::Windows;
use xxhash_rust::xxh3::Xxh3;

/// The windows of `SAMPLE=WINDOW:PERIOD`, in instructions, or of `SAMPLE=`, as `bifold compare --sample` has
/// them.
fn windows(text: &str) -> Windows {
    if text.is_empty() {
        return Windows::DOUBLING;
    }
    let (window, period) = text.split_once(':').expect("SAMPLE=WINDOW:PERIOD");
    let window = window.parse().expect("SAMPLE");
    let period = period.parse().expect("SAMPLE");
    Windows { window, warm_up: 4 * window, period, seed: 1, doubles: 0 }
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    let timing = if args.next().is_some_and(|a| a == "fast") { Timing::Fast } else { Timing::Exact };
    let root = if args.next().is_some_and(|a| a == "host") {
        Root::Host
    } else {
        Root::Initramfs { include: Vec::new() }
    };
    let flag = |name: &str| std::env::var(name).ok();
    let spec = GuestSpec {
        cwd: std::env::current_dir().expect("a working directory"),
        // Not the flags, so that the guest is the same with each of them.
        env: std::env::vars_os().filter(|(name, _)| name == "PATH").collect(),
        timing,
        vcpus: flag("VCPUS").map_or(1, |v| v.parse().expect("VCPUS")),
        kpti: flag("KPTI").is_some(),
        memory_mib: flag("MEM").map_or(1024, |v| v.parse().expect("MEM")),
        kernel: flag("KERNEL").map(Into::into),
        modules: flag("MODULES").map(Into::into),
        root,
        timeout: flag("TIMEOUT").map(|t| std::time::Duration::from_secs(t.parse().expect("TIMEOUT"))),
        check_every: flag("CHECK").map_or(65536, |v| v.parse().expect("CHECK")),
        record: if flag("BOOT").is_some() { Record::Boot } else { Record::Command },
        attribute: flag("WHERE").is_some(),
        nodes: flag("NODES").map_or(1, |v| v.parse().expect("NODES")),
        kept_boots: if flag("FRESH").is_some() { None } else { boots::folder().ok() },
        stdin: vec![b'x'; flag("STDIN").map_or(0, |v| v.parse().expect("STDIN"))],
        region: Region { sample: flag("SAMPLE").map(|s| windows(&s)), ..Region::default() },
        ..GuestSpec::new(args.collect())
    };
    let (begun, stop, mut words) = (Instant::now(), AtomicBool::new(false), 0u64);
    let mut hash = Xxh3::new();
    let mut out = flag("OUT").map(|p| std::fs::File::create(p).expect("OUT"));
    let mut sink = |chunk: &[u64]| {
        words += chunk.len() as u64;
        let bytes: Vec<u8> = chunk.iter().flat_map(|w| w.to_le_bytes()).collect();
        hash.update(&bytes);
        if let Some(out) = &mut out {
            out.write_all(&bytes)?;
        }
        Ok(())
    };
    let mut progress = |p: CaptureProgress| {
        if let CaptureProgress::Note(text) = p {
            eprintln!("note: {text}");
        }
    };
    let result = if flag("PLAIN").is_some() {
        plain(&spec, &stop, &mut progress)
    } else {
        capture(&spec, &stop, &mut progress, &mut sink)
    };
    match result {
        Err(e) => eprintln!("error: {e} ({:?})", std::error::Error::source(&e)),
        Ok(r) => {
            print!("{}", String::from_utf8_lossy(&r.stdout));
            eprint!("{}", String::from_utf8_lossy(&r.stderr));
            let (s, t) = (r.stats, r.clock.vcpu_seconds);
            eprintln!(
                "{:?} complete={} qemu {} kernel {}",
                r.exit, r.complete, r.qemu_version, r.kernel_version
            );
            eprintln!("boot {:?}, stream {:016x}", r.boot, hash.digest());
            eprintln!("{s:?}");
            eprintln!(
                "boot {:.2} s, all {:.2} s, vCPU {t:.2} s: {:.0} MIPS, {:.0} M accesses/s, {words} words",
                r.boot_seconds,
                begun.elapsed().as_secs_f64(),
                s.instructions as f64 / t / 1e6,
                s.accesses as f64 / t / 1e6,
            );
        }
    }
}
