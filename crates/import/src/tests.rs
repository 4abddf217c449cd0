// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of all kinds of traces: what becomes of their accesses, however they are packed, and what is
//! refused.

use super::*;
use bifold_trace::{Event, decode};
use proptest::prelude::*;
use std::io::Write as _;

/// What a trace was made of: an instruction, a load or a store, its address and size.
type Access = (u8, u64, u64);

fn options(kind: Option<Kind>) -> Options {
    Options { kind, frames: 1 << 16, pages: GuestPages::Small, instructions: None }
}

fn import_as(name: &str, bytes: &[u8], kind: Option<Kind>) -> Result<(Importer, Vec<u64>), ImportError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    import_path(&path, &options(kind))
}

fn import_path(path: &Path, options: &Options) -> Result<(Importer, Vec<u64>), ImportError> {
    let mut importer = Importer::open(path, options)?;
    let mut words = Vec::new();
    while let Some(more) = importer.next_events()? {
        words.extend(more);
    }
    Ok((importer, words))
}

fn import(bytes: &[u8], kind: Option<Kind>) -> Result<Vec<u64>, ImportError> {
    import_as("t", bytes, kind).map(|(_, words)| words)
}

fn refusal(bytes: &[u8], kind: Option<Kind>) -> String {
    let e = import(bytes, kind).map(|words| words.len()).unwrap_err();
    let text = std::iter::successors(Some(&e as &dyn std::error::Error), |e| e.source());
    text.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The program's accesses in a stream, with an instruction where it enters a page.
fn accesses(words: &[u64]) -> Vec<(u8, u64)> {
    let (mut at, mut all) = (0, Vec::new());
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        match event {
            Event::Fetch(va) => all.push((b'I', va)),
            Event::Load(va) => all.push((b'L', va)),
            Event::Store(va) if va >> 47 == 0 => all.push((b'S', va)),
            _ => {}
        }
        at += n;
    }
    all
}

/// What a stream of these has: each page that an access reaches, and a fetch where the code enters another
/// page.
fn expected(trace: &[Access]) -> Vec<(u8, u64)> {
    let (mut all, mut code) = (Vec::new(), None);
    for &(kind, va, bytes) in trace {
        for page in va >> 12..=(va + bytes - 1) >> 12 {
            if kind != b'I' || code.replace(page) != Some(page) {
                all.push((kind, va.max(page << 12)));
            }
        }
    }
    all
}

fn instructions(words: &[u64]) -> u64 {
    let (mut at, mut sum) = (0, 0);
    while at < words.len() {
        let (event, n) = decode(&words[at..], at).unwrap();
        if let Event::Insns(n) = event {
            sum += n;
        }
        at += n;
    }
    sum
}

fn lackey(trace: &[Access]) -> Vec<u8> {
    let mut text = b"==7== Lackey\n==7== \n".to_vec();
    for &(kind, va, bytes) in trace {
        let name = if kind == b'I' { "I ".into() } else { format!(" {}", kind as char) };
        writeln!(text, "{name} {va:08x},{bytes}").unwrap();
    }
    text.extend(b"==7== Exit code:       0\n");
    text
}

fn champsim_record(ip: u64, stores: &[u64], loads: &[u64]) -> Vec<u8> {
    let mut record = [0; 64];
    record[..8].copy_from_slice(&ip.to_le_bytes());
    for (at, va) in (16..).step_by(8).zip(stores).chain((32..).step_by(8).zip(loads)) {
        record[at..at + 8].copy_from_slice(&va.to_le_bytes());
    }
    record.to_vec()
}

fn entry(kind: u16, size: u16, value: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &size.to_le_bytes(), &value.to_le_bytes()].concat()
}

/// A file of a thread: header, version, kind of file, process; then `body`; then the footer.
fn thread(pid: u64, body: &[Vec<u8>]) -> Vec<u8> {
    let head = [entry(25, 0, 7), entry(28, 12, 7), entry(28, 9, 0x240), entry(22, 0, pid), entry(24, 0, pid)];
    [&head.concat()[..], &body.concat(), &entry(26, 0, 0)].concat()
}

