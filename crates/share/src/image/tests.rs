// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use std::io::{Seek as _, SeekFrom, Write as _};

/// An ELF core of x86-64 with segments of (guest frame, pages), as QEMU lays it out: headers, a note whose
/// length makes the memory unaligned, and the memory. Byte 0 of a page is its frame number.
pub fn core(segments: &[(u64, u64)]) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    let n = segments.len() as u16 + 1;
    out.extend([4u16, 62].iter().flat_map(|h| h.to_le_bytes()));
    out.extend(1u32.to_le_bytes());
    out.extend([0u64, 64, 0].iter().flat_map(|w| w.to_le_bytes()));
    out.extend(0u32.to_le_bytes());
    out.extend([64u16, 56, n, 0, 0, 0].iter().flat_map(|h| h.to_le_bytes()));
    let note_at = 64 + 56 * u64::from(n);
    let mut at = note_at + 20;
    let header = |kind: u32, at: u64, address: u64, size: u64| {
        let words = [at, 0, address, size, size, 0];
        let head = kind.to_le_bytes().into_iter().chain(0u32.to_le_bytes());
        head.chain(words.into_iter().flat_map(u64::to_le_bytes)).collect::<Vec<u8>>()
    };
    out.extend(header(4, note_at, 0, 20));
    for (gfn, pages) in segments {
        out.extend(header(1, at, gfn << 12, pages << 12));
        at += pages << 12;
    }
    out.extend([7; 20]);
    for (gfn, pages) in segments {
        for frame in *gfn..gfn + pages {
            let mut page = vec![0; PAGE];
            page[0] = frame as u8;
            out.extend(page);
        }
    }
    out
}

fn seen(image: &Image) -> Vec<(u64, u8)> {
    image.pages().map(|(gfn, page)| (gfn, page[0])).collect()
}

fn refusal(content: Vec<u8>) -> String {
    Image::of_content("a dump", content).unwrap_err().to_string()
}

#[test]
fn pages_come_with_their_frame_numbers() {
    let mut bytes = vec![0; 2 * PAGE];
    bytes[PAGE] = 7;
    let image = Image::of_bytes("a", bytes);
    assert_eq!(seen(&image), [(0, 0), (1, 7)]);
    assert_eq!(image.len(), 2);
}

#[test]
fn a_cores_pages_are_at_their_physical_addresses() {
    let image = Image::of_content("core", core(&[(0x100, 2), (0, 3), (3, 1)])).unwrap();
    let expected: Vec<(u64, u8)> =
        [0, 1, 2, 3, 0x100, 0x101].into_iter().map(|f: u64| (f, f as u8)).collect();
    assert_eq!(seen(&image), expected);
    // What follows in memory and in the file is one run.
    assert_eq!(image.runs().iter().map(|r| (r.gfn, r.pages())).collect::<Vec<_>>(), [(0, 4), (0x100, 2)]);
}

#[test]
fn a_mapped_file_has_the_pages_of_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guest.core");
    let content = core(&[(0, 3), (9, 2)]);
    std::fs::write(&path, &content).unwrap();
    let image = Image::open(&path).unwrap();
    assert_eq!(image.name(), "guest.core");
    assert_eq!(seen(&image), seen(&Image::of_content("x", content).unwrap()));
    image.check().unwrap();
}

