// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts fingerprints: one part at a time, then all parts together.
//!
//! A content is in one part only, so sums of parts are exact, and the most repeated contents are among the
//! most repeated contents of the parts.

use super::file::Reader;
use super::import::over_count;
use super::{About, ContentCount, FingerprintError, LISTED, Sorter, part_file};
use crate::image::HUGE;
use crate::potential::{Content, Counts, Guest, MOST_PAIRED, Potential, What};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

/// Upper limit for the pages of a part, so that sums of parts stay within 64 bits.
const MOST: u64 = 1 << 40;

/// What `bifold share count` writes: the count of one part of the fingerprints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name and version of this schema.
    schema: String,
    /// Version of the fingerprints' format.
    version: u32,
    /// Identifier of the key, which does not give the key away: 16 hexadecimal digits, or a word without a
    /// key.
    key_id: String,
    /// Length of a fingerprint. Unit: bits.
    bits: u32,
    /// Number of parts of the fingerprints.
    parts: u32,
    /// The part, from 0.
    pub part: u32,
    /// Each guest, in the order of the directories.
    pub guests: Vec<GuestPart>,
    /// The contents of 4 KB with most pages, most pages first: zeros, and contents of more than one page.
    most_repeated: Vec<Listed>,
    /// Distinct contents, without zeros, that guests i and j both have; on the diagonal those that i has.
    /// Null for more than 256 guests.
    contents_in_common: Option<Vec<Vec<u64>>>,
}

/// A guest's figures of one part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestPart {
    /// The guest's name.
    guest: String,
    /// The guest by pages of 4 KB.
    pages_4k: Counts,
    /// The guest by aligned and whole pages of 2 MB.
    pages_2m: Counts,
    /// Distinct contents of 4 KB that the guest has, without zeros.
    contents: u64,
    /// Distinct contents of 4 KB, without zeros, that another guest has too.
    contents_with_others: u64,
}

/// A content with many pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Listed {
    /// The content's fingerprint, in hexadecimal digits.
    fingerprint: String,
    /// Pages with this content.
    pages: u64,
    /// Guests with this content.
    guests: u64,
}

/// Why a text is no result of a part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// Not JSON, or another document.
    #[error("no result of `share count`: {0}")]
    Json(serde_json::Error),
    /// Of another version; its schema.
    #[error("schema {0} and not {schema}", schema = Part::SCHEMA)]
    Schema(String),
    /// A part's number or a table of pairs is out of range.
    #[error("its parts or pairs contradict each other")]
    Contradiction,
    /// Pages are counted twice, or not at all.
    #[error("pages are not the sum of zero, minimum, intra and inter")]
    Sum,
    /// A count is more than any fleet has.
    #[error("a number beyond {MOST}")]
    TooMany,
}

impl Part {
    /// Name and version of the document.
    pub const SCHEMA: &str = "bifold.share-count/1";

    fn about(&self) -> About {
        About {
            version: self.version,
            key_id: self.key_id.clone(),
            bits: self.bits,
            parts: self.parts,
            guests: self.guests.iter().map(|g| g.guest.clone()).collect(),
        }
    }

    /// Parses the result of a part.
    ///
    /// # Errors
    /// If the text is not a valid result.
    pub fn parse(text: &str) -> Result<Part, PartError> {
        let part: Part = serde_json::from_str(text).map_err(PartError::Json)?;
        let guests = part.guests.len();
        let square = |m: &Vec<Vec<u64>>| m.len() == guests && m.iter().all(|row| row.len() == guests);
        let whole = |c: &Counts| {
            let sum = [c.zero, c.minimum, c.intra, c.inter].iter().try_fold(0u64, |a, b| a.checked_add(*b));
            sum == Some(c.pages)
        };
        if part.schema != Part::SCHEMA {
            return Err(PartError::Schema(part.schema));
        }
        if part.part >= part.parts || !part.contents_in_common.iter().all(square) {
            return Err(PartError::Contradiction);
        }
        if !part.guests.iter().all(|g| whole(&g.pages_4k) && whole(&g.pages_2m)) {
            return Err(PartError::Sum);
        }
        let pairs = part.contents_in_common.iter().flatten().flatten().copied();
        let guests = part.guests.iter();
        let own =
            guests.flat_map(|g| [g.pages_4k.pages, g.pages_2m.pages, g.contents, g.contents_with_others]);
        let listed = part.most_repeated.iter().flat_map(|l| [l.pages, l.guests]);
        if pairs.chain(own).chain(listed).any(|n| n > MOST) {
            return Err(PartError::TooMany);
        }
        Ok(part)
    }

    /// As text, for [`Part::parse`].
    pub fn render(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers") + "\n"
    }
}

