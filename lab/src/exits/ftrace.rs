// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the kernel's trace buffer from `trace_pipe_raw`: pages of records
//! (`Documentation/trace/ring-buffer-map.rst`, `include/linux/ring_buffer.h`) whose fields are described by
//! the events' `format` files.

use std::collections::HashMap;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceError {
    /// A format file lacks a part.
    #[error("trace format: {0}")]
    Format(String),
    /// A record reaches beyond its page.
    #[error("trace: page {page} is damaged")]
    Page {
        /// Number of the page.
        page: usize,
    },
}

/// A field of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    size: usize,
}

/// An event's layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// The event's name.
    pub name: String,
    id: u16,
    fields: HashMap<String, Field>,
}

impl Format {
    /// Parses a `format` file.
    pub fn parse(text: &str) -> Result<Format, TraceError> {
        let bad = |what: &str| TraceError::Format(format!("no {what} in {:?}", text.lines().next()));
        let after = |key: &str| text.lines().find_map(|l| l.trim().strip_prefix(key).map(str::trim));
        let number = |part: Option<&str>| part.and_then(|p| p.trim().trim_end_matches(';').parse().ok());
        let mut fields = HashMap::new();
        for line in text.lines().filter_map(|l| l.trim().strip_prefix("field:")) {
            let mut parts = line.split("\t").flat_map(|p| p.split(';')).filter(|p| !p.trim().is_empty());
            let declaration = parts.next().ok_or_else(|| bad("declaration"))?;
            let name = declaration.split_whitespace().last().unwrap_or_default();
            let name = name.split('[').next().unwrap_or_default().trim_start_matches('*');
            let mut of = |key| number(parts.next().and_then(|p| p.trim().strip_prefix(key)));
            let (offset, size) = (of("offset:"), of("size:"));
            let (Some(offset), Some(size)) = (offset, size) else { return Err(bad("offset or size")) };
            fields.insert(name.to_owned(), Field { offset, size });
        }
        Ok(Format {
            name: after("name:").ok_or_else(|| bad("name"))?.to_owned(),
            id: after("ID:").and_then(|t| t.parse().ok()).ok_or_else(|| bad("ID"))?,
            fields,
        })
    }
}

/// Layouts by event.
#[derive(Debug, Default)]
pub struct Formats {
    by_id: HashMap<u16, Format>,
}

impl Formats {
    /// Adds one.
    pub fn add(&mut self, text: &str) -> Result<(), TraceError> {
        let format = Format::parse(text)?;
        self.by_id.insert(format.id, format);
        Ok(())
    }
}

/// A recorded event.
#[derive(Debug)]
pub struct Record<'a> {
    /// Nanoseconds of the trace's clock.
    pub time: u64,
    /// Layout of the event.
    pub format: &'a Format,
    data: &'a [u8],
}

impl Record<'_> {
    /// The bytes of a field; empty if there is no such field.
    pub fn bytes(&self, field: &str) -> &[u8] {
        let field = self.format.fields.get(field);
        field.and_then(|f| self.data.get(f.offset..f.offset + f.size)).unwrap_or(&[])
    }

    /// The unsigned value of a field of up to 8 bytes; 0 if there is no such field.
    pub fn get(&self, field: &str) -> u64 {
        let Some(f) = self.format.fields.get(field) else { return 0 };
        let Some(bytes) = self.data.get(f.offset..f.offset + f.size.min(8)) else { return 0 };
        bytes.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b))
    }
}

const PAGE: usize = 4096;
/// Size of a page's header: its time, and its length with flags in the upper bits.
const HEADER: usize = 16;
const LENGTH: u64 = 0xf_ffff;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
const TIME_BITS: u32 = 27;

