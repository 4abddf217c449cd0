// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that a user names: no output may be an input, and no two outputs may be one file.
//!
//! A file's identity is its device and inode, so that a link is the file that it leads to. A file that does
//! not exist yet has the identity of its directory and name.

use crate::usage::UsageError;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A file and what it is, in words for errors: `--report`, `the recording`.
pub type Named<'a> = (&'a str, &'a Path);

/// The identity by which two paths are one file.
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

/// Refuses an output that is also an input or another output.
pub fn distinct(inputs: &[Named], outputs: &[Named]) -> Result<(), UsageError> {
    let files: Vec<(&str, &Path, Identity)> =
        outputs.iter().filter_map(|(what, path)| Some((*what, *path, identity(path)?))).collect();
    for (i, (what, path, file)) in files.iter().enumerate() {
        if let Some((other, ..)) = files[..i].iter().find(|(.., before)| before == file) {
            return Err(UsageError::conflict(*what, format!("names the same file as {other}")));
        }
        if let Some((input, _)) = inputs.iter().find(|(_, input)| identity(input).as_ref() == Some(file)) {
            let problem = format!("would overwrite {input}, which is read: name another file");
            return Err(UsageError::conflict(format!("{what} {}", path.display()), problem));
        }
    }
    Ok(())
}

/// The options that name a file.
pub fn named<'a, const N: usize>(options: [(&'a str, Option<&'a Path>); N]) -> Vec<Named<'a>> {
    options.into_iter().filter_map(|(what, path)| Some((what, path?))).collect()
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
            let found = distinct(&[("the recording", &recording)], &[("--report", &path)]);
            let expected = name != "../missing/../run.bifold";
            assert_eq!(found.is_err(), expected, "{name}: {found:?}");
        }
        assert_eq!(distinct(&[("the recording", &recording)], &[("--report", &at("other"))]), Ok(()));
    }

    #[test]
    fn outputs_that_are_not_there_yet_are_told_apart_by_directory_and_name() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("here")).unwrap();
        let (a, b) = (dir.path().join("new"), dir.path().join("here/new"));
        let found = distinct(&[], &[("--output", &a), ("--report", &b)]);
        assert_eq!(found.unwrap_err().to_string(), "--report names the same file as --output");
        assert_eq!(distinct(&[], &[("--output", &a), ("--report", &dir.path().join("newer"))]), Ok(()));
        assert_eq!(distinct(&[], &[("--output", Path::new("x")), ("--report", Path::new("y"))]), Ok(()));
        assert!(distinct(&[], &[("--output", Path::new("x")), ("--report", Path::new("./x"))]).is_err());
    }

    #[test]
    fn devices_take_several_outputs() {
        let null = Path::new("/dev/null");
        assert_eq!(distinct(&[], &[("--output", null), ("--report", null)]), Ok(()));
    }
}
