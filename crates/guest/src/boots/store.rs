// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder of kept boots.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::copy::copy;
use super::{About, Booted, KeptBoot, Key, MOST_BYTES};
use crate::error::GuestError;
use crate::kernel::cache_dir;
use crate::memfd::memfd;

const ABOUT: &str = "about";
const MEMORY: &str = "memory";
const STATE: &str = "state";
/// Prefix of folders that are being written.
const NEW: &str = ".new-";
/// Most bytes of `about` and of `state`: some hundred bytes and 200 KB are usual.
const MOST_ABOUT: u64 = 64 << 10;
const MOST_STATE: u64 = 64 << 20;
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
    /// A boot with this key was kept and cannot be used, for this reason.
    Unfit(String),
}

impl Store {
    pub(crate) fn open() -> Result<Store, GuestError> {
        Ok(Store { dir: cache_dir("boots")?, most_bytes: MOST_BYTES })
    }

    /// Removes a kept boot.
    pub(crate) fn remove(&self, key: &Key) {
        // What is left of it is no whole boot, and the next run that keeps one removes that.
        let _ = fs::remove_dir_all(self.dir.join(key.name()));
    }

    /// Copies a kept boot into memory, and marks the boot as used now.
    pub(crate) fn find(&self, key: &Key) -> Found {
        let dir = self.dir.join(key.name());
        match self.read(&dir) {
            Ok(booted) => Found::Boot(booted),
            Err(Unfit::Absent) => Found::Nothing,
            Err(Unfit::Because(why)) => {
                self.remove(key);
                Found::Unfit(why)
            }
        }
    }

    fn read(&self, dir: &Path) -> Result<Booted, Unfit> {
        // All files are opened before any is read: another run may remove the folder meanwhile.
        let mut about_file = File::open(dir.join(ABOUT))?;
        let (memory, state_file) = (File::open(dir.join(MEMORY))?, File::open(dir.join(STATE))?);
        let about = read_about(&mut about_file)
            .ok_or_else(|| Unfit::Because("its description cannot be read".into()))?;
        let (wanted, has) = (about.memory.0, memory.metadata()?.len());
        if wanted != has || state_file.metadata()?.len() > MOST_STATE {
            return Err(Unfit::Because(format!("its memory has {has} bytes, not {wanted}")));
        }
        let ram = File::from(memfd("bifold-ram", 0).map_err(|e| Unfit::Because(e.to_string()))?);
        let mut state = File::from(memfd("bifold-state", 0).map_err(|e| Unfit::Because(e.to_string()))?);
        if copy(&memory, &ram)? != about.memory || copy(&state_file, &state)? != about.state {
            return Err(Unfit::Because("its files are damaged".into()));
        }
        state.rewind()?;
        let _ = about_file.set_modified(SystemTime::now());
        Ok(Booted { ram: ram.into(), state, registers: about.registers })
    }

    /// Keeps a boot. Other boots are removed, those used longest ago first, while there are more than
    /// [`MOST_BYTES`]. Returns why the boot was not kept, if another run is keeping one or the disk is full.
    pub(crate) fn keep(&self, key: &Key, booted: &Booted) -> Result<(), String> {
        let make = || fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        make().map_err(|e| format!("{}: {e}", self.dir.display()))?;
        let Some(_lock) = self.lock(Duration::ZERO)? else {
            return Err("another run is keeping a boot".into());
        };
        self.remove_leftovers();
        let new = self.dir.join(format!("{NEW}{}", std::process::id()));
        let at = self.dir.join(key.name());
        let kept = self.write(&new, key, booted).and_then(|()| {
            let _ = fs::remove_dir_all(&at);
            fs::rename(&new, &at)
        });
        if let Err(e) = kept {
            let _ = fs::remove_dir_all(&new);
            return Err(format!("{}: {e}", self.dir.display()));
        }
        self.evict(&at);
        Ok(())
    }

