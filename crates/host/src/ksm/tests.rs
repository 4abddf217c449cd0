// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KSM made of files.

use super::*;
use crate::held::{Guardian, HeldError, Places};
use proptest::prelude::*;
use std::fs;

struct Tree {
    dir: tempfile::TempDir,
    host: Host,
}

const FOUND: [(&str, &str); 8] = [
    ("run", "0\n"),
    ("pages_to_scan", "100\n"),
    ("sleep_millisecs", "20\n"),
    ("max_page_sharing", "256\n"),
    ("use_zero_pages", "0\n"),
    ("smart_scan", "1\n"),
    ("advisor_mode", "[none] scan-time\n"),
    ("pages_shared", "0\n"),
];

impl Tree {
    fn new() -> Tree {
        let dir = tempfile::tempdir().unwrap();
        let [sys, proc, debug, tracing] = ["sys", "proc", "debug", "tracing"].map(|n| dir.path().join(n));
        let tree = Tree { dir, host: Host { sys, proc, debug, tracing } };
        fs::create_dir_all(tree.host.sys.join("kernel/mm/ksm")).unwrap();
        fs::create_dir_all(&tree.host.proc).unwrap();
        FOUND.into_iter().for_each(|(name, text)| tree.put(name, text));
        tree
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.host.sys.join("kernel/mm/ksm").join(name), text).unwrap();
    }

    fn says(&self, name: &str) -> String {
        fs::read_to_string(self.host.sys.join("kernel/mm/ksm").join(name)).unwrap()
    }

    fn proc(&self, path: &str, text: &str) {
        let path = self.host.proc.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn ksm(&self) -> Ksm {
        Ksm::of(&self.host).unwrap()
    }

    fn places(&self) -> Places {
        Places { lock: self.dir.path().join("lock"), journal: self.dir.path().join("journal") }
    }

    /// A journal that a killed process left.
    fn leave(&self, journal: &Journal) {
        fs::write(self.places().journal, journal.text()).unwrap();
    }

    fn take(&self, wanted: &[(Setting, u64)]) -> Result<KsmGuard, KsmError> {
        KsmGuard::take(&self.host, &self.places(), &idle(), &Settings::of(wanted))
    }
}

/// A guardian that says it is ready, and restores nothing.
fn idle() -> Guardian {
    Guardian { program: "/bin/sh".into(), words: vec!["-c".into(), "echo ready >&0; cat >/dev/null".into()] }
}

#[test]
fn processes_with_mergeable_memory_are_found_whether_ksm_stat_says_so_or_not() {
    let tree = Tree::new();
    let area = |flags: &str| {
        format!("7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: {flags}\n")
    };
    tree.proc("7/smaps", &area("rd wr mg"));
    tree.proc("8/smaps", &area("rd wr"));
    tree.proc("9/ksm_stat", "ksm_rmap_items 0\nksm_mergeable: yes\n");
    tree.proc("10/ksm_stat", "ksm_rmap_items 5\nksm_mergeable: no\n");
    assert_eq!(tree.ksm().merging_processes().unwrap(), [7, 9]);
}

#[test]
fn other_processes_memory_is_counted_and_named_the_largest_first() {
    let tree = Tree::new();
    let area = |kb: u32| {
        format!("7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nRss: {kb} kB\nVmFlags: rd wr mg\n")
    };
    tree.proc("7/smaps", &area(4096));
    tree.proc("7/comm", "small\n");
    tree.proc("8/smaps", &area(409_600));
    tree.proc("8/ksm_stat", "ksm_merging_pages 5\nksm_mergeable: yes\n");
    tree.proc("8/cmdline", "qemu-system-x86_64\0-name\0web\x1b[31m\0");
    tree.proc("9/smaps", &area(4096));
    let others = tree.ksm().others(&[9]).unwrap();
    assert_eq!((others.pages(), others.merged()), (102_400 + 1024, 5));
    assert_eq!(
        others.to_string(),
        "process 8 `web\\u{1b}[31m` with 400 MiB, process 7 `small` with 4 MiB",
        "no name drives a terminal"
    );
    assert_eq!(tree.ksm().others(&[7, 8, 9]).unwrap().to_string(), "no process");
    (20..40).for_each(|pid| tree.proc(&format!("{pid}/smaps"), &area(4)));
    assert!(tree.ksm().others(&[]).unwrap().to_string().ends_with(" and 15 more"));
}

