// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that page out: each holds no more of its guest's memory than a limit. Above the limit, a host looks
//! which pages the guest has used since the last time, and swaps out those that were not used for longest,
//! down to 15/16 of the limit: as `kswapd` does between its watermarks, with exact ages in place of lists.
//! Hosts act where the stream says how many instructions ran, so the same stream gives the same counts.

use super::Model;
use crate::host::Taking;

/// Of a limit, what is freed at once: 1/16.
const FREED: u64 = 16;

/// The limit, and what each host held when its pages were last counted.
#[derive(Debug)]
pub(super) struct Limit {
    frames: u64,
    /// Per host: its epoch then, and frames.
    counted: Vec<(u64, u64)>,
}

impl Model {
    /// From now on each host holds at most `frames` frames of its guest's own pages. Native and offset paging
    /// have no host that pages out. No effect before the guest has started. Watches
    /// [swaps](Model::watch_swaps).
    pub fn limit_hosts(&mut self, frames: u64) {
        self.watch_swaps();
        self.limit = Some(Box::new(Limit { frames, counted: vec![(0, 0); self.regimes.len()] }));
    }

    /// Hosts above their limit swap out.
    pub(super) fn keep_limit(&mut self) {
        let Some(mut limit) = self.limit.take() else { return };
        for host in 0..limit.counted.len() {
            let (epoch, held) = limit.counted[host];
            // Each change of the epoch backs one page at most.
            let now = self.regimes[host].host_epoch();
            let page = 1 << (self.regimes[host].config.host_page.shift() - 12);
            if held + (now - epoch) * page <= limit.frames {
                continue;
            }
            let pages = self.oldest(host, usize::MAX);
            let mut held: u64 = pages.iter().map(|page| page.end - page.start).sum();
            if held > limit.frames {
                self.look(host);
                for page in self.oldest(host, usize::MAX) {
                    if held <= limit.frames - limit.frames / FREED {
                        break;
                    }
                    held -= page.end - page.start;
                    self.take_back(host, page, Taking::Swap);
                }
            }
            limit.counted[host] = (self.regimes[host].host_epoch(), held);
        }
        self.limit = Some(limit);
    }
}
