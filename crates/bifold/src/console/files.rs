// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that a user names: no output may be an input, and no two outputs may be one file. A
//! result whose file cannot be written is printed.
//!
//! Files are told apart by device and inode, so that a link is the file it leads to. A file that is
//! not there yet is told apart by its directory and its name.

use crate::compare::plan::usage;
use crate::run::{note_file, print};
use bifold_report::OutputFile;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A file and what it is, in words for errors: `--report`, `the recording`.
pub type Named<'a> = (&'a str, &'a Path);

/// What makes two paths one file.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode.
    There(u64, u64),
    /// The directory's device and inode, and the name in it.
    ToBe(u64, u64, OsString),
}

/// The file that a path names. None for a device, a pipe or a directory, which no output replaces,
/// and for a path in a directory that is not there.
fn identity(path: &Path) -> Option<Identity> {
    if let Ok(m) = path.metadata() {
        return m.is_file().then(|| Identity::There(m.dev(), m.ino()));
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let m = dir.metadata().ok()?;
    Some(Identity::ToBe(m.dev(), m.ino(), path.file_name()?.into()))
}

/// What is wrong with these outputs, if anything.
fn conflict(inputs: &[Named], outputs: &[Named]) -> Option<String> {
    let files: Vec<(&str, &Path, Identity)> =
        outputs.iter().filter_map(|(what, path)| Some((*what, *path, identity(path)?))).collect();
    for (i, (what, path, file)) in files.iter().enumerate() {
        if let Some((other, ..)) = files[..i].iter().find(|(.., before)| before == file) {
            return Some(format!("{other} and {what} name the same file"));
        }
        if let Some((input, _)) = inputs.iter().find(|(_, input)| identity(input).as_ref() == Some(file)) {
            let path = path.display();
            return Some(format!("{what} {path} would overwrite {input}, which is read: name another file"));
        }
    }
    None
}

/// Ends with a usage error of this verb if an output is an input or another output.
pub fn distinct(verb: &str, inputs: &[Named], outputs: &[Named]) {
    if let Some(message) = conflict(inputs, outputs) {
        usage(verb, ErrorKind::ArgumentConflict, &message);
    }
}

/// Those of the options that name a file.
pub fn named<'a, const N: usize>(options: [(&'a str, Option<&'a Path>); N]) -> Vec<Named<'a>> {
    options.into_iter().filter_map(|(what, path)| Some((what, path?))).collect()
}

/// Writes what a run came to: the data first, then its files. Each is tried, whatever became of the
/// others, and the first failure is the one told.
pub struct Writing {
    notes: bool,
    failure: Option<anyhow::Error>,
}

impl Writing {
    /// Nothing is written yet; with `notes`, each file is told on stderr.
    pub fn new(notes: bool) -> Writing {
        Writing { notes, failure: None }
    }

    /// The data: to its file, or to stdout where there is none or it cannot be written.
    pub fn data(&mut self, text: &str, file: Option<OutputFile>, path: Option<&Path>) {
        let failed = self.failure.is_some();
        let to_stdout = file.is_none();
        self.file("data", file, path, || Ok(text.as_bytes().to_vec()));
        if to_stdout || (!failed && self.failure.is_some()) {
            let printed = print(text);
            self.failed(printed);
        }
    }

    /// A file beside the data, if it is asked for.
    pub fn file(
        &mut self,
        what: &str,
        file: Option<OutputFile>,
        path: Option<&Path>,
        content: impl FnOnce() -> anyhow::Result<Vec<u8>>,
    ) {
        let (Some(file), Some(path)) = (file, path) else { return };
        match content().and_then(|c| Ok(file.finish(&c)?)) {
            Ok(()) => note_file(self.notes, what, path),
            failed => self.failed(failed),
        }
    }

    /// The first failure, if there was one.
    pub fn done(self) -> anyhow::Result<()> {
        self.failure.map_or(Ok(()), Err)
    }

    fn failed(&mut self, result: anyhow::Result<()>) {
        if let Err(e) = result {
            self.failure.get_or_insert(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_both_kinds_and_other_spellings_are_the_file_itself() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("run.bifold"), "x").unwrap();
        std::fs::write(at("other"), "x").unwrap();
        std::fs::hard_link(at("run.bifold"), at("hard")).unwrap();
        std::os::unix::fs::symlink("run.bifold", at("soft")).unwrap();
        let recording = at("run.bifold");
        for name in ["run.bifold", "hard", "soft", "./run.bifold", "../missing/../run.bifold"] {
            let path = at(name);
            let found = conflict(&[("the recording", &recording)], &[("--report", &path)]);
            let expected = name != "../missing/../run.bifold";
            assert_eq!(found.is_some(), expected, "{name}: {found:?}");
        }
        assert_eq!(conflict(&[("the recording", &recording)], &[("--report", &at("other"))]), None);
    }

    #[test]
    fn outputs_that_are_not_there_yet_are_told_apart_by_directory_and_name() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("here")).unwrap();
        let (a, b) = (dir.path().join("new"), dir.path().join("here/new"));
        let found = conflict(&[], &[("--output", &a), ("--report", &b)]);
        assert_eq!(found.unwrap(), "--output and --report name the same file");
        assert_eq!(conflict(&[], &[("--output", &a), ("--report", &dir.path().join("newer"))]), None);
        assert_eq!(conflict(&[], &[("--output", Path::new("x")), ("--report", Path::new("y"))]), None);
        assert!(conflict(&[], &[("--output", Path::new("x")), ("--report", Path::new("./x"))]).is_some());
    }

    #[test]
    fn devices_take_several_outputs() {
        let null = Path::new("/dev/null");
        assert_eq!(conflict(&[], &[("--output", null), ("--report", null)]), None);
    }
}