#[test]
fn what_khugepaged_has_made_is_told_where_the_kernel_says() {
    let tree = Tree::new();
    assert_eq!(tree.ksm().collapsed(), None);
    let dir = tree.host.sys.join("kernel/mm/transparent_hugepage/khugepaged");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("pages_collapsed"), "57\n").unwrap();
    assert_eq!(tree.ksm().collapsed(), Some(57));
}

#[test]
fn settings_and_counters_that_a_kernel_lacks_are_absent() {
    let tree = Tree::new();
    tree.put("general_profit", "-4096\n");
    let settings = tree.ksm().settings().unwrap();
    assert_eq!(
        settings.to_string(),
        "run=0, pages_to_scan=100, sleep_millisecs=20, max_page_sharing=256, use_zero_pages=0, \
         smart_scan=1, advisor_mode=none"
    );
    assert_eq!(settings.get(Setting::MergeAcrossNodes), None);
    let counters: Vec<_> = tree.ksm().counters().unwrap().iter().collect();
    assert_eq!(counters, [(Counter::PagesShared, 0), (Counter::GeneralProfit, -4096)]);
}

#[test]
fn a_host_without_ksm_and_strange_files_are_told_apart() {
    let tree = Tree::new();
    tree.put("pages_to_scan", "many\n");
    let bad = tree.ksm().settings().unwrap_err();
    assert!(bad.to_string().ends_with("pages_to_scan says `many`, which Bifold cannot parse"), "{bad}");
    assert!(!bad.cannot_work_here());
    fs::remove_dir_all(&tree.host.sys).unwrap();
    let none = Ksm::of(&tree.host).unwrap_err();
    assert!(matches!(none, KsmError::NoKsm { .. }) && none.cannot_work_here(), "{none}");
}

#[test]
fn a_guard_changes_what_is_asked_and_restores_all_when_dropped() {
    let tree = Tree::new();
    let before = tree.ksm().settings().unwrap();
    let guard =
        tree.take(&[(Setting::Run, 1), (Setting::MaxPageSharing, 8), (Setting::AdvisorMode, 1)]).unwrap();
    assert_eq!(
        ["run", "max_page_sharing", "advisor_mode"].map(|f| tree.says(f)),
        ["1\n", "8\n", "scan-time\n"]
    );
    guard.set(&Settings::of(&[(Setting::AdvisorMode, 0), (Setting::PagesToScan, 7)])).unwrap();
    assert_eq!(tree.says("pages_to_scan"), "7\n");
    assert_eq!(guard.found(), &before);
    let journal = Journal::parse(&fs::read_to_string(&tree.places().journal).unwrap()).unwrap();
    assert_eq!(journal, Journal { pid: std::process::id(), found: before.clone() });
    drop(guard);
    assert_eq!(tree.ksm().settings().unwrap(), before);
    assert!(!tree.places().journal.exists());
}

#[test]
fn run_comes_back_as_it_was_whatever_it_was() {
    for run in ["0\n", "1\n", "2\n"] {
        let tree = Tree::new();
        tree.put("run", run);
        tree.take(&[(Setting::Run, 1), (Setting::MaxPageSharing, 2)]).unwrap().restore().unwrap();
        assert_eq!(tree.says("run"), run);
    }
}

#[test]
fn a_setting_that_cannot_be_made_leaves_all_as_it_was() {
    let tree = Tree::new();
    let before = tree.ksm().settings().unwrap();
    let error = tree.take(&[(Setting::Run, 1), (Setting::AdvisorMaxCpu, 50)]).unwrap_err();
    assert!(matches!(error, KsmError::NoSetting { setting: Setting::AdvisorMaxCpu }), "{error}");
    assert_eq!(tree.ksm().settings().unwrap(), before);
    assert!(!tree.places().journal.exists());
}

