// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recordings that begin with the guest's boot.

use std::sync::atomic::AtomicBool;

use bifold_guest::{GuestSpec, Record, Timing, capture, guest_frames};
use bifold_model::{Config, Model, Options, Paging, Profile};
use bifold_trace::event::marker;
use bifold_trace::{CommandExit, Event, decode};

use crate::guests::WINDOWS;
use crate::replay::{Replay, sound};
use crate::support::{compile, qemu_missing, spec};

/// What is linked at this address lies at 0 in memory, without KASLR.
const IMAGE: u64 = 0xffff_ffff_8000_0000;
const IMAGE_END: u64 = IMAGE + (1 << 30);

fn boot_spec(command: &str) -> GuestSpec {
    let mut s = spec(&[command]);
    (s.record, s.timing, s.memory_mib) = (Record::Boot, Timing::Exact, 256);
    s
}

/// Records a boot and a program, with and without the kernel's isolation of page tables.
fn whole(name: &str, kpti: bool, vcpus: u32) {
    if qemu_missing() {
        return;
    }
    let program = compile(name, WINDOWS);
    let mut s = boot_spec(program.to_str().unwrap());
    (s.kpti, s.check_every, s.vcpus) = (kpti, 512, vcpus);
    let mut replay = Replay::default();
    let options = Options { guest_frames: guest_frames(&s), vcpus: vcpus as usize, ..Options::default() };
    let mut model = Model::new(&Profile::load("i5-7600", &[]).unwrap(), options);
    let (mut resident, mut code, mut faults, mut words) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let r = capture(&s, &AtomicBool::new(false), &mut |_| {}, &mut |chunk| {
        let mut at = 0;
        while at < chunk.len() {
            let (event, n) = decode(&chunk[at..], at)?;
            match event {
                Event::Resident { gfn, frames } => resident.push(gfn..gfn + frames),
                Event::Fetch(va) if (IMAGE..IMAGE_END).contains(&va) => code.push((va - IMAGE) >> 12),
                Event::Fault { gva, .. } => faults.push(gva),
                _ => {}
            }
            at += n;
        }
        code.sort_unstable();
        code.dedup();
        words += chunk.len();
        replay.feed(chunk);
        Ok(model.consume(chunk)?)
    })
    .unwrap();
    println!("kpti {kpti}: {words} words, {:.1} s to the command, {:?}", r.boot_seconds, r.stats);
    assert_eq!((r.exit, &r.stdout[..]), (CommandExit::Code(0), &b"marked\n"[..]));
    let summary = sound(replay.summary);
    let codes = [marker::BOOT, marker::START, 0x103, 0x203, 0x1ff, 0x2ff, marker::STOP];
    assert_eq!(summary.markers, codes);
    // The first tables are filled by faults on the direct map, the IDT's first use.
    assert!(faults[0] >> 47 == 0x1_ffff && faults.iter().any(|f| f >> 47 == 0), "{faults:x?}");
    // The loader wrote the kernel's image: all of its code that ran is there.
    assert!(code.len() > 500, "{}", code.len());
    let loaded = |gfn: &u64| resident.iter().any(|r| r.contains(gfn));
    assert_eq!(code.iter().find(|gfn| !loaded(gfn)), None, "{resident:x?}");
    assert!(resident.iter().all(|r| r.start < r.end && r.end <= guest_frames(&s)));
    let held: u64 = resident.iter().map(|r| r.end - r.start).sum();

    let o = model.finish();
    assert!(o.walk_checks > 1000 && (o.walk_mismatches, o.untranslated) == (0, 0), "{o:?}");
    for c in &o.configs {
        println!("{}: {:?}", c.config.name(), c.total.exits().filter(|e| e.1 > 0).collect::<Vec<_>>());
        // The image is held, so the host backs less than what the guest uses.
        assert!(c.total.frames_backed + held / 2 < guest_frames(&s), "{held}");
    }
    let nested = o.configs.iter().find(|c| c.config == Config::ALL[1]).unwrap();
    assert_eq!(nested.config.mode, Paging::Nested);
    assert!(nested.total.exits_violation > nested.total.frames_backed);
}

#[test]
fn a_recording_from_the_boot_on_is_whole_and_the_model_follows_it() {
    whole("boot", false, 1);
}

#[test]
fn a_recording_from_the_boot_on_follows_kpti_and_vcpus_that_start_in_real_mode() {
    whole("boot-kpti", true, 3);
}

/// vCPUs take turns by instructions, so their order is the same in every run.
#[test]
fn two_boots_of_two_vcpus_have_the_same_events() {
    if qemu_missing() {
        return;
    }
    let run = || {
        let mut s = boot_spec("/bin/true");
        s.vcpus = 2;
        let (mut hash, mut words) = (0u64, 0);
        capture(&s, &AtomicBool::new(false), &mut |_| {}, &mut |chunk| {
            words += chunk.len();
            // FNV-1a, word by word.
            hash = chunk.iter().fold(hash, |h, w| (h ^ w).wrapping_mul(0x0100_0000_01b3));
            Ok(())
        })
        .unwrap();
        (words, hash)
    };
    assert_eq!(run(), run());
}
