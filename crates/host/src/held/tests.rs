// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plain files held as settings: their names are paths.

use super::*;
use std::fs;
use std::time::{Duration, Instant};

const WHAT: &str = "files";

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        fs::write(tree.path("mode"), "nested").unwrap();
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn places(&self) -> Places {
        Places { lock: self.path("lock"), journal: self.path("journal") }
    }

    fn mode(&self) -> String {
        fs::read_to_string(self.path("mode")).unwrap()
    }

    fn take(&self, guardian: &Guardian) -> Result<Held, HeldError> {
        let mode = self.path("mode");
        let take = || {
            Held::take(WHAT, &self.places(), (guardian, &[]), restore, || {
                let value = fs::read_to_string(&mode).map_err(|e| HeldError::io(&mode, e))?;
                Ok(vec![(mode.display().to_string(), value)])
            })
        };
        once_free(take, |taken| !matches!(taken, Err(HeldError::Busy { .. })))
    }
}

/// Repeats `attempt` until `free` accepts the result, for ten seconds at most. A child that another
/// test of this process forks has every open file until it executes its program, locks included.
fn once_free<T>(attempt: impl Fn() -> T, free: impl Fn(&T) -> bool) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let result = attempt();
        if free(&result) || Instant::now() > end {
            return result;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn restore(journal: &Journal) -> Result<(), HeldError> {
    for (path, value) in &journal.found {
        fs::write(path, value).map_err(|e| HeldError::io(path.as_ref(), e))?;
    }
    Ok(())
}

/// A guardian that says it is ready, and restores nothing.
fn idle() -> Guardian {
    Guardian { program: "/bin/sh".into(), words: vec!["-c".into(), "echo ready >&0; cat >/dev/null".into()] }
}

#[test]
fn settings_are_written_down_before_they_change_and_the_journal_goes_when_they_are_back() {
    let tree = Tree::new();
    let mut held = tree.take(&idle()).unwrap();
    let journal = Journal::read(&tree.places().journal, WHAT).unwrap().unwrap();
    assert_eq!(journal.found, [(tree.path("mode").display().to_string(), "nested".to_owned())]);
    assert_eq!((journal.pid, held.recovered()), (std::process::id(), None));
    fs::write(tree.path("mode"), "shadow").unwrap();
    held.end(|| restore(&journal)).unwrap();
    assert_eq!(tree.mode(), "nested");
    assert!(!tree.places().journal.exists());
}

#[test]
fn a_failed_restoring_keeps_the_journal_and_the_next_holder_begins_with_it() {
    let tree = Tree::new();
    let mut held = tree.take(&idle()).unwrap();
    fs::write(tree.path("mode"), "shadow").unwrap();
    let failed = held.end(|| Err(HeldError::Guardian { why: "the disk is full".into() }));
    assert!(failed.is_err() && tree.places().journal.exists());
    drop(held);
    let left = || left_behind(WHAT, &tree.places(), Path::new("/proc")).unwrap().unwrap();
    let (left, holds) = once_free(left, |(_, holds)| !holds);
    assert_eq!((left.pid, holds), (std::process::id(), false));
    let next = tree.take(&idle()).unwrap();
    assert_eq!((next.recovered(), &tree.mode()[..]), (Some(std::process::id()), "nested"));
}

#[test]
fn a_journal_of_other_settings_is_refused_and_nothing_changes() {
    let tree = Tree::new();
    fs::write(tree.places().journal, "bifold-ksm 1\npid 7\nrun 0\nend\n").unwrap();
    let error = tree.take(&idle()).unwrap_err().to_string();
    assert!(error.contains("its first line is not `bifold-files 1`"), "{error}");
    assert!(tree.places().journal.exists());
}

#[test]
fn a_values_spaces_come_back() {
    let journal =
        Journal { what: WHAT.into(), pid: 7, found: vec![("/sys/a".into(), "[none] scan-time".into())] };
    assert_eq!(Journal::parse(&journal.text(), WHAT), Ok(journal));
}

#[test]
fn a_journal_that_could_not_be_read_back_is_not_written() {
    let tree = Tree::new();
    let path = tree.path("journal");
    let mut journal = Journal { what: WHAT.into(), pid: 1, found: vec![("a".into(), "b".repeat(1 << 20))] };
    journal.write(&path).unwrap();
    assert_eq!(Journal::read(&path, WHAT).unwrap().as_ref(), Some(&journal));
    journal.found.push(("c".into(), "d".repeat(4 << 20)));
    assert!(journal.write(&path).is_err());
    assert_eq!(Journal::read(&path, WHAT).unwrap().unwrap().found.len(), 1);
}

#[test]
fn kept_settings_stay_and_the_next_holder_has_their_journal() {
    let tree = Tree::new();
    let mut held = tree.take(&idle()).unwrap();
    held.note(WHAT, vec![("first".into(), "nested".into())]).unwrap();
    fs::write(tree.path("mode"), "shadow").unwrap();
    held.keep().unwrap();
    drop(held);
    assert_eq!(tree.mode(), "shadow");
    let adopt = |guardian: &Guardian| {
        let begin = |left: Option<&Journal>| {
            assert_eq!(left.unwrap().found, [("first".to_owned(), "nested".to_owned())]);
            Ok::<_, HeldError>(vec![("second".into(), "x".into())])
        };
        let adopt = || Held::adopt(WHAT, &tree.places(), (guardian, &[]), begin);
        once_free(adopt, |taken| !matches!(taken, Err(HeldError::Busy { .. })))
    };
    let none = Guardian { program: "/nonexistent".into(), words: Vec::new() };
    assert!(matches!(adopt(&none), Err(HeldError::Guardian { .. })));
    // The old journal is there again.
    let held = adopt(&idle()).unwrap();
    let journal = Journal::read(&tree.places().journal, WHAT).unwrap().unwrap();
    assert_eq!(journal.found, [("second".to_owned(), "x".to_owned())]);
    drop(held);
}

#[test]
fn a_guardian_that_has_ended_is_noticed() {
    let tree = Tree::new();
    let ends = Guardian { program: "/bin/sh".into(), words: vec!["-c".into(), "echo ready >&0".into()] };
    let mut held = tree.take(&ends).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while held.beat().is_ok() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(held.beat(), Err(HeldError::NoGuardian { .. })));
    held.end(|| Ok::<_, HeldError>(())).unwrap();
    drop(held);
    tree.take(&idle()).unwrap().beat().unwrap();
}

