// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a whole file that a user named, up to a limit. A device without an end or a pipe without a writer
//! is an error and no endless wait.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Limit for files that people write: profiles, policies, experiments. Bytes.
pub const TEXT: u64 = 1 << 20;

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// If the file cannot be read, is no regular file, or is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Before the file is opened, as opening a pipe waits for its writer.
    regular(path.metadata()?.file_type())?;
    let file = File::open(path)?;
    regular(file.metadata()?.file_type())?;
    let mut bytes = Vec::new();
    // One byte more than the limit: files under /proc claim to be empty, and a file can grow.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let problem = format!("the file is larger than {}", size(most));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`read`], or if the file is not UTF-8.
pub fn read_to_string(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8 text"))
}

fn regular(kind: std::fs::FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let (kind, what) = match kind.is_dir() {
        true => (io::ErrorKind::IsADirectory, "a directory"),
        false => (io::ErrorKind::InvalidInput, "a device, a pipe or a socket"),
    };
    Err(io::Error::new(kind, format!("the path names {what}, and a regular file is needed")))
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b => format!("{b} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_not_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_to_string(&path, 5).unwrap(), "12345");
        let e = read(&path, 4).unwrap_err();
        assert_eq!(e.to_string(), "the file is larger than 4 bytes");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_to_string(&path, TEXT).unwrap_err().to_string(), "the file is not UTF-8 text");
    }

    #[test]
    fn what_is_no_file_is_refused_and_files_that_hide_their_length_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [Path::new("/dev/zero"), &pipe] {
            let e = read(path, TEXT).unwrap_err().to_string();
            assert_eq!(e, "the path names a device, a pipe or a socket, and a regular file is needed");
        }
        assert!(read(dir.path(), TEXT).unwrap_err().to_string().starts_with("the path names a directory"));
        assert_eq!(read(&dir.path().join("none"), TEXT).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!read(Path::new("/proc/self/status"), TEXT).unwrap().is_empty());
        assert_eq!(size(TEXT), "1 MiB");
    }
}
