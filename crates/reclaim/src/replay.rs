// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests on one host, whose memory a policy divides step by step.

use crate::partition::by_level;
use crate::steps::Step;

/// A guest's timeline in steps, and the sizes that it may have, in frames.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    pub name: String,
    pub least: u64,
    pub most: u64,
    pub steps: Vec<Step>,
}

/// The host, in frames and seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host {
    pub frames: u64,
    /// Length of a step.
    pub step_s: f64,
    /// What a refault costs.
    pub refault_s: f64,
    /// Seconds of a policy in a second of the guests.
    pub time_scale: f64,
}

/// What a policy sees of a guest. It sees nothing of the step that it decides for.
#[derive(Debug, Clone)]
pub(crate) struct View<'a> {
    pub least: u64,
    pub most: u64,
    /// What the guest may hold; at the start, all of its memory.
    pub size: u64,
    /// What the guest holds.
    pub held: f64,
    /// Frames that the guest uses, in memory or not.
    pub in_use: f64,
    /// The part of the last step's time in which the guest waited for memory.
    pub pressure: f64,
    /// Frames that it used in the last step; `None` at the start, or if the host does not know.
    pub touched: Option<f64>,
    /// What it needed in the last step; `None` at the start, and for a guest that runs.
    pub past: Option<&'a Step>,
}

/// What a policy sees of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// The host's frames.
    pub host: u64,
    /// Seconds since the last decision, of the policy's clock; 0 at the start.
    pub seconds: f64,
}

/// A rule that divides a host's memory.
pub(crate) trait Policy {
    /// The size of each guest for the next step. Sizes out of a guest's bounds are moved into them. If they
    /// are more than the host has, it pages.
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64>;
}

/// One step of one guest.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Tick {
    pub size: u64,
    /// What the guest holds at the end.
    pub held: f64,
    /// Misses beyond first references.
    pub refaults: f64,
    /// Those of them that a memory which had this size before would not have had: the new memory was empty.
    pub while_growing: f64,
    /// Dirty frames that were taken from the guest.
    pub written: f64,
}

impl Guest {
    /// The frames that the guest references in step `n`, and those that it uses at all.
    fn uses(&self, n: usize, view: &View) -> [u64; 2] {
        let step = &self.steps[n];
        [step.working_set, step.in_use.max(step.working_set).max(view.in_use)]
            .map(|frames| frames.ceil() as u64)
    }

    /// What a policy sees of the guest before step `n`.
    fn view(&self, n: usize, last: Option<Tick>, host: Host) -> View<'_> {
        let last = last.unwrap_or(Tick { size: self.most, ..Tick::default() });
        let stalled = last.refaults * host.refault_s;
        let past = n.checked_sub(1).map(|n| &self.steps[n]);
        View {
            least: self.least,
            most: self.most,
            size: last.size,
            held: last.held,
            in_use: past.map_or(0.0, |past| past.in_use),
            pressure: stalled / (stalled + host.step_s),
            touched: past.map(|past| past.working_set),
            past,
        }
    }
}

/// The steps of each guest under a policy.
pub(crate) fn replay(guests: &[Guest], host: Host, policy: &mut dyn Policy) -> Vec<Vec<Tick>> {
    let count = guests.iter().map(|g| g.steps.len()).max().unwrap_or(0);
    let mut ticks: Vec<Vec<Tick>> = vec![Vec::with_capacity(count); guests.len()];
    let mut dirty_shares = vec![(0.0, 0.0); guests.len()];
    for n in 0..count {
        let views: Vec<View> = guests
            .iter()
            .enumerate()
            .map(|(i, guest)| guest.view(n, ticks[i].last().copied(), host))
            .collect();
        let seconds = if n == 0 { 0.0 } else { host.step_s * host.time_scale };
        let uses: Vec<[u64; 2]> =
            guests.iter().zip(&views).map(|(guest, view)| guest.uses(n, view)).collect();
        let sizes = policy.decide(Now { host: host.frames, seconds }, &views);
        let sizes = fit(sizes, &views, &uses, host.frames);
        for (i, guest) in guests.iter().enumerate() {
            let (step, size) = (&guest.steps[n], sizes[i] as f64);
            let had = ticks[i].last().map_or(0.0, |tick| tick.held);
            let taken = (had - size).max(0.0);
            let (dirty, used): (f64, f64) = dirty_shares[i];
            let written = if used > 0.0 { taken * dirty / used } else { 0.0 };
            // Frames that the guest gives back in the step: in memory and out of it alike.
            let first = step.curve.first();
            let in_use = views[i].in_use;
            let kept = if in_use > 0.0 { ((step.in_use - first) / in_use).clamp(0.0, 1.0) } else { 0.0 };
            let had = had.min(size) * kept;
            let (misses, held) = step.curve.misses_while_growing(had, size, in_use * kept - had);
            let refaults = (misses - first).max(0.0);
            let while_growing = (misses - step.curve.misses(size)).clamp(0.0, refaults);
            let size = sizes[i];
            ticks[i].push(Tick { size, held, refaults, while_growing, written });
            dirty_shares[i] = (dirty + step.dirty, used + step.working_set);
        }
    }
    ticks
}

