// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records of the guest kernel's perf events, laid out by `linux/perf_event.h`. The five kinds that
//! tell of tasks and mappings are decoded, other kinds are skipped. Every record ends with the PID
//! and TID of the task that ran (`PERF_SAMPLE_TID` with `sample_id_all`).

const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const SWITCH_CPU_WIDE: u32 = 15;

const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

const HEADER: usize = 8;
/// What `sample_id_all` appends.
const SAMPLE_ID: usize = 8;

/// A decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// A task got another name; by running another program if `exec`.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Whether the cause was an exec.
        exec: bool,
        /// The name.
        name: &'a [u8],
    },
    /// A task was created. A thread has the process of its parent.
    Fork {
        /// PID of the new task.
        pid: u32,
        /// PID of the parent.
        parent_pid: u32,
        /// TID of the new task.
        tid: u32,
        /// TID of the parent.
        parent_tid: u32,
    },
    /// A task ended.
    Exit {
        /// TID of the task.
        tid: u32,
    },
    /// A mapping was made or changed.
    Map {
        /// PID of the process.
        pid: u32,
        /// First address.
        start: u64,
        /// Length in bytes.
        length: u64,
        /// Offset in the file of the first byte.
        offset: u64,
        /// The file's build ID, if the kernel knew it.
        build_id: Option<&'a [u8]>,
        /// The file's path, or `//anon`, `[heap]`, `[stack]`, `[vdso]`.
        name: &'a [u8],
    },
    /// A thread starts to run on the vCPU.
    Switch {
        /// TID of the thread.
        tid: u32,
    },
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Text up to its first zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}

/// Decodes a record; none if the kind is skipped or the body too short for its kind.
fn record(kind: u32, misc: u16, body: &[u8]) -> Option<Record<'_>> {
    let inner = body.get(..body.len().checked_sub(SAMPLE_ID)?)?;
    match kind {
        COMM => Some(Record::Comm {
            pid: u32_at(inner, 0)?,
            tid: u32_at(inner, 4)?,
            exec: misc & MISC_COMM_EXEC != 0,
            name: text(inner.get(8..)?),
        }),
        FORK => Some(Record::Fork {
            pid: u32_at(inner, 0)?,
            parent_pid: u32_at(inner, 4)?,
            tid: u32_at(inner, 8)?,
            parent_tid: u32_at(inner, 12)?,
        }),
        EXIT => Some(Record::Exit { tid: u32_at(inner, 8)? }),
        MMAP2 => {
            // 32: four numbers of the file, or the length of its build ID, three bytes, the ID.
            let id = inner.get(36..56)?.get(..usize::from(*inner.get(32)?));
            Some(Record::Map {
                pid: u32_at(inner, 0)?,
                start: u64_at(inner, 8)?,
                length: u64_at(inner, 16)?,
                offset: u64_at(inner, 24)?,
                build_id: id.filter(|i| misc & MISC_MMAP_BUILD_ID != 0 && !i.is_empty()),
                name: text(inner.get(64..)?),
            })
        }
        // The task that is named is the other one: the next, or the one before.
        SWITCH_CPU_WIDE if misc & MISC_SWITCH_OUT != 0 => Some(Record::Switch { tid: u32_at(inner, 4)? }),
        SWITCH_CPU_WIDE => Some(Record::Switch { tid: u32_at(body, inner.len() + 4)? }),
        _ => None,
    }
}

/// The stream of one vCPU's records, which arrive in parts.
#[derive(Debug, Default)]
pub struct Stream {
    held: Vec<u8>,
    damaged: bool,
}

impl Stream {
    /// Takes the next bytes and hands over the records that they complete. A record shorter than its own
    /// header ends the stream, because no later record can be found.
    pub fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(Record<'_>)) {
        if self.damaged {
            return;
        }
        self.held.extend_from_slice(bytes);
        let mut at = 0;
        while let (Some(kind), Some(word)) = (u32_at(&self.held, at), u32_at(&self.held, at + 4)) {
            let (misc, size) = (word as u16, (word >> 16) as usize);
            if size < HEADER {
                self.damaged = true;
                self.held = Vec::new();
                return;
            }
            let Some(body) = self.held.get(at + HEADER..at + size) else { break };
            if let Some(record) = record(kind, misc, body) {
                sink(record);
            }
            at += size;
        }
        self.held.drain(..at);
    }
}

