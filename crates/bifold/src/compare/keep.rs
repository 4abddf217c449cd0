// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that the command wrote in its guest: kept in a directory on the host, or counted.

use crate::usage::UsageError;
use anyhow::{Context as _, bail};
use bifold_guest::Written;
use bifold_report::grouped;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::Path;

/// Bytes that end a tar archive.
const END: usize = 1024;

/// Creates the directory, or checks that it is empty.
///
/// # Errors
/// If the directory is not empty or cannot be created.
pub fn prepare(dir: &Path) -> anyhow::Result<()> {
    let shown = || format!("--keep {}", dir.display());
    fs::create_dir_all(dir).with_context(shown)?;
    if fs::read_dir(dir).with_context(shown)?.next().is_some() {
        let problem = "the directory is not empty, and its files could be overwritten: name another";
        return Err(UsageError::value(shown(), problem).failing().into());
    }
    Ok(())
}

/// Unpacks the guest's archive. `dir` stands for the guest's root.
///
/// # Errors
/// If the archive has no end, or a file cannot be written. Files that were written before stay.
pub fn unpack(mut archive: File, dir: &Path) -> anyhow::Result<()> {
    let whole = is_whole(&mut archive).context("cannot read the written files")?;
    archive.rewind().context("cannot read the written files")?;
    let unpacked = unpack_all(&archive, dir);
    if !whole {
        bail!("the guest ended before all written files were sent; {} has only some", dir.display());
    }
    unpacked
}

/// Whether the archive has its end, two blocks of zeros.
fn is_whole(archive: &mut File) -> io::Result<bool> {
    let length = archive.seek(io::SeekFrom::End(0))?;
    if length < END as u64 || length % 512 != 0 {
        return Ok(false);
    }
    archive.seek(io::SeekFrom::End(-(END as i64)))?;
    let mut end = [0; END];
    archive.read_exact(&mut end)?;
    Ok(end == [0; END])
}

fn unpack_all(archive: &File, dir: &Path) -> anyhow::Result<()> {
    let mut tar = tar::Archive::new(archive);
    let lost = || format!("cannot keep written files in {}", dir.display());
    for entry in tar.entries().with_context(lost)? {
        let mut entry = entry.with_context(lost)?;
        // False for paths that lead out of the directory.
        if !entry.unpack_in(dir).with_context(lost)? {
            bail!("{}: a path leads out of it: {}", lost(), entry.path().unwrap_or_default().display());
        }
    }
    Ok(())
}

/// A line on the written files and where they are; none without such files.
pub fn describe(written: Written, kept: Option<&Path>) -> Option<String> {
    let Written { files, bytes, full } = written;
    let room = if full {
        "; the guest had no room left for more: written files lie in its memory, give it more with --memory"
    } else {
        ""
    };
    if files == 0 {
        return (!room.is_empty()).then(|| room[2..].to_owned());
    }
    let what =
        format!("{} {}, {}", grouped(files), if files == 1 { "file" } else { "files" }, bytes_text(bytes));
    Some(match kept {
        Some(dir) => format!("{what} written in the guest, kept in {}{room}", dir.display()),
        None => format!("{what} written in the guest and discarded with it (--keep DIR keeps them){room}"),
    })
}

fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn archive(build: impl FnOnce(&mut tar::Builder<&mut Vec<u8>>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut builder = tar::Builder::new(&mut bytes);
        build(&mut builder);
        builder.finish().unwrap();
        drop(builder);
        bytes
    }

    fn add(builder: &mut tar::Builder<&mut Vec<u8>>, name: &str, data: &[u8]) {
        let mut header = tar::Header::new_gnu();
        // `set_path` would refuse what a damaged guest can send.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }

    fn file(bytes: &[u8]) -> File {
        let mut f = tempfile::tempfile().unwrap();
        f.write_all(bytes).unwrap();
        f
    }

    #[test]
    fn files_are_kept_below_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        unpack(file(&archive(|b| add(b, "tmp/a", b"text"))), dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("tmp/a")).unwrap(), b"text");
    }

    #[test]
    fn a_path_out_of_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let e = unpack(file(&archive(|b| add(b, "../out", b"x"))), &inside).unwrap_err();
        assert!(format!("{e:#}").contains("leads out"), "{e:#}");
        assert!(!dir.path().join("out").exists());
    }

    #[test]
    fn an_archive_without_its_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let whole = archive(|b| add(b, "a", &[1; 2000]));
        for cut in [0, 512, 1500, 2560, whole.len() - 512, whole.len() - 1] {
            let e = unpack(file(&whole[..cut]), dir.path()).unwrap_err();
            assert!(format!("{e:#}").contains("before all"), "{cut}: {e:#}");
        }
    }

    #[test]
    fn a_directory_with_something_in_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        fs::write(dir.path().join("x"), "").unwrap();
        assert!(prepare(dir.path()).unwrap_err().to_string().contains("not empty"));
    }

    #[test]
    fn a_line_says_what_became_of_written_files() {
        let written = |files, bytes, full| Written { files, bytes, full };
        assert_eq!(describe(written(0, 0, false), None), None);
        let line = describe(written(3, 5000, false), None).unwrap();
        assert_eq!(line, "3 files, 5 KiB written in the guest and discarded with it (--keep DIR keeps them)");
        let line = describe(written(1, 3 << 20, false), Some(Path::new("out"))).unwrap();
        assert_eq!(line, "1 file, 3.0 MiB written in the guest, kept in out");
        assert!(describe(written(0, 0, true), None).unwrap().starts_with("the guest had no room"));
    }
}
