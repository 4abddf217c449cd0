// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-import`: traces of other tools.

use bifold_import::{Importer, Kind, Options};
use bifold_trace::GuestPages;
use std::io::Write as _;

/// The bytes of a trace, as each kind and as one to be recognised: an error, or whole events whose
/// instructions are those that the importer counts.
pub fn import(data: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(data).expect("it is written");
    for kind in Kind::ALL.into_iter().map(Some).chain([None]) {
        let pages = if data.len() % 2 == 0 { GuestPages::Small } else { GuestPages::Large };
        let options = Options { kind, frames: 4096, pages, instructions: Some(10_000) };
        let Ok(mut importer) = Importer::open(file.path(), &options) else { continue };
        let mut instructions = 0;
        while let Ok(Some(words)) = importer.next_events() {
            let mut at = 0;
            while at < words.len() {
                let (event, n) = bifold_trace::decode(&words[at..], at).expect("whole events");
                if let bifold_trace::Event::Insns(n) = event {
                    instructions += n;
                }
                at += n;
            }
        }
        assert!(instructions <= importer.instructions() && importer.instructions() <= 10_000);
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_trace_or_refused(data in bytes()) {
            import(&data);
            // Records of DynamoRIO's behind a header of its.
            let head = [25u16.to_le_bytes().to_vec(), vec![0; 2], 7u64.to_le_bytes().to_vec()].concat();
            let records: Vec<u8> = data.chunks(12).flat_map(|c| [&[c[0] % 51, 0], &c[1..]].concat()).collect();
            import(&[head, records].concat());
        }

        #[test]
        fn any_lines_are_a_trace_or_refused(text in "(( [LSM] |I  |==1== )[0-9a-f]{0,18},?[0-9]{0,5}\n){0,40}") {
            import(text.as_bytes());
        }
    }
}