fn drmemtrace(trace: &[Access]) -> Vec<u8> {
    let body: Vec<_> = trace
        .iter()
        .map(|&(kind, va, bytes)| {
            let number = match kind {
                b'I' => 10 + (va % 7) as u16,
                b'L' => 0,
                _ => 1,
            };
            entry(number, bytes as u16, va)
        })
        .collect();
    thread(7, &body)
}

fn any_trace() -> impl Strategy<Value = Vec<Access>> {
    let access = (prop_oneof![Just(b'I'), Just(b'L'), Just(b'S')], 1u64..0x7fff, 0u64..0x1_8000, 1u64..16);
    proptest::collection::vec(
        access.prop_map(|(kind, top, low, n)| (kind, top / 0x1000 * (1 << 43) + low + 1, n)),
        1..300,
    )
}

proptest! {
    #[test]
    fn every_access_of_a_text_and_of_a_binary_trace_is_an_event_in_its_order(trace in any_trace()) {
        let from_text = import(&lackey(&trace), None).unwrap();
        prop_assert_eq!(accesses(&from_text), expected(&trace));
        prop_assert_eq!(instructions(&from_text), trace.iter().filter(|a| a.0 == b'I').count() as u64);
        prop_assert_eq!(import(&drmemtrace(&trace), None).unwrap(), from_text);
    }

    #[test]
    fn the_loads_of_a_record_come_before_its_stores(
        records in proptest::collection::vec((1u64..1 << 40, proptest::collection::vec(1u64..1 << 40, 0..=2), proptest::collection::vec(1u64..1 << 40, 0..=4)), 1..50)
    ) {
        let (mut bytes, mut trace) = (Vec::new(), Vec::new());
        for (ip, stores, loads) in &records {
            bytes.extend(champsim_record(*ip, stores, loads));
            trace.push((b'I', *ip, 1));
            trace.extend(loads.iter().map(|va| (b'L', *va, 1)));
            trace.extend(stores.iter().map(|va| (b'S', *va, 1)));
        }
        let words = import(&bytes, Some(Kind::Champsim)).unwrap();
        prop_assert_eq!(accesses(&words), expected(&trace));
        prop_assert_eq!(instructions(&words), records.len() as u64);
    }
}

const SMALL: [Access; 4] =
    [(b'I', 0x40_1000, 3), (b'L', 0x7fff_1ff8, 16), (b'I', 0x40_1003, 5), (b'S', 0x60_0000, 8)];

#[test]
fn a_modify_is_a_load_and_a_store() {
    let words = import(b"I  401000,3\n M 600000,8\n", None).unwrap();
    assert_eq!(accesses(&words), [(b'I', 0x40_1000), (b'L', 0x60_0000), (b'S', 0x60_0000)]);
}

#[test]
fn packed_traces_are_the_same_as_plain_ones() {
    let champsim: Vec<u8> = (1..2000u64).flat_map(|i| champsim_record(i * 4, &[], &[i << 12])).collect();
    for (plain, kind) in
        [(lackey(&SMALL), None), (drmemtrace(&SMALL), None), (champsim, Some(Kind::Champsim))]
    {
        let words = import(&plain, kind).unwrap();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&plain).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&plain).unwrap();
        let packed = [gz.finish().unwrap(), xz.finish().unwrap(), zstd::encode_all(&plain[..], 1).unwrap()];
        for packed in packed {
            assert_eq!(import(&packed, kind).unwrap(), words);
            let cut = refusal(&packed[..packed.len() - 3], kind);
            assert!(cut.starts_with("cannot read trace /") || cut.contains("is truncated"), "{cut}");
        }
    }
}

/// An archive with these members, packed or not.
fn archive(members: &[&[u8]], method: zip::CompressionMethod) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    for (i, member) in members.iter().enumerate() {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(format!("chunk.{i:04}"), options).unwrap();
        zip.write_all(member).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn the_members_of_an_archive_are_one_trace() {
    let plain = drmemtrace(&SMALL);
    let words = import(&plain, None).unwrap();
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        let mut packed = archive(&[&plain[..31], &plain[31..]], method);
        assert_eq!(import(&packed, None).unwrap(), words);
        // Behind the first member's local head, of 30 bytes and a name.
        packed[30 + 10 + 5] ^= 1;
        let flipped = refusal(&packed, None);
        assert!(
            flipped.contains("checksum") || flipped.contains("deflate") || flipped.contains("corrupt"),
            "{flipped}"
        );
    }
    assert!(refusal(b"PK\x03\x04 and no archive", None).starts_with("cannot read trace"));
}

