// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use crate::image::{Image, PAGE};
use crate::potential::{self, Options, Potential, What};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

const KEY: [u8; 32] = [7; 32];

fn image(name: &str, contents: &[u32]) -> Image {
    let page = |c: &u32| {
        let mut page = vec![0; PAGE];
        page[9..13].copy_from_slice(&c.to_le_bytes());
        page
    };
    Image::of_bytes(name, contents.iter().flat_map(page).collect())
}

fn write(dir: &Path, images: &[Image], key: &Key, parts: u32) -> Result<(), FingerprintError> {
    let watch = Watch { progress: &|_| (), stop: &AtomicBool::new(false) };
    fingerprint(images, key, Destination { dir, parts, memory: 1 << 20 }, watch)
}

/// All parts, as jobs would do it, through text.
fn count(dirs: &[PathBuf], parts: u32) -> Result<Potential, FingerprintError> {
    let spill = tempfile::tempdir().unwrap();
    let results = (0..parts).map(|p| {
        let part = count_part(dirs, p, 1 << 20, spill.path())?;
        Ok((PathBuf::from(format!("r{p}")), Part::parse(&part.render()).unwrap()))
    });
    merge(results.collect::<Result<_, FingerprintError>>()?, 5)
}

/// Figures that do not depend on how contents are distinguished.
fn figures(p: &Potential) -> impl PartialEq + std::fmt::Debug + use<> {
    let top: Vec<(u64, u64, bool)> =
        p.top.iter().map(|c| (c.pages, c.guests, c.what == What::Zero)).collect();
    let pages: Vec<u64> = top.iter().map(|t| t.0).collect();
    (p.guests.clone(), p.small, p.huge, p.pairs.clone(), pages, p.lost_to_huge())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn fingerprints_count_as_images_do(
        guests in prop::collection::vec(prop::collection::vec(0u32..30, 0..80), 1..5),
        blocks in prop::collection::vec(0u32..3, 0..3),
        split in any::<prop::sample::Index>(),
    ) {
        let images: Vec<Image> = guests.iter().enumerate().map(|(i, g)| {
            // Some whole 2 MB pages first.
            let contents: Vec<u32> = blocks.iter().flat_map(|b| vec![*b; 512]).chain(g.iter().copied()).collect();
            image(&format!("g{i}"), &contents)
        }).collect();
        let exact = potential::count(&images, &Options { top: 5, ..Options::default() }).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let at = split.index(images.len());
        let dirs = [temp.path().join("a"), temp.path().join("b")];
        for key in [Key::of(KEY), Key::none()] {
            write(&dirs[0], &images[..at], &key, 5).unwrap();
            write(&dirs[1], &images[at..], &key, 5).unwrap();
            let counted = count(&dirs, 5).unwrap();
            prop_assert_eq!(figures(&counted), figures(&exact));
            prop_assert_eq!(counted.warning, None);
            dirs.iter().for_each(|d| std::fs::remove_dir_all(d).unwrap());
        }
    }

    #[test]
    fn rows_come_in_order_and_added_however_little_memory_there_is(
        rows in prop::collection::vec((0u64..40, any::<bool>(), 0u32..3, 1u32..5), 0..200),
        most in 2usize..40,
    ) {
        let mut expected: BTreeMap<(u64, bool, u32), u64> = BTreeMap::new();
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::with_room(most, dir.path());
        for (print, huge, guest, count) in rows {
            *expected.entry((print, huge, guest)).or_default() += u64::from(count);
            sorter.push(ContentCount::new([print / 7, print], huge, guest, count)).unwrap();
        }
        let mut merged = sorter.finish().unwrap();
        let mut seen = Vec::new();
        while let Some(r) = merged.next().unwrap() {
            seen.push(((r.fingerprint[1], r.huge(), r.guest() as u32), u64::from(r.count)));
        }
        prop_assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files without a name");
    }
}

