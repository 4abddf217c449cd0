// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Undo beside other programs, which change settings and threads after `apply`.

use super::*;

fn undo_with(tree: &Tree, if_changed: IfChanged) -> Result<Undone, ApplyError> {
    undo(&tree.host(), &tree.kept(), None, if_changed, &mut |_| {})
}

/// The message of an undo that is refused.
fn refused(tree: &Tree) -> String {
    undo_with(tree, IfChanged::Refuse).unwrap_err().to_string()
}

fn journal(tree: &Tree) -> String {
    fs::read_to_string(tree.kept().places.journal).unwrap()
}

#[test]
fn a_setting_that_another_program_changed_is_named_and_all_others_go_back() {
    let tree = Tree::new();
    let before = tree.state();
    tree.apply(true, &mut |_| {}).unwrap();
    tree.put(&irq(3), "1\n");
    for _ in 0..2 {
        let error = refused(&tree);
        assert!(
            error.contains(
                "1 of the changes could not be undone and stay in the journal; all others are undone: \
                 /proc/irq/3/smp_affinity_list is now 1: Bifold set 0, and before that it was 0-1; "
            ),
            "{error}"
        );
        assert!(error.contains("--force") && error.contains("--keep"), "{error}");
        let now = BTreeMap::from_iter(before.clone().into_iter().chain([(irq(3), "1".into())]));
        assert_eq!(tree.state(), now);
        assert!(journal(&tree).contains("set /proc/irq/3/smp_affinity_list 0-1\t0\n"), "{}", journal(&tree));
    }
    assert_eq!(undo_with(&tree, IfChanged::Force).unwrap().settings, 1);
    tree.is_as_found(&before, "forced");
}

#[test]
fn a_kept_value_of_another_program_leaves_the_journal() {
    let tree = Tree::new();
    tree.apply(false, &mut |_| {}).unwrap();
    tree.put(&irq(3), "1\n");
    let mut events = Vec::new();
    let mut told = |e: &Event| events.push(e.clone());
    let undone = undo(&tree.host(), &tree.kept(), None, IfChanged::Keep, &mut told).unwrap();
    assert_eq!((undone.kept, undone.settings), (1, 19));
    assert!(events.contains(&Event::Kept { what: irq(3), is: "1".into() }));
    assert_eq!((tree.get(&irq(3)), tree.get(&irq(4))), ("1".into(), "0-1".into()));
    assert!(!tree.undo().was_applied);
}

#[test]
fn a_value_that_means_the_same_or_is_back_already_is_no_change() {
    let tree = Tree::new();
    let before = tree.state();
    tree.apply(false, &mut |_| {}).unwrap();
    tree.put(&irq(3), "0-0\n");
    tree.put(&irq(4), "0,1\n");
    tree.undo();
    assert_eq!(tree.get(&irq(4)), "0,1", "the value before `apply` is not written again");
    tree.put(&irq(4), "0-1\n");
    tree.is_as_found(&before, "undone");
}

#[test]
fn a_setting_with_two_changes_is_named_once_and_goes_back_or_stays_as_a_whole() {
    let run = "/sys/kernel/mm/ksm/run";
    for if_changed in [IfChanged::Force, IfChanged::Keep] {
        let tree = Tree::new();
        let before = tree.state();
        tree.apply(false, &mut |_| {}).unwrap();
        tree.put(run, "0\n");
        let error = refused(&tree);
        assert!(error.starts_with("1 of the changes"), "{error}");
        assert!(error.contains("ksm/run is now 0: Bifold set 1, and before that it was 1"), "{error}");
        let undone = undo_with(&tree, if_changed).unwrap();
        assert_eq!(undone.kept, usize::from(if_changed == IfChanged::Keep));
        if if_changed == IfChanged::Keep {
            assert_eq!(tree.get(run), "0");
            tree.put(run, "1\n");
        }
        tree.is_as_found(&before, "undone");
    }
}

