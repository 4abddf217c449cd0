// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder of kept boots.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::copy::copy;
use super::{About, Booted, KeptBoot, Key, MOST_BYTES};
use crate::error::GuestError;
use crate::memfd::memfd;

const ABOUT: &str = "about";
const MEMORY: &str = "memory";
const STATE: &str = "state";
/// Prefix of folders that are being written.
const NEW: &str = ".new-";
/// Most bytes of `about`; some hundred are usual.
const MOST_ABOUT: u64 = 64 << 10;
/// How long [`Store::clear`] waits for a run that is keeping a boot.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Store {
    dir: PathBuf,
    most_bytes: u64,
}

/// The outcome of a search.
pub(crate) enum Found {
    Boot(Booted),
    /// No boot with this key was kept.
    Nothing,
    /// What was kept is not what was written, for this reason.
    Damaged(String),
    /// It could not be read now, for this reason.
    Unread(String),
}

impl Store {
    /// The boots in a folder, which is created when the first boot is kept.
    pub(crate) fn at(dir: &Path) -> Store {
        Store { dir: dir.to_owned(), most_bytes: MOST_BYTES }
    }

    /// The folder of a boot.
    pub(crate) fn folder(&self, key: &Key) -> PathBuf {
        self.dir.join(key.name())
    }

    /// Removes a kept boot.
    ///
    /// # Errors
    /// If the folder cannot be changed.
    pub(crate) fn remove(&self, key: &Key) -> io::Result<()> {
        fs::remove_dir_all(self.folder(key))
    }

    /// Copies a kept boot into memory, and marks the boot as used now.
    pub(crate) fn find(&self, key: &Key) -> Found {
        match self.read(&self.folder(key)) {
            Ok(booted) => Found::Boot(booted),
            Err(Unfit::Damaged(why)) => Found::Damaged(why),
            Err(Unfit::Unread(e)) if e.kind() == io::ErrorKind::NotFound => Found::Nothing,
            Err(Unfit::Unread(e)) => Found::Unread(e.to_string()),
        }
    }

    fn read(&self, dir: &Path) -> Result<Booted, Unfit> {
        // One folder, and all files opened before any is read: another run may replace or remove the folder
        // meanwhile.
        let folder = File::open(dir)?;
        if folder.metadata()?.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("another user owns it").into());
        }
        let open = |name| -> io::Result<File> {
            Ok(openat(&folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
        };
        let (mut about_file, memory, state_file) = (open(ABOUT)?, open(MEMORY)?, open(STATE)?);
        let damaged = |what: &str| Unfit::Damaged(format!("its {what} damaged"));
        let about = read_about(&mut about_file).ok_or_else(|| damaged("description is"))?;
        let lengths = [(&memory, about.memory), (&state_file, about.state)];
        for (file, (wanted, _)) in lengths {
            if file.metadata()?.len() != wanted {
                return Err(damaged("files are"));
            }
        }
        let ram = File::from(memfd("bifold-ram", 0).map_err(io::Error::other)?);
        let mut state = File::from(memfd("bifold-state", 0).map_err(io::Error::other)?);
        if copy(&memory, &ram)? != about.memory || copy(&state_file, &state)? != about.state {
            return Err(damaged("files are"));
        }
        state.rewind()?;
        let _ = about_file.set_modified(SystemTime::now());
        Ok(Booted { ram, state, registers: about.registers })
    }

    /// Keeps a boot. Other boots are removed, those used longest ago first, while there are more than
    /// [`MOST_BYTES`]. Returns why the boot was not kept, if another run is keeping one or the disk is full.
    pub(crate) fn keep(&self, key: &Key, booted: &Booted) -> Result<(), NotKept> {
        let make = || fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        make().map_err(NotKept::at(&self.dir))?;
        let Some(_lock) = self.lock(Duration::ZERO)? else {
            return Err(NotKept::Busy);
        };
        self.remove_leftovers();
        let at = self.folder(key);
        if boots(&self.dir).any(|(dir, _)| dir == at) {
            return Ok(()); // another run of this kind was first
        }
        let memory = booted.ram.metadata()?;
        if memory.blocks() * 512 > self.most_bytes {
            return Err(NotKept::Large);
        }
        let new = self.dir.join(format!("{NEW}{}", std::process::id()));
        let kept = self.write(&new, key, booted).and_then(|()| {
            let _ = fs::remove_dir_all(&at);
            fs::rename(&new, &at)
        });
        if let Err(e) = kept {
            let _ = fs::remove_dir_all(&new);
            return Err(NotKept::at(&self.dir)(e));
        }
        self.evict(&at);
        Ok(())
    }

    fn write(&self, new: &Path, key: &Key, booted: &Booted) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(new)?;
        let about = About {
            guest: key.guest.clone(),
            registers: booted.registers,
            memory: copy(&booted.ram, &File::create_new(new.join(MEMORY))?)?,
            state: copy(&booted.state, &File::create_new(new.join(STATE))?)?,
        };
        File::create_new(new.join(ABOUT))?.write_all(about.text().as_bytes())
    }

    /// Removes what killed runs left: folders that were being written or removed. The caller has the lock, so
    /// no run is writing. A folder with a description in another form may be another version's boot.
    fn remove_leftovers(&self) {
        for dir in folders(&self.dir).filter(|d| new(d) || !d.join(ABOUT).exists()) {
            let _ = fs::remove_dir_all(dir);
        }
    }

    /// Removes boots until the rest is small enough, but not `newest`.
    fn evict(&self, newest: &Path) {
        let mut all: Vec<_> = boots(&self.dir).collect();
        all.sort_by_key(|(_, b)| b.used);
        let mut bytes: u64 = all.iter().map(|(_, b)| b.bytes).sum();
        for (dir, boot) in all {
            if bytes > self.most_bytes && dir != newest && fs::remove_dir_all(dir).is_ok() {
                bytes -= boot.bytes;
            }
        }
    }

    pub(crate) fn list(&self) -> Result<Vec<KeptBoot>, GuestError> {
        match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(GuestError::file(&self.dir, "cannot read"))?,
        };
        let mut all: Vec<KeptBoot> = boots(&self.dir).map(|(_, boot)| boot).collect();
        all.sort_by_key(|b| std::cmp::Reverse(b.used));
        Ok(all)
    }

    pub(crate) fn clear(&self) -> Result<Vec<KeptBoot>, GuestError> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        let busy = |why| GuestError::Spec(format!("{}: {why}", self.dir.display()));
        let Some(_lock) = self.lock(PATIENCE).map_err(|e| busy(e.to_string()))? else {
            return Err(busy(
                "another run is keeping a boot; repeat when the run has started its command".into(),
            ));
        };
        let removed = boots(&self.dir).map(|(_, boot)| boot).collect();
        for dir in folders(&self.dir) {
            fs::remove_dir_all(&dir).map_err(GuestError::file(dir, "cannot remove"))?;
        }
        Ok(removed)
    }

    /// The lock of those that change the folder; the system drops the lock of a run that ends. `None` if
    /// another run holds the lock for longer than `patience`.
    fn lock(&self, patience: Duration) -> Result<Option<File>, NotKept> {
        let at = self.dir.join("lock");
        let open = File::options().create(true).truncate(false).write(true).open(&at);
        let file = open.map_err(NotKept::at(&at))?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK) if begun.elapsed() >= patience => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return Err(NotKept::at(&at)(e.into())),
            }
        }
    }
}

