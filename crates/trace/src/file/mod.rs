// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recording: a file of events. `docs/reference/recording-format.md` has the layout.
//!
//! A recording has a magic number, a version and a JSON header; then blocks of
//! whole events, each with its length and checksum; then a trailer that says how
//! the recording ended. The checksum of a block is seeded with the block's place
//! in the file, so the reader refuses a block that was moved, doubled or left out
//! like a block with a flipped bit.
//!
//! A writer writes to a temporary file beside the target and renames the file at
//! the end, so the target is a whole recording or does not exist. Left out:
//! seeking. Every consumer replays from the start.

mod error;
mod reader;
mod writer;

pub use error::FileError;
pub use reader::Reader;
pub use writer::Writer;

use crate::{Clock, Granularity, GuestNode, TableFormat, Windows, event::Stats};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// First bytes of every recording; the high bit and the line end reveal transfers that mangle bytes.
pub const MAGIC: [u8; 8] = *b"\x89BIFOLD\n";
/// Version of the layout and of the events in it, of guests with 4-level tables.
pub const VERSION: u32 = 1;
/// The version of recordings of guests with other tables. The layout is the same; a reader that knows no
/// other tables must refuse them.
pub const VERSION_OF_TABLES: u32 = 2;
/// The version of compact recordings, whatever the guest's tables. The layout is the same; a reader that
/// knows none would take pages for bytes.
pub const VERSION_OF_PAGES: u32 = 3;
/// Words after which a block ends, together with the event that has the last of these words.
const BLOCK_WORDS: usize = 1 << 16;
/// Most words in a block that a reader accepts.
const MAX_BLOCK_WORDS: usize = 1 << 17;
/// Most bytes of JSON in header or trailer.
const MAX_JSON: usize = 1 << 20;
const EVENTS: [u8; 4] = *b"EVTS";
const END: [u8; 4] = *b"ENDS";
const BLOCK_HEAD: usize = 24;

/// The header: what a consumer must know before the first event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Guest-physical memory, in 4 KB frames.
    pub guest_frames: u64,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The guest's NUMA nodes; empty if the guest knows none, and in older recordings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_nodes: Vec<GuestNode>,
    /// The format of the guest's page tables: 4 levels in older recordings.
    #[serde(default, skip_serializing_if = "is_four_level")]
    pub guest_tables: TableFormat,
    /// What the addresses of loads and fetches tell: bytes in older recordings. A writer of pages makes them
    /// of bytes.
    #[serde(default, skip_serializing_if = "Granularity::is_byte")]
    pub granularity: Granularity,
    /// Where the events come from.
    pub source: Source,
}

fn is_four_level(tables: &TableFormat) -> bool {
    *tables == TableFormat::FourLevel
}

/// The version of a recording with this header.
fn version(header: &Header) -> u32 {
    match header.granularity {
        Granularity::Page => VERSION_OF_PAGES,
        Granularity::Byte if is_four_level(&header.guest_tables) => VERSION,
        Granularity::Byte => VERSION_OF_TABLES,
    }
}

/// Where events come from. People and reports read this, the model does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// Version of the Bifold that recorded.
    pub bifold_version: String,
    /// Built-in generator, as given to `--generate`; `None` for a guest.
    pub generator: Option<String>,
    /// The tool whose trace was imported; `None` for a guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// The program whose trace was imported, as the trace or its file names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The command that ran in the guest.
    pub command: Vec<String>,
    /// `exact` or `fast`.
    pub timing: Option<String>,
    /// Whether the guest kernel isolated its page tables from user mode.
    pub kpti: Option<bool>,
    /// Guest transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// Memory that the guest reserved for hugetlbfs; `None` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugetlb_mib: Option<u64>,
    /// Guest memory.
    pub memory_mib: Option<u64>,
    /// Release of the guest kernel.
    pub kernel_version: Option<String>,
    /// Version of QEMU.
    pub qemu_version: Option<String>,
    /// The guest's root: `initramfs` or `9p`.
    pub root: Option<String>,
    /// Whether the stream has logs of tasks and mappings ([`Event::Log`](crate::Event::Log)).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attributed: bool,
    /// Whether the stream also has calls and returns ([`Event::Call`](crate::Event::Call)).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stacks: bool,
    /// The part of the command that was recorded, in words; `None` for the whole command. See
    /// [`region_begins_later`].
    pub region: Option<String>,
    /// The windows in which accesses were recorded; `None` if every access was.
    pub sample: Option<Windows>,
}

/// Whether a region, in the words of [`Source::region`], begins later than its command. A region that begins
/// with the command has a length alone. Headers have nothing but the words.
pub fn region_begins_later(region: Option<&str>) -> bool {
    region.is_some_and(|words| !words.starts_with("for "))
}

/// Whether a command, whose region has the words of [`Source::region`], may have more regions than one.
pub fn several_regions(region: Option<&str>) -> bool {
    region.is_some_and(|words| words.starts_with("each ") || words.starts_with("the first "))
}

/// The trailer: how a recording ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trailer {
    /// Exit status of the command; `None` if a signal killed the command, or without a command.
    pub exit: Option<i32>,
    /// The signal that killed the command.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Whether recording stopped before the command ended.
    pub partial: bool,
    /// Whether the command was ended because the region to be recorded had ended.
    #[serde(default)]
    pub region_ended: bool,
    /// Whether the command was ended because the windows of a sampled run had given the wanted accuracy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accurate_enough: bool,
    /// The capture's own counters and checks; `None` without a guest.
    pub stats: Option<Stats>,
    /// Release of the guest kernel, if it became known by running the guest.
    #[serde(default)]
    pub kernel_version: Option<String>,
    /// Version of QEMU, if it became known by running the guest.
    #[serde(default)]
    pub qemu_version: Option<String>,
    /// How time passed for the command; `None` without a guest.
    #[serde(default)]
    pub clock: Option<Clock>,
}

/// The trailer as stored: with the counts that prove all blocks present.
#[derive(Serialize, Deserialize)]
struct StoredTrailer {
    words: u64,
    blocks: u64,
    #[serde(flatten)]
    trailer: Trailer,
}

fn checksum(head: &[u8], payload: &[u8], offset: u64) -> u64 {
    xxh3_64_with_seed(payload, xxh3_64_with_seed(head, offset))
}
