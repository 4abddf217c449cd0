// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generators: built-in event streams for trying, testing and measuring the model
//! without a guest.
//!
//! `t`, `t-seq` and `t-4m` consist of loads, and other simulators agree on their
//! TLB misses to the last one. `pointer-chase` and `fork-storm` are the two
//! opposite cases of memory virtualization; they follow what Linux does on x86-64.
//! `gups` and `gups-2m` update random places of a table of any size.
//! Every stream carries the guest page tables that translate its accesses. One
//! name and number give the same words on every machine.

mod chase;
mod fork;
pub(crate) mod guest;
mod gups;
mod random;
mod uniform;

use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    T,
    TSeq,
    T4m,
    PointerChase,
    ForkStorm,
    Gups,
    Gups2m,
}

/// Name, default number and meaning of each generator.
const KINDS: [(Kind, &str, u64, &str); 7] = [
    (Kind::T, "t", 20_000_000, "N loads: random in 1 GiB and sequential in another by turns (trace T)"),
    (Kind::TSeq, "t-seq", 1_000_000, "the sequential half of t: N loads of 8 bytes, one after the other"),
    (Kind::T4m, "t-4m", 1_000_000, "N loads random in 4 MiB"),
    (Kind::PointerChase, "pointer-chase", 10_000_000, "N dependent loads in random cyclic order over 1 GiB"),
    (Kind::ForkStorm, "fork-storm", 200, "N times a process forks, its child touches memory and exits"),
    (
        Kind::Gups,
        "gups",
        20_000_000,
        "N random updates of a table in 4 KB pages; gups:N@SIZE sets its size (1g)",
    ),
    (Kind::Gups2m, "gups-2m", 20_000_000, "as gups, with the table in the guest's 2 MB pages"),
];

/// Why a text names no generator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// No generator has the name.
    #[error("unknown generator `{name}`: use one of {}, each with :N if wanted", names())]
    Name {
        /// The name given.
        name: String,
    },
    /// The part after the colon is no number in the accepted range.
    #[error(
        "`{count}` in generator `{spec}` is not a number from 1 to {}: write it like 5000, 20m or 1g",
        MAX_N
    )]
    Count {
        /// The whole text given.
        spec: String,
        /// The part after the colon.
        count: String,
    },
    /// The part after the `@` is no size in the accepted range.
    #[error(
        "`{size}` in generator `{spec}` is not a multiple of 2m from 2m to 512g: write it like 64m or 16g (binary)"
    )]
    Size {
        /// The whole text given.
        spec: String,
        /// The part after the `@`.
        size: String,
    },
    /// A generator whose memory has one size only was given another.
    #[error("generator `{name}` has no size to set: write {name}:N")]
    NoSize {
        /// The generator's name.
        name: String,
    },
}

/// Largest accepted N: months of running, and no sum of instructions overflows.
const MAX_N: u64 = 1_000_000_000_000_000;

/// Bytes of the table of `gups` unless a size is given.
const TABLE: u64 = 1 << 30;

fn names() -> String {
    KINDS.map(|k| k.1).join(", ")
}

/// A built-in event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generator {
    kind: Kind,
    n: u64,
    /// Of the table of `gups` and `gups-2m`; 0 for the others.
    bytes: u64,
}

impl Generator {
    /// Reads `NAME`, `NAME:N` or `NAME:N@SIZE`. N may end in k, m or g (decimal), SIZE in m or g (binary).
    pub fn parse(spec: &str) -> Result<Generator, GenerateError> {
        let (name, count) = spec.split_once(':').map_or((spec, None), |(n, c)| (n, Some(c)));
        let Some((kind, _, default, _)) = KINDS.into_iter().find(|k| k.1 == name) else {
            return Err(GenerateError::Name { name: name.into() });
        };
        let (count, size) = match count.and_then(|c| c.split_once('@')) {
            Some((c, size)) => (Some(c), Some(size)),
            None => (count, None),
        };
        let n = match count {
            None => default,
            Some(c) => {
                parse_count(c).ok_or_else(|| GenerateError::Count { spec: spec.into(), count: c.into() })?
            }
        };
        let sized = matches!(kind, Kind::Gups | Kind::Gups2m);
        let bytes = match size {
            Some(_) if !sized => return Err(GenerateError::NoSize { name: name.into() }),
            Some(text) => parse_size(text)
                .ok_or_else(|| GenerateError::Size { spec: spec.into(), size: text.into() })?,
            None if sized => TABLE,
            None => 0,
        };
        Ok(Generator { kind, n, bytes })
    }

    /// The table of `gups` and `gups-2m`.
    fn table(&self) -> gups::Table {
        gups::Table { bytes: self.bytes, level: if self.kind == Kind::Gups { 1 } else { 2 } }
    }

