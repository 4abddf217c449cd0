// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Imports lists of 32-bit hashes, as in published data sets of memory.
//!
//! With 2^32 values, different contents can have the same hash. Of D contents, about D^2 / 2^33 are taken for
//! another, so sharing is over-counted. Every such count is shown with the expected number.

use super::write::{Destination, Target};
use super::{About, ContentCount, FingerprintError};
use std::io::{BufRead, Read as _};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Longest line in bytes.
const MOST_LINE: u64 = 1 << 12;
/// Bits of an imported hash.
const BITS: u32 = 32;

/// Counts of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Lines with a hash.
    pub lines: u64,
    /// Sum of the lines' counts.
    pub pages: u64,
}

/// Reads a guest's list, one hexadecimal hash per line, with a count after a comma if there are several
/// pages, and writes it as a directory of fingerprints. A first line that is no hash is a head. `zero` is
/// the hash of the all-zero page, if that is known; pages with it count as zeros.
///
/// # Errors
/// If a line is neither, or files cannot be read or written.
pub fn import(
    name: &str,
    path: &Path,
    mut list: impl BufRead,
    zero: Option<u32>,
    to: Destination,
) -> Result<Imported, FingerprintError> {
    let mut target = Target::create(to, "imported".into(), BITS, vec![name.to_string()])?;
    let mut done = Imported { lines: 0, pages: 0 };
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        // A device without an end may have a line without an end.
        let read = list.by_ref().take(MOST_LINE).read_until(b'\n', &mut bytes);
        if read.map_err(FingerprintError::io("read", path))? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim();
        if line.is_empty() {
            continue;
        }
        let Some((hash, count)) = parse(line) else {
            if number == 1 {
                continue;
            }
            let what = format!(
                "line {number} is no hash of 32 bits, nor hash,count: {}",
                line.chars().take(40).flat_map(char::escape_debug).collect::<String>()
            );
            return Err(FingerprintError::Content { path: path.into(), what });
        };
        // A hash of zero belongs to the zero page only if the user says so; the second half marks the others.
        let fingerprint = if zero == Some(hash) { [0; 2] } else { [u64::from(hash) << 32, 1] };
        target.sorter.push(ContentCount::new(fingerprint, false, 0, count))?;
        done.lines += 1;
        done.pages += u64::from(count);
    }
    target.write(&AtomicBool::new(false))?;
    Ok(done)
}

fn parse(line: &str) -> Option<(u32, u32)> {
    let mut fields = line.split([',', ';', '\t']).map(|f| f.trim().trim_matches('"'));
    let hash = fields.next()?;
    let hex = hash.strip_prefix("0x").unwrap_or(hash);
    // `+1` is a number to the standard library.
    let digits = hex.len() <= 8 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    let hash = u32::from_str_radix(hex, 16).ok().filter(|_| digits)?;
    let count = fields.next().map_or(Some(1), |c| c.parse().ok())?;
    (count > 0 && fields.next().is_none()).then_some((hash, count))
}

/// A warning about the collisions that short hashes cause in a count of this many distinct hashes.
pub fn over_count(about: &About, distinct: u64) -> Option<String> {
    if about.bits > BITS {
        return None;
    }
    let values = (about.bits as f64).exp2();
    // D contents leave values * (1 - (1 - 1/values)^D) distinct hashes.
    let contents = (-(distinct as f64) / values).ln_1p() / (-1.0 / values).ln_1p();
    let lost = contents - distinct as f64;
    Some(if lost.is_finite() {
        format!(
            "Hashes of {} bits over-count sharing: about {lost:.0} of {contents:.0} distinct contents are taken for another",
            about.bits
        ) + "."
    } else {
        format!("Hashes of {} bits over-count sharing: all of them occur.", about.bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_hashes_with_or_without_a_count() {
        for (line, parsed) in [
            ("deadbeef", Some((0xdead_beef, 1))),
            ("0x1F", Some((0x1f, 1))),
            ("\"00000001\", 7", Some((1, 7))),
            ("1;2", Some((1, 2))),
            ("123456789", None),
            ("hash,count", None),
            ("+1", None),
            ("1,0", None),
            ("1,2,3", None),
            ("1,-2", None),
        ] {
            assert_eq!(parse(line), parsed, "{line}");
        }
    }

    #[test]
    fn short_hashes_lose_as_many_contents_as_the_birthday_rule_says() {
        let about = |bits| About { version: 1, key_id: "x".into(), bits, parts: 1, guests: vec![] };
        assert_eq!(over_count(&about(128), 1 << 40), None);
        // 2^24 contents leave 2^24 - 2^48/2^33 hashes, nearly.
        let said = over_count(&about(32), (1 << 24) - (1 << 15)).unwrap();
        let lost: f64 = said.split(' ').nth(7).unwrap().parse().unwrap();
        assert!((lost / 32768.0 - 1.0).abs() < 0.01, "{said}");
        assert!(over_count(&about(32), 1 << 32).unwrap().contains("all of them"));
    }
}
