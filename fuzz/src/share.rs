// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-share`: dumps of guests, lists of hashes and results of a count.

use bifold_share::fingerprint::{Destination, Part, count_part, import, merge};
use bifold_share::image::Image;

/// A dump of a guest: an error, or runs of whole pages in order, each within the file.
pub fn image(data: &[u8]) {
    let Ok(image) = Image::of_content("fuzz", data.to_vec()) else { return };
    let mut next = 0;
    for run in image.runs() {
        assert!(run.gfn >= next && run.pages() > 0 && run.bytes.end <= data.len(), "{run:?}");
        next = run.gfn + run.pages();
    }
    assert_eq!(image.pages().count() as u64, image.len());
    let p = bifold_share::potential::count(&[image], &Default::default()).expect("memory does not change");
    let c = p.small;
    assert_eq!(c.pages, c.zero + c.minimum + c.intra + c.inter);
}

/// A list of hashes: an error, or fingerprints of as many pages as the list has.
pub fn hash_list(data: &[u8]) {
    const MEMORY: u64 = 1 << 20;
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let (list, guest) = (dir.path().join("list"), dir.path().join("guest"));
    let to = Destination { dir: &guest, parts: 1, memory: MEMORY };
    let Ok(imported) = import("guest", &list, data, None, to) else { return };
    let part =
        count_part(std::slice::from_ref(&guest), 0, MEMORY, dir.path()).expect("imported fingerprints count");
    let counted = merge(vec![(guest, part)], 5).expect("one part is all parts");
    assert_eq!(counted.small.pages, imported.pages);
}

/// A result of `share count`: an error, or a result that is written back unchanged.
pub fn share_part(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(part) = Part::parse(text) else { return };
    assert_eq!(Part::parse(&part.render()).unwrap(), part);
    let _ = merge(vec![("fuzz".into(), part)], 5);
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{bytes, leaves, number};
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const PART: &str = r#"{"schema":"bifold.share-count/1","version":1,"key_id":"unkeyed","bits":128,"parts":1,
        "part":0,"guests":[{"guest":"a","pages_4k":{"pages":3,"zero":1,"minimum":1,"intra":1,"inter":0},
        "pages_2m":{"pages":0,"zero":0,"minimum":0,"intra":0,"inter":0},"contents":1,"contents_with_others":0}],
        "most_repeated":[{"fingerprint":"0011","pages":2,"guests":1}],"contents_in_common":[[1]]}"#;

    /// An ELF core of one segment, whose header a number can change.
    fn core(pages: usize) -> Vec<u8> {
        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        out.extend([4u16, 62].iter().flat_map(|h| h.to_le_bytes()));
        out.extend(1u32.to_le_bytes());
        out.extend([0u64, 64, 0].iter().flat_map(|w| w.to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend([64u16, 56, 1, 0, 0, 0].iter().flat_map(|h| h.to_le_bytes()));
        out.extend([1u32, 0].iter().flat_map(|w| w.to_le_bytes()));
        let size = 4096 * pages as u64;
        out.extend([120, 0, 0x3000, size, size, 0u64].iter().flat_map(|w| w.to_le_bytes()));
        out.resize(120 + size as usize, 9);
        out
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_guests_memory_or_refused(
            data in bytes(), magic in prop::sample::select(vec![&b"\x7fELF"[..], b"KDUMP   ", b"\x1f\x8b", b"PAR1", b""]),
            changes in prop::collection::vec((0usize..120, number()), 0..4), cut in any::<prop::sample::Index>(),
        ) {
            let mut with_magic = magic.to_vec();
            with_magic.extend(&data);
            image(&with_magic);
            image(&vec![3; data.len() / 64 * 4096]);
            let mut core = core(2);
            image(&core);
            for (at, value) in changes {
                for (byte, new) in core[at..120].iter_mut().zip(value.as_u64().unwrap_or(7).to_le_bytes()) {
                    *byte = new;
                }
            }
            image(&core);
            image(&core[..cut.index(core.len())]);
        }

        #[test]
        fn any_text_is_a_list_of_hashes_or_refused(
            text in "\\PC{0,200}", lines in "((0x)?[0-9a-f]{1,9}([,;\t][0-9]{1,11})?\r?\n){0,20}",
        ) {
            hash_list(text.as_bytes());
            hash_list(lines.as_bytes());
        }

        #[test]
        fn any_text_is_a_part_of_a_count_or_refused(
            text in "\\PC{0,200}", changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 0..4),
        ) {
            share_part(text.as_bytes());
            let mut part: Value = serde_json::from_str(PART).unwrap();
            share_part(PART.as_bytes());
            assert!(bifold_share::fingerprint::Part::parse(PART).is_ok());
            for (at, new) in changes {
                let mut all = leaves(&mut part);
                let i = at.index(all.len());
                *all[i] = new;
            }
            share_part(part.to_string().as_bytes());
        }
    }
}
