// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at a guest's memory, and what the host's files move there.

use bifold_guest::{GuestSpec, Timing};
use bifold_trace::{CommandExit, Event, MemoryLook, decode};

use crate::support::{compile, exact, qemu_missing, run, spec};

const MIB: u64 = 1 << 20;

/// Fills 32 MiB, waits for some looks, gives 32 MiB back, waits, and reads a file.
const PHASES: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void wait(void)
{
    for (volatile unsigned i = 0; i < 60000000; i++)
        ;
}
int main(int argc, char **argv)
{
    static char buffer[1 << 20];
    size_t bytes = 32 << 20;
    char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Every page is like no other, and shrinks. */
    for (size_t i = 0; i < bytes; i += 8)
        *(size_t *)(p + i) = i >> 12;
    wait();
    munmap(p, bytes);
    wait();
    if (argc > 1) {
        int file = open(argv[1], O_RDONLY);
        while (read(file, buffer, sizeof buffer) > 0)
            ;
    }
    return 0;
}
"#;

/// The looks, the frames of free blocks before each, and bytes that the host's files moved: into the guest
/// and out.
fn seen(words: &[u64]) -> (Vec<(MemoryLook, u64)>, [u64; 2]) {
    let (mut at, mut free, mut looks, mut moved) = (0, 0, Vec::new(), [0, 0]);
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        at += n;
        match event {
            Event::Free { frames, .. } => free += frames,
            Event::Look(look) => looks.push((look, std::mem::take(&mut free))),
            Event::Transfer { bytes, write, .. } => moved[usize::from(!write)] += u64::from(bytes),
            _ => {}
        }
    }
    (looks, moved)
}

#[test]
fn a_look_sees_what_the_kernel_uses_memory_for() {
    if qemu_missing() {
        return;
    }
    let program = compile("looks", PHASES);
    // The kernel describes sections of 128 MiB, and this memory ends within one.
    let spec = GuestSpec { looks: true, memory_mib: 300, ..spec(&[program.to_str().unwrap()]) };
    let (report, words) = run(&spec).unwrap();
    assert_eq!(report.exit, CommandExit::Code(0));
    let (looks, _) = seen(&words);
    assert!(looks.len() >= 5, "{} looks", looks.len());
    for (look, free) in &looks {
        let classes =
            [look.free, look.cache_clean, look.cache_dirty, look.anonymous, look.kernel, look.tables];
        assert_eq!(classes.iter().sum::<u64>(), look.frames, "each frame is in one class: {look:?}");
        assert_eq!(*free, look.free_blocks);
        // Without the firmware's parts and the video memory.
        let all = spec.memory_mib * MIB / 4096;
        assert!(look.frames <= all && look.frames > all - 1024, "{look:?}");
        assert!(look.free_blocks <= look.free && look.free_held <= look.free, "{look:?}");
        assert!(look.tables > 0 && look.kernel > 1000, "{look:?}");
    }
    let programs: Vec<u64> = looks.iter().map(|(look, _)| look.anonymous * 4096 / MIB).collect();
    let (at, most) = programs.iter().enumerate().max_by_key(|(_, n)| **n).unwrap();
    // The initramfs is shared memory, and so among the programs'.
    let (first, last) = (programs[0], *programs.last().unwrap());
    assert!((30..40).contains(&(most - first)), "{programs:?}");
    assert!(last < most - 30, "{programs:?}");
    let full = looks[at].0;
    assert!(full.sampled > 300 && full.compressed_bytes < full.sampled * 4096 / 4, "{full:?}");
    let held = |look: &MemoryLook| look.free_held * 4096 / MIB;
    assert!(held(&looks.last().unwrap().0) > 28, "what was given back is held: {looks:?}");
}

#[test]
fn looks_and_transfers_repeat_to_the_bit_and_a_file_is_moved_once() {
    if qemu_missing() {
        return;
    }
    let program = compile("looks-file", PHASES);
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = 5 * MIB;
    std::fs::write(file.path(), vec![7; bytes as usize]).unwrap();
    let path = file.path().to_string_lossy().into_owned();
    let spec = GuestSpec { looks: true, ..exact(&[program.to_str().unwrap(), &path]) };
    let (report, words) = run(&spec).unwrap();
    assert_eq!(report.exit, CommandExit::Code(0));
    let (looks, [into, out]) = seen(&words);
    assert!(looks.len() >= 5);
    if report.clock.in_step {
        assert!(into >= bytes && into < bytes + bytes / 4, "{into} bytes of {bytes}");
        assert!(out > 0 && out < MIB, "{out} bytes of requests");
    }
    let clean = |i: usize| looks[i].0.cache_clean * 4096;
    assert!(clean(looks.len() - 1) >= clean(0) + bytes - MIB, "{looks:?}");
    assert_eq!(run(&spec).unwrap().1, words);
    // With fast timing, requests are not answered at once, and no transfer can be known.
    let (_, words) = run(&GuestSpec { timing: Timing::Fast, ..spec }).unwrap();
    let (looks, moved) = seen(&words);
    assert!(looks.len() >= 5 && moved == [0, 0]);
}
