// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's processes and their mappings, followed through forks, execs and new mappings. The
//! kernel reports neither unmapping nor moving (`mremap`): an old mapping stays until another
//! overlaps it, and the new place of a moved mapping is unknown.

use crate::perf::Record;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Index of a [`File`] in [`Spaces::files`].
pub type FileId = u32;

/// What a mapping maps: a file, or memory that the kernel names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct File {
    /// Path in the guest, or `//anon`, `[heap]` and the like.
    pub name: String,
    /// Build ID, if the kernel reported one.
    pub build_id: Option<Vec<u8>>,
}

impl File {
    /// Whether the name is the path of a file, and not the kernel's name of memory.
    pub fn is_path(&self) -> bool {
        self.name.starts_with('/') && !self.name.starts_with("//")
    }
}

/// A mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address after the mapping.
    pub end: u64,
    /// The file or memory mapped.
    pub file: FileId,
    /// Offset in the file of address 0, modulo 2^64: offset = address + base.
    pub base: u64,
}

type Maps = BTreeMap<u64, Mapping>;

/// A process.
#[derive(Debug, Clone)]
pub struct Space {
    /// PID in the guest.
    pub pid: u32,
    /// Index of the name in [`Spaces::names`].
    pub name: u32,
    /// Parent and child of a fork share the maps until one of them changes its own.
    maps: Rc<Maps>,
}

impl Space {
    /// The mapping at an address.
    pub fn at(&self, address: u64) -> Option<Mapping> {
        let (_, m) = self.maps.range(..=address).next_back()?;
        (address < m.end).then_some(*m)
    }
}

/// All processes of a guest, and the process that runs on each vCPU.
#[derive(Debug)]
pub struct Spaces {
    spaces: Vec<Space>,
    /// Space by thread.
    tasks: HashMap<u32, usize>,
    /// Per vCPU.
    running: Vec<usize>,
    /// Names of processes.
    pub names: Vec<String>,
    name_ids: HashMap<String, u32>,
    /// Every file that was ever mapped.
    pub files: Vec<File>,
    file_ids: HashMap<File, FileId>,
}

/// Processes from before the first record. The records do not tell their threads apart.
const KERNEL: usize = 0;
const IDLE: usize = 1;
const INIT: usize = 2;

impl Default for Spaces {
    fn default() -> Self {
        let mut s = Spaces {
            spaces: Vec::new(),
            tasks: HashMap::from([(0, IDLE), (1, INIT)]),
            running: Vec::new(),
            names: Vec::new(),
            name_ids: HashMap::new(),
            files: Vec::new(),
            file_ids: HashMap::new(),
        };
        for (pid, name) in [(2, "kernel"), (0, "(idle)"), (1, "init")] {
            let name = s.name(name);
            s.spaces.push(Space { pid, name, maps: Rc::default() });
        }
        s
    }
}

impl Spaces {
    /// Index of a process's name, which is added if it is new.
    pub fn name(&mut self, name: &str) -> u32 {
        if let Some(id) = self.name_ids.get(name) {
            return *id;
        }
        let id = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.name_ids.insert(name.to_owned(), id);
        id
    }

    fn file(&mut self, name: &[u8], build_id: Option<&[u8]>) -> FileId {
        let name = String::from_utf8_lossy(name).into_owned();
        let file = File { name, build_id: build_id.map(<[u8]>::to_vec) };
        if let Some(id) = self.file_ids.get(&file) {
            return *id;
        }
        let id = self.files.len() as FileId;
        self.files.push(file.clone());
        self.file_ids.insert(file, id);
        id
    }

    /// Index of the space that runs on a vCPU. Before the first switch init runs, as it executed the
    /// marker.
    pub fn running(&self, vcpu: usize) -> usize {
        self.running.get(vcpu).copied().unwrap_or(if vcpu == 0 { INIT } else { IDLE })
    }

    /// Whether a vCPU has no task to run.
    pub fn idle(&self, vcpu: usize) -> bool {
        self.running(vcpu) == IDLE
    }

    /// The space with this index.
    pub fn space(&self, number: usize) -> &Space {
        &self.spaces[number]
    }

    fn of(&self, tid: u32) -> usize {
        self.tasks.get(&tid).copied().unwrap_or(KERNEL)
    }

    /// The space of a task, if the records reported the task.
    fn own(&mut self, tid: u32) -> Option<&mut Space> {
        let number = *self.tasks.get(&tid)?;
        self.spaces.get_mut(number)
    }