#[test]
fn a_journal_left_behind_is_restored_from_before_anything_else() {
    let tree = Tree::new();
    let before = tree.ksm().settings().unwrap();
    tree.leave(&Journal { pid: 4242, found: before.clone() });
    tree.put("run", "1\n");
    tree.put("max_page_sharing", "2\n");
    let guard = tree.take(&[(Setting::SmartScan, 0)]).unwrap();
    assert_eq!((guard.recovered(), guard.found()), (Some(4242), &before));
    drop(guard);
    assert_eq!(tree.ksm().settings().unwrap(), before);
}

#[test]
fn a_journal_left_behind_is_told_and_restored_from_on_request() {
    let tree = Tree::new();
    let look = || left_behind(&tree.host, &tree.places()).unwrap();
    assert_eq!(look(), None);
    assert_eq!(restore_left_behind(&tree.host, &tree.places()).unwrap(), None);
    let guard = tree.take(&[(Setting::Run, 1)]).unwrap();
    assert!(look().unwrap().held, "a guard that lives restores by itself");
    drop(guard);
    let before = tree.ksm().settings().unwrap();
    let left = Journal { pid: 4242, found: before.clone() };
    tree.leave(&left);
    tree.put("run", "1\n");
    assert_eq!(look(), Some(Left { journal: left.clone(), held: false }));
    assert_ne!(tree.ksm().settings().unwrap(), before, "looking changes nothing");
    assert_eq!(restore_left_behind(&tree.host, &tree.places()).unwrap(), Some(left));
    assert_eq!((tree.ksm().settings().unwrap(), look()), (before, None));
    let _lock = tree.take(&[]).unwrap();
    let error = restore_left_behind(&tree.host, &tree.places()).unwrap_err();
    assert!(matches!(error, KsmError::Held(HeldError::Busy { .. })), "{error}");
}

#[test]
fn a_second_guard_hears_whose_the_first_is() {
    let tree = Tree::new();
    let _first = tree.take(&[]).unwrap();
    let error = tree.take(&[(Setting::Run, 1)]).unwrap_err();
    let us = std::process::id();
    assert!(matches!(error, KsmError::Held(HeldError::Busy { pid: Some(pid), .. }) if pid == us), "{error}");
    assert_eq!(tree.says("run"), "0\n");
}

#[test]
fn without_a_guardian_nothing_is_changed() {
    let tree = Tree::new();
    let guardian = Guardian { program: "/bin/false".into(), words: vec![] };
    let wanted = Settings::of(&[(Setting::Run, 1)]);
    let error = KsmGuard::take(&tree.host, &tree.places(), &guardian, &wanted).unwrap_err();
    assert!(matches!(error, KsmError::Held(HeldError::Guardian { .. })), "{error}");
    assert_eq!(tree.says("run"), "0\n");
    assert!(!tree.places().journal.exists());
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let tree = Tree::new();
    let victim = tree.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, tree.places().lock).unwrap();
    assert!(tree.take(&[]).is_err());
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

#[test]
fn ksmd_is_the_kernels_and_no_program_of_that_name() {
    let tree = Tree::new();
    let stat = |pid: u32, parent: u32| {
        format!("{pid} (ksmd) S {parent} 0 0 0 -1 2097216 0 0 0 0 17 25 0 0 25 5 1 0 26 0 0\n")
    };
    tree.proc("36/comm", "ksmd\n");
    tree.proc("36/stat", &stat(36, 2));
    tree.proc("900/comm", "ksmd\n");
    tree.proc("900/stat", &stat(900, 1));
    let ksmd = tree.ksm().ksmd().unwrap();
    assert_eq!((ksmd.pid, ksmd.cpu.as_millis()), (36, 420), "utime 17 and stime 25 ticks");
    tree.proc("36/schedstat", "6052647 152083258 443\n");
    assert_eq!(tree.ksm().ksmd_at(36).unwrap().cpu.as_nanos(), 6_052_647);
    assert_eq!(tree.ksm().ksmd_at(900), None);
}

