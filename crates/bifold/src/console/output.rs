// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output files, created before a run and delivered after it.
//!
//! Before the run, a file is made under a temporary name in its directory and removed, so that an unwritable
//! path costs no time. After the run, the file is written under such a name, and gets its own when it is
//! complete: a run that is killed leaves nothing.

use super::{note_file, print};
use bifold_base::whole;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Why an output file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be created.
    #[error("cannot create {}", path.display())]
    Create {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// `-` means stdout, which already has the data.
    #[error("`-` means stdout, which already has the data: name a file (write `./-` for a file named `-`)")]
    Stdout,
    /// The content could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A file that is written as a whole.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    to: Target,
}

#[derive(Debug)]
enum Target {
    /// Renamed to the path when complete.
    Renamed(PathBuf),
    /// A device or pipe: there is nothing to rename, and it must not be replaced.
    Direct(File),
}

/// Creates the output file that an option names, if it names one.
pub fn create(path: Option<&Path>) -> anyhow::Result<Option<OutputFile>> {
    Ok(path.map(OutputFile::create).transpose()?)
}

/// Creates the file for the data, which go to stdout without one, or if it is called `-`.
pub fn create_for_data(path: Option<&Path>) -> anyhow::Result<Option<OutputFile>> {
    create(not_stdout(path))
}

/// The file that an option names, unless it names stdout.
pub fn not_stdout(path: Option<&Path>) -> Option<&Path> {
    path.filter(|p| *p != Path::new("-"))
}

impl OutputFile {
    /// Checks that a file can be made beside `path`, or opens `path` itself if it is a device or a pipe.
    fn create(path: &Path) -> Result<OutputFile, FileError> {
        if not_stdout(Some(path)).is_none() {
            return Err(FileError::Stdout);
        }
        let fail = |source| FileError::Create { path: path.into(), source };
        let to = match path.metadata() {
            Ok(m) if m.is_dir() => return Err(fail(io::ErrorKind::IsADirectory.into())),
            Ok(m) if !m.is_file() => Target::Direct(OpenOptions::new().write(true).open(path).map_err(fail)?),
            // Through a link: the file it names is what gets replaced, not the link.
            Ok(_) => Target::Renamed(path.canonicalize().map_err(fail)?),
            Err(_) => Target::Renamed(path.into()),
        };
        if let Target::Renamed(target) = &to {
            Self::beside(target).map_err(fail)?;
        }
        Ok(OutputFile { path: path.into(), to })
    }

    fn beside(target: &Path) -> io::Result<NamedTempFile> {
        let temp = whole::beside(target).map_err(without_name)?;
        // The file that is replaced keeps its mode.
        if let Ok(old) = target.metadata() {
            temp.as_file().set_permissions(old.permissions())?;
        }
        Ok(temp)
    }

    /// Writes the whole content and gives the file its name.
    fn finish(self, content: &[u8]) -> Result<(), FileError> {
        let path = self.path;
        let done = match self.to {
            Target::Direct(mut f) => f.write_all(content),
            Target::Renamed(target) => Self::beside(&target).and_then(|mut temp| {
                temp.write_all(content)?;
                temp.persist(target).map(drop).map_err(|e| e.error)
            }),
        };
        done.map_err(|source| FileError::Write { path, source })
    }
}

/// The system's error without the temporary name, which says nothing to the user.
fn without_name(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::Other => e,
        io::ErrorKind::NotFound => io::Error::new(e.kind(), "there is no such directory"),
        kind => kind.into(),
    }
}

/// Delivers the results of a run: the data first, then its files. Each is tried even if another fails,
/// and the first failure is the verb's error.
pub struct Delivery {
    notes: bool,
    failure: Option<anyhow::Error>,
}

impl Delivery {
    /// Nothing is delivered yet. With `notes`, stderr names each file.
    pub fn new(notes: bool) -> Delivery {
        Delivery { notes, failure: None }
    }

    /// Writes the data to its file. Prints the data to stdout if it has no file, or if its file is the
    /// first failure.
    pub fn data(&mut self, text: &str, file: Option<OutputFile>) {
        let failed = self.failure.is_some();
        let to_stdout = file.is_none();
        self.file("data", file, || Ok(text.as_bytes().to_vec()));
        if to_stdout || (!failed && self.failure.is_some()) {
            let printed = print(text);
            self.failed(printed);
        }
    }

    /// Writes a file beside the data, if one was created.
    pub fn file(
        &mut self,
        what: &str,
        file: Option<OutputFile>,
        content: impl FnOnce() -> anyhow::Result<Vec<u8>>,
    ) {
        let Some(file) = file else { return };
        let path = file.path.clone();
        match content().and_then(|c| Ok(file.finish(&c)?)) {
            Ok(()) => note_file(self.notes, what, &path),
            failed => self.failed(failed),
        }
    }

    /// Returns the first failure as an error.
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
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    fn names(dir: &Path) -> Vec<String> {
        let mut v: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        v.sort();
        v
    }

    #[test]
    fn a_file_appears_when_complete_and_an_unfinished_one_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        // While the run goes on, there is nothing that a kill could leave behind.
        let pending = OutputFile::create(&path).unwrap();
        assert!(names(dir.path()).is_empty());
        drop(pending);
        OutputFile::create(&path).unwrap().finish(b"one").unwrap();
        OutputFile::create(&path).unwrap().finish(b"two").unwrap();
        assert_eq!(names(dir.path()), ["x.json"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        for mode in [0o600, 0o666, 0o604] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            OutputFile::create(&path).unwrap().finish(b"new").unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
            assert_eq!(std::fs::read(&path).unwrap(), b"new");
        }
    }

    #[test]
    fn a_link_is_followed_and_a_device_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        OutputFile::create(&link).unwrap().finish(b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        OutputFile::create(Path::new("/dev/null")).unwrap().finish(b"x").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }

    #[test]
    fn a_dash_is_stdout_for_the_data_and_no_file() {
        assert!(create_for_data(Some(Path::new("-"))).unwrap().is_none());
        let e = create(Some(Path::new("-"))).unwrap_err();
        assert!(e.to_string().starts_with("`-` means stdout"), "{e}");
    }

    #[test]
    fn a_missing_directory_and_a_full_disk_are_errors_with_the_path() {
        let e = OutputFile::create(Path::new("/no/such/dir/x")).unwrap_err();
        assert_eq!(e.to_string(), "cannot create /no/such/dir/x");
        let e = OutputFile::create(Path::new("/dev/full")).unwrap().finish(b"x").unwrap_err();
        assert_eq!(e.to_string(), "cannot write /dev/full");
    }
}
