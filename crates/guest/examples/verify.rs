// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Captures a command and compares its stream with the tests' replay of the page tables: every self-check,
//! every table, every count.
//! `cargo run --release -p bifold-guest --example verify -- [fast|exact] [host|initramfs] CMD...` The
//! environment sets CHECK (words between self-checks), VCPUS, KPTI, MEM, BOOT.

use std::sync::atomic::AtomicBool;

use bifold_guest::{GuestSpec, Record, Root, Thp, Timing, capture};

#[path = "../tests/it/replay.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod replay;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let exact = args.next().is_some_and(|a| a == "exact");
    let host = args.next().is_some_and(|a| a == "host");
    let number =
        |name: &str, default| std::env::var(name).map_or(default, |v| v.parse::<u64>().expect("a number"));
    let spec = GuestSpec {
        cwd: std::env::current_dir().expect("a working directory"),
        env: std::env::vars_os().collect(),
        timing: if exact { Timing::Exact } else { Timing::Fast },
        vcpus: number("VCPUS", 1) as u32,
        kpti: number("KPTI", 0) != 0,
        thp: if number("THP", 0) != 0 { Thp::Always } else { Thp::Madvise },
        memory_mib: number("MEM", 2048),
        root: if host { Root::Host } else { Root::Initramfs { include: Vec::new() } },
        check_every: number("CHECK", 1024),
        record: if number("BOOT", 0) != 0 { Record::Boot } else { Record::Command },
        attribute: number("WHERE", 0) != 0,
        ..GuestSpec::new(args.collect())
    };
    let mut replay = replay::Replay::default();
    let mut sink = |words: &[u64]| {
        replay.feed(words);
        Ok(())
    };
    match capture(&spec, &AtomicBool::new(false), &mut |_| {}, &mut sink) {
        Err(e) => eprintln!("error: {e}"),
        Ok(r) => {
            eprint!("{}", String::from_utf8_lossy(&r.stderr));
            println!("{:?} {:?}", r.exit, replay::sound(replay.summary));
        }
    }
}
