// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A recording gives back what was written, or says where it is broken.

use bifold_trace::event::{head, kind};
use bifold_trace::{
    Clock, Event, FileError, Granularity, Header, MOST_VCPUS, Reader, Source, Stats, TableFormat, Trailer,
    Writer,
};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn header() -> Header {
    Header {
        guest_frames: 1 << 18,
        vcpus: 2,
        source: Source { command: vec!["gcc".into(), "-c".into()], kpti: Some(true), ..Source::default() },
        ..Header::default()
    }
}

fn trailer() -> Trailer {
    Trailer {
        region_ended: true,
        accurate_enough: true,
        clock: Some(Clock {
            guest_ns: Some(2_000_000),
            wall_seconds: 0.5,
            in_step: true,
            ..Clock::default()
        }),
        exit: Some(3),
        signal: Some(11),
        partial: true,
        stats: Some(Stats { cr3_checks: 9, accesses: 1 << 60, ..Stats::default() }),
        kernel_version: Some("6.1.0".into()),
        qemu_version: Some("10.0.2".into()),
    }
}

fn record(path: &Path, pieces: &[&[u64]]) {
    let mut w = Writer::create(path, &header()).unwrap();
    for p in pieces {
        w.write(p).unwrap();
    }
    w.finish(&trailer()).unwrap();
}

fn replay(path: &Path) -> Result<Vec<u64>, FileError> {
    let (mut all, mut block) = (Vec::new(), Vec::new());
    let mut r = Reader::open(path)?;
    assert_eq!(r.header(), &header());
    while r.next_block(&mut block)? {
        assert_eq!(r.trailer(), None);
        all.extend_from_slice(&block);
    }
    assert_eq!(r.trailer(), Some(&trailer()));
    assert!(!r.next_block(&mut block)?);
    Ok(all)
}

fn some_events(n: u64) -> Vec<u64> {
    let mut words = Vec::new();
    for i in 0..n {
        Event::Load(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).encode(&mut words);
        Event::PtStore { gpa: i * 8, old: i << 12, new: i << 12 | 7 }.encode(&mut words);
        if i % 1000 == 0 {
            Event::Table { gfn: i, level: 1, entries: &[i; 512] }.encode(&mut words);
        }
    }
    words
}

#[test]
fn what_is_written_in_pieces_of_any_size_is_read_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let words = some_events(100_000);
    record(&path, &[&words]);
    assert_eq!(replay(&path).unwrap(), words);
    // One event at a time, across the ends of blocks.
    let mut w = Writer::create(&path, &header()).unwrap();
    let mut rest = &words[..];
    while !rest.is_empty() {
        let (_, n) = bifold_trace::decode(rest, 0).unwrap();
        w.write(&rest[..n]).unwrap();
        rest = &rest[n..];
    }
    w.finish(&trailer()).unwrap();
    assert_eq!(replay(&path).unwrap(), words);
    record(&path, &[]);
    assert_eq!(replay(&path).unwrap(), [0u64; 0]);
}

#[test]
fn every_truncation_and_every_flipped_byte_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let words = some_events(40);
    record(&path, &[&words]);
    let whole = fs::read(&path).unwrap();
    for n in 0..whole.len() {
        fs::write(&path, &whole[..n]).unwrap();
        match replay(&path) {
            Err(FileError::Truncated { offset, .. }) => assert_eq!(offset, n as u64),
            other => panic!("cut at {n}: {other:?}"),
        }
    }
    for i in 0..whole.len() {
        for bit in [0x01, 0x80] {
            let mut bytes = whole.clone();
            bytes[i] ^= bit;
            fs::write(&path, &bytes).unwrap();
            match (i, replay(&path)) {
                (0..8, Err(FileError::NotARecording { .. }))
                | (8..12, Err(FileError::Version { .. }))
                // A longer length may reach beyond the end of a small file.
                | (12.., Err(FileError::Corrupt { .. } | FileError::Truncated { .. })) => {}
                (_, other) => panic!("byte {i}: {other:?}"),
            }
        }
    }
    fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    let e = replay(&path).unwrap_err();
    assert_eq!(
        e.to_string(),
        format!("recording {} is corrupt: data after the end at byte {}", path.display(), whole.len())
    );
}

#[test]
fn a_block_that_was_moved_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    // Two blocks of equal length and content, so that only their places differ.
    let block: Vec<u64> = (0..1 << 16).map(|i| head(kind::LOAD, i * 64)).collect();
    record(&path, &[&block, &block]);
    let bytes = fs::read(&path).unwrap();
    let starts: Vec<usize> =
        (0..bytes.len() - 4).filter(|&i| [&b"EVTS"[..], b"ENDS"].contains(&&bytes[i..i + 4])).collect();
    assert_eq!(starts.len(), 3);
    let mut without_first = bytes[..starts[0]].to_vec();
    without_first.extend(&bytes[starts[1]..]);
    fs::write(&path, without_first).unwrap();
    assert!(matches!(replay(&path), Err(FileError::Corrupt { offset, .. }) if offset == starts[0] as u64));
}

#[test]
fn the_format_of_the_guests_tables_is_kept_and_older_readers_refuse_all_but_4_levels() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    for guest_tables in TableFormat::ALL {
        let header = Header { guest_tables, ..header() };
        Writer::create(&path, &header).unwrap().finish(&trailer()).unwrap();
        assert_eq!(Reader::open(&path).unwrap().header(), &header);
        let mut bytes = fs::read(&path).unwrap();
        let four = guest_tables == TableFormat::FourLevel;
        assert_eq!(bytes[8], if four { 1 } else { 2 });
        assert_eq!(bytes.windows(12).any(|w| w == b"guest_tables"), !four);
        // A header under the other version.
        bytes[8] ^= 3;
        let json = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes[..16 + json], 0);
        bytes[16 + json..24 + json].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(Reader::open(&path), Err(FileError::Corrupt { offset: 8, .. })));
    }
}