/// Records as bytes, for tests.
#[cfg(test)]
pub(crate) mod made {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut r = kind.to_le_bytes().to_vec();
        r.extend(misc.to_le_bytes());
        r.extend(((HEADER + body.len()) as u16).to_le_bytes());
        r.extend(body);
        r
    }

    fn words(list: &[u32]) -> Vec<u8> {
        list.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn padded(name: &str) -> Vec<u8> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(name.len() / 8 * 8 + 8, 0);
        bytes
    }

    pub(crate) fn comm(pid: u32, tid: u32, exec: bool, name: &str) -> Vec<u8> {
        let misc = if exec { MISC_COMM_EXEC } else { 0 };
        record(COMM, misc, &[words(&[pid, tid]), padded(name), words(&[pid, tid])].concat())
    }

    pub(crate) fn fork(pid: u32, parent: u32, tid: u32, parent_tid: u32) -> Vec<u8> {
        record(FORK, 0, &words(&[pid, parent, tid, parent_tid, 9, 9, parent, parent_tid]))
    }

    pub(crate) fn exit(pid: u32, tid: u32) -> Vec<u8> {
        record(EXIT, 0, &words(&[pid, 1, tid, 1, 9, 9, pid, tid]))
    }

    pub(crate) fn switch(out: bool, from: u32, to: u32) -> Vec<u8> {
        let (misc, other, own) = if out { (MISC_SWITCH_OUT, to, from) } else { (0, from, to) };
        record(SWITCH_CPU_WIDE, misc, &words(&[other, other, own, own]))
    }

    pub(crate) fn map(pid: u32, start: u64, length: u64, offset: u64, id: &[u8], name: &str) -> Vec<u8> {
        let mut body = words(&[pid, pid]);
        body.extend([start, length, offset].iter().flat_map(|w| w.to_le_bytes()));
        let mut file = [0; 24];
        file[0] = id.len() as u8;
        file[4..4 + id.len()].copy_from_slice(id);
        body.extend(file);
        body.extend(words(&[5, 2]));
        body.extend(padded(name));
        body.extend(words(&[pid, pid]));
        record(MMAP2, if id.is_empty() { 0 } else { MISC_MMAP_BUILD_ID }, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_come_back_however_they_are_cut() {
        let all = [
            made::comm(7, 8, true, "a name"),
            made::fork(9, 7, 9, 8),
            made::map(9, 0x1000, 0x2000, 0x3000, &[1; 20], "/bin/x"),
            made::map(9, 0x9000, 0x1000, 0, &[], "//anon"),
            made::switch(true, 8, 9),
            made::switch(false, 9, 8),
            made::exit(9, 9),
        ]
        .concat();
        for cut in 1..all.len() {
            let (mut stream, mut seen) = (Stream::default(), Vec::new());
            for part in all.chunks(cut) {
                stream.push(part, |r| seen.push(format!("{r:?}")));
            }
            let expected = [
                Record::Comm { pid: 7, tid: 8, exec: true, name: b"a name" },
                Record::Fork { pid: 9, parent_pid: 7, tid: 9, parent_tid: 8 },
                Record::Map {
                    pid: 9,
                    start: 0x1000,
                    length: 0x2000,
                    offset: 0x3000,
                    build_id: Some(&[1; 20]),
                    name: b"/bin/x",
                },
                Record::Map {
                    pid: 9,
                    start: 0x9000,
                    length: 0x1000,
                    offset: 0,
                    build_id: None,
                    name: b"//anon",
                },
                Record::Switch { tid: 9 },
                Record::Switch { tid: 8 },
                Record::Exit { tid: 9 },
            ];
            assert_eq!(seen, expected.map(|r| format!("{r:?}")), "cut every {cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_records_or_nothing(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8)
        ) {
            let mut stream = Stream::default();
            for part in &parts {
                stream.push(part, |_| {});
                prop_assert!(stream.held.len() < 1 << 16);
            }
        }
    }
}
