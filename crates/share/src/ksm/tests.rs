// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the model promises of any memory, and what it says of memory with known answers.

use super::*;
use crate::image::{Image, PAGE};
use proptest::prelude::*;

/// A page for each letter, `z` for zeros.
fn page(letter: u8) -> Vec<u8> {
    vec![if letter == b'z' { 0 } else { letter }; PAGE]
}

fn image(letters: &[u8]) -> Image {
    Image::of_bytes("guest", letters.iter().flat_map(|l| page(*l)).collect())
}

fn scanner(tuning: Tuning, letters: &[u8]) -> (Scanner, Guest) {
    let mut scanner = Scanner::new(Tuning { pages_to_scan: u64::MAX, ..tuning });
    let guest = scanner.add(&image(letters), false);
    (scanner, guest)
}

/// Shared, sharing, unshared and volatile pages after each pass.
fn passes(scanner: &mut Scanner, n: usize) -> Vec<[u64; 4]> {
    let pass = |s: &mut Scanner| {
        s.pass();
        let c = s.counts();
        [c.pages_shared, c.pages_sharing, c.pages_unshared, c.pages_volatile]
    };
    (0..n).map(|_| pass(scanner)).collect()
}

#[test]
fn equal_pages_merge_in_the_second_pass_and_single_ones_wait_in_the_unstable_tree() {
    let (mut s, _) = scanner(Tuning::default(), b"abacaz");
    assert_eq!(passes(&mut s, 2), [[0, 0, 0, 6], [1, 2, 3, 0]]);
}

#[test]
fn a_content_takes_as_many_frames_as_max_page_sharing_makes_it() {
    // The page beyond the last full copy finds no room and no other: it stays single.
    for (pages, max, shared, single) in [(512, 8, 64, 0), (513, 8, 64, 1), (7, 2, 3, 1), (600, 256, 3, 0)] {
        let (mut s, _) = scanner(Tuning { max_page_sharing: max, ..Tuning::default() }, &vec![b'a'; pages]);
        let after = passes(&mut s, 2)[1];
        assert_eq!(after, [shared, pages as u64 - shared - single, single, 0], "{pages} pages, {max}");
        let chains = s.counts();
        assert_eq!((chains.stable_node_chains, chains.stable_node_dups), (1, shared));
    }
}

#[test]
fn a_page_that_changes_before_every_visit_never_merges() {
    let (mut s, guest) = scanner(Tuning { smart_scan: false, ..Tuning::default() }, b"aab");
    for n in 0..5 {
        s.write(guest, 2, &page(b'0' + n));
        s.pass();
    }
    assert_eq!((s.counts().pages_shared, s.counts().pages_volatile), (1, 1));
    s.write(guest, 2, &page(b'a'));
    assert_eq!(passes(&mut s, 2), [[1, 1, 0, 1], [1, 2, 0, 0]], "it has to be the same at two visits");
}

#[test]
fn a_search_at_every_visit_lets_a_page_join_merged_ones_at_its_first() {
    let (mut s, guest) = scanner(Tuning { search: Search::Always, ..Tuning::default() }, b"aab");
    passes(&mut s, 2);
    s.write(guest, 2, &page(b'a'));
    assert_eq!(passes(&mut s, 1), [[1, 2, 0, 0]]);
}

#[test]
fn pages_of_zeros_go_to_the_zero_page_only_if_asked() {
    let (mut s, guest) = scanner(Tuning { use_zero_pages: true, ..Tuning::default() }, b"zzzaa");
    assert_eq!(
        passes(&mut s, 3),
        [[0, 0, 0, 5], [1, 1, 0, 3], [1, 1, 0, 0]],
        "their records go a pass later"
    );
    assert_eq!(s.counts().ksm_zero_pages, 3);
    s.write(guest, 0, &page(b'a'));
    assert_eq!(passes(&mut s, 2), [[1, 1, 0, 1], [1, 2, 0, 0]]);
    assert_eq!(s.counts().ksm_zero_pages, 2);
}

#[test]
fn a_copy_whose_last_page_changed_is_gone_with_all_its_records() {
    let (mut s, guest) = scanner(Tuning::default(), b"aab");
    passes(&mut s, 2);
    s.write(guest, 0, &page(b'x'));
    assert_eq!(s.counts().pages_sharing, 1, "the record stays until ksmd comes by");
    s.write(guest, 1, &page(b'y'));
    assert_eq!(passes(&mut s, 1)[0][..2], [0, 0]);
}

#[test]
fn smart_scan_skips_a_lonely_page_ever_more_often() {
    let (mut s, _) = scanner(Tuning::default(), b"a");
    let mut visited = Vec::new();
    for pass in 1..=34 {
        let before = s.counts().pages_scanned;
        s.pass();
        visited.extend((s.counts().pages_scanned > before).then_some(pass));
    }
    // Ages 0 to 3, then one skip after age 3, two after age 5, four after age 8, eight ever after.
    assert_eq!(visited, [1, 2, 3, 4, 6, 9, 14, 23, 32]);
    assert_eq!(s.counts().pages_skipped, 34 - 9);
}

