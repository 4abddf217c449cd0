// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walker: one loop for every format, mode and walk cache.
//!
//! [`walk`] starts at a table: the root, or the table that a walk cache names. The caller supplies
//! one entry per level. The walk stops at a leaf or at an entry that is not present. The caller also
//! counts references, and it may walk another dimension to get an entry: that makes the walk
//! two-dimensional. Without walk caches, m levels of one dimension take m references, and m guest
//! levels by n host levels take m*n + m + n.

use crate::format::Format;

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// At an entry that maps a page.
    Leaf(Step),
    /// At an entry that is not present.
    NotPresent(Step),
}

/// An entry met by a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Level of the table that holds the entry.
    pub level: u8,
    /// Physical address of the entry.
    pub at: u64,
    /// Value of the entry.
    pub entry: u64,
}

/// Where a walk starts: a table of `level` at physical address `table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Level of the table's entries.
    pub level: u8,
    /// Physical address of the table.
    pub table: u64,
}

/// Walks `va` from `start`. `read(level, at)` returns the entry at physical
/// address `at`, or `Err` to abandon the walk (a nested violation).
#[inline]
pub fn walk<E>(
    format: &Format,
    start: Start,
    va: u64,
    mut read: impl FnMut(u8, u64) -> Result<u64, E>,
) -> Result<Walk, E> {
    let Start { mut level, mut table } = start;
    loop {
        let at = table + format.offset(level, va);
        let entry = read(level, at)?;
        let step = Step { level, at, entry };
        if entry & format.present == 0 {
            return Ok(Walk::NotPresent(step));
        }
        if format.is_leaf(level, entry) {
            return Ok(Walk::Leaf(step));
        }
        table = format.target(level, entry);
        level -= 1;
    }
}