#[test]
fn what_is_of_no_known_kind_is_refused_with_what_to_do() {
    let text = "some text\nI  401000,3\n";
    for (bytes, kind, words) in [
        (&b""[..], None, "the file is empty"),
        (b"\0\x01\x02 binary", None, "give --from lackey, drmemtrace or champsim"),
        (text.as_bytes(), None, "cannot tell what kind of trace"),
        (
            text.as_bytes(),
            Some(Kind::Lackey),
            "no access and no message of Valgrind's at line 1; make one with `valgrind",
        ),
        (b"I  401000,3\n S 60", Some(Kind::Lackey), "is truncated: it ends within line 2"),
        (b"I  401000,3\n S 60,x\n", Some(Kind::Lackey), "at line 2"),
        (b"I  401000,3\n S 60,0\n", Some(Kind::Lackey), "at line 2"),
        (
            b"I  ffff000000000000,3\n",
            Some(Kind::Lackey),
            "line 1: address 0xffff000000000000 is not canonical",
        ),
        (b"I  ffff888000000000,3\n", Some(Kind::Lackey), "is in the kernel's map of memory"),
        (b"==1== a\n==2== b\n", Some(Kind::Lackey), "lines of a second process"),
        (b"==1== a\n", Some(Kind::Lackey), "has no instruction and no access"),
        (
            &champsim_record(5, &[], &[])[..63],
            Some(Kind::Champsim),
            "is truncated: it ends within record 1 (byte 0)",
        ),
        (&[0; 128], Some(Kind::Champsim), "an instruction at address 0 at record 1"),
        (&[2; 128], Some(Kind::Champsim), "a branch that is neither 0 nor 1"),
        (b"\x04\x22\x4d\x18....", None, "is packed by lz4: unpack it first, with `lz4 -d FILE`"),
        (&[7; 64], Some(Kind::Drmemtrace), "no header at record 1"),
    ] {
        let e = refusal(bytes, kind);
        assert!(e.contains(words), "{e}");
    }
    assert!(refusal(&champsim_record(5, &[], &[]), None).contains("cannot tell"));
    let (importer, _) = import_as("600.ChampSimTrace", &champsim_record(5, &[], &[]), None).unwrap();
    assert_eq!(importer.kind(), Kind::Champsim);
}

#[test]
fn a_trace_of_dynamorio_that_lacks_accesses_or_its_end_is_refused() {
    let body = [entry(10, 3, 0x40_1000)];
    let whole = thread(7, &body);
    assert!(import(&whole, None).is_ok());
    for (file, words) in [
        (whole[..whole.len() - 12].to_vec(), "is truncated"),
        (whole[..whole.len() - 5].to_vec(), "is truncated"),
        (
            [entry(25, 0, 8), body[0].clone(), entry(26, 0, 0)].concat(),
            "version 8, and this Bifold reads 2 to 7 at record 1",
        ),
        (thread(7, &[entry(28, 9, 0x140)]), "filtered out"),
        (thread(7, &[entry(28, 9, 0x44)]), "instructions and no accesses"),
        (thread(7, &[entry(28, 9, 0x20)]), "32-bit program"),
        (thread(7, &[entry(24, 0, 8)]), "records of process 8 after those of process 7"),
        (thread(7, &[entry(50, 0, 8)]), "unknown type 50"),
        (thread(7, &[]), "has no instruction and no access"),
    ] {
        let e = refusal(&file, None);
        assert!(e.contains(words), "{words}: {e}");
    }
}