#[test]
fn two_pages_of_one_huge_page_split_it_first_and_merge_a_pass_later() {
    let mut s = Scanner::new(Tuning { pages_to_scan: u64::MAX, smart_scan: false, ..Tuning::default() });
    let letters: Vec<u8> = (0..512).map(|n| if n < 3 { b'a' } else { n as u8 }).collect();
    s.add(&image(&[b'a', b'a'].map(|l| l)), true);
    s.pass();
    assert_eq!(passes(&mut s, 2), [[0, 0, 1, 1], [1, 1, 0, 0]]);
    assert_eq!(s.work().splits, 1);
    let mut s = Scanner::new(Tuning { pages_to_scan: u64::MAX, smart_scan: false, ..Tuning::default() });
    s.add(&image(&letters), true);
    s.pass();
    s.pass();
    assert_eq!(s.work().splits, 1, "one huge page is split once");
}

#[test]
fn batches_end_with_the_pass_and_take_time_between() {
    let mut s = Scanner::new(Tuning { pages_to_scan: 2, ..Tuning::default() });
    s.add(&image(b"abc"), false);
    s.add(&image(b"abd"), false);
    let ends: Vec<bool> = (0..8).map(|_| s.batch()).collect();
    // The end is found by looking for a seventh page, in the fourth batch.
    assert_eq!(ends, [false, false, false, true, false, false, false, true]);
    assert!(s.now() >= Duration::from_millis(8 * 20));
    let c = s.counts();
    assert_eq!((c.pages_scanned, c.pages_shared, c.pages_unshared), (12, 2, 2));
}

#[test]
fn the_advisor_goes_up_when_passes_take_too_long_and_never_past_its_limits() {
    let mut slow = Advisor::new(10, 70, 500, 30_000);
    let mut pages = 500;
    for n in 1..=40 {
        pages = slow.next(pages, Duration::from_secs(100), Duration::from_secs(n * 20));
    }
    assert_eq!(pages, 30_000);
    // The kernel's arithmetic by hand: factor 200*100/100 = 200, change 30 % of 100, 500*100/200*30/100.
    assert_eq!(Advisor::new(200, 70, 500, 30_000).next(500, Duration::from_secs(100), Duration::ZERO), 5000);
    let mut quick = Advisor::new(200, 70, 500, 30_000);
    assert_eq!(
        quick.next(500, Duration::from_secs(100), Duration::from_secs(50)),
        100,
        "at least 10 % of CPU"
    );
}

#[test]
fn pages_that_never_merge_are_the_ones_that_cost() {
    let per_second = |letters: &[u8]| {
        let (mut s, _) = scanner(Tuning { smart_scan: false, ..Tuning::default() }, letters);
        (0..3).for_each(|_| s.pass());
        let (before, cpu) = (s.counts().pages_scanned, s.cpu());
        s.pass();
        (s.counts().pages_scanned - before) as f64 / (s.cpu() - cpu).as_secs_f64()
    };
    let equal = per_second(&[b'a'; 200]);
    let different = per_second(&(0..200).collect::<Vec<u8>>());
    assert!(equal > 2.0 * different, "{equal} and {different} pages/s");
}

#[test]
fn a_search_for_another_content_walks_a_chain_that_it_comes_by() {
    // 64 copies of one content in the tree, all full, and 100 pages that search it in vain.
    let letters: Vec<u8> = [vec![b'a'; 512], (100..200).collect()].concat();
    let (mut s, _) =
        scanner(Tuning { max_page_sharing: 8, smart_scan: false, ..Tuning::default() }, &letters);
    passes(&mut s, 2);
    let before = s.work();
    s.pass();
    assert_eq!((s.work() - before).copies_seen, 100 * 64);
    // With room in one of them, that is the first to be looked at, and the last.
    let (mut s, _) =
        scanner(Tuning { max_page_sharing: 8, smart_scan: false, ..Tuning::default() }, &letters[2..]);
    passes(&mut s, 2);
    let before = s.work();
    s.pass();
    assert_eq!((s.work() - before).copies_seen, 100);
}

#[test]
fn a_split_takes_pages_of_zeros_out_of_ksms_hands() {
    let letters: Vec<u8> = (0..512).map(|n| if n % 4 == 0 { b'b' } else { b'z' }).collect();
    let mut s = Scanner::new(Tuning { pages_to_scan: u64::MAX, smart_scan: false, ..Tuning::default() });
    s.add(&image(&letters), true);
    // The second page of zeros splits the huge page, and all of zeros go; the pages b can merge then.
    let three = passes(&mut s, 3);
    assert_eq!(three[1], [1, 127, 1, 1]);
    assert_eq!(three[2], [1, 127, 0, 0]);
    assert_eq!(s.counts().ksm_zero_pages, 0, "they are the zero page's, but not by KSM's hand");
    let mut kept = Scanner::new(Tuning { split_drops_zeros: false, ..Tuning::default() });
    kept.add(&image(&letters), true);
    (0..3).for_each(|_| kept.pass());
    assert_eq!(kept.counts().pages_sharing, 510 - 1);
}

