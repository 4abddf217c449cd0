// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a stream says that the command's own program begins and ends.

use std::collections::HashSet;

use bifold_guest::{Begin, GuestError, GuestSpec, Root};
use bifold_trace::event::{gap, head, kind, marker};
use bifold_trace::{CommandExit, Event, decode};

use crate::replay::assert_sound;
use crate::support::{compile, exact, qemu_missing, run, spec};

/// Leaves a process behind that works and ends while its own process goes on, and says what it is.
const LEAVER: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
__attribute__((noinline)) int work(int n) { volatile int s = 0; for (int i = 0; i < n; i++) s += i; return s; }
int main(void) {
    int status;
    if (fork() == 0) {
        if (fork() == 0) { work(100000); _exit(0); }
        _exit(3);
    }
    wait(&status);
    /* The process that was left ends, and init's parent of it has nothing to do with us. */
    nanosleep(&(struct timespec){0, 50000000}, 0);
    printf("%d %d %d\n", WEXITSTATUS(status), getppid() > 1, signal(SIGCHLD, SIG_DFL) == SIG_IGN);
    work(300000);
    return 5;
}
"#;

/// The loads of CR3 before the program's begin and after it, and the instructions of both parts.
fn parts(words: &[u64]) -> ([Vec<u64>; 2], [u64; 2]) {
    let (mut roots, mut insns, mut part, mut at) = ([Vec::new(), Vec::new()], [0, 0], 0, 0);
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        match event {
            Event::Marker(marker::PROGRAM) => part = 1,
            Event::Cr3(value) => roots[part].push(value & 0x000f_ffff_ffff_f000),
            Event::Insns(n) => insns[part] += n,
            _ => {}
        }
        at += n;
    }
    (roots, insns)
}

#[test]
fn between_its_begin_and_its_end_only_the_command_s_processes_run() {
    if qemu_missing() {
        return;
    }
    let program = compile("leaver", LEAVER);
    let path = program.to_str().unwrap();
    let guests =
        [exact(&[path]), GuestSpec { kpti: true, ..exact(&[path]) }, GuestSpec { vcpus: 2, ..spec(&[path]) }];
    for s in guests {
        let (vcpus, kpti) = (s.vcpus, s.kpti);
        let (r, words) = run(&s).unwrap();
        assert_eq!((r.exit, &r.stdout[..]), (CommandExit::Code(5), &b"3 1 0\n"[..]));
        let summary = assert_sound(&words);
        assert_eq!(summary.markers, [marker::START, marker::PROGRAM, marker::STOP]);
        let ([before, after], [start, rest]) = parts(&words);
        assert!((100_000..20_000_000).contains(&start) && rest > 1_000_000, "{start} {rest}");
        if vcpus == 1 {
            // The stream begins in the command's parent, whose address space does not come back.
            let space = |root: u64| if kpti { root & !0x1000 } else { root };
            let parent = space(before[0]);
            let others: HashSet<u64> = after.into_iter().map(space).collect();
            assert!(others.len() >= 3 && !others.contains(&parent), "{others:x?} {parent:x}");
        }
    }
}

#[test]
fn a_program_that_cannot_be_run_does_not_begin() {
    if qemu_missing() {
        return;
    }
    let script = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-interpreter");
    std::fs::write(&script, "#!/nonexistent/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let mut s = spec(&[script.to_str().unwrap()]);
    s.root = Root::Host;
    let error = run(&s).unwrap_err();
    assert!(matches!(&error, GuestError::NotStarted(why) if why.contains("No such file")), "{error}");
}

/// A region counts from the program's begin on.
#[test]
fn regions_begin_after_the_guest_s_own_start() {
    if qemu_missing() {
        return;
    }
    let program = compile("leaver", LEAVER);
    let mut s = exact(&[program.to_str().unwrap()]);
    (s.region.skip, s.region.length) = (50_000, Some(20_000));
    let (_, words) = run(&s).unwrap();
    assert_eq!(words.last(), Some(&head(kind::MARKER, marker::REGION_END)));
    let gaps = |words: &[u64]| {
        let (mut found, mut insns, mut at) = (Vec::new(), 0, 0);
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).unwrap();
            match event {
                Event::Marker(marker::PROGRAM) => insns = 0,
                Event::Insns(n) => insns += n,
                Event::Gap(code) => found.push((code, insns)),
                _ => {}
            }
            at += n;
        }
        (found, insns)
    };
    let (found, end) = gaps(&words);
    let [(gap::WARM_UP, 0), (gap::REGION, begin)] = found[..] else { panic!("{found:?}") };
    // A region begins and ends with a block of code.
    assert!((50_000..60_000).contains(&begin) && (20_000..30_000).contains(&(end - begin)), "{begin} {end}");

    (s.region.skip, s.region.length, s.region.begin) = (0, None, Begin::Function("work".into()));
    let (found, _) = gaps(&run(&s).unwrap().1);
    assert!(matches!(found[..], [(gap::WARM_UP, 0), (gap::REGION, 1..)]), "{found:?}");
}

#[test]
fn what_the_boot_left_behind_is_over_when_the_program_begins() {
    if qemu_missing() {
        return;
    }
    // For longer than an RCU grace period.
    let (report, words) =
        run(&exact(&["sh", "-c", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"])).unwrap();
    assert_eq!(report.exit, CommandExit::Code(0));
    let (mut at, mut begun, mut flushes) = (0, false, 0);
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        match event {
            Event::Marker(marker::PROGRAM) => begun = true,
            Event::Cr4(_) if begun => flushes += 1,
            _ => {}
        }
        at += n;
    }
    assert!(begun);
    assert_eq!(flushes, 0, "writes to CR4: the kernel flushed all TLBs");
}
