// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use crate::image::PAGE;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A page of a small number, 0 being zeros. Numbers that differ by a multiple of 3 differ in the last byte
/// only.
fn page(content: u32) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    if content > 0 {
        page[0] = 1 + (content % 3) as u8;
        page[PAGE - 1] = (content / 3) as u8;
    }
    page
}

fn image(name: &str, contents: &[u32]) -> Image {
    Image::of_bytes(name, contents.iter().flat_map(|c| page(*c)).collect())
}

fn images(guests: &[Vec<u32>]) -> Vec<Image> {
    guests.iter().enumerate().map(|(i, g)| image(&format!("g{i}"), g)).collect()
}

/// The obvious count, of pages of any size.
fn reference(guests: &[Vec<Vec<u8>>]) -> Vec<Counts> {
    let mut owner: HashMap<&[u8], usize> = HashMap::new();
    let mut out = Vec::new();
    for (g, pages) in guests.iter().enumerate() {
        let mut counts = Counts { pages: pages.len() as u64, ..Counts::default() };
        let mut own: HashMap<&[u8], u64> = HashMap::new();
        for page in pages {
            if page.iter().all(|b| *b == 0) {
                counts.zero += 1;
            } else {
                *own.entry(page).or_default() += 1;
            }
        }
        for (page, n) in own {
            counts.intra += n - 1;
            match owner.insert(page, g) {
                None => counts.minimum += 1,
                Some(_) => counts.inter += 1,
            }
        }
        out.push(counts);
    }
    out
}

fn small_reference(guests: &[Vec<u32>]) -> Vec<Counts> {
    let pages: Vec<Vec<Vec<u8>>> = guests.iter().map(|g| g.iter().map(|c| page(*c)).collect()).collect();
    reference(&pages)
}

/// Hashes that collide all the time.
fn weak(page: &[u8]) -> u128 {
    u128::from(page[0]) << 64 | u128::from(page[0] % 2) << 62
}

fn unwatched(images: &[Image], method: Method, hash: scan::Hasher) -> Potential {
    let options = Options { method, top: 5, ..Options::default() };
    let watch = Watch { progress: &|_| (), stop: &AtomicBool::new(false) };
    count_by(images, &options, watch, hash).unwrap()
}

fn check(potential: &Potential, guests: &[Vec<u32>]) {
    let counted: Vec<Counts> = potential.guests.iter().map(|g| g.small).collect();
    assert_eq!(counted, small_reference(guests));
    for c in counted.iter().chain([&potential.small, &potential.huge]) {
        assert_eq!(c.pages, c.zero + c.minimum + c.intra + c.inter);
    }
    let sets: Vec<HashSet<u32>> =
        guests.iter().map(|g| g.iter().copied().filter(|c| *c > 0).collect()).collect();
    let pairs = potential.pairs.as_ref().unwrap();
    for (i, a) in sets.iter().enumerate() {
        for (j, b) in sets.iter().enumerate() {
            assert_eq!(pairs[i][j], a.intersection(b).count() as u64, "{i} {j}");
        }
        let others: HashSet<u32> =
            sets.iter().enumerate().filter(|(j, _)| *j != i).flat_map(|(_, s)| s).copied().collect();
        assert_eq!(potential.guests[i].contents, a.len() as u64);
        assert_eq!(potential.guests[i].with_others, a.intersection(&others).count() as u64);
    }
    // The most repeated, ties by first place.
    /// Pages, first place, guests.
    type ContentSeen = (u64, (usize, u64), HashSet<usize>);
    let mut all: HashMap<u32, ContentSeen> = HashMap::new();
    for (g, contents) in guests.iter().enumerate() {
        for (gfn, c) in contents.iter().enumerate() {
            let e = all.entry(*c).or_insert((0, (g, gfn as u64), HashSet::new()));
            e.0 += 1;
            e.2.insert(g);
        }
    }
    let mut top: Vec<(u64, (usize, u64), u64)> = all
        .into_iter()
        .filter(|(c, (n, ..))| *n > 1 || *c == 0)
        .map(|(_, (n, first, g))| (n, first, g.len() as u64))
        .collect();
    top.sort_by_key(|(n, first, _)| (std::cmp::Reverse(*n), *first));
    top.truncate(5);
    let listed: Vec<_> = potential.top.iter().map(|c| (c.pages, c.first.unwrap(), c.guests)).collect();
    assert_eq!(listed, top);
}

#[test]
fn every_page_is_zero_minimum_intra_or_inter() {
    let guests = [vec![0, 1, 1, 2], vec![1, 2, 3, 3, 0, 0], vec![]];
    let p = count(&images(&guests), &Options::default()).unwrap();
    let counts = |pages, zero, minimum, intra, inter| Counts { pages, zero, minimum, intra, inter };
    assert_eq!(p.guests[0].small, counts(4, 1, 2, 1, 0));
    assert_eq!(p.guests[1].small, counts(6, 2, 1, 1, 2));
    assert_eq!(p.guests[2].small, Counts::default());
    assert_eq!(p.small, counts(10, 3, 3, 2, 2));
    assert_eq!((p.small.saved(), p.loose(), p.lost_to_huge(), p.changed), (7, 10, 7, 0));
    check(&unwatched(&images(&guests), Method::Verified, weak), &guests);
}