#[test]
fn threads_run_in_the_order_of_their_timestamps() {
    let step = |time, va| [entry(28, 2, time), entry(10, 1, va)].concat();
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    std::fs::create_dir(&trace).unwrap();
    assert!(
        Importer::open(dir.path(), &options(None))
            .is_err_and(|e| e.to_string().contains("no file of the directory"))
    );
    std::fs::write(trace.join("app.1.trace"), thread(7, &[step(10, 0x1000), step(40, 0x4000)])).unwrap();
    std::fs::write(trace.join("app.2.trace"), thread(7, &[step(20, 0x2000), step(30, 0x3000)])).unwrap();
    let (_, words) = import_path(dir.path(), &options(None)).unwrap();
    assert_eq!(accesses(&words), [0x1000, 0x2000, 0x3000, 0x4000].map(|va| (b'I', va)));
    let e = Importer::open(dir.path(), &options(Some(Kind::Lackey))).err().unwrap().to_string();
    assert!(e.contains("a trace of Valgrind's lackey is a file"), "{e}");
    std::fs::write(trace.join("app.3.trace"), thread(8, &[step(20, 0x2000)])).unwrap();
    let e = import_path(dir.path(), &options(None)).err().unwrap().to_string();
    assert!(e.contains("app.3.trace") && e.contains("process 8"), "{e}");
    for i in 0..300 {
        std::fs::write(trace.join(format!("many.{i}.trace")), []).unwrap();
    }
    let e = Importer::open(dir.path(), &options(None)).err().unwrap().to_string();
    assert!(e.contains("more than 256 threads"), "{e}");
}

#[test]
fn a_bomb_does_no_harm() {
    let mut zeros = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let mut lines = zstd::Encoder::new(Vec::new(), 1).unwrap();
    for _ in 0..1 << 10 {
        zeros.write_all(&[0; 1 << 20]).unwrap();
        lines.write_all(&[b'\n'; 1 << 20]).unwrap();
    }
    let (zeros, lines) = (zeros.finish().unwrap(), lines.finish().unwrap());
    assert!(refusal(&zeros, Some(Kind::Champsim)).contains("record 1 "));
    assert!(refusal(&zeros, Some(Kind::Lackey)).contains("a line without an end at line 1"));
    assert!(refusal(&lines, Some(Kind::Lackey)).contains("16 MiB without an access"));
}

#[test]
fn a_part_of_a_trace_is_whole_instructions_and_known_to_be_a_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    std::fs::write(&path, lackey(&SMALL)).unwrap();
    let two = Options { instructions: Some(1), ..options(None) };
    let (importer, words) = import_path(&path, &two).unwrap();
    assert!(importer.partial());
    assert_eq!(accesses(&words), expected(&SMALL[..2]));
    let (importer, words) = import_path(&path, &options(None)).unwrap();
    assert!(!importer.partial());
    assert_eq!((importer.instructions(), instructions(&words)), (2, 2));
    let killed = import_as("t", b"==7== Lackey\nI  401000,3\n", None).unwrap().0;
    assert!(killed.partial(), "Valgrind did not tell how the program ended");
    let small = Options { frames: 1, ..options(None) };
    let many: Vec<Access> = (1..5000).map(|page| (b'L', page << 12, 1)).collect();
    std::fs::write(&path, lackey(&many)).unwrap();
    let e = import_path(&path, &small).err().unwrap();
    let source = std::error::Error::source(&e).unwrap().to_string();
    assert!(source.contains("more than 4 MiB: give it more by --memory"), "{source}");
}

#[test]
fn a_trace_or_its_file_names_the_program() {
    for (name, program) in [
        ("drmemtrace.ls.63452.5911.dir", Some("ls")),
        ("drmemtrace.x", Some("drmemtrace.x")),
        ("605.mcf_s-665B.champsimtrace.xz", Some("605.mcf_s-665B.champsimtrace.xz")),
        ("-", None),
    ] {
        assert_eq!(named(Path::new(name)).as_deref(), program);
    }
    let said = b"==7== Lackey, an example\n==7== Command: ls -l\x1b[1m a\n==7== \nI  00401000,3\n";
    assert_eq!(Lackey::command(said).as_deref(), Some("ls -l [1m a"));
    assert_eq!(Lackey::command(b"I  00401000,3\n"), None);
}