/// Why a boot was not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    #[error("{}: {why}", path.display())]
    Disk { path: PathBuf, why: io::Error },
    #[error(transparent)]
    Memory(#[from] io::Error),
    #[error("another run is keeping a boot")]
    Busy,
    #[error("it is larger than all kept boots together may be")]
    Large,
}

impl NotKept {
    fn at(path: &Path) -> impl Fn(io::Error) -> NotKept {
        move |why| NotKept::Disk { path: path.into(), why }
    }
}

enum Unfit {
    Damaged(String),
    Unread(io::Error),
}

impl From<io::Error> for Unfit {
    fn from(e: io::Error) -> Unfit {
        Unfit::Unread(e)
    }
}

fn read_about(file: &mut File) -> Option<About> {
    let mut text = String::new();
    file.take(MOST_ABOUT).read_to_string(&mut text).ok()?;
    About::parse(&text)
}

fn folders(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir())
}

fn new(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(NEW))
}

/// The kept boots with their folders. One that another run removes meanwhile is left out.
fn boots(dir: &Path) -> impl Iterator<Item = (PathBuf, KeptBoot)> {
    folders(dir).filter(|d| !new(d)).filter_map(|dir| {
        let mut file = File::open(dir.join(ABOUT)).ok()?;
        let used = file.metadata().ok()?.modified().ok()?;
        let guest = read_about(&mut file)?.guest;
        let bytes = |name| Some(fs::metadata(dir.join(name)).ok()?.blocks() * 512);
        let bytes = bytes(MEMORY)? + bytes(STATE)?;
        Some((dir, KeptBoot { guest, bytes, used }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boots::Registers;
    use std::os::unix::fs::FileExt as _;

    fn store(dir: &Path) -> Store {
        Store { dir: dir.join("boots"), most_bytes: 3 << 20 }
    }

    /// A boot with 1 MiB of memory that is not 0.
    fn booted(byte: u8) -> Booted {
        let file = |bytes: u64| File::from(memfd("test", bytes).unwrap());
        let (ram, state) = (file(8 << 20), file(0));
        ram.write_all_at(&vec![byte; 1 << 20], 1 << 20).unwrap();
        state.write_all_at(b"state", 0).unwrap();
        Booted { ram, state, registers: Registers { cr3: 1, cr4: 2, idt: 3 } }
    }

    /// The byte of a boot that was found.
    fn found(store: &Store, key: &Key) -> Result<u8, Option<String>> {
        match store.find(key) {
            Found::Boot(mut b) => {
                let (mut byte, mut state) = ([0], String::new());
                assert_eq!(b.ram.metadata().unwrap().len(), 8 << 20);
                b.ram.read_exact_at(&mut byte, (2 << 20) - 1).unwrap();
                b.state.read_to_string(&mut state).unwrap();
                assert_eq!((state.as_str(), b.registers.idt), ("state", 3));
                Ok(byte[0])
            }
            Found::Nothing => Err(None),
            Found::Damaged(why) | Found::Unread(why) => Err(Some(why)),
        }
    }

    #[test]
    fn a_kept_boot_is_found_until_it_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let (store, a, b) = (store(dir.path()), Key::of("a"), Key::of("b"));
        assert_eq!((found(&store, &a), store.list().unwrap().len()), (Err(None), 0));
        store.keep(&a, &booted(1)).unwrap();
        store.keep(&b, &booted(2)).unwrap();
        assert_eq!((found(&store, &a), found(&store, &b)), (Ok(1), Ok(2)));
        // Of two runs that boot at once, the first keeps its boot.
        store.keep(&a, &booted(3)).unwrap();
        assert_eq!(found(&store, &a), Ok(1));
        let list = store.list().unwrap();
        assert_eq!(list.iter().map(|b| b.guest.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(list.iter().all(|b| (1 << 20..2 << 20).contains(&b.bytes)), "{list:?}");
        assert_eq!(store.clear().unwrap().len(), 2);
        assert_eq!((found(&store, &a), store.list().unwrap().len()), (Err(None), 0));
    }

    #[test]
    fn the_boot_used_longest_ago_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let keys = ["a", "b", "c", "d"].map(Key::of);
        for (i, key) in keys.iter().enumerate() {
            store.keep(key, &booted(i as u8 + 1)).unwrap();
            if i == 1 {
                found(&store, &keys[0]).unwrap();
            }
        }
        let left: Vec<_> = keys.iter().map(|k| found(&store, k).ok()).collect();
        assert_eq!(left, [None, None, Some(3), Some(4)]);
    }

    #[test]
    fn a_damaged_boot_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (store(dir.path()), Key::of("a"));
        let at = store.dir.join(key.name());
        let damages: [(&str, &dyn Fn()); 4] = [
            ("damaged", &|| {
                File::options().write(true).open(at.join(MEMORY)).unwrap().write_all_at(b"x", 9).unwrap()
            }),
            ("damaged", &|| fs::write(at.join(STATE), "stats").unwrap()),
            ("files", &|| File::options().write(true).open(at.join(MEMORY)).unwrap().set_len(9).unwrap()),
            ("description", &|| fs::write(at.join(ABOUT), "bifold-boot 0\n").unwrap()),
        ];
        for (reason, damage) in damages {
            store.keep(&key, &booted(1)).unwrap();
            damage();
            let why = found(&store, &key).unwrap_err().unwrap();
            assert!(why.contains(reason), "{why}");
            store.remove(&key).unwrap();
            assert_eq!(found(&store, &key), Err(None));
        }
        store.keep(&key, &booted(1)).unwrap();
        fs::remove_file(at.join(STATE)).unwrap();
        assert_eq!(found(&store, &key), Err(None));
        store.keep(&key, &booted(2)).unwrap();
        assert_eq!(found(&store, &key), Ok(2));
    }

    #[test]
    fn a_boot_that_is_larger_than_all_may_be_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, key) = (store(dir.path()), Key::of("a"));
        store.most_bytes = 1000;
        let why = store.keep(&key, &booted(1)).unwrap_err().to_string();
        assert!(why.contains("larger"), "{why}");
        assert_eq!(found(&store, &key), Err(None));
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_a_busy_store_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (store(dir.path()), Key::of("a"));
        fs::create_dir_all(store.dir.join(".new-1")).unwrap();
        fs::create_dir_all(store.dir.join("half")).unwrap();
        fs::create_dir_all(store.dir.join("other")).unwrap();
        fs::write(store.dir.join("other").join(ABOUT), "bifold-boot 0").unwrap();
        let lock = store.lock(Duration::ZERO).unwrap().unwrap();
        let why = store.keep(&key, &booted(1)).unwrap_err().to_string();
        assert!(why.contains("another run"), "{why}");
        assert!(store.dir.join(".new-1").exists());
        drop(lock);
        store.keep(&key, &booted(1)).unwrap();
        let mut names: Vec<_> =
            folders(&store.dir).map(|d| d.file_name().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        let mut expected = vec![key.name(), "other".into()];
        expected.sort();
        assert_eq!(names, expected, "another version's boot stays");
        assert_eq!((store.clear().unwrap().len(), folders(&store.dir).count()), (1, 0));
    }
}