#[test]
fn a_change_between_two_applies_is_named_with_the_value_from_before_the_first() {
    let tree = Tree::new();
    tree.apply(false, &mut |_| {}).unwrap();
    tree.put(&irq(3), "1\n");
    tree.apply(false, &mut |_| {}).unwrap();
    let error = refused(&tree);
    assert!(error.contains("is now 1: Bifold set 0, and before that it was 0-1"), "{error}");
    undo_with(&tree, IfChanged::Force).unwrap();
    assert_eq!(tree.get(&irq(3)), "0-1");
}

#[test]
fn a_thread_that_another_program_pinned_elsewhere_is_named() {
    let tree = Tree::new();
    let before = tree.state();
    let pins = |cpu: u32| crate::os::pin(tree.guest, &[cpu].into_iter().collect()).unwrap();
    let [first, .., last] = tree.cpus().iter().collect::<Vec<_>>()[..] else { return };
    tree.apply(true, &mut |_| {}).unwrap();
    pins(first);
    let error = refused(&tree);
    let named =
        format!("thread {0} of process {0} is now {first}: Bifold set {last}, and before", tree.guest);
    assert!(error.contains(&named), "{error}");
    let of_guest = [tree.guest];
    let undone = undo(&tree.host(), &tree.kept(), Some(&of_guest), IfChanged::Force, &mut |_| {}).unwrap();
    assert_eq!(undone.threads, 1);
    tree.undo();
    tree.is_as_found(&before, "forced");
}

#[test]
fn a_journal_of_an_older_version_is_undone_without_comparison() {
    let tree = Tree::new();
    let before = tree.state();
    tree.apply(true, &mut |_| {}).unwrap();
    let old: Vec<String> = journal(&tree).lines().map(|l| l.split('\t').next().unwrap().to_owned()).collect();
    fs::write(tree.kept().places.journal, old.join("\n") + "\n").unwrap();
    tree.put(&irq(3), "1\n");
    assert_eq!(tree.undo().settings, 20);
    tree.is_as_found(&before, "undone");
}

#[test]
fn a_pool_that_a_killed_undo_left_half_filled_is_no_change_of_another_program() {
    let tree = Tree::new();
    let before = tree.state();
    tree.apply(false, &mut |_| {}).unwrap();
    let mut events = Vec::new();
    undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut |e| events.push(e.clone())).unwrap();
    let pool = |e: &Event| matches!(e, Event::Set { path, .. } if path == POOL);
    tree.apply(false, &mut |_| {}).unwrap();
    let killed = tree.child("undo", events.iter().position(pool).unwrap()).status().unwrap();
    assert_eq!(killed.signal(), Some(SIGKILL));
    tree.put(POOL, "12\n");
    tree.undo();
    tree.is_as_found(&before, "undone");
}

#[test]
fn a_setting_that_the_kernel_did_not_take_back_is_still_compared() {
    let tree = Tree::new();
    tree.apply(false, &mut |_| {}).unwrap();
    let mut kernel = |event: &Event| {
        if matches!(event, Event::Set { path, .. } if *path == irq(3)) {
            tree.put(&irq(3), "0\n");
        }
    };
    let error = undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut kernel).unwrap_err();
    assert!(!error.to_string().contains("--force"), "{error}");
    tree.put(&irq(3), "1\n");
    assert!(refused(&tree).contains("is now 1: Bifold set 0"));
}

#[test]
fn a_journal_whose_value_set_is_no_value_stops_undo() {
    let tree = Tree::new();
    fs::create_dir_all(tree.dir.join("run")).unwrap();
    for line in ["set /proc/irq/3/smp_affinity_list 0\t1\t2", "thread 1 2 3 0-1\tx"] {
        let text = format!("bifold-place 1\npid 1\nboot this\n{line}\nend\n");
        fs::write(tree.kept().places.journal, text).unwrap();
        assert!(refused(&tree).contains("is no line of it"), "{line}");
    }
}