/// The metadata that the directories have in common, from their first part.
///
/// # Errors
/// If one is not a directory of fingerprints.
pub fn directory(dir: &Path) -> Result<About, FingerprintError> {
    Reader::open(&part_file(dir, 0)).map(|r| r.about)
}

/// Counts one part of the fingerprints of all directories, in `memory` bytes and files in `spill`.
///
/// # Errors
/// If files are missing, damaged, of other keys, parts or versions, or if the disk is full.
pub fn count_part(dirs: &[PathBuf], part: u32, memory: u64, spill: &Path) -> Result<Part, FingerprintError> {
    let mut sorter = Sorter::new(memory, spill);
    let mut all: Option<About> = None;
    let mut places: HashMap<String, PathBuf> = HashMap::new();
    for dir in dirs {
        let path = part_file(dir, part);
        if !path.exists() {
            let parts = directory(dir)?.parts;
            let what = format!("there is no part {part} (of 0 to {})", parts - 1);
            return Err(FingerprintError::Content { path: dir.clone(), what });
        }
        let reader = Reader::open(&path)?;
        let bad = |what: &str| Err(FingerprintError::Content { path: path.clone(), what: what.into() });
        if reader.part != part {
            return bad("it is another part than its name says");
        }
        for name in &reader.about.guests {
            if let Some(other) = places.insert(name.clone(), dir.clone()) {
                return Err(FingerprintError::Twice { name: name.clone(), a: other, b: dir.clone() });
            }
        }
        let first = all.as_ref().map_or(0, |a| a.guests.len());
        if first + reader.about.guests.len() >= 1 << 31 {
            return bad("too many guests");
        }
        match &mut all {
            None => all = Some(reader.about.clone()),
            Some(all) => {
                all.fits(&reader.about, &dirs[0], dir)?;
                all.guests.extend(reader.about.guests.iter().cloned());
            }
        }
        reader.rows(first as u32, |row| sorter.push(row))?;
    }
    let about =
        all.ok_or_else(|| FingerprintError::Parts("no directory of fingerprints was named".into()))?;
    count_rows(&about, part, sorter)
}

fn count_rows(about: &About, part: u32, sorter: Sorter) -> Result<Part, FingerprintError> {
    let mut rows = sorter.finish()?;
    let mut tally = Tally::new(about.guests.len());
    let mut group: Vec<(usize, u64)> = Vec::new();
    let mut of: Option<ContentCount> = None;
    while let Some(row) = rows.next()? {
        if let Some(of) = of.filter(|of| of.fingerprint != row.fingerprint || of.huge() != row.huge()) {
            tally.add(&of, &group);
            group.clear();
        }
        of = Some(row);
        match group.last_mut() {
            Some((guest, pages)) if *guest == row.guest() => *pages += u64::from(row.count),
            _ => group.push((row.guest(), row.count.into())),
        }
    }
    if let Some(of) = of {
        tally.add(&of, &group);
    }
    let mut guests = tally.guests;
    guests.iter_mut().zip(&about.guests).for_each(|(guest, name)| guest.guest.clone_from(name));
    let mut listed = tally.listed.into_vec();
    listed.sort();
    Ok(Part {
        schema: Part::SCHEMA.into(),
        version: about.version,
        key_id: about.key_id.clone(),
        bits: about.bits,
        parts: about.parts,
        part,
        guests,
        most_repeated: listed
            .into_iter()
            .map(|Reverse((pages, Reverse([a, b]), guests))| Listed {
                fingerprint: format!("{a:016x}{b:016x}"),
                pages,
                guests,
            })
            .collect(),
        contents_in_common: tally.pairs,
    })
}

/// A content's pages, fingerprint and guests, such that the greater ones are those to be listed.
type Ranked = (u64, Reverse<[u64; 2]>, u64);

/// Sums over contents.
struct Tally {
    guests: Vec<GuestPart>,
    pairs: Option<Vec<Vec<u64>>>,
    /// Those with most pages so far, the fewest first out.
    listed: BinaryHeap<Reverse<Ranked>>,
}

impl Tally {
    fn new(guests: usize) -> Tally {
        Tally {
            guests: vec![GuestPart::default(); guests],
            pairs: (guests <= MOST_PAIRED).then(|| vec![vec![0; guests]; guests]),
            listed: BinaryHeap::new(),
        }
    }