    /// Name, default N and one line about each generator, for help texts.
    pub fn all() -> impl Iterator<Item = (&'static str, u64, &'static str)> {
        KINDS.into_iter().map(|(_, name, n, text)| (name, n, text))
    }

    /// Guest-physical memory in 4 KB frames.
    pub fn guest_frames(&self) -> u64 {
        match self.kind {
            Kind::T | Kind::TSeq | Kind::T4m => uniform::FRAMES,
            Kind::PointerChase => chase::FRAMES,
            Kind::ForkStorm => fork::FRAMES,
            Kind::Gups | Kind::Gups2m => self.table().frames(),
        }
    }

    /// Accesses of the whole stream, to a tenth for a stream of some length: enough to say how much is left.
    pub fn accesses(&self) -> u64 {
        let each = match self.kind {
            Kind::T | Kind::TSeq | Kind::T4m | Kind::PointerChase => 1,
            Kind::ForkStorm => fork::ACCESSES,
            Kind::Gups | Kind::Gups2m => 2,
        };
        self.n.saturating_mul(each)
    }

    /// Hands the whole stream to `push` in pieces of whole events, mostly some thousand words long, and
    /// stops at the first error of `push`.
    pub fn run<E>(&self, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        match self.kind {
            Kind::T => uniform::run(uniform::Pattern::Both, self.n, push),
            Kind::TSeq => uniform::run(uniform::Pattern::Sequential, self.n, push),
            Kind::T4m => uniform::run(uniform::Pattern::Random4M, self.n, push),
            Kind::PointerChase => chase::run(self.n, push),
            Kind::ForkStorm => fork::run(self.n, push),
            Kind::Gups | Kind::Gups2m => gups::run(self.table(), self.n, push),
        }
    }
}

impl FromStr for Generator {
    type Err = GenerateError;

    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        Generator::parse(spec)
    }
}

/// `NAME:N` or `NAME:N@SIZE`, as [`Generator::parse`] reads it.
impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|k| k.0 == self.kind).expect("every kind is in the table").1;
        write!(f, "{name}:{}", self.n)?;
        if self.bytes == 0 { Ok(()) } else { write!(f, "@{}m", self.bytes >> 20) }
    }
}

fn parse_count(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (i, 'k' | 'K') => (&text[..i], 1_000),
        (i, 'm' | 'M') => (&text[..i], 1_000_000),
        (i, 'g' | 'G') => (&text[..i], 1_000_000_000),
        _ => (text, 1),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=MAX_N).contains(&n).then_some(n)
}

/// A multiple of 2 MB; m and g are binary.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (i, 'm' | 'M') => (&text[..i], 20),
        (i, 'g' | 'G') => (&text[..i], 30),
        _ => return None,
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    ((2 << 20..=512 << 30).contains(&bytes) && bytes % (2 << 20) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_with_their_suffixes() {
        for (spec, canonical) in [
            ("t", "t:20000000"),
            ("t:20m", "t:20000000"),
            ("t-seq:5000", "t-seq:5000"),
            ("t-4m:1G", "t-4m:1000000000"),
            ("pointer-chase:3k", "pointer-chase:3000"),
            ("fork-storm:1", "fork-storm:1"),
            ("gups", "gups:20000000@1024m"),
            ("gups:5k@16g", "gups:5000@16384m"),
            ("gups-2m:1@64M", "gups-2m:1@64m"),
        ] {
            assert_eq!(Generator::parse(spec).unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones_and_a_bad_number_is_quoted() {
        let e = Generator::parse("tt:5").unwrap_err().to_string();
        assert!(
            e.contains("`tt`") && e.contains("t, t-seq, t-4m, pointer-chase, fork-storm, gups, gups-2m"),
            "{e}"
        );
        for bad in
            ["", "0", "-1", "+1", "m", "1.5m", "20mm", "1e6", "99999999999999999999", "9999999g", "\u{e9}"]
        {
            let e = Generator::parse(&format!("t:{bad}")).unwrap_err();
            assert!(matches!(&e, GenerateError::Count { count, .. } if count == bad), "{bad}: {e}");
        }
    }

    #[test]
    fn sizes_that_no_table_can_have_are_refused() {
        for bad in ["", "1", "1m", "3m", "0g", "513g", "-2m", "2k", "99999999999g", "g"] {
            let e = Generator::parse(&format!("gups:5@{bad}")).unwrap_err();
            assert!(matches!(&e, GenerateError::Size { size, .. } if size == bad), "{bad}: {e}");
        }
        let e = Generator::parse("t:5@1g").unwrap_err();
        assert!(matches!(&e, GenerateError::NoSize { name } if name == "t"), "{e}");
    }
}