    /// Applies a record of this vCPU's stream.
    pub fn follow(&mut self, vcpu: usize, record: Record<'_>) {
        match record {
            Record::Switch { tid } => {
                if self.running.len() <= vcpu {
                    self.running = (0..=vcpu).map(|v| self.running(v)).collect();
                }
                self.running[vcpu] = self.of(tid);
            }
            Record::Fork { pid, parent_pid, tid, parent_tid } => {
                let parent = self.of(parent_tid);
                let number = if pid == parent_pid {
                    parent
                } else {
                    self.spaces.push(Space { pid, ..self.spaces[parent].clone() });
                    self.spaces.len() - 1
                };
                self.tasks.insert(tid, number);
            }
            Record::Comm { pid, tid, exec, name } => {
                let name = self.name(&String::from_utf8_lossy(name));
                // A thread's own name is not its process's.
                let Some(space) = self.own(tid).filter(|_| pid == tid || exec) else { return };
                space.name = name;
                if exec {
                    space.maps = Rc::default();
                }
            }
            Record::Exit { tid } => {
                self.tasks.remove(&tid);
            }
            Record::Map { pid, start, length, offset, build_id, name } => {
                let file = self.file(name, build_id);
                let Some(end) = start.checked_add(length).filter(|_| length > 0) else { return };
                if let Some(space) = self.own(pid) {
                    let base = offset.wrapping_sub(start);
                    insert(Rc::make_mut(&mut space.maps), start, Mapping { end, file, base });
                }
            }
        }
    }
}

/// Maps `[start, new.end)`. Older mappings in that range are cut or removed.
fn insert(maps: &mut Maps, start: u64, new: Mapping) {
    let before = maps.range(..start).next_back().map(|(s, m)| (*s, *m));
    if let Some((s, m)) = before.filter(|(_, m)| m.end > start) {
        maps.insert(s, Mapping { end: start, ..m });
        if m.end > new.end {
            maps.insert(new.end, m);
        }
    }
    let inside: Vec<(u64, Mapping)> = maps.range(start..new.end).map(|(s, m)| (*s, *m)).collect();
    for (s, m) in inside {
        maps.remove(&s);
        if m.end > new.end {
            maps.insert(new.end, m);
        }
    }
    maps.insert(start, new);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(pid: u32, start: u64, length: u64, name: &str) -> Record<'_> {
        Record::Map { pid, start, length, offset: 0, build_id: None, name: name.as_bytes() }
    }

    fn named(s: &Spaces, vcpu: usize, address: u64) -> (&str, Option<&str>) {
        let space = s.space(s.running(vcpu));
        (&s.names[space.name as usize], space.at(address).map(|m| &*s.files[m.file as usize].name))
    }

    #[test]
    fn forks_copy_execs_clear_and_threads_share() {
        let mut s = Spaces::default();
        assert_eq!(named(&s, 0, 0), ("init", None));
        assert_eq!(named(&s, 1, 0), ("(idle)", None));
        s.follow(0, Record::Fork { pid: 50, parent_pid: 1, tid: 50, parent_tid: 1 });
        s.follow(0, Record::Switch { tid: 50 });
        assert_eq!(named(&s, 0, 0), ("init", None));
        s.follow(0, Record::Comm { pid: 50, tid: 50, exec: true, name: b"sh" });
        s.follow(0, map(50, 0x1000, 0x1000, "/bin/sh"));
        s.follow(0, Record::Fork { pid: 51, parent_pid: 50, tid: 51, parent_tid: 50 });
        s.follow(1, Record::Switch { tid: 51 });
        assert_eq!(named(&s, 1, 0x1fff), ("sh", Some("/bin/sh")));
        s.follow(1, map(51, 0x1000, 0x1000, "//anon"));
        assert_eq!(named(&s, 1, 0x1000), ("sh", Some("//anon")));
        assert_eq!(named(&s, 0, 0x1000), ("sh", Some("/bin/sh")));
        s.follow(1, Record::Comm { pid: 51, tid: 51, exec: true, name: b"cc1" });
        assert_eq!(named(&s, 1, 0x1000), ("cc1", None));
        // A thread has its process's mappings, and its name changes nothing.
        s.follow(1, Record::Fork { pid: 51, parent_pid: 51, tid: 60, parent_tid: 51 });
        s.follow(1, Record::Comm { pid: 51, tid: 60, exec: false, name: b"worker" });
        s.follow(1, map(51, 0x5000, 0x1000, "[heap]"));
        s.follow(0, Record::Switch { tid: 60 });
        assert_eq!(named(&s, 0, 0x5000), ("cc1", Some("[heap]")));
        // No record names this thread.
        s.follow(0, Record::Switch { tid: 77 });
        assert_eq!(named(&s, 0, 0x5000), ("kernel", None));
        s.follow(1, Record::Exit { tid: 51 });
        assert_eq!(named(&s, 1, 0x5000), ("cc1", Some("[heap]")), "until it is switched away");
    }

    proptest! {
        #[test]
        fn the_last_mapping_of_an_address_is_the_one_found(
            list in proptest::collection::vec((0u64..64, 1u64..32), 1..40)
        ) {
            let mut maps = Maps::new();
            let mut pages = [None; 100];
            for (i, (start, length)) in list.into_iter().enumerate() {
                let new = Mapping { end: start + length, file: i as u32, base: 0 };
                insert(&mut maps, start, new);
                pages[start as usize..(start + length) as usize].fill(Some(i as u32));
            }
            let space = Space { pid: 0, name: 0, maps: Rc::new(maps) };
            for (page, file) in pages.into_iter().enumerate() {
                prop_assert_eq!(space.at(page as u64).map(|m| m.file), file);
            }
        }
    }
}