/// Calls `sink` for every record of one CPU's buffer.
pub fn read(raw: &[u8], formats: &Formats, mut sink: impl FnMut(Record)) -> Result<(), TraceError> {
    for (page, bytes) in raw.chunks(PAGE).enumerate() {
        read_page(bytes, formats, &mut sink).ok_or(TraceError::Page { page })?;
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_page(bytes: &[u8], formats: &Formats, sink: &mut impl FnMut(Record)) -> Option<()> {
    let long = |at| Some(u64::from(word(bytes, at)?) | u64::from(word(bytes, at + 4)?) << 32);
    let mut time = long(0)?;
    let end = HEADER + (long(8)? & LENGTH) as usize;
    let mut at = HEADER;
    while at < end {
        let head = word(bytes, at)?;
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        at += 4;
        match kind {
            PADDING => {
                // Without a length, the rest of the page; otherwise a dropped record.
                if delta == 0 {
                    return Some(());
                }
                time = time.wrapping_add(delta);
                at += word(bytes, at)? as usize;
            }
            TIME_EXTEND => {
                time = time.wrapping_add(u64::from(word(bytes, at)?) << TIME_BITS | delta);
                at += 4;
            }
            TIME_STAMP => {
                time = u64::from(word(bytes, at)?) << TIME_BITS | delta;
                at += 4;
            }
            _ => {
                time = time.wrapping_add(delta);
                // A short record has its length in words; a long record has a separate word with the length,
                // which includes that word.
                let (from, to) = match kind {
                    0 => (at + 4, at + word(bytes, at)? as usize),
                    n => (at, at + 4 * n as usize),
                };
                let data = bytes.get(from..to)?;
                let id = u16::from_le_bytes([*data.first()?, *data.get(1)?]);
                if let Some(format) = formats.by_id.get(&id) {
                    sink(Record { time, format, data });
                }
                at = to;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: kvm_test\nID: 7\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned int reason;\toffset:4;\tsize:4;\tsigned:0;\n\
        \tfield:u64 rip;\toffset:8;\tsize:8;\tsigned:0;\n\nprint fmt: \"\"\n";

    fn page(records: &[u8]) -> Vec<u8> {
        let mut p = 1000u64.to_le_bytes().to_vec();
        p.extend((records.len() as u64).to_le_bytes());
        p.extend(records);
        p
    }

    fn formats() -> Formats {
        let mut f = Formats::default();
        f.add(FORMAT).unwrap();
        f
    }

    #[test]
    fn fields_and_times_of_short_and_long_records() {
        let mut data = vec![7, 0, 0, 0];
        data.extend(5u32.to_le_bytes());
        data.extend(0xffff_ffff_8100_0000u64.to_le_bytes());
        let mut records = (4u32 | 3 << 5).to_le_bytes().to_vec();
        records.extend(&data);
        records.extend((TIME_EXTEND | 1 << 5).to_le_bytes());
        records.extend(2u32.to_le_bytes());
        records.extend((4u32 << 5).to_le_bytes());
        records.extend(20u32.to_le_bytes());
        records.extend(&data);
        let mut seen = Vec::new();
        read(&page(&records), &formats(), |r| seen.push((r.time, r.get("reason"), r.get("rip")))).unwrap();
        let later = 1003 + (2 << 27 | 1) + 4;
        assert_eq!(seen, [(1003, 5, 0xffff_ffff_8100_0000), (later, 5, 0xffff_ffff_8100_0000)]);
    }

    #[test]
    fn a_record_that_runs_over_its_page_is_an_error_and_no_panic() {
        let records = (9u32).to_le_bytes();
        let mut p = page(&records);
        assert!(matches!(read(&p, &formats(), |_| ()), Err(TraceError::Page { page: 0 })));
        p.truncate(3);
        assert!(read(&p, &formats(), |_| ()).is_err());
    }

    #[test]
    fn a_format_without_an_id_is_refused() {
        assert!(Format::parse("name: x\n").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_records_or_an_error(
            raw in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
            length in 0u8..250,
            text in "(field:[a-z ]{0,9};\t(offset|size):[0-9]{0,3};|name: x|ID: [0-9]{0,6}|\n){0,6}",
        ) {
            let mut raw = raw;
            if raw.len() > 10 {
                let end = raw.len().min(16);
                raw[8..end].fill(0);
                raw[8] = length;
            }
            let _ = read(&raw, &formats(), |r| _ = (r.get("rip"), r.bytes("reason")));
            let _ = Format::parse(&text);
        }
    }
}