/// A guardian that ends at SIGKILL only, and writes its process id to a file.
fn deaf(tree: &Tree, says: &str) -> Guardian {
    let script =
        format!("echo $$ > {}; echo {says} >&0; exec sleep 1000 >/dev/null", tree.path("pid").display());
    Guardian { program: "/bin/sh".into(), words: vec!["-c".into(), script.into()] }
}

fn guardian_runs(tree: &Tree) -> bool {
    let pid = fs::read_to_string(tree.path("pid")).unwrap();
    fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill_guardian(tree: &Tree) {
    let pid = fs::read_to_string(tree.path("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_holder_that_is_dropped_does_not_wait_for_ever_and_leaves_the_guardian() {
    let tree = Tree::new();
    drop(tree.take(&deaf(&tree, "ready")).unwrap());
    assert!(guardian_runs(&tree) && tree.places().journal.exists());
    kill_guardian(&tree);
}

#[test]
fn a_guardian_that_does_not_get_ready_is_killed() {
    let tree = Tree::new();
    let error = tree.take(&deaf(&tree, "hello")).unwrap_err();
    assert!(matches!(error, HeldError::Guardian { .. }), "{error}");
    assert!(!guardian_runs(&tree) && !tree.places().journal.exists());
}

#[test]
fn a_guardian_that_reads_nothing_is_killed_when_all_is_restored() {
    let tree = Tree::new();
    let mut held = tree.take(&deaf(&tree, "ready")).unwrap();
    let begun = Instant::now();
    while held.beat().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the socket is never full");
    }
    assert!(matches!(held.keep(), Err(HeldError::NoGuardian { .. })));
    held.end(|| Ok::<_, HeldError>(())).unwrap();
    assert!(!guardian_runs(&tree) && !tree.places().journal.exists());
}

#[test]
fn what_a_guardian_restores_is_not_kept() {
    let tree = Tree::new();
    // It closes its end of the socket and goes on, as one that restores does.
    let script = "echo ready >&0; exec sleep 1000 </dev/null >/dev/null";
    let mut held =
        tree.take(&Guardian { program: "/bin/sh".into(), words: vec!["-c".into(), script.into()] }).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while held.beat().is_ok() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(held.keep(), Err(HeldError::NoGuardian { .. })));
    held.end_or_leave(|_| Ok::<_, HeldError>(())).unwrap();
}

#[test]
fn a_guardian_that_was_left_and_has_ended_keeps_no_process_id() {
    let tree = Tree::new();
    let script = format!("echo $$ > {}; echo ready >&0; cat >/dev/null", tree.path("pid").display());
    let ends = Guardian { program: "/bin/sh".into(), words: vec!["-c".into(), script.into()] };
    let mut held = tree.take(&ends).unwrap();
    held.end_or_leave(|_| Err(HeldError::Guardian { why: "the monitor is silent".into() })).unwrap_err();
    drop(held);
    let pid = fs::read_to_string(tree.path("pid")).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    // The next ones look for it when they begin.
    while Path::new("/proc").join(pid.trim()).exists() && Instant::now() < end {
        tree.take(&idle()).unwrap().end(|| Ok::<_, HeldError>(())).unwrap();
    }
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn a_lock_that_is_removed_before_it_is_taken_is_made_again() {
    let tree = Tree::new();
    let places = tree.places();
    for _ in 0..20 {
        let first = once_free(|| lock(WHAT, &places), Result::is_ok).unwrap();
        let waits = std::thread::spawn({
            let places = places.clone();
            move || lock(WHAT, &places)
        });
        std::thread::sleep(Duration::from_millis(5));
        // Held by this one.
        remove_unused_lock(&places);
        assert!(places.lock.exists());
        // As a holder does that has ended.
        fs::remove_file(&places.lock).unwrap();
        drop(first);
        let second = waits.join().unwrap().unwrap();
        assert!(is_at(&second, &places.lock), "the lock is another one's file");
        remove_unused_lock(&places);
        assert!(places.lock.exists(), "it is held");
        fs::write(&places.journal, "").unwrap();
        drop(second);
        remove_unused_lock(&places);
        assert!(places.lock.exists(), "there is a journal");
        fs::remove_file(&places.journal).unwrap();
        once_free(|| remove_unused_lock(&places), |()| !places.lock.exists());
        assert!(!places.lock.exists());
    }
}
