// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stays in shadow paging that end early: KVM ends one when the guest begins to use what only nested paging
//! has, or when memory for it is refused, and the daemon ends one when its room runs out. KVM would take the
//! next switch a moment later, so a pause follows, longer with each stay in a row that ends early.

use bifold_host::guest_memory::{Room, ShadowNeed};
use bifold_host::{Mode, PagingStats, State};
use std::fmt;
use std::time::Duration;

/// Pause after the first stay that ends early. Each further one doubles the pause.
const FIRST: Duration = Duration::from_secs(60);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(86_400);
/// A stay of this length was worth its switches: if it ends early, the pause is the first one again.
const LONG_STAY: Duration = Duration::from_secs(3600);

/// Why a stay ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EarlyEnd {
    /// KVM: the guest began to use what only nested paging has.
    ByGuest,
    /// KVM: memory for the stay was refused.
    ForMemory,
    /// The daemon: a cgroup has so many bytes left, fewer than are to stay free.
    LittleRoom {
        /// The cgroup and what it has left.
        room: Room,
        /// What is to stay free, in bytes.
        margin: u64,
    },
    /// The daemon: a charge met the limit of a cgroup.
    MetLimit(Room),
}

impl fmt::Display for EarlyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = |room: &Room| bifold_host::printable(&room.folder.to_string_lossy());
        match self {
            EarlyEnd::ByGuest => f.write_str("the guest used what only nested paging has"),
            EarlyEnd::ForMemory => f.write_str("KVM got no memory for shadow paging"),
            EarlyEnd::LittleRoom { room, margin } => write!(
                f,
                "cgroup {} has {} MiB left, and {} MiB are to stay free",
                folder(room),
                room.left >> 20,
                margin.div_ceil(1 << 20)
            ),
            EarlyEnd::MetLimit(room) => {
                write!(f, "a limit of its cgroups was met; {} has {} MiB left", folder(room), room.left >> 20)
            }
        }
    }
}

/// A VM's stays in shadow paging.
#[derive(Debug, Default)]
pub struct Stays {
    /// KVM's counts of early ends at the last reading: for the guest, and for memory.
    counted: Option<[u64; 2]>,
    /// When the present stay began, as far as readings tell.
    since: Option<Duration>,
    /// What the present stay needs, if known.
    need: Option<ShadowNeed>,
    /// How often limits had been met at the last look of the present stay.
    met: Option<u64>,
    /// Stays in a row that ended early.
    in_a_row: u32,
    /// No stay begins before this time since the daemon's start.
    until: Duration,
}

impl Stays {
    /// Takes a reading of the VM. Returns why a stay ended early since the last reading, if KVM ended one.
    pub fn reading(&mut self, state: Option<State>, stats: &PagingStats, up: Duration) -> Option<EarlyEnd> {
        let now = [stats.switches_by_guest, stats.back_for_memory].map(|n| n.unwrap_or(0));
        let before = self.counted.replace(now).unwrap_or(now);
        let early = match [now[0] > before[0], now[1] > before[1]] {
            [_, true] => Some(EarlyEnd::ForMemory),
            [true, false] => Some(EarlyEnd::ByGuest),
            [false, false] => None,
        };
        match state {
            Some(State::In(Mode::Shadow)) => {
                let since = *self.since.get_or_insert(up);
                if up.saturating_sub(since) >= LONG_STAY {
                    self.in_a_row = 0;
                }
            }
            // A switch under way, or a file that cannot be read for a moment.
            Some(State::To(_)) | None => {}
            Some(State::In(Mode::Nested)) => (self.since, self.need, self.met) = (None, None, None),
        }
        early
    }

