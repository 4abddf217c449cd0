// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are written as a whole: a reader sees all of the new content, or what was there before.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::NamedTempFile;

/// How the name of a file or folder begins that is not complete yet. A killed program leaves it, and a
/// sweep's workers remove it from results later.
pub const UNFINISHED: &str = ".bifold-";

/// A file beside `path`, which [`NamedTempFile::persist`] renames to `path`. Its mode is that of any new
/// file.
///
/// # Errors
/// If the file cannot be made.
pub fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(UNFINISHED)
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o666)) // less the umask
        .tempfile_in(folder)
}

/// Writes `parts`, one after the other, in place of the file's content. The content is on the disk before the
/// file has its name, so a machine that crashes leaves no empty file.
///
/// # Errors
/// If the file cannot be written. The old content is there then.
pub fn write(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = beside(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.as_file().sync_data()?;
    file.persist(path).map(drop).map_err(|e| e.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_readable_as_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let (path, plain) = (dir.path().join("x"), dir.path().join("y"));
        for parts in [&[b"one".as_slice(), b" two"][..], &[b"three"]] {
            write(&path, parts).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), parts.concat());
        }
        std::fs::write(&plain, "").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
        assert!(write(&dir.path().join("none/x"), &[b"a"]).is_err());
        assert!(write(dir.path(), &[b"a"]).is_err(), "a folder is not replaced");
    }
}
