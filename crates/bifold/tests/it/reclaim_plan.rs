// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim plan` over three guests: two that need much by turns, and one that ends and is idle.

use crate::command::{Ran, bifold_in};
use bifold_reclaim::{About, Interval, MemoryTimeline, MemoryUse, ReferenceKind};
use std::fs;
use std::num::NonZeroU64;

const FRAMES: u64 = 8192;

/// Each interval runs in a loop over so many frames from a start on.
fn timeline(program: &str, intervals: &[(u64, u64)]) -> MemoryTimeline {
    let about = About { program: program.into(), guest_frames: FRAMES, ..About::default() };
    let length = NonZeroU64::new(1_000_000).expect("not 0");
    let mut uses = MemoryUse::<64>::new(FRAMES, length, 0).expect("few frames");
    for (interval, &(start, frames)) in (1..).zip(intervals) {
        let frames = (start..start + frames).cycle().take(20_000);
        frames.for_each(|frame| uses.reference(frame, ReferenceKind::Data, frame % 4 == 0));
        uses.ran(interval * 1_000_000);
    }
    MemoryTimeline::of(about, &uses, 0.05e-6)
}

/// A folder with the guests' files.
fn guests() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |name: &str, timeline: &MemoryTimeline| {
        fs::write(dir.path().join(format!("{name}.memory")), timeline.to_json()).expect("it is written");
    };
    let turns =
        |odd: usize| (0..24).map(move |i| if (i / 6 + odd) % 2 == 0 { (0, 4000) } else { (4000, 600) });
    write("web", &timeline("web --serve", &turns(0).collect::<Vec<_>>()));
    write("db", &timeline("db", &turns(1).collect::<Vec<_>>()));
    write("batch", &timeline("batch", &[(0, 2000); 8]));
    dir
}

fn plan(args: &str) -> Ran {
    bifold_in(guests().path(), &format!("reclaim plan {args}"))
}

#[test]
fn a_plan_says_what_each_policy_costs_and_why() {
    insta::assert_snapshot!(plan("web.memory db.memory batch.memory --host 24M").quietly());
}

#[test]
fn a_plan_is_a_document() {
    insta::assert_snapshot!(
        plan("a=web.memory b=batch.memory --host 16M --policies equal,curves --format json").quietly()
    );
}

#[test]
fn arguments_that_no_plan_can_have_are_wrong_usage() {
    let dir = guests();
    fs::write(dir.path().join("run.json"), "{\"schema\": \"bifold.compare/1\"}").expect("it is written");
    let status = |args: &str| bifold_in(dir.path(), &format!("reclaim plan {args}")).status;
    assert_eq!(status("web.memory --host 0"), 2);
    assert_eq!(status("web.memory ./web.memory --host 1M"), 2);
    assert_eq!(status("wrong --host 1M"), 1);
    let result = bifold_in(dir.path(), "reclaim plan run.json --host 1M");
    assert!(result.stderr.contains("a result of `bifold compare`"), "{}", result.stderr);
    assert!(result.stderr.contains("`bifold reclaim show --timeline FILE`"), "{}", result.stderr);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let dir = guests();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("empty.memory"), "").expect("it is written");
    fs::write(path("other.memory"), "{\"schema\": \"bifold.memory-timeline/9\"}").expect("it is written");
    let mut wrong = timeline("wrong", &[(0, 100)]);
    wrong.intervals = vec![Interval { dirty: 101, ..wrong.intervals[0].clone() }];
    fs::write(path("wrong.memory"), wrong.to_json()).expect("it is written");
    let mut all = String::new();
    for args in [
        "web.memory --host 128K",
        "web.memory db.memory --host 2M --floor 1536K",
        "web.memory --host 1M --policies equal,fair",
        "web.memory --host 1M --refault-us 0",
        "web.memory --host 1M --interval 0.000001",
        "web.memory ./web.memory --host 1M",
        "missing.memory --host 1M",
        "empty.memory --host 1M",
        "other.memory --host 1M",
        "wrong.memory --host 1M",
        "web.memory --host 1M -o web.memory",
        "web.memory",
    ] {
        all += &format!(
            "$ reclaim plan {args}\n{}\n",
            bifold_in(dir.path(), &format!("reclaim plan {args}")).refused()
        );
    }
    insta::assert_snapshot!(all);
}