    /// Notes that a stay ended early. Returns the pause until the next one.
    pub fn ended_early(&mut self, up: Duration) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.in_a_row.min(16)).min(LONGEST);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.until = up.saturating_add(pause);
        pause
    }

    /// Stays in a row that ended early.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// How long no stay may begin.
    pub fn pause(&self, up: Duration) -> Option<Duration> {
        self.until.checked_sub(up).filter(|left| !left.is_zero())
    }

    /// Whether the room is too small for the present stay to go on. `need` tells what a stay needs; the
    /// answer is kept for the stay.
    pub fn is_short(&mut self, room: Room, need: impl FnOnce() -> Option<ShadowNeed>) -> Option<EarlyEnd> {
        if self.need.is_none() {
            self.need = need();
        }
        let margin = self.need.unwrap_or(ShadowNeed::of(0)).margin;
        let before = self.met.replace(room.met).unwrap_or(room.met);
        match (room.left < margin, room.met > before) {
            (true, _) => Some(EarlyEnd::LittleRoom { room, margin }),
            (false, true) => Some(EarlyEnd::MetLimit(room)),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHADOW: Option<State> = Some(State::In(Mode::Shadow));
    const NESTED: Option<State> = Some(State::In(Mode::Nested));

    fn stats(by_guest: Option<u64>, for_memory: Option<u64>) -> PagingStats {
        PagingStats { switches_by_guest: by_guest, back_for_memory: for_memory, ..PagingStats::default() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_kvm_counted_before_the_daemon_came_is_no_news() {
        let mut stays = Stays::default();
        assert_eq!(stays.reading(NESTED, &stats(Some(7), Some(1)), at(1)), None);
        assert_eq!(stays.reading(NESTED, &stats(Some(8), Some(1)), at(2)), Some(EarlyEnd::ByGuest));
        assert_eq!(stays.reading(NESTED, &stats(Some(9), Some(2)), at(3)), Some(EarlyEnd::ForMemory));
        // Another VM's files, or older modules: no count falls.
        assert_eq!(stays.reading(NESTED, &stats(Some(1), None), at(4)), None);
        assert_eq!(stays.reading(None, &stats(None, None), at(5)), None);
    }

    #[test]
    fn pauses_double_to_a_day_and_are_short_again_after_a_long_stay() {
        let mut stays = Stays::default();
        let pauses: Vec<u64> = (0..14).map(|n| stays.ended_early(at(n)).as_secs()).collect();
        assert_eq!(pauses[..4], [60, 120, 240, 480]);
        assert_eq!((pauses[10], pauses[11], pauses[13]), (61_440, 86_400, 86_400));
        assert_eq!((stays.pause(at(20)), stays.pause(at(90_000))), (Some(at(86_393)), None));
        assert_eq!(stays.pause(at(86_413)), None, "it is over at its end");
        stays.reading(SHADOW, &stats(None, None), at(90_000));
        stays.reading(SHADOW, &stats(None, None), at(93_599));
        assert_eq!(stays.ended_early(at(93_599)).as_secs(), 86_400);
        stays.reading(NESTED, &stats(None, None), at(93_600));
        stays.reading(SHADOW, &stats(None, None), at(200_000));
        stays.reading(SHADOW, &stats(None, None), at(203_600));
        assert_eq!(stays.ended_early(at(203_600)).as_secs(), 60);
    }

    #[test]
    fn a_stay_ends_below_the_margin_or_when_a_limit_is_met() {
        let mut stays = Stays::default();
        let need = || Some(ShadowNeed::of(4 << 30));
        let margin = need().unwrap().margin;
        let room = |left, met| Room { folder: "/web".into(), left, met };
        assert_eq!(stays.is_short(room(margin, 5), need), None, "met before the stay");
        assert_eq!(stays.is_short(room(margin, 6), || None), Some(EarlyEnd::MetLimit(room(margin, 6))));
        let short = stays.is_short(room(margin - 1, 6), || None).unwrap();
        assert_eq!(short.to_string(), "cgroup /web has 17 MiB left, and 18 MiB are to stay free");
        // A guest of unknown size has the least margin.
        let mut unknown = Stays::default();
        assert_eq!(unknown.is_short(room(16 << 20, 0), || None), None);
        assert!(unknown.is_short(room((16 << 20) - 1, 0), || None).is_some());
    }
}
