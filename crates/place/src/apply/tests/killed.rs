// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that are killed at every moment, and journals and kept plans that no command can use.

use super::*;

/// The child of [`Tree::child`].
#[test]
#[ignore = "other tests run this"]
fn dies_at_an_event() {
    let Ok(words) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let tree = Tree { dir: words[0].into(), _temp: None, guest: words[1].parse().unwrap(), _process: None };
    let mut left: usize = words[3].parse().unwrap();
    let mut told = |_: &Event| {
        if left == 0 {
            let this = rustix::process::getpid();
            rustix::process::kill_process(this, rustix::process::Signal::KILL).unwrap();
        }
        left -= 1;
    };
    match words[2] {
        "undo" => _ = undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut told).unwrap(),
        _ => _ = tree.apply(true, &mut told).unwrap(),
    }
}

#[test]
fn a_kill_at_every_event_leaves_nothing_behind() {
    let tree = Tree::new();
    let before = tree.state();
    let mut events = 0;
    tree.apply(true, &mut |_| events += 1).unwrap();
    let mut backwards = 0;
    undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut |_| backwards += 1).unwrap();
    assert!(events + backwards >= 50, "{events} and {backwards} moments");
    for event in 0..events {
        let status = tree.child("apply", event).status().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "event {event}");
        tree.undo();
        tree.is_as_found(&before, &format!("killed at event {event} of apply"));
    }
    for event in 0..backwards {
        tree.apply(true, &mut |_| {}).unwrap();
        let status = tree.child("undo", event).status().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "event {event}");
        tree.undo();
        tree.is_as_found(&before, &format!("killed at event {event} of undo"));
    }
}

#[test]
fn a_kill_at_any_time_leaves_nothing_behind() {
    let tree = Tree::new();
    let before = tree.state();
    let journal = tree.kept().places.journal;
    for moment in 0..50 {
        let mut child = tree.child("apply", usize::MAX).spawn().unwrap();
        // Until it has begun, or is through; then a little longer each time.
        let begun = std::time::Instant::now();
        while !journal.exists() && child.try_wait().unwrap().is_none() && begun.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(moment * 40));
        child.kill().unwrap();
        child.wait().unwrap();
        tree.undo();
        tree.is_as_found(&before, &format!("killed at moment {moment}"));
    }
}

#[test]
fn a_journal_that_is_none_stops_everything() {
    let tree = Tree::new();
    let kept = tree.kept();
    fs::create_dir_all(tree.dir.join("run")).unwrap();
    for line in ["set /etc/passwd x", "thread 1 2", "set x", "word x"] {
        fs::write(&kept.places.journal, format!("bifold-place 1\npid 1\nboot this\n{line}\nend\n")).unwrap();
        let error = undo(&tree.host(), &kept, None, IfChanged::Refuse, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("is no line of it"), "{error}");
        assert!(tree.apply(true, &mut |_| {}).is_err());
    }
}

#[test]
fn a_kept_plan_whose_parts_do_not_agree_is_none_for_anybody() {
    let tree = Tree::new();
    let before = tree.state();
    tree.apply(false, &mut |_| {}).unwrap();
    let mut other = tree.plan();
    other.guests[0].nodes[0].distances.clear();
    fs::write(tree.kept().plan, serde_json::to_vec(&other).unwrap()).unwrap();
    assert!(matches!(tree.kept().applied(&tree.host()), Err(ApplyError::KeptPlan { .. })));
    let error = tree.apply(false, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ApplyError::KeptPlan { .. }), "{error}");
    // The journal alone takes everything back.
    tree.undo();
    tree.is_as_found(&before, "undone");
}

#[test]
fn a_value_that_the_journal_cannot_have_is_not_replaced() {
    let tree = Tree::new();
    let long = "0,1,".repeat(1500) + "0";
    tree.put(&irq(3), &long);
    let before = tree.state();
    let applied = tree.apply(false, &mut |_| {}).unwrap();
    assert_eq!((applied.changed, applied.refused), (19, 1));
    assert_eq!(tree.get(&irq(3)), long);
    tree.undo();
    tree.is_as_found(&before, "after undo");
}