#[test]
fn a_compact_recording_has_the_pages_of_loads_and_older_readers_refuse_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    for guest_tables in TableFormat::ALL {
        let header = Header { guest_tables, granularity: Granularity::Page, ..header() };
        let mut writer = Writer::create(&path, &header).unwrap();
        writer.write(&[head(kind::LOAD_DEPENDENT, 0x1234), head(kind::STORE, 0x1234)]).unwrap();
        assert!(writer.write(&[head(kind::PT_STORE, 8)]).is_err());
        writer.write(&[head(kind::FETCH, 0x5678), head(kind::INSNS, 7)]).unwrap();
        writer.finish(&trailer()).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.header(), &header);
        let mut words = Vec::new();
        assert!(reader.next_block(&mut words).unwrap());
        let expected = [(kind::LOAD, 0x1000), (kind::STORE, 0x1234), (kind::FETCH, 0x5000), (kind::INSNS, 7)];
        assert_eq!(words, expected.map(|(kind, payload)| head(kind, payload)));
        assert_eq!(fs::read(&path).unwrap()[8], 3);
    }
}

#[test]
fn another_version_and_another_file_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    record(&path, &[]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 200;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(replay(&path), Err(FileError::Version { found: 200, .. })));
    fs::write(&path, "{\"a\": 1}").unwrap();
    assert!(matches!(replay(&path), Err(FileError::NotARecording { .. })));
    assert!(matches!(replay(dir.path()), Err(FileError::Io { .. })));
    assert!(matches!(replay(&dir.path().join("none")), Err(FileError::Io { what: "open", .. })));
}

#[test]
fn hostile_lengths_are_refused_before_memory_is_taken_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    record(&path, &[&some_events(4)]);
    let bytes = fs::read(&path).unwrap();
    let block = bytes.windows(4).position(|w| w == b"EVTS").unwrap();
    for field in [12, block + 4, block + 8, block + 12] {
        let mut b = bytes.clone();
        b[field..field + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        fs::write(&path, &b).unwrap();
        let e = replay(&path).unwrap_err();
        assert!(matches!(e, FileError::Corrupt { .. }), "{e}");
        assert!(e.to_string().contains("impossible"), "{e}");
    }
}

#[test]
fn nothing_is_under_the_name_before_the_end_and_nothing_stays_of_an_unfinished_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    fs::write(&path, "old").unwrap();
    let mut w = Writer::create(&path, &header()).unwrap();
    w.write(&some_events(100_000)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    drop(w);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(matches!(Writer::create(dir.path(), &header()), Err(FileError::Io { .. })));
    assert!(matches!(Writer::create(dir.path().join("no/r"), &header()), Err(FileError::Io { .. })));
}

#[test]
fn a_killed_writer_s_file_goes_with_the_next_recording_and_a_living_writer_s_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // A process that has ended: its number is free until it is waited for.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let (dead, parent) = (child.id(), std::os::unix::process::parent_id());
    let names = [
        format!(".r.{dead}.unfinished"),
        format!(".r.{parent}.unfinished"),
        format!(".q.{dead}.unfinished"),
        ".r.x.unfinished".to_owned(),
    ];
    names.iter().for_each(|name| fs::write(at(name), "").unwrap());
    // The same number may be that of a process that was killed in another container.
    fs::write(at(&format!(".r.{}.unfinished", std::process::id())), "").unwrap();
    let mut w = Writer::create(at("r"), &header()).unwrap();
    w.write(&some_events(10)).unwrap();
    assert!(!at(&names[0]).exists() && names[1..].iter().all(|name| at(name).exists()));
    // This process writes, so its file is not another's to remove.
    assert!(Writer::create(at("r"), &header()).is_err());
    w.finish(&trailer()).unwrap();
    assert!(at("r").exists());
}

#[test]
fn an_overwritten_recording_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    record(&path, &[]);
    for kept in [0o600, 0o666, 0o640] {
        fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
        record(&path, &[&some_events(10)]);
        assert_eq!(mode(), kept);
    }
}

#[test]
fn a_device_is_written_in_place_and_a_full_one_is_an_error() {
    record(Path::new("/dev/null"), &[&some_events(10)]);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    let e = Writer::create("/dev/full", &header()).unwrap_err();
    assert!(matches!(e, FileError::Io { what: "write", .. }), "{e:?}");
}

#[test]
fn words_that_are_no_whole_events_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut w = Writer::create(dir.path().join("r"), &header()).unwrap();
    w.write(&[head(kind::PT_STORE, 0)]).unwrap();
    let e = w.finish(&trailer()).unwrap_err();
    assert!(matches!(e, FileError::Events { .. }), "{e}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_bytes_after_the_header_are_refused_without_panic(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        record(&path, &[]);
        let bytes = fs::read(&path).unwrap();
        let end = bytes.windows(4).position(|w| w == b"ENDS").unwrap();
        fs::write(&path, [&bytes[..end], &tail].concat()).unwrap();
        prop_assert!(replay(&path).is_err());
    }
}

#[test]
fn a_recording_of_more_vcpus_than_a_guest_may_have_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let open = |vcpus| {
        Writer::create(&path, &Header { vcpus, ..header() }).unwrap().finish(&trailer()).unwrap();
        Reader::open(&path).map(|_| ())
    };
    open(MOST_VCPUS).unwrap();
    assert!(matches!(open(u32::MAX), Err(FileError::Vcpus { found: u32::MAX, .. })));
}