    fn write(&self, new: &Path, key: &Key, booted: &Booted) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(new)?;
        let ram = File::from(booted.ram.try_clone()?);
        let about = About {
            guest: key.guest.clone(),
            registers: booted.registers.clone(),
            memory: copy(&ram, &File::create_new(new.join(MEMORY))?)?,
            state: copy(&booted.state, &File::create_new(new.join(STATE))?)?,
        };
        File::create_new(new.join(ABOUT))?.write_all(about.text().as_bytes())
    }

    /// Removes what killed runs left: folders that are no whole boot. The caller has the lock, so no run is writing.
    fn remove_leftovers(&self) {
        let whole: Vec<PathBuf> = boots(&self.dir).map(|(dir, _)| dir).collect();
        for dir in folders(&self.dir).filter(|d| !whole.contains(d)) {
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
        let Some(_lock) = self.lock(PATIENCE).map_err(busy)? else {
            return Err(busy(
                "another run is keeping a boot; repeat when the run has started its command".into(),
            ));
        };
        self.remove_leftovers();
        let mut removed = Vec::new();
        for (dir, boot) in boots(&self.dir) {
            fs::remove_dir_all(&dir).map_err(GuestError::file(dir, "cannot remove"))?;
            removed.push(boot);
        }
        Ok(removed)
    }

    /// The lock of those that change the folder; the system drops the lock of a run that ends. `None` if another
    /// run holds the lock for longer than `patience`.
    fn lock(&self, patience: Duration) -> Result<Option<File>, String> {
        let at = self.dir.join("lock");
        let describe = |e: &dyn std::fmt::Display| format!("{}: {e}", at.display());
        let open = File::options().create(true).truncate(false).write(true).open(&at);
        let file = open.map_err(|e| describe(&e))?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK) if begun.elapsed() >= patience => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return Err(describe(&e)),
            }
        }
    }
}

enum Unfit {
    Absent,
    Because(String),
}

impl From<io::Error> for Unfit {
    fn from(e: io::Error) -> Unfit {
        match e.kind() {
            io::ErrorKind::NotFound => Unfit::Absent,
            _ => Unfit::Because(e.to_string()),
        }
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
        Booted { ram: ram.into(), state, registers: vec![Registers { cr3: 1, cr4: 2, idt: 3 }] }
    }

    /// The byte of a boot that was found.
    fn found(store: &Store, key: &Key) -> Result<u8, Option<String>> {
        match store.find(key) {
            Found::Boot(mut b) => {
                let (mut byte, mut state) = ([0], String::new());
                let ram = File::from(b.ram);
                assert_eq!(ram.metadata().unwrap().len(), 8 << 20);
                ram.read_exact_at(&mut byte, (2 << 20) - 1).unwrap();
                b.state.read_to_string(&mut state).unwrap();
                assert_eq!((state.as_str(), b.registers[0].idt), ("state", 3));
                Ok(byte[0])
            }
            Found::Nothing => Err(None),
            Found::Unfit(why) => Err(Some(why)),
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
        store.keep(&a, &booted(3)).unwrap();
        assert_eq!(found(&store, &a), Ok(3));
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
    fn a_damaged_boot_is_refused_with_a_reason_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (store(dir.path()), Key::of("a"));
        let at = store.dir.join(key.name());
        let damages: [(&str, &dyn Fn()); 4] = [
            ("damaged", &|| {
                File::options().write(true).open(at.join(MEMORY)).unwrap().write_all_at(b"x", 9).unwrap()
            }),
            ("damaged", &|| fs::write(at.join(STATE), "stats").unwrap()),
            ("bytes", &|| File::options().write(true).open(at.join(MEMORY)).unwrap().set_len(9).unwrap()),
            ("description", &|| fs::write(at.join(ABOUT), "bifold-boot 0\n").unwrap()),
        ];
        for (reason, damage) in damages {
            store.keep(&key, &booted(1)).unwrap();
            damage();
            let why = found(&store, &key).unwrap_err().unwrap();
            assert!(why.contains(reason), "{why}");
            assert_eq!(found(&store, &key), Err(None));
        }
        store.keep(&key, &booted(1)).unwrap();
        fs::remove_file(at.join(STATE)).unwrap();
        assert_eq!(found(&store, &key), Err(None));
        store.keep(&key, &booted(2)).unwrap();
        assert_eq!(found(&store, &key), Ok(2));
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_a_busy_store_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (store(dir.path()), Key::of("a"));
        fs::create_dir_all(store.dir.join(".new-1")).unwrap();
        fs::create_dir_all(store.dir.join("half")).unwrap();
        fs::write(store.dir.join("half").join(ABOUT), "bifold").unwrap();
        let lock = store.lock(Duration::ZERO).unwrap().unwrap();
        let why = store.keep(&key, &booted(1)).unwrap_err();
        assert!(why.contains("another run"), "{why}");
        assert!(store.dir.join(".new-1").exists());
        drop(lock);
        store.keep(&key, &booted(1)).unwrap();
        let names: Vec<_> = folders(&store.dir).map(|d| d.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, [std::ffi::OsString::from(key.name())]);
    }
}
