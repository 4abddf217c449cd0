// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Miss curves at a grid of sizes, with lines between them.

/// Sizes of memory for a guest of `frames` frames: from `least` on, which is 1 or more, four for each doubling, and the last is all
/// frames.
///
/// ```
/// assert_eq!(bifold_reclaim::sizes(64, 200), [64, 80, 96, 112, 128, 160, 192, 200]);
/// ```
pub fn sizes(least: u64, frames: u64) -> Vec<u64> {
    let quarters = (0..).flat_map(|k| (4..8).map(move |n| (least.max(1) * n << k) / 4));
    let mut sizes: Vec<u64> = quarters.take_while(|&size| size < frames).chain([frames]).collect();
    sizes.dedup();
    sizes
}

/// Misses of an LRU memory in an interval, by size.
///
/// Between two sizes of the grid the curve is a line. The misses of all sizes between lie between those of the two, so that the
/// error is at most the fall from one size to the next; a step of the true curve becomes a slope.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// Frames and misses: the first is 0 frames and all references, the last is the guest's whole memory.
    points: Vec<(f64, f64)>,
}

impl Curve {
    pub(crate) fn new(sizes: &[u64], references: u64, misses: &[u64]) -> Curve {
        let points = sizes.iter().zip(misses).map(|(&size, &misses)| (size as f64, misses as f64));
        Curve { points: [(0.0, references as f64)].into_iter().chain(points).collect() }
    }

    /// No misses, at the sizes of `other`.
    pub(crate) fn flat(other: &Curve) -> Curve {
        Curve { points: other.points.iter().map(|&(size, _)| (size, 0.0)).collect() }
    }

    /// Adds `weight` times a curve at the same sizes.
    pub(crate) fn add(&mut self, other: &Curve, weight: f64) {
        debug_assert_eq!(self.points.len(), other.points.len());
        self.points.iter_mut().zip(&other.points).for_each(|(point, other)| point.1 += weight * other.1);
    }

    /// `weight` times the curve.
    pub(crate) fn scaled(&self, weight: f64) -> Curve {
        Curve { points: self.points.iter().map(|&(size, misses)| (size, weight * misses)).collect() }
    }

    /// Misses with a memory of `frames` frames.
    pub fn misses(&self, frames: f64) -> f64 {
        let after = self.points.partition_point(|point| point.0 <= frames);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (Some((a, at_a)), Some(&(b, at_b))) => at_a + (at_b - at_a) * (frames - a) / (b - a),
            (Some((_, misses)), None) => misses,
            (None, _) => 0.0,
        }
    }

    /// Misses of a guest that holds `held` frames at the start of the interval and may hold up to `size`, and what it holds at the end.
    ///
    /// Memory that a guest is given is empty, so that what the guest holds grows by a frame at each miss. What it holds is then
    /// always the top of its LRU stack, so it misses as a memory of just that size does. The interval's misses are taken as spread
    /// evenly over its time: at h frames held, the next miss comes after 1 / C(h) of the interval, and C is a line between
    /// sizes of the grid.
    pub fn misses_while_growing(&self, held: f64, size: f64) -> (f64, f64) {
        let (mut held, mut time, mut misses) = (held.min(size), 0.0, 0.0);
        while held < size {
            let after = self.points.partition_point(|point| point.0 <= held);
            let end = self.points.get(after).map_or(size, |point| point.0.min(size));
            let (now, then, frames) = (self.misses(held), self.misses(end), end - held);
            if now <= 0.0 {
                return (misses, held);
            }
            let fall = (now - then) / frames;
            // The time until `end` is held: the integral of 1 / C.
            let needed = match then {
                _ if fall * frames < 1e-9 * now => frames / now,
                then if then <= 0.0 => f64::INFINITY,
                then => (now / then).ln() / fall,
            };
            if time + needed >= 1.0 {
                let left = 1.0 - time;
                let grown = match fall {
                    fall if fall * left < 1e-9 => now * left,
                    fall => now / fall * (1.0 - (-fall * left).exp()),
                };
                return (misses + grown, held + grown.min(frames));
            }
            (time, misses, held) = (time + needed, misses + frames, end);
        }
        (misses + (1.0 - time) * self.misses(size), held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_four_sizes_for_each_doubling_and_ends_at_the_guest_s_memory() {
        assert_eq!(sizes(64, 300), [64, 80, 96, 112, 128, 160, 192, 224, 256, 300]);
        assert_eq!(sizes(64, 256), [64, 80, 96, 112, 128, 160, 192, 224, 256]);
        assert_eq!(sizes(64, 20), [20]);
        assert!(sizes(64, crate::MOST_FRAMES).len() < 100);
    }

    #[test]
    fn a_loop_loads_itself_once_when_it_fits() {
        // 1000 references in a loop over 200 frames: all miss below 200.
        let misses: Vec<u64> = sizes(64, 1024).iter().map(|&s| if s < 200 { 1000 } else { 0 }).collect();
        let curve = Curve::new(&sizes(64, 1024), 1000, &misses);
        assert_eq!(curve.misses_while_growing(50.0, 150.0), (1000.0, 150.0));
        // The line from 192 to 224 stands for the step at 200.
        let (misses, held) = curve.misses_while_growing(50.0, 300.0);
        assert!((150.0..=174.0).contains(&misses) && (200.0..=224.0).contains(&held), "{misses} {held}");
        assert_eq!(curve.misses_while_growing(250.0, 300.0), (0.0, 250.0));
        assert_eq!(curve.misses_while_growing(250.0, 150.0), (1000.0, 150.0));
    }

    #[test]
    fn growth_ends_with_the_interval() {
        let curve = Curve::new(&sizes(64, 1024), 30, &vec![30; sizes(64, 1024).len()]);
        assert_eq!(curve.misses_while_growing(100.0, 500.0), (30.0, 130.0));
    }
}
