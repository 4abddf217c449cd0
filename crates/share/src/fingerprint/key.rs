// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and makes the key of fingerprints: 32 random bytes in a file that only its owner can read.

use super::FingerprintError;
use bifold_base::whole::UNFINISHED;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// How pages are hashed.
#[derive(Clone)]
pub struct Key(Option<[u8; 32]>);

impl Key {
    /// No key. Anyone who has a fingerprint can test whether it belongs to a known page.
    pub fn none() -> Key {
        Key(None)
    }

    /// These bytes.
    pub fn of(bytes: [u8; 32]) -> Key {
        Key(Some(bytes))
    }

    /// Reads a key from a file, or makes a key there if the file does not exist. True if it made one.
    ///
    /// # Errors
    /// If the file holds no key, other users can read it, or it cannot be read or made.
    pub fn open_or_make(path: &Path) -> Result<(Key, bool), FingerprintError> {
        let open = || File::open(path);
        let file = match open() {
            Err(e) if e.kind() == ErrorKind::NotFound => match Key::make(path)? {
                Some(key) => return Ok((key, true)),
                // Another process has made a key meanwhile.
                None => open(),
            },
            opened => opened,
        };
        Ok((Key::read(path, file.map_err(FingerprintError::io("open", path))?)?, false))
    }

    fn read(path: &Path, file: File) -> Result<Key, FingerprintError> {
        let mode = file.metadata().map_err(FingerprintError::io("read", path))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(FingerprintError::OpenKey { path: path.into(), mode });
        }
        let mut text = String::new();
        let bad = || FingerprintError::BadKey { path: path.into() };
        file.take(100).read_to_string(&mut text).map_err(|_| bad())?;
        let text = text.trim();
        let mut key = [0; 32];
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Key(Some(key)))
    }

    /// Makes a key in a file; none if the file exists.
    fn make(path: &Path) -> Result<Option<Key>, FingerprintError> {
        let mut key = [0; 32];
        let random = Path::new("/dev/urandom");
        File::open(random)
            .and_then(|mut f| f.read_exact(&mut key))
            .map_err(FingerprintError::io("read", random))?;
        let text: String = key.iter().map(|b| format!("{b:02x}")).collect();
        // Under a temporary name first, because half a key would always be refused.
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let fail = FingerprintError::io("make the key", path);
        let made = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .make_in(dir, |p| options.open(p))
            .and_then(|mut f| writeln!(f, "{text}").map(|()| f))
            .and_then(|f| f.persist_noclobber(path).map_err(|e| e.error));
        match made {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(None),
            made => made.map(|_| Some(Key(Some(key)))).map_err(fail),
        }
    }

    /// An identifier that tells keys apart and does not reveal them.
    pub fn id(&self) -> String {
        match &self.0 {
            None => "unkeyed".into(),
            Some(key) => {
                let hash = blake3::keyed_hash(key, b"the id of a key of bifold's fingerprints");
                hash.as_bytes()[..8].iter().map(|b| format!("{b:02x}")).collect()
            }
        }
    }

    /// The fingerprint of bytes, as two halves. The first bytes are in the first half.
    pub fn fingerprint(&self, bytes: &[u8]) -> [u64; 2] {
        let hash = match &self.0 {
            None => blake3::hash(bytes),
            Some(key) => blake3::keyed_hash(key, bytes),
        };
        let half = |at: usize| u64::from_be_bytes(hash.as_bytes()[at..at + 8].try_into().expect("8 bytes"));
        [half(0), half(8)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_another_process_made_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = Key::make(&path).unwrap().unwrap();
        assert!(Key::make(&path).unwrap().is_none());
        assert_eq!(Key::open_or_make(&path).unwrap().0.id(), first.id());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }
}