#[test]
fn nothing_gets_past_the_root_of_the_unstable_tree_when_a_split_takes_it() {
    let mut s = Scanner::new(Tuning { pages_to_scan: u64::MAX, smart_scan: false, ..Tuning::default() });
    s.add(&image(b"zz"), true);
    s.add(&image(b"abab"), false);
    assert_eq!(passes(&mut s, 3), [[0, 0, 0, 6], [0, 0, 1, 5], [2, 2, 0, 0]]);
}

#[test]
fn a_page_that_a_split_takes_ends_the_searches_that_come_by_it() {
    let mut s = Scanner::new(Tuning { pages_to_scan: u64::MAX, smart_scan: false, ..Tuning::default() });
    s.add(&image(b"m"), false);
    s.add(&image(b"zq"), true);
    s.add(&image(b"qaaxx"), false);
    // In the second pass m has zeros on its left and q on its right. The second q takes the zeros away, so
    // what is less than m finds no way, and what is more does.
    assert_eq!(passes(&mut s, 3), [[0, 0, 0, 8], [2, 2, 2, 2], [3, 3, 1, 0]]);
}

impl Scanner {
    /// What it counts, counted again from its pages alone.
    fn audit(&self) {
        let c = self.counts();
        let pages = self.audit_pages();
        let unshared = pages.iter().filter(|p| p.0).count() as u64;
        assert_eq!(c.pages_unshared, unshared);
        let (mut shared, mut sharing) = (0, 0);
        for (n, node) in self.audit_nodes().iter().enumerate().filter(|(_, n)| !n.gone) {
            let recorded = pages.iter().filter(|p| p.1 == Some(n as u32)).count() as u64;
            let mapped = pages.iter().filter(|p| p.2 == Some(n as u32)).count() as u64;
            assert_eq!((recorded, mapped), (node.recorded.into(), node.mapped.into()), "node {n}");
            shared += recorded.min(1);
            sharing += recorded.saturating_sub(1);
        }
        assert_eq!((c.pages_shared, c.pages_sharing), (shared, sharing));
        self.audit_passing();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn counts_are_those_of_the_pages_whatever_is_written_when(
        a in "[a-cz]{1,40}", b in "[a-dz]{1,30}", max in 2..6_u32, zero: bool, smart: bool, huge: bool, old: bool,
        steps in proptest::collection::vec((0..70_usize, "[a-dz]", 0..20_u64), 1..60)
    ) {
        let search = if old { Search::Always } else { Search::Unchanged };
        let tuning = Tuning {
            pages_to_scan: 7, max_page_sharing: max, use_zero_pages: zero, smart_scan: smart,
            chains_prune: Duration::from_millis(100), search, ..Tuning::default()
        };
        let mut s = Scanner::new(tuning);
        let guests = [(s.add(&image(a.as_bytes()), huge), a.len()), (s.add(&image(b.as_bytes()), false), b.len())];
        for (index, letter, batches) in steps {
            let (guest, pages) = guests[index % 2];
            s.write(guest, index / 2 % pages, &page(letter.as_bytes()[0]));
            (0..batches).for_each(|_| { s.batch(); });
            s.audit();
        }
        // At rest: every content has as few frames as it can have where no copy was ever left half empty,
        // and nothing is lost: each page is a frame's first, shares one, is single, or is the zero page.
        (0..40).for_each(|_| s.pass());
        s.audit();
        let c = s.counts();
        let all = c.pages_shared + c.pages_sharing + c.pages_unshared + c.pages_volatile + c.ksm_zero_pages;
        prop_assert_eq!(all + s.audit_absent(), (a.len() + b.len()) as u64);
        prop_assert!(c.pages_sharing <= u64::from(max - 1) * c.pages_shared);
    }

    #[test]
    fn memory_at_rest_ends_at_the_floor_of_max_page_sharing(letters in "[a-e]{1,80}", max in 2..9_u32) {
        let tuning = Tuning { max_page_sharing: max, smart_scan: false, ..Tuning::default() };
        let (mut s, _) = scanner(tuning, letters.as_bytes());
        s.pass();
        s.pass();
        let mut shared = 0;
        for letter in b'a'..=b'e' {
            let pages = letters.bytes().filter(|l| *l == letter).count() as u64;
            let (full, rest) = (pages / u64::from(max), pages % u64::from(max));
            shared += full + u64::from(rest > 1);
        }
        prop_assert_eq!(s.counts().pages_shared, shared);
    }
}