proptest! {
    #[test]
    fn counts_are_those_of_the_obvious_count(
        guests in prop::collection::vec(prop::collection::vec(0u32..40, 0..60), 0..7)
    ) {
        let images = images(&guests);
        check(&unwatched(&images, Method::Verified, scan::hasher(Method::Verified)), &guests);
        check(&unwatched(&images, Method::Verified, weak), &guests);
        check(&unwatched(&images, Method::Hashed, scan::hasher(Method::Hashed)), &guests);
        check(&unwatched(&images, Method::Sha1, scan::hasher(Method::Sha1)), &guests);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn huge_pages_are_counted_as_pages_of_2_mb(
        guests in prop::collection::vec((0u64..1024, prop::collection::vec((0u32..3, 0usize..512), 0..4)), 0..4)
    ) {
        // 2 MB of one content but for one page, which is of another; from some frame on.
        let mut expected = Vec::new();
        let images: Vec<Image> = guests.iter().map(|(gfn, blocks)| {
            let pages: Vec<u32> = blocks.iter().flat_map(|(content, odd)| {
                let mut block = vec![*content; 512];
                block[odd % 2] = 1;
                block
            }).collect();
            let bytes: Vec<u8> = pages.iter().flat_map(|c| page(*c)).collect();
            let whole: Vec<Vec<u8>> = pages.chunks_exact(512).filter(|_| gfn % 512 == 0)
                .map(|b| b.iter().flat_map(|c| page(*c)).collect()).collect();
            let shifted = || {
                let skip = (512 - gfn % 512) as usize;
                let rest = pages.get(skip..).unwrap_or(&[]);
                rest.chunks_exact(512).map(|b| b.iter().flat_map(|c| page(*c)).collect()).collect()
            };
            expected.push(if gfn % 512 == 0 { whole } else { shifted() });
            Image::of_bytes("g", bytes).moved(*gfn)
        }).collect();
        let p = count(&images, &Options::default()).unwrap();
        let counted: Vec<Counts> = p.guests.iter().map(|g| g.huge).collect();
        prop_assert_eq!(counted, reference(&expected));
        // Kept whole, huge pages never save more.
        prop_assert_eq!(p.small.saved(), p.lost_to_huge() + 512 * p.huge.saved());
    }
}

#[test]
fn known_files_are_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlinux");
    // Two contents, one twice, and a tail that is no page.
    let content: Vec<u8> = [5, 0, 6, 5].into_iter().flat_map(page).chain([1, 2, 3]).collect();
    std::fs::write(&path, content).unwrap();
    let options = || Options { known: vec![Known::open_kernel(&path).unwrap()], ..Options::default() };
    let guests = images(&[vec![6, 7, 7, 7], vec![6, 0]]);
    for method in [Method::Verified, Method::Hashed] {
        let p = count(&guests, &Options { method, ..options() }).unwrap();
        assert_eq!(p.known, [Found { name: "vmlinux".into(), contents: 2, found: 1, pages: 2 }]);
        let said: Vec<String> = p.top.iter().map(|c| format!("{} {}", c.pages, c.what)).collect();
        assert_eq!(said[1], "2 vmlinux at 0x2000");
        assert_eq!(said[2], "1 zeros");
    }
    let mut kernel = vec![0; 0x1000];
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    std::fs::write(&path, kernel).unwrap();
    assert!(Known::open_kernel(&path).unwrap_err().to_string().contains("extract-vmlinux"));
}

#[test]
fn a_page_that_changes_between_hash_and_compare_is_counted_as_changed() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    fn hash(page: &[u8]) -> u128 {
        // The first two looks are the scan's, at pages that were equal then.
        if LOOKS.fetch_add(1, Ordering::SeqCst) < 2 { 7 << 64 } else { scan::hasher(Method::Verified)(page) }
    }
    let p = unwatched(&images(&[vec![1, 2]]), Method::Verified, hash);
    assert_eq!(p.changed, 2);
    assert_eq!(p.small.minimum, 2);
}

#[test]
fn an_image_that_loses_pages_and_a_stop_end_the_count() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![3; 64 * PAGE]).unwrap();
    let images = [Image::open(file.path()).unwrap()];
    file.as_file().set_len(PAGE as u64).unwrap();
    let e = count(&images, &Options::default()).unwrap_err();
    assert!(matches!(e, PotentialError::Image(ImageError::Lost { .. })), "{e}");
    let stop = AtomicBool::new(true);
    let watch = Watch { progress: &|_| (), stop: &stop };
    let e = count_watched(&images, &Options::default(), watch).unwrap_err();
    assert!(matches!(e, PotentialError::Stopped), "{e}");
}

#[test]
fn all_pages_are_reported_as_progress() {
    let seen = AtomicU64::new(0);
    let progress = |n| {
        seen.fetch_add(n, Ordering::Relaxed);
    };
    let watch = Watch { progress: &progress, stop: &AtomicBool::new(false) };
    count_watched(&images(&[vec![1; 3000], vec![2; 5]]), &Options::default(), watch).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 3005);
}