/// Sizes within their bounds and the host.
///
/// If they are more than the host has, it pages as an LRU memory of all guests does: what guests reference in
/// the step stays, then what they use besides; of what does not fit, each guest loses the same part. `uses`
/// are the frames of both kinds together, first those referenced.
fn fit(mut sizes: Vec<u64>, guests: &[View], uses: &[[u64; 2]], host: u64) -> Vec<u64> {
    assert_eq!(sizes.len(), guests.len(), "a policy decides for all guests");
    for (size, guest) in sizes.iter_mut().zip(guests) {
        *size = (*size).clamp(guest.least, guest.most);
    }
    if sizes.iter().sum::<u64>() <= host {
        return sizes;
    }
    let least: Vec<u64> = guests.iter().map(|guest| guest.least).collect();
    let up_to = |kind: usize| -> Vec<u64> {
        least
            .iter()
            .zip(&sizes)
            .zip(uses)
            .map(|((&least, &size), uses)| size.min(uses[kind]).max(least))
            .collect()
    };
    let (referenced, used) = (up_to(0), up_to(1));
    let (low, high) =
        if referenced.iter().sum::<u64>() > host { (least, referenced) } else { (referenced, used) };
    let bounds: Vec<(u64, u64)> = low.into_iter().zip(high).collect();
    by_level(host, &bounds, |i, level| bounds[i].0 as f64 + level * (bounds[i].1 - bounds[i].0) as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::grid::{Curve, sizes};

    /// A step of a guest of 1024 frames that runs `references` times in a loop over `frames` frames.
    pub(crate) fn looping(frames: u64, references: u64, first: u64) -> Step {
        let sizes = sizes(64, 1024);
        let misses: Vec<u64> = sizes.iter().map(|&s| if s < frames { references } else { first }).collect();
        let working_set = frames as f64;
        let (in_use, dirty) = (working_set, working_set / 4.0);
        Step { curve: Curve::new(&sizes, references, &misses), in_use, working_set, dirty }
    }

    pub(crate) fn guest(name: &str, steps: Vec<Step>) -> Guest {
        Guest { name: name.into(), least: 64, most: 1024, steps }
    }

    pub(crate) const HOST: Host = Host { frames: 1024, step_s: 1.0, refault_s: 1e-4, time_scale: 1.0 };

    /// Gives sizes as written.
    struct Script(Vec<Vec<u64>>);

    impl Policy for Script {
        fn decide(&mut self, _: Now, _: &[View]) -> Vec<u64> {
            self.0.remove(0)
        }
    }

    #[test]
    fn taken_memory_is_empty_when_it_comes_back() {
        let steps = vec![
            looping(256, 1000, 256),
            looping(256, 1000, 0),
            looping(256, 1000, 0),
            looping(256, 1000, 0),
        ];
        let mut script = Script(vec![vec![256], vec![192], vec![256], vec![256]]);
        let ticks = &replay(&[guest("a", steps)], HOST, &mut script)[0];
        let of = |f: fn(&Tick) -> f64| ticks.iter().map(|t| f(t).round()).collect::<Vec<_>>();
        // 192 of 256 frames hold none of a loop over 256, and 64 frames are loaded when they are back.
        assert_eq!(of(|t| t.held), [256.0, 192.0, 256.0, 256.0]);
        assert_eq!(of(|t| t.refaults), [0.0, 1000.0, 64.0, 0.0]);
        assert_eq!(of(|t| t.while_growing), [0.0, 0.0, 64.0, 0.0]);
        // A quarter of the frames used was written.
        assert_eq!(of(|t| t.written), [0.0, 16.0, 0.0, 0.0]);
    }

    #[test]
    fn what_a_policy_gives_beyond_the_host_is_paged() {
        let view = |least, most| View {
            least,
            most,
            size: 0,
            held: 0.0,
            in_use: 0.0,
            pressure: 0.0,
            touched: None,
            past: None,
        };
        let views = [view(100, 1000), view(100, 1000), view(50, 200)];
        let fit = |sizes: [u64; 3], uses: [[u64; 2]; 3], host| fit(sizes.to_vec(), &views, &uses, host);
        let all = [[1000; 2]; 3];
        assert_eq!(fit([900, 500, 10], all, 2000), [900, 500, 50]);
        assert_eq!(fit([900, 500, 10], all, 850), [500, 300, 50]);
        assert_eq!(fit([5000, 5000, 5000], all, 2200), [1000, 1000, 200]);
        // The second guest uses less than it may, and loses less.
        let uses = [[1000; 2], [300; 2], [10; 2]];
        assert_eq!(fit([900, 900, 10], uses, 1250), [900, 300, 50]);
        assert_eq!(fit([900, 900, 10], uses, 750), [500, 200, 50]);
        // Half of what the first guest uses rests, and goes first.
        let uses = [[500, 1000], [300; 2], [10; 2]];
        assert_eq!(fit([1000, 900, 10], uses, 1000), [650, 300, 50]);
    }

    /// Refaults of an LRU memory that has these sizes in turn, each for an equal part of the stream.
    fn exact(stream: &[u64], sizes: &[u64]) -> f64 {
        // The most recent frame last.
        let (mut memory, mut seen, mut refaults) = (Vec::new(), std::collections::HashSet::new(), 0);
        for (part, &size) in stream.chunks(stream.len() / sizes.len()).zip(sizes) {
            memory.drain(..memory.len().saturating_sub(size as usize));
            for frame in part {
                match memory.iter().rposition(|f| f == frame) {
                    Some(at) => _ = memory.remove(at),
                    None => {
                        refaults += u64::from(!seen.insert(*frame));
                        if memory.len() as u64 == size {
                            memory.remove(0);
                        }
                    }
                }
                memory.push(*frame);
            }
        }
        refaults as f64
    }

    #[test]
    fn refaults_of_every_policy_are_those_of_memories_of_its_sizes() {
        use crate::{About, MemoryTimeline, MemoryUse, PolicyName, ReferenceKind};
        use rand::{Rng, SeedableRng};
        const STEPS: u64 = 40;
        const REFERENCES: u64 = 4000;
        let mut random = rand_pcg::Pcg64::seed_from_u64(3);
        // Half of the references go to few frames, which change now and then; the others to frames that are
        // the likelier the lower their numbers are.
        let mut stream = |offset: u64| -> Vec<u64> {
            let frame = |at| {
                let phase = (at / REFERENCES + offset) / 6 % 3;
                if random.random_range(0..2) == 0 {
                    phase * 300 + random.random_range(0..80 + 100 * phase)
                } else {
                    (1000f64.powf(random.random::<f64>()) as u64).min(999)
                }
            };
            (0..STEPS * REFERENCES).map(frame).collect()
        };
        let streams = [0, 6, 12].map(&mut stream);
        let guests: Vec<Guest> = streams
            .iter()
            .map(|stream| {
                let length = std::num::NonZeroU64::new(REFERENCES).expect("not 0");
                let mut uses = MemoryUse::<64>::new(1024, length, 0).expect("few frames");
                for (at, &frame) in (1..).zip(stream) {
                    uses.reference(frame, ReferenceKind::Data, false);
                    uses.ran(at);
                }
                uses.end();
                let about = About { guest_frames: 1024, ..About::default() };
                let timeline = MemoryTimeline::of(about, &uses, 1.0 / REFERENCES as f64);
                guest("", crate::steps::steps(&timeline, 1.0, STEPS as usize))
            })
            .collect();
        let host = Host { frames: 1000, time_scale: 100.0, ..HOST };
        for name in PolicyName::ALL {
            let ticks = name.replay(&guests, host);
            for (stream, ticks) in streams.iter().zip(&ticks) {
                let sizes: Vec<u64> = ticks.iter().map(|tick| tick.size).collect();
                let (here, exact) = (ticks.iter().map(|t| t.refaults).sum::<f64>(), exact(stream, &sizes));
                assert!((here - exact).abs() < 0.05 * exact, "{}: {here} refaults, not {exact}", name.name());
            }
        }
    }
}
