// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks QEMU's monitor what its command line does not tell: threads of vCPUs and of I/O, addresses of RAM
//! blocks.
//!
//! A QMP socket has one client. If another program has the connection, QEMU does not answer, and the wait is
//! short.

use super::blocks::RamBlock;
use bifold_host::guest_memory::MonitorPlace;
use bifold_host::qmp::Qmp;
use bifold_host::{Host, Vcpu};
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Time limit of each answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the monitor tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// Threads of vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// Ids and threads of I/O threads.
    pub io_threads: Vec<(String, u32)>,
    /// RAM blocks.
    pub blocks: Vec<RamBlock>,
}

/// Asks the monitor at a socket.
///
/// # Errors
/// If nothing listens there, or QEMU does not answer in time.
pub fn ask(socket: &Path) -> io::Result<Told> {
    let stream = connect(socket)?;
    let mut qmp = Qmp::greet(&stream, PATIENCE)?;
    told(|command, arguments| qmp.ask(command, arguments))
}

/// Asks a guest's own monitor.
///
/// # Errors
/// If another process than the guest's answers, or QEMU does not answer in time.
pub fn ask_own(host: &Host, pid: u32, place: &MonitorPlace) -> io::Result<Told> {
    let mut monitor = place.open(host, pid)?;
    told(|command, arguments| monitor.ask(command, arguments))
}

fn told(mut ask: impl FnMut(&str, Value) -> io::Result<Value>) -> io::Result<Told> {
    let vcpus = ask("query-cpus-fast", json!({}))?;
    let io_threads = ask("query-iothreads", json!({}))?;
    let blocks = ask("human-monitor-command", json!({ "command-line": "info ramblock" }))?;
    Ok(Told {
        vcpus: members(&vcpus)
            .filter_map(|v| Some(Vcpu { number: number(v, "cpu-index")?, thread: number(v, "thread-id")? }))
            .collect(),
        io_threads: members(&io_threads)
            .filter_map(|v| Some((v.get("id")?.as_str()?.to_owned(), number(v, "thread-id")?)))
            .collect(),
        blocks: blocks.as_str().map(ram_blocks).unwrap_or_default(),
    })
}

/// Connects in a thread: connect(2) waits without limit while the socket's queue is full.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let (to, from) = mpsc::channel();
    let socket = socket.to_owned();
    std::thread::spawn(move || to.send(UnixStream::connect(socket)));
    from.recv_timeout(PATIENCE).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn number(value: &Value, name: &str) -> Option<u32> {
    u32::try_from(value.get(name)?.as_u64()?).ok()
}

/// RAM blocks in the text of `info ramblock`: name, page size, offset, used and total size, host address.
pub fn ram_blocks(text: &str) -> Vec<RamBlock> {
    let block = |line: &str| {
        let (before, after) = line
            .split_once(" KiB ")
            .or_else(|| line.split_once(" MiB "))
            .or_else(|| line.split_once(" GiB "))?;
        // The page size stands before its unit.
        let name = before.trim().rsplit_once(char::is_whitespace)?.0.trim();
        let hex = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
        let mut words = after.split_whitespace();
        let (_offset, bytes) = (hex(words.next())?, hex(words.next())?);
        let _total = hex(words.next())?;
        let start = hex(words.next())?;
        let id = name.rsplit('/').next()?.to_owned();
        Some(RamBlock { id, start, bytes })
    };
    text.lines().filter_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ram_blocks_have_an_id_an_address_and_a_size() {
        let text = "              Block Name    PSize              Offset               Used              Total                HVA  RO\r\n\
                    \x20                     m0    2 MiB  0x0000000000000000 0x0000000008000000 0x0000000008000000 0x00007f2a00000000  rw\r\n\
                    \x20            /objects/m 1    4 KiB  0x0000000010000000 0x0000000000020000 0x0000000000020000 0x00007f2b00000000  ro\r\n";
        let block = |id: &str, start, bytes| RamBlock { id: id.into(), start, bytes };
        let expected = [block("m0", 0x7f2a_0000_0000, 0x800_0000), block("m 1", 0x7f2b_0000_0000, 0x2_0000)];
        assert_eq!(ram_blocks(text), expected);
    }

    #[test]
    fn a_socket_without_a_listener_and_a_silent_one_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ask(&dir.path().join("none")).is_err());
        let path = dir.path().join("silent");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(ask(&path).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_some_blocks(text in "([ -~]{0,30}( KiB | MiB |0x[0-9a-f]{1,17}| ){0,6}\n){0,3}") {
            ram_blocks(&text);
        }
    }
}
