// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linear regression of costs on counts, without intercept and with coefficients of 0 or more, because events
//! that cost cycles never save any.
//!
//! The solver is Lawson and Hanson's non-negative least squares (crate `nnls`) over columns scaled to the
//! same size. A small ridge lets correlated counts share their coefficient. Every program has the same
//! weight, whatever its length. Counts are chosen one at a time: always the count that lowers the error over
//! left-out programs most, until the gain is too small.

use crate::TrainError;
use ndarray::{Array1, Array2};

/// Largest number of coefficients in a sum.
const MOST: usize = 5;
/// A coefficient must lower the error over left-out programs by this share.
const GAIN: f64 = 0.02;
/// Ridge, relative to a program's weight.
const RIDGE: f64 = 1e-3;
/// Largest gradient of a solution, relative to a program's weight.
const SOLVED: f64 = 1e-6;

/// One program's weighted rows. The fit minimises their squared errors.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Counts of each row.
    pub x: Vec<Vec<f64>>,
    /// Cost of each row.
    pub y: Vec<f64>,
}

impl Block {
    /// Adds a row of this weight.
    pub fn push(&mut self, counts: &[f64], y: f64, weight: f64) {
        self.x.push(counts.iter().map(|c| c * weight).collect());
        self.y.push(y * weight);
    }

    /// Weighted squared error of a sum over these columns.
    fn error(&self, columns: &[usize], coefficients: &[f64]) -> f64 {
        let at = |(x, y): (&Vec<f64>, &f64)| {
            let sum: f64 = columns.iter().zip(coefficients).map(|(&c, k)| x[c] * k).sum();
            (sum - y).powi(2)
        };
        self.x.iter().zip(&self.y).map(at).sum()
    }
}

/// A weighted sum of counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sum {
    /// Indices of the counts.
    pub columns: Vec<usize>,
    /// A coefficient for each of these counts.
    pub coefficients: Vec<f64>,
}

impl Sum {
    /// The sum for these counts.
    pub fn of(&self, counts: &[f64]) -> f64 {
        self.columns.iter().zip(&self.coefficients).map(|(&c, k)| counts[c] * k).sum()
    }
}

/// The best sum over `columns` for all blocks but one.
pub fn fit(blocks: &[Block], but: Option<usize>, columns: &[usize]) -> Result<Sum, TrainError> {
    let used = || blocks.iter().enumerate().filter(|(i, _)| Some(*i) != but).map(|(_, b)| b);
    let rows: Vec<(&Vec<f64>, f64)> = used().flat_map(|b| b.x.iter().zip(b.y.iter().copied())).collect();
    let scale = |c: usize| rows.iter().map(|(x, _)| x[c].powi(2)).sum::<f64>().sqrt();
    let (columns, scales): (Vec<usize>, Vec<f64>) =
        columns.iter().map(|&c| (c, scale(c))).filter(|(_, s)| *s > 0.0).unzip();
    let size = rows.iter().map(|(_, y)| y.powi(2)).sum::<f64>().sqrt();
    if columns.is_empty() || size == 0.0 {
        return Ok(Sum::default());
    }
    let (m, n) = (rows.len(), columns.len());
    let a = Array2::from_shape_fn((m + n, n), |(i, j)| match rows.get(i) {
        Some((x, _)) => x[columns[j]] / scales[j],
        None if i - m == j => RIDGE,
        None => 0.0,
    });
    let b = Array1::from_shape_fn(m + n, |i| rows.get(i).map_or(0.0, |(_, y)| y / size));
    let (k, _) = nnls::nnls(a.view(), b.view());
    let gradient = a.t().dot(&(&b - &a.dot(&k)));
    let solved = |(g, k): (&f64, &f64)| *k >= 0.0 && *g <= SOLVED && (*k == 0.0 || g.abs() <= SOLVED);
    if !gradient.iter().zip(&k).all(solved) {
        return Err(TrainError::Solver(format!("non-negative least squares stopped at gradient {gradient}")));
    }
    let coefficients = k.iter().zip(&scales).map(|(k, s)| k * size / s);
    let (columns, coefficients) = columns.iter().copied().zip(coefficients).filter(|(_, k)| *k > 0.0).unzip();
    Ok(Sum { columns, coefficients })
}

