// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of CPU or node numbers in the kernel's list format: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Largest number in a list. Linux on x86 has up to 8,192 CPUs and 1,024 nodes.
const MOST: u32 = 1 << 16;

/// Numbers of CPUs or nodes.
///
/// ```
/// use bifold_host::topology::NumberSet;
///
/// let cpus: NumberSet = "0-3,8".parse()?;
/// assert_eq!(cpus.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
/// assert_eq!(cpus.to_string(), "0-3,8");
/// # Ok::<(), bifold_host::topology::BadList>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumberSet(BTreeSet<u32>);

/// A text that is no list of numbers in the kernel's format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no list of numbers such as 0-3,8", .0.escape_debug())]
pub struct BadList(pub String);

impl NumberSet {
    /// The numbers of a mask in the kernel's format, words of 32 bits with the lowest last:
    /// `00000001,0000000f`.
    pub fn from_mask(text: &str) -> Option<NumberSet> {
        let words: Vec<&str> = text.trim().split(',').collect();
        if words.len() > MOST as usize / 32 {
            return None;
        }
        let mut numbers = BTreeSet::new();
        for (at, word) in (0..).zip(words.iter().rev()) {
            let digits = word.strip_prefix("0x").unwrap_or(word);
            if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            let word = u32::from_str_radix(digits, 16).ok()?;
            numbers.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| at * 32 + bit));
        }
        Some(NumberSet(numbers))
    }

    /// A number that a set can have.
    pub(super) fn number(text: &str) -> Option<u32> {
        text.parse().ok().filter(|n| *n < MOST)
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether the set has this number.
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// How many numbers the set has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a number; false if the set has it.
    pub fn insert(&mut self, number: u32) -> bool {
        self.0.insert(number)
    }

    /// Whether all numbers of this set are in `other`.
    pub fn is_subset(&self, other: &NumberSet) -> bool {
        self.0.is_subset(&other.0)
    }

    /// The numbers that are in both sets.
    pub fn intersection(&self, other: &NumberSet) -> NumberSet {
        NumberSet(&self.0 & &other.0)
    }

    /// The numbers that are in at least one of the sets.
    pub fn union(&self, other: &NumberSet) -> NumberSet {
        NumberSet(&self.0 | &other.0)
    }

    /// The numbers that are in this set alone.
    pub fn difference(&self, other: &NumberSet) -> NumberSet {
        NumberSet(&self.0 - &other.0)
    }
}

impl FromIterator<u32> for NumberSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> NumberSet {
        NumberSet(numbers.into_iter().collect())
    }
}

impl FromStr for NumberSet {
    type Err = BadList;

    fn from_str(text: &str) -> Result<NumberSet, BadList> {
        let bad = || BadList(text.chars().take(60).collect());
        let mut numbers = BTreeSet::new();
        for part in text.trim().split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |t: &str| NumberSet::number(t.trim()).ok_or_else(bad);
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            numbers.extend(first..=last);
        }
        Ok(NumberSet(numbers))
    }
}

impl fmt::Display for NumberSet {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["3-1", "a", "1-", "-1", "1;2", "4294967295", "0-99999999"] {
            assert_eq!(text.parse::<NumberSet>(), Err(BadList(text.into())));
        }
        assert_eq!("\n".parse::<NumberSet>(), Ok(NumberSet::default()));
    }

    #[test]
    fn a_mask_has_its_lowest_word_last() {
        for (mask, list) in [
            ("1", "0"),
            ("0000000f", "0-3"),
            ("3,00000000,80000001", "0,31,64-65"),
            ("0x00000005,0x00000002", "1,32,34"),
        ] {
            assert_eq!(NumberSet::from_mask(mask).unwrap().to_string(), list);
        }
        for bad in ["", ",", "x", "+1", "100000000", "1 2", &"0,".repeat(3000)] {
            assert_eq!(NumberSet::from_mask(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_mask_reads_as_its_words_were_made(words in proptest::collection::vec(any::<u32>(), 1..20)) {
            let text: Vec<String> = words.iter().rev().map(|w| format!("{w:08x}")).collect();
            let set = NumberSet::from_mask(&text.join(",")).unwrap();
            for n in 0..words.len() as u32 * 32 {
                prop_assert_eq!(set.contains(n), words[n as usize / 32] & (1 << (n % 32)) != 0);
            }
        }

        #[test]
        fn a_list_reads_as_it_was_written(numbers: BTreeSet<u16>) {
            let set: NumberSet = numbers.iter().map(|n| u32::from(*n)).collect();
            prop_assert_eq!(set.to_string().parse::<NumberSet>(), Ok(set));
        }
    }
}
