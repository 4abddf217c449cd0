// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes whole lines to a port that may be full.

use std::io::{self, ErrorKind, Write};

/// A port that does not block, and the end of a line that it did not take yet.
pub struct Sender<W> {
    port: W,
    rest: Vec<u8>,
}

impl<W: Write> Sender<W> {
    pub fn new(port: W) -> Sender<W> {
        Sender { port, rest: Vec::new() }
    }

    /// Goes on with another open file of the port. The host may still wait for the end of the line.
    pub fn reopened(&mut self, port: W) {
        self.port = port;
    }

    /// Sends a line. While the port is full, the line is dropped: the next report has newer counts. A line
    /// that the port took half is finished before the next one.
    ///
    /// # Errors
    /// If the port failed otherwise.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        let old = std::mem::take(&mut self.rest);
        let sent = self.write(&old);
        self.rest = old[sent.as_ref().map_or_else(|(sent, _)| *sent, |sent| *sent)..].to_vec();
        sent.map_err(|(_, e)| e)?;
        if !self.rest.is_empty() {
            return Ok(());
        }
        let line = line.as_bytes();
        let (sent, result) = match self.write(line) {
            Ok(sent) => (sent, Ok(())),
            Err((sent, e)) => (sent, Err(e)),
        };
        if sent > 0 {
            self.rest = line[sent..].to_vec();
        }
        result
    }

    /// Number of bytes that the port took until it was full, or until it failed.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, (usize, io::Error)> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.port.write(&bytes[sent..]) {
                Ok(0) => return Err((sent, ErrorKind::WriteZero.into())),
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err((sent, e)),
            }
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// A port that takes so many bytes and is full then.
    struct Small {
        room: usize,
        got: Vec<u8>,
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room).min(3);
            if n == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= n;
            self.got.extend(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_cut_is_finished_first_and_lines_in_between_are_dropped() {
        let mut sender = Sender::new(Small { room: 8, got: Vec::new() });
        sender.send("first\n").unwrap();
        sender.send("second\n").unwrap();
        sender.send("third\n").unwrap();
        assert_eq!(sender.port.got, b"first\nse");
        sender.port.room = 2;
        sender.send("fourth\n").unwrap();
        assert_eq!(sender.port.got, b"first\nseco");
        sender.port.room = 100;
        sender.send("fifth\n").unwrap();
        assert_eq!(sender.port.got, b"first\nsecond\nfifth\n");
        // A full port that took nothing of a line leaves no rest.
        sender.port.room = 0;
        sender.send("sixth\n").unwrap();
        sender.port.room = 100;
        sender.send("seventh\n").unwrap();
        assert_eq!(sender.port.got, b"first\nsecond\nfifth\nseventh\n");
    }

    #[test]
    fn a_full_socket_never_holds_the_sender_up_and_gets_whole_lines() {
        let (port, mut host) = UnixStream::pair().unwrap();
        port.set_nonblocking(true).unwrap();
        host.set_nonblocking(true).unwrap();
        let mut sender = Sender::new(port);
        // Longer than a socket's buffer takes at once, so lines are cut.
        let line = format!("{}\n", "x".repeat(150_000));
        let mut got = Vec::new();
        for _ in 0..20 {
            sender.send(&line).unwrap();
            sender.send(&line).unwrap();
            let _ = host.read_to_end(&mut got);
        }
        let lines: Vec<&[u8]> = got.split_inclusive(|b| *b == b'\n').collect();
        assert!(lines.len() > 5);
        assert!(lines[..lines.len() - 1].iter().all(|l| *l == line.as_bytes()));
    }

    #[test]
    fn a_port_that_is_gone_is_told_and_another_one_goes_on() {
        let (port, host) = UnixStream::pair().unwrap();
        let mut sender = Sender::new(port);
        drop(host);
        assert_eq!(sender.send("lost\n").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let (port, mut host) = UnixStream::pair().unwrap();
        sender.reopened(port);
        sender.send("there\n").unwrap();
        drop(sender);
        let mut got = String::new();
        host.read_to_string(&mut got).unwrap();
        assert_eq!(got, "there\n");
    }
}