#[test]
fn many_spilled_files_are_merged_to_few() {
    let dir = tempfile::tempdir().unwrap();
    let mut sorter = Sorter::with_room(2, dir.path());
    for i in (0..1000u64).rev() {
        sorter.push(ContentCount::new([i, 0], false, 0, u32::MAX)).unwrap();
    }
    // A sum beyond 32 bits stays in several rows.
    sorter.push(ContentCount::new([5, 0], false, 0, 9)).unwrap();
    assert!(sorter.spilled() >= 998);
    let mut merged = sorter.finish().unwrap();
    let mut rows = Vec::new();
    while let Some(row) = merged.next().unwrap() {
        rows.push(row.fingerprint[0]);
    }
    let mut expected: Vec<u64> = (0..1000).chain([5]).collect();
    expected.sort_unstable();
    assert_eq!(rows, expected);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = |name: &str| temp.path().join(name);
    let one = |name: &str| [image(name, &[1, 2])];
    write(&dir("a"), &one("a"), &Key::of(KEY), 2).unwrap();
    write(&dir("b"), &one("b"), &Key::of([8; 32]), 2).unwrap();
    write(&dir("c"), &one("c"), &Key::of(KEY), 3).unwrap();
    write(&dir("d"), &one("a"), &Key::of(KEY), 2).unwrap();
    let to = Destination { dir: &dir("e"), parts: 2, memory: 1 << 20 };
    import("e", Path::new("list"), &b"1\n2\n"[..], None, to).unwrap();
    let refused = |other: &str| count(&[dir("a"), dir(other)], 2).unwrap_err().to_string();
    assert!(refused("b").contains("keys"), "{}", refused("b"));
    assert!(refused("c").contains("numbers of parts"), "{}", refused("c"));
    assert!(refused("d").contains("a guest called a is in"), "{}", refused("d"));
    assert!(refused("e").contains("keys"), "{}", refused("e"));
    assert!(refused("f").contains("part-00000.parquet"), "{}", refused("f"));
    assert!(
        count_part(&[dir("a")], 2, 0, temp.path()).unwrap_err().to_string().contains("no part 2 (of 0 to 1)")
    );
    let again = write(&dir("a"), &one("a"), &Key::of(KEY), 2).unwrap_err();
    assert!(matches!(again, FingerprintError::Exists { .. }), "{again}");
    std::fs::write(dir("c").join("part-00000.parquet"), "PAR1 not really PAR1").unwrap();
    assert!(count(&[dir("c")], 3).unwrap_err().to_string().starts_with("cannot read fingerprints from"));

    let part = |p| count_part(&[dir("a")], p, 0, temp.path()).unwrap();
    let result = |p| (PathBuf::from(format!("r{p}")), part(p));
    let said = |results| merge(results, 5).unwrap_err().to_string();
    assert!(said(vec![result(1)]).contains("part 0 of 2 is missing"));
    assert!(said(vec![result(1), result(1)]).contains("both are part 1"));
    let other = count_part(&[dir("d"), dir("a")], 0, 0, temp.path());
    assert!(other.is_err(), "the same guest twice");
    assert!(Part::parse("{}").is_err());
    let lying = part(0).render().replacen("\"pages\":", "\"pages\":9", 1);
    assert!(Part::parse(&lying).unwrap_err().to_string().contains("not the sum"), "{lying}");
}

#[test]
fn imported_hashes_count_and_say_that_they_over_count() {
    let temp = tempfile::tempdir().unwrap();
    let dirs = [temp.path().join("a"), temp.path().join("b")];
    let list = |n: usize| ["hash,count\n1,2\n0\nff\n", "ff\n0,3\n7\n"][n];
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        let to = Destination { dir: &dirs[i], parts: 4, memory: 1 << 20 };
        import(name, Path::new("list"), list(i).as_bytes(), Some(0), to).unwrap();
    }
    let p = count(&dirs, 4).unwrap();
    assert_eq!((p.small.pages, p.small.zero, p.small.minimum, p.small.intra, p.small.inter), (9, 4, 3, 1, 1));
    assert!(p.warning.unwrap().contains("over-count"));
    let to = Destination { dir: &temp.path().join("x"), parts: 4, memory: 1 };
    let e = import("x", Path::new("list"), &b"1\nnonsense\n"[..], None, to).unwrap_err();
    assert_eq!(e.to_string(), "list: line 2 is no hash of 32 bits, nor hash,count: nonsense");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 2, "nothing half-made is left");
}

#[test]
fn a_key_is_made_once_for_its_owner_alone() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let (key, made) = Key::open_or_make(&path).unwrap();
    let (again, made_again) = Key::open_or_make(&path).unwrap();
    assert!(made && !made_again);
    assert_eq!((key.id().len(), key.id()), (16, again.id()));
    assert_ne!(key.fingerprint(b"x"), Key::none().fingerprint(b"x"));
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let open = Key::open_or_make(&path).err().unwrap().to_string();
    assert!(open.contains("can be read by others (mode 640)"), "{open}");
    let bad = dir.path().join("bad");
    std::fs::write(&bad, "é".repeat(32)).unwrap();
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(Key::open_or_make(&bad), Err(FingerprintError::BadKey { .. })));
}