#[test]
fn other_formats_are_told_apart_with_what_converts_them() {
    let cases: [(&[u8], &str); 14] = [
        (b"KDUMP   ", "kdump-compressed"),
        (b"makedumpfile\0\0\0\0", "makedumpfile -R OUT <'a dump'"),
        (b"\x1f\x8b", "gzip -dc 'a dump' >OUT"),
        (b"\xfd7zXZ\0", "xz -dc 'a dump'"),
        (b"\x28\xb5\x2f\xfd", "zstd -d 'a dump'"),
        (b"\x04\x22\x4d\x18", "lz4 -d 'a dump'"),
        (b"\x89LZO\0\r\n\x1a\n", "lzop -dc 'a dump'"),
        (b"BZh9", "bzip2 -dc 'a dump'"),
        (b"QFI\xfb", "qcow2"),
        (b"LibvirtQemudSave", "virsh restore --paused 'a dump'"),
        (b"LibvirtQemudPart", "did not finish"),
        (b"QEVM", "-incoming 'exec:cat"),
        (b"PAGEDU64", "Windows crash dump"),
        (b"PAR1", "bifold share fingerprint"),
    ];
    for (magic, word) in cases {
        // A length of whole pages must not make it raw RAM.
        let mut content = magic.to_vec();
        content.resize(PAGE, 1);
        let said = refusal(content);
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn files_that_are_cut_off_or_of_other_machines_are_refused() {
    let good = core(&[(0, 2)]);
    let cut = refusal(good[..good.len() - 1].to_vec());
    assert!(cut.contains("cut off") && cut.contains(&good.len().to_string()), "{cut}");
    assert!(refusal(vec![1; PAGE + 1]).contains("4097 bytes"));
    assert!(refusal(Vec::new()).contains("empty"));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        refusal(bytes)
    };
    assert!(with(18, 183).contains("AArch64 guest (pages of 4, 16 or 64 KB)"));
    assert!(with(4, 1).contains("no memory"), "as a 32-bit file it has no segments");
    assert!(with(5, 2).contains("an ELF file"));
    assert!(with(16, 2).contains("no core"));
    let mut kernel_at_0 = good.clone();
    kernel_at_0[16] = 2;
    kernel_at_0.resize(1 << 20, 0);
    assert_eq!(Image::of_content("raw RAM", kernel_at_0).unwrap().len(), 256);
    let mut padded = good.clone();
    padded.resize(1 << 20, 0);
    assert_eq!(Image::of_content("a core", padded).unwrap().len(), 2);
    let twice = refusal(core(&[(0, 3), (2, 1)]));
    assert!(twice.contains("frame 0x2 is in it twice"), "{twice}");
    assert!(refusal(core(&[])).contains("no memory"));
    for cut in 4..64 {
        refusal(good[..cut].to_vec());
    }
}

#[test]
fn what_cannot_be_opened_names_itself() {
    let e = Image::open("/no/such/file").unwrap_err();
    assert_eq!(e.to_string(), "cannot open /no/such/file");
    assert!(Image::open("/").unwrap_err().to_string().contains("is not a plain file"));
    assert!(Image::open("/dev/null").unwrap_err().to_string().contains("is not a plain file"));
}

#[test]
fn a_file_cut_off_while_it_is_read_is_an_error_and_no_death() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let image = {
        file.write_all(&vec![9; 64 * PAGE]).unwrap();
        Image::open(file.path()).unwrap()
    };
    let other = Image::open(file.path()).unwrap();
    assert_eq!(image.bytes()[0], 9);
    file.as_file().set_len(8 * PAGE as u64).unwrap();
    image.check().expect("nothing lost was read yet");
    assert_eq!((image.bytes()[7 * PAGE], image.bytes()[9 * PAGE]), (9, 0));
    let said = image.check().unwrap_err().to_string();
    assert!(said.starts_with(&file.path().display().to_string()), "{said}");
    // Another mapping of it has lost nothing that was asked for.
    assert_eq!(other.bytes()[0], 9);
    other.check().unwrap();
}

#[test]
fn what_a_writer_changes_is_seen() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![1; 2 * PAGE]).unwrap();
    let image = Image::open(file.path()).unwrap();
    assert_eq!(seen(&image), [(0, 1), (1, 1)]);
    file.seek(SeekFrom::Start(PAGE as u64)).unwrap();
    file.write_all(&[5]).unwrap();
    assert_eq!(seen(&image), [(0, 1), (1, 5)]);
}

#[test]
fn a_sigbus_elsewhere_still_ends_the_process() {
    // In a child, because it is to die.
    const ASKED: &str = "BIFOLD_TEST_SIGBUS_ELSEWHERE";
    if std::env::var_os(ASKED).is_some() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE as u64).unwrap();
        let _image = Image::open(file.path()).unwrap();
        // The standard library's handler, to which the first one goes, wants to see a second. Of two that a
        // process is sent, one can be lost; those to a thread itself are there when `raise` returns.
        for _ in 0..2 {
            // SAFETY: `raise` has no requirements.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "image::tests::a_sigbus_elsewhere_still_ends_the_process"])
        .env(ASKED, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGBUS));
}

#[test]
fn a_processs_memory_is_copied_from_its_largest_mapping() {
    // Larger than whatever else a test process has.
    const PAGES: usize = 80 << 8;
    let mut ram = vec![0u8; PAGES * PAGE];
    let marks = [PAGES / 2, PAGES / 2 + 2];
    for (i, at) in marks.iter().enumerate() {
        ram[at * PAGE..][..PAGE].fill(0xa0 + i as u8);
    }
    let count = |image: &Image, byte: u8| {
        image.pages().filter(|(_, page)| page.iter().filter(|b| **b == byte).count() > PAGE / 2).count()
    };
    let pid = std::process::id();
    // What was never touched is not there. (Asked first, since reading brings pages in.)
    let resident = Image::of_process_resident(pid).unwrap();
    assert!(resident.len() < PAGES as u64 / 2, "{} pages", resident.len());
    let whole = Image::of_process(pid).unwrap();
    assert!(whole.len() >= PAGES as u64);
    // A vector begins some bytes into a page.
    for byte in [0xa0, 0xa1] {
        assert_eq!((count(&resident, byte), count(&whole, byte)), (1, 1));
    }
    assert_eq!(std::hint::black_box(&ram)[0], 0);
    assert!(matches!(Image::of_process(u32::MAX >> 1), Err(ImageError::NoProcess { .. })));
}
