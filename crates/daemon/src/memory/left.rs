// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives back what orders left that were killed together with their guardians: a daemon before this one, or
//! `bifold reclaim set`.
//!
//! Such an order has a journal, and no process holds its lock. What has not succeeded is tried again, until
//! the daemon ends; journals that are left later are another daemon's, or `bifold reclaim restore`'s. Sizes
//! that were kept stay.

use super::thread::words;
use bifold_host::Host;
use bifold_host::held::{HeldError, Places, remove_unused_lock, restore_left_behind};
use bifold_live::order::{Back, OrderError, Record, WHAT, mib, records};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Time between two rounds of tries.
const AGAIN: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(30) };
/// How long a monitor is tried in a round, which the others wait for, as does the daemon's end.
const PATIENCE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(5) };

/// The thread that tries. The thread ends by itself when nothing is left, or when this value is dropped.
pub struct Left {
    news: Receiver<String>,
    /// Closed at the end.
    stop: Sender<()>,
}

impl Left {
    /// Begins, with the journals in this folder.
    pub fn begin(folder: PathBuf, host: Host) -> std::io::Result<Left> {
        let (say, news) = channel();
        let (stop, stops) = channel();
        let mut left: Vec<One> = records(&folder)
            .into_iter()
            .flatten()
            .filter(|(_, record)| !record.kept)
            .map(|(places, record)| One { places, record, said: false })
            .collect();
        if !left.is_empty() {
            std::thread::Builder::new().name("memory-left".into()).spawn(move || {
                loop {
                    left.retain_mut(|one| {
                        stops.try_recv() == Err(TryRecvError::Disconnected) || !one.give_back(&host, &say)
                    });
                    if left.is_empty() || stops.recv_timeout(AGAIN) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })?;
        }
        Ok(Left { news, stop })
    }

    /// What is to be logged.
    pub fn news(&mut self) -> Vec<String> {
        self.news.try_iter().collect()
    }

    /// Ends the tries. Returns what is to be logged, also of a try that was under way and ends soon.
    pub fn end(self) -> Vec<String> {
        drop(self.stop);
        let end = Instant::now() + PATIENCE;
        let next = || self.news.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
    }
}

/// A journal that was there.
struct One {
    places: Places,
    record: Record,
    /// Whether the log has why it is not given back.
    said: bool,
}

impl One {
    /// Tries once. Returns whether there is nothing more to do.
    fn give_back(&mut self, host: &Host, say: &Sender<String>) -> bool {
        let (places, who) = (&self.places, &self.record);
        // Names in journals are printable.
        let who = format!("VM {} (process {})", who.name, who.guest.0);
        let mut back = None;
        let restored = restore_left_behind(WHAT, places, |left| {
            let record = Record::at(&places.journal, left)?;
            // Another order may have had it meanwhile.
            if record.kept {
                return Err(OrderError::Left { pid: record.guest.0 });
            }
            match record.give_back_while(host, false, &mut |since, _| since < PATIENCE)? {
                Back::Another { size } => return Err(record.changed(size)),
                Back::Given => back = record.takes().then_some(record.found),
                Back::Gone => {}
            }
            Ok(())
        });
        remove_unused_lock(places);
        match restored {
            Ok(_) => {
                let text = |found| {
                    format!(
                        "{who} gets {} MiB again, of which an order that was killed had left a part taken",
                        mib(found)
                    )
                };
                let _ = back.map(|found| say.send(text(found)));
                true
            }
            // This daemon has begun an order of its own, behind the guardian of the one that was killed.
            Err(OrderError::Held(HeldError::Busy { pid, .. })) if pid == Some(std::process::id()) => true,
            // Its order runs, or its guardian does.
            Err(OrderError::Held(HeldError::Busy { .. })) => false,
            Err(OrderError::Left { .. }) => true,
            Err(e) => {
                let ends = matches!(e, OrderError::Changed { .. });
                if !std::mem::replace(&mut self.said, true) {
                    let _ = say.send(format!(
                        "{who} has not got back what a killed order had left taken: {}",
                        words(&e)
                    ));
                }
                ends
            }
        }
    }
}
