// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks whether KVM would refuse a switch that a policy wants. KVM looks at each vCPU for that, so that
//! looks at an obstacle that stays become rare.

use bifold_host::Mode;
use bifold_host::{Obstacle, Paging};
use std::time::Duration;

/// Time between the first two looks.
const FIRST: Duration = Duration::from_secs(10);
/// Longest time between two looks.
const LONGEST: Duration = Duration::from_secs(600);

/// What a look found.
#[derive(Debug, Clone, PartialEq)]
pub struct ObstacleCheck {
    /// The mode that the policy wants.
    pub to: Mode,
    /// What would refuse the switch; `None` if KVM would switch the VM, or does not tell.
    pub obstacle: Option<Obstacle>,
    /// Time until the next look.
    pause: Duration,
    /// When the next look is due, in time since the daemon's start.
    next: Duration,
}

impl ObstacleCheck {
    /// A look at the time `up`, behind another one. The pause doubles while the reason stays, whichever vCPU
    /// has it. After an obstacle that lasts, there is no further look.
    pub fn at(paging: &Paging, to: Mode, up: Duration, before: Option<&ObstacleCheck>) -> ObstacleCheck {
        let obstacle =
            paging.obstacle().filter(|(mode, _)| *mode == to).map(|(_, obstacle)| obstacle.clone());
        let stays = |before: &&ObstacleCheck| {
            let same = before.obstacle.as_ref().zip(obstacle.as_ref()).is_some_and(|(a, b)| a.is_like(b));
            before.to == to && same
        };
        let pause = before.filter(stays).map_or(FIRST, |before| (2 * before.pause).min(LONGEST));
        let lasts = obstacle.as_ref().is_some_and(|o| o.lasts() == Some(true));
        ObstacleCheck {
            to,
            obstacle,
            pause,
            next: if lasts { Duration::MAX } else { up.saturating_add(pause) },
        }
    }

    /// Whether it is time to look again before a switch to this mode.
    pub fn is_over(&self, to: Mode, up: Duration) -> bool {
        self.to != to || self.next <= up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_host::{Forecast, PagingStats, State};

    /// Looks from one second to the next, and at what the VM's file says then; returns the seconds of the
    /// looks.
    fn looks(seconds: u64, line: impl Fn(u64) -> &'static str) -> Vec<u64> {
        let (mut last, mut at): (Option<ObstacleCheck>, _) = (None, Vec::new());
        for second in 0..seconds {
            let up = Duration::from_secs(second);
            if last.as_ref().is_none_or(|l| l.is_over(Mode::Shadow, up)) {
                let paging = Paging::Own {
                    state: Ok(State::In(Mode::Nested)),
                    stats: Ok(PagingStats::default()),
                    forecast: Ok(Forecast::parse(line(second).as_bytes()).unwrap()),
                };
                last = Some(ObstacleCheck::at(&paging, Mode::Shadow, up, last.as_ref()));
                at.push(second);
            }
        }
        at
    }

    #[test]
    fn pauses_double_to_ten_minutes_while_the_reason_stays() {
        let at = looks(3000, |second| if second % 20 < 10 { "smm vcpu 0\n" } else { "smm vcpu 7\n" });
        assert_eq!(at, [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430]);
    }

    #[test]
    fn another_reason_and_none_begin_anew() {
        let at = looks(120, |second| if second < 60 { "smm vcpu 0\n" } else { "keys vcpu 0\n" });
        assert_eq!(at, [0, 10, 30, 70, 80, 100]);
        assert_eq!(looks(50, |_| "none\n"), [0, 10, 20, 30, 40]);
        assert_eq!(looks(40, |second| if second == 10 { "none\n" } else { "newer\n" }), [0, 10, 20, 30]);
    }

    #[test]
    fn what_lasts_is_looked_at_once_and_another_mode_is_another_matter() {
        assert_eq!(looks(9999, |_| "encrypted\n"), [0]);
        let paging = Paging::Own {
            state: Ok(State::In(Mode::Nested)),
            stats: Ok(PagingStats::default()),
            forecast: Ok(Forecast::parse(b"encrypted\n").unwrap()),
        };
        let look = ObstacleCheck::at(&paging, Mode::Shadow, Duration::ZERO, None);
        assert!(look.is_over(Mode::Nested, Duration::ZERO));
        // The file speaks of a switch away from the present mode.
        assert_eq!(ObstacleCheck::at(&paging, Mode::Nested, Duration::ZERO, None).obstacle, None);
    }
}
