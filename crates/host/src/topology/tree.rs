// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounded reads of small files of sysfs, and notes on those that cannot be understood.
//!
//! A file that is missing has no note: kernels differ in what they tell, and CPUs, nodes and devices can
//! vanish at any moment. Only regular files are opened, as a pipe in a copied tree would block.

use super::NumberSet;
use crate::{one_line, read};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Most entries of a directory that are looked at.
const MOST_ENTRIES: usize = 1 << 16;

/// Most notes; a damaged tree would have one for each of its files.
const MOST_NOTES: usize = 20;

/// A directory with small files.
pub struct Tree {
    base: PathBuf,
    notes: RefCell<Vec<String>>,
}

impl Tree {
    pub fn new(base: &Path) -> Tree {
        Tree { base: base.into(), notes: RefCell::default() }
    }

    /// The place of a file.
    pub fn path(&self, file: &str) -> PathBuf {
        self.base.join(file)
    }

    /// Adds a note.
    pub fn note(&self, text: String) {
        self.notes.borrow_mut().push(text);
    }

    /// The notes; from a certain number on, only how many more there are.
    pub fn into_notes(self) -> Vec<String> {
        let mut notes = self.notes.into_inner();
        let more = notes.len().saturating_sub(MOST_NOTES);
        if more > 1 {
            notes.truncate(MOST_NOTES);
            notes.push(format!("{more} more files or facts are damaged"));
        }
        notes
    }

    /// The text of a file without white space around; `None` if there is no such regular file.
    pub fn text(&self, file: &str) -> Option<String> {
        let path = self.path(file);
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        // A file that belongs to a CPU or device that vanishes meanwhile fails with ENODEV or the like.
        let bytes = read(&path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').into())
    }

    /// What a file says, as `read` understands the text. A text that `read` does not understand is noted.
    pub fn parsed<T>(&self, file: &str, what: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(file)?;
        let value = read(&text);
        if value.is_none() {
            let path = self.path(file);
            self.note(format!("{}: {} is no {what}; left out", path.display(), one_line(text.as_bytes())));
        }
        value
    }

    /// A number.
    pub fn number<T: FromStr>(&self, file: &str) -> Option<T> {
        self.parsed(file, "number", |t| t.parse().ok())
    }

    /// A number of a thing that exists; -1 stands for none.
    pub fn id(&self, file: &str) -> Option<u32> {
        let number: i64 = self.number(file)?;
        u32::try_from(number).ok()
    }

    /// A list such as `0-3,8`.
    pub fn list(&self, file: &str) -> Option<NumberSet> {
        // Some kernels print a set that was never allocated as a null pointer.
        self.parsed(file, "list of numbers", |t| {
            if t == "(null)" { Some(NumberSet::default()) } else { t.parse().ok() }
        })
    }

    /// A set from a file with a mask, else from one with a list. Kernels have both; a copied tree may have
    /// one.
    pub fn set(&self, mask: &str, list: &str) -> Option<NumberSet> {
        self.parsed(mask, "mask", NumberSet::from_mask).or_else(|| self.list(list))
    }

    /// Names in a directory, in order; none if there is no such directory.
    pub fn names(&self, dir: &str) -> BTreeSet<String> {
        let Ok(entries) = fs::read_dir(self.path(dir)) else { return BTreeSet::new() };
        entries.flatten().take(MOST_ENTRIES).filter_map(|e| e.file_name().into_string().ok()).collect()
    }

    /// Numbers of the entries `PREFIXn` of a directory.
    pub fn numbered(&self, dir: &str, prefix: &str) -> NumberSet {
        let names = self.names(dir);
        names.iter().filter_map(|n| numbered(n, prefix)).collect()
    }
}

/// The number n of a name `PREFIXn`, as the kernel writes it.
fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let number = NumberSet::number(digits)?;
    (number.to_string() == digits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_kernel_writes_have_a_number() {
        let names = [
            ("cpu7", Some(7)),
            ("cpu07", None),
            ("cpu+7", None),
            ("cpu", None),
            ("cpufreq", None),
            ("cpu65536", None),
        ];
        for (name, number) in names {
            assert_eq!(numbered(name, "cpu"), number, "{name}");
        }
    }

    #[test]
    fn a_damaged_file_is_noted_and_a_missing_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(dir.path());
        fs::write(dir.path().join("bad"), "x\u{1b}[31m\n").unwrap();
        fs::write(dir.path().join("none"), "-1\n").unwrap();
        fs::write(dir.path().join("null"), "(null)\n").unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        assert_eq!(
            (tree.number::<u32>("bad"), tree.number::<u32>("missing"), tree.text("dir")),
            (None, None, None)
        );
        assert_eq!((tree.id("none"), tree.list("null")), (None, Some(NumberSet::default())));
        let notes = tree.into_notes();
        assert_eq!(notes.len(), 1);
        assert!(notes[0].ends_with(r"/bad: `x\u{1b}[31m` is no number; left out"), "{notes:?}");
    }

    #[test]
    fn notes_end_with_a_count_of_the_others() {
        let tree = Tree::new(Path::new("/"));
        (0..MOST_NOTES + 5).for_each(|n| tree.note(n.to_string()));
        let notes = tree.into_notes();
        assert_eq!(
            (notes.len(), &notes[MOST_NOTES][..]),
            (MOST_NOTES + 1, "5 more files or facts are damaged")
        );
    }
}
