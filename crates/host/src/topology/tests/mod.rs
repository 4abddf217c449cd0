// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machines made of files.

mod any;
mod facts;
mod limits;

use super::*;
use crate::Host;
use std::fs;
use std::path::PathBuf;

struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let memory = std::path::Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Machine { dir: dir.unwrap() }
    }

    /// A machine with these CPUs online, and nothing else.
    fn with_cpus(online: &str) -> Machine {
        let machine = Machine::new();
        let set: NumberSet = online.parse().unwrap();
        set.iter().for_each(|n| machine.put(&format!("sys/devices/system/cpu/cpu{n}/topology/core_id"), n));
        machine.put("sys/devices/system/cpu/online", online);
        machine
    }

    fn at(&self, file: &str) -> PathBuf {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn put(&self, file: &str, text: impl std::fmt::Display) {
        fs::write(self.at(file), format!("{text}\n")).unwrap();
    }

    fn cpu(&self, n: u32, file: &str, text: impl std::fmt::Display) {
        self.put(&format!("sys/devices/system/cpu/cpu{n}/{file}"), text);
    }

    fn node(&self, n: u32, file: &str, text: impl std::fmt::Display) {
        self.put(&format!("sys/devices/system/node/node{n}/{file}"), text);
    }

    fn memory(&self, n: u32, kib: u64) {
        self.node(n, "meminfo", format!("Node {n} MemTotal:  {kib} kB\nNode {n} MemFree:  {} kB", kib / 2));
    }

    fn host(&self) -> Host {
        Host::copied(self.dir.path())
    }

    fn read(&self) -> Topology {
        self.host().topology().unwrap()
    }
}

fn set(list: &str) -> NumberSet {
    list.parse().unwrap()
}