    /// Adds a content with the guests that have it, in order, and how many pages of it.
    fn add(&mut self, of: &ContentCount, group: &[(usize, u64)]) {
        let zero = of.fingerprint == [0; 2];
        for (i, &(guest, pages)) in group.iter().enumerate() {
            let g = &mut self.guests[guest];
            let counts = if of.huge() { &mut g.pages_2m } else { &mut g.pages_4k };
            counts.pages += pages;
            if zero {
                counts.zero += pages;
                continue;
            }
            counts.intra += pages - 1;
            if i == 0 {
                counts.minimum += 1;
            } else {
                counts.inter += 1;
            }
            if of.huge() {
                continue;
            }
            g.contents += 1;
            g.contents_with_others += u64::from(group.len() > 1);
            if let Some(pairs) = &mut self.pairs {
                group.iter().for_each(|&(other, _)| pairs[guest][other] += 1);
            }
        }
        let pages: u64 = group.iter().map(|(_, pages)| pages).sum();
        if !of.huge() && (pages > 1 || zero) {
            self.listed.push(Reverse((pages, Reverse(of.fingerprint), group.len() as u64)));
            if self.listed.len() > LISTED {
                self.listed.pop();
            }
        }
    }
}

/// Adds the results of all parts, each with its file, and lists the `top` most repeated contents.
///
/// # Errors
/// If a part is missing or appears twice, or parts are of different fingerprints.
pub fn merge(mut results: Vec<(PathBuf, Part)>, top: usize) -> Result<Potential, FingerprintError> {
    results.sort_by_key(|(_, part)| part.part);
    let about = agree(&results)?;
    if top > LISTED {
        return Err(FingerprintError::Parts(format!(
            "results list the {LISTED} most repeated contents, not {top}"
        )));
    }
    let mut guests: Vec<Guest> = about
        .guests
        .iter()
        .map(|name| Guest {
            name: name.clone(),
            small: Counts::default(),
            huge: Counts::default(),
            contents: 0,
            with_others: 0,
        })
        .collect();
    let n = guests.len();
    let mut pairs = (n <= MOST_PAIRED).then(|| vec![vec![0; n]; n]);
    let mut listed = Vec::new();
    for (_, part) in results {
        for (guest, more) in guests.iter_mut().zip(&part.guests) {
            guest.small.add(&more.pages_4k);
            guest.huge.add(&more.pages_2m);
            guest.contents += more.contents;
            guest.with_others += more.contents_with_others;
        }
        if let (Some(pairs), Some(more)) = (&mut pairs, &part.contents_in_common) {
            for (row, more) in pairs.iter_mut().zip(more) {
                row.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
            }
        }
        listed.extend(part.most_repeated);
    }
    listed.sort_by(|a, b| (b.pages, &a.fingerprint).cmp(&(a.pages, &b.fingerprint)));
    listed.truncate(top);
    let (mut small, mut huge) = (Counts::default(), Counts::default());
    guests.iter().for_each(|g| {
        small.add(&g.small);
        huge.add(&g.huge);
    });
    // 2 MB pages are in other parts than their 4 KB pages, so only the sum can tell.
    if HUGE * huge.pages > small.pages || HUGE * huge.saved() > small.saved() {
        return Err(FingerprintError::Parts(
            "the results contradict each other: more 2 MB pages than 4 KB pages make".into(),
        ));
    }
    let what = |l: &Listed| match l.fingerprint.bytes().all(|b| b == b'0') {
        true => What::Zero,
        false => What::Fingerprint(l.fingerprint.clone()),
    };
    Ok(Potential {
        method: format!("fingerprints of {} bits, key {}", about.bits, about.key_id),
        warning: over_count(&about, small.minimum),
        guests,
        small,
        huge,
        top: listed
            .iter()
            .map(|l| Content { what: what(l), pages: l.pages, guests: l.guests, first: None })
            .collect(),
        known: Vec::new(),
        pairs,
        changed: 0,
    })
}

/// What the parts are of, in order: parts of one set of fingerprints, each of them once.
fn agree(results: &[(PathBuf, Part)]) -> Result<About, FingerprintError> {
    let Some((first_path, first)) = results.first() else {
        return Err(FingerprintError::Parts("there is no result to add".into()));
    };
    let about = first.about();
    for pair in results.windows(2) {
        let [(a, one), (b, two)] = pair else { unreachable!("windows of two") };
        about.fits(&two.about(), first_path, b)?;
        let mixed = |what: String| FingerprintError::Mixed { a: a.clone(), b: b.clone(), what };
        if one.part == two.part {
            return Err(mixed(format!("both are part {}", one.part)));
        }
        if two.about().guests != about.guests {
            return Err(mixed("they are of other directories, or of the same in another order".into()));
        }
    }
    let missing = (0..about.parts).find(|p| results.binary_search_by_key(p, |(_, part)| part.part).is_err());
    if let Some(missing) = missing {
        return Err(FingerprintError::Parts(format!(
            "part {missing} of {} is missing: count it with `bifold share count --part {missing}`",
            about.parts
        )));
    }
    Ok(about)
}
