// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judgement on counters as they were recorded, without KSM.

use super::*;
use bifold_share::ksm::{Counts, Work};
use bifold_trial::ksm_check::Counted;

/// A pass: predicted and counted frames, sharing and zero pages.
fn row(content: &str, pass: u64, predicted: [u64; 3], counted: [u64; 3]) -> KsmPass {
    let [pages_shared, pages_sharing, ksm_zero_pages] = predicted;
    let predicted =
        Counts { full_scans: pass, pages_shared, pages_sharing, ksm_zero_pages, ..Counts::default() };
    let [pages_shared, pages_sharing, ksm_zero_pages] = counted;
    let host = Counts { pages_shared: pages_shared + 9, pages_sharing: pages_sharing + 137, ..predicted };
    KsmPass {
        content: content.into(),
        case: "default".into(),
        pass,
        predicted,
        counted: Counted { pages_shared, pages_sharing, ksm_zero_pages },
        host: Counts { ksm_zero_pages, ..host },
        work: Work::default(),
        predicted_cpu: Duration::from_micros(1500),
        counted_cpu: (pass > 1).then_some(Duration::from_micros(1250 * pass)),
        tries: 1,
        disturbed: false,
    }
}

fn run(seconds: u64, rows: Vec<KsmPass>) -> Run {
    Run { rows, took: Duration::from_secs(seconds) }
}

/// One run in which a pass is off, one that is exact but for a page, and one that was stopped.
fn checked() -> Checked {
    let first = || row("many-contents", 1, [0; 3], [0; 3]);
    let second = |shared, sharing| row("many-contents", 2, [5462, 10_922, 0], [shared, sharing, 0]);
    let zeros = |zero| row("zero-pages", 1, [0, 0, 12_288], [0, 0, zero]);
    Checked {
        command: "bifold share check --runs 3".into(),
        kernel: "6.18.44".into(),
        pages: Some(16_384),
        tolerance: 0.02,
        partial: Some("the check was stopped".into()),
        runs: vec![
            run(7, vec![first(), second(5462, 10_922), zeros(12_821)]),
            run(6, vec![first(), second(5461, 10_922), zeros(12_288)]),
            run(1, vec![first()]),
        ],
    }
}

#[test]
fn passes_and_runs_are_judged_by_the_tolerance() {
    let mut checked = checked();
    assert_eq!((checked.off(), checked.verdict()), (1, "1 of 7 passes are off by more than 2 %".into()));
    checked.tolerance = 0.0;
    assert_eq!(checked.off(), 2, "a page too few");
    checked.tolerance = 0.05;
    assert_eq!(checked.off(), 0);
}

#[test]
fn what_is_not_counted_but_predicted_is_all_wrong() {
    let nothing = row("all-equal", 2, [64, 16_320, 0], [0, 0, 0]);
    assert_eq!(nothing.difference(), 16_320.0);
    assert_eq!(row("all-equal", 1, [0; 3], [0; 3]).difference(), 0.0);
    assert_eq!(nothing.others(), 146);
}

#[test]
fn a_check_in_every_form() {
    let mut several = checked();
    (several.runs[1].rows[2].tries, several.runs[1].rows[2].disturbed) = (5, true);
    insta::assert_snapshot!("share_check_table", several.text());
    insta::assert_snapshot!("share_check_markdown", several.markdown());
    let one = Checked { runs: checked().runs.into_iter().take(1).collect(), partial: None, ..several };
    insta::assert_snapshot!("share_check_table_of_one_run", one.text());
    insta::assert_snapshot!("share_check_json", one.json().unwrap());
}