/// For each block, the sum fitted to all other blocks.
pub fn without_each(blocks: &[Block], columns: &[usize]) -> Result<Vec<Sum>, TrainError> {
    (0..blocks.len()).map(|i| fit(blocks, Some(i), columns)).collect()
}

/// Squared error over all blocks, each estimated by the sum fitted to the other blocks.
fn left_out(blocks: &[Block], columns: &[usize]) -> Result<f64, TrainError> {
    let sums = without_each(blocks, columns)?;
    Ok(blocks.iter().zip(&sums).map(|(b, s)| b.error(&s.columns, &s.coefficients)).sum())
}

/// The counts of `candidates` that deserve a coefficient.
pub fn choose(blocks: &[Block], candidates: &[usize]) -> Result<Vec<usize>, TrainError> {
    let mut chosen: Vec<usize> = Vec::new();
    let mut error: f64 = blocks.iter().map(|b| b.error(&[], &[])).sum();
    while chosen.len() < MOST {
        let mut best: Option<(f64, usize)> = None;
        for &c in candidates.iter().filter(|c| !chosen.contains(c)) {
            let with: Vec<usize> = chosen.iter().copied().chain([c]).collect();
            let e = left_out(blocks, &with)?;
            if best.is_none_or(|(least, _)| e < least) {
                best = Some((e, c));
            }
        }
        match best {
            Some((e, c)) if e < error * (1.0 - GAIN).powi(2) => {
                error = e;
                chosen.push(c);
            }
            _ => break,
        }
    }
    // Later counts can make an earlier one needless.
    while let Some((i, e)) = least_needed(blocks, &chosen)? {
        if e * (1.0 - GAIN).powi(2) > error {
            break;
        }
        chosen.remove(i);
        error = e;
    }
    Ok(chosen)
}

/// The chosen count without which the error is least, and that error.
fn least_needed(blocks: &[Block], chosen: &[usize]) -> Result<Option<(usize, f64)>, TrainError> {
    let mut best = None;
    if chosen.len() > 1 {
        for i in 0..chosen.len() {
            let without: Vec<usize> = chosen.iter().copied().filter(|c| *c != chosen[i]).collect();
            let e = left_out(blocks, &without)?;
            if best.is_none_or(|(_, least)| e < least) {
                best = Some((i, e));
            }
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three programs whose y is 2 a + 5 b; c is noise.
    fn blocks() -> Vec<Block> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let mut block = || {
            let mut b = Block::default();
            for _ in 0..50 {
                let x = [100.0 * next(), next(), next()];
                b.push(&x, 2.0 * x[0] + 5.0 * x[1], 0.1);
            }
            b
        };
        (0..3).map(|_| block()).collect()
    }

    #[test]
    fn coefficients_of_a_linear_truth_are_found_and_noise_is_left_out() {
        let blocks = blocks();
        assert_eq!(choose(&blocks, &[0, 1, 2]).unwrap(), [0, 1]);
        let sum = fit(&blocks, None, &[0, 1, 2]).unwrap();
        assert!((sum.of(&[1.0, 0.0, 0.0]) - 2.0).abs() < 1e-2, "{sum:?}");
        assert!((sum.of(&[0.0, 1.0, 0.0]) - 5.0).abs() < 0.1, "{sum:?}");
    }

    #[test]
    fn what_saves_cycles_gets_no_coefficient() {
        let mut b = Block::default();
        (1..9).for_each(|i| b.push(&[f64::from(i), 1.0], 10.0 - f64::from(i), 1.0));
        let sum = fit(&[b], None, &[0, 1]).unwrap();
        assert_eq!(sum.columns, [1]);
    }

    #[test]
    fn nothing_to_tell_needs_no_coefficient() {
        let mut b = Block::default();
        (1..9).for_each(|i| b.push(&[f64::from(i)], 0.0, 1.0));
        assert_eq!(fit(&[b.clone()], None, &[0]).unwrap(), Sum::default());
        assert!(choose(&[b.clone(), b], &[0]).unwrap().is_empty());
    }
}