#[test]
fn a_processs_figures_come_from_either_file() {
    let tree = Tree::new();
    tree.proc("7/ksm_stat", "ksm_rmap_items 10\nksm_zero_pages 2\nksm_merging_pages 5\nksm_process_profit -3\nksm_merge_any: no\nksm_mergeable: yes\nnew 1\n");
    tree.proc("8/ksm_merging_pages", "12\n");
    let seen = tree.ksm().process(7).unwrap().unwrap();
    assert_eq!(
        seen,
        ProcessKsm {
            merging_pages: Some(5),
            rmap_items: Some(10),
            zero_pages: Some(2),
            profit: Some(-3),
            merge_any: Some(false),
            mergeable: Some(true),
        }
    );
    let older = ProcessKsm { merging_pages: Some(12), ..ProcessKsm::default() };
    assert_eq!(tree.ksm().process(8).unwrap(), Some(older));
    assert_eq!(tree.ksm().process(9).unwrap(), None);
}

#[test]
fn a_journal_that_is_cut_or_strange_is_refused() {
    let whole = "bifold-ksm 1\npid 7\nrun 1\nadvisor_mode scan-time\nend\n";
    let journal = Journal::parse(whole).unwrap();
    assert_eq!(journal.text(), whole);
    let lines: Vec<_> = whole.lines().collect();
    for n in 0..lines.len() {
        assert!(Journal::parse(&lines[..n].join("\n")).is_err(), "{n} lines");
    }
    for line in ["run 3", "run -1", "../../etc/passwd 1", "run", "advisor_mode 1", "pid x"] {
        assert!(Journal::parse(&format!("bifold-ksm 1\nrun 1\n{line}\nend\n")).is_err(), "{line}");
    }
}

#[test]
fn every_setting_has_its_own_name_and_can_be_asked_for_by_it() {
    for setting in Setting::ALL.iter().copied() {
        assert_eq!(Setting::named(setting.name()).unwrap(), setting);
        assert_eq!(setting.parse(&setting.text(1)), Some(1));
    }
    assert!(Setting::named("pages_shared").is_err());
    let mut settings = Settings::default();
    let error = settings.put_text("advisor_mode", "fast").unwrap_err().to_string();
    assert_eq!(error, "`advisor_mode=fast` is no setting of KSM: advisor_mode is one of none, scan-time");
}

proptest! {
    #[test]
    fn what_a_guard_changes_is_as_found_afterwards(
        found in proptest::collection::vec(0..3_u64, 7), wanted in proptest::collection::vec(0..3_u64, 7)
    ) {
        use Setting::*;
        let names = [Run, PagesToScan, SleepMillisecs, MaxPageSharing, UseZeroPages, SmartScan, AdvisorMode];
        let set = |values: &[u64]| -> Vec<(Setting, u64)> {
            names.into_iter().zip(values.iter().map(|v| v % 2)).collect()
        };
        let tree = Tree::new();
        set(&found).iter().for_each(|(s, v)| tree.put(s.name(), &s.text(*v)));
        let before = tree.ksm().settings().unwrap();
        let now = Settings::of(&set(&wanted));
        tree.ksm().change(&now).unwrap();
        prop_assert!(tree.ksm().unlike(&now).unwrap().is_empty());
        tree.ksm().change(&before).unwrap();
        prop_assert!(tree.ksm().unlike(&before).unwrap().is_empty());
    }

    #[test]
    fn any_text_is_a_journal_or_an_error(text in "(bifold-ksm 1\n)?(pid [0-9]{1,4}\n|run [0-4]\n|smart_scan [01]\n|end\n|.{0,8}\n){0,6}") {
        if let Ok(journal) = Journal::parse(&text) {
            prop_assert_eq!(Journal::parse(&journal.text()), Ok(journal));
        }
    }
}
