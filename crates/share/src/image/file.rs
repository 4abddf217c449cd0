// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recognises a file's format by its first bytes, and finds where its pages lie.
//!
//! Raw RAM has no header, so any other known format is refused: its bytes would be counted as pages, and
//! compressed pages never repeat. Magic numbers come from the formats' descriptions (RFC 1952, xz, RFC 8878,
//! lz4, lzop, qcow2), makedumpfile's IMPLEMENTATION, libvirt's qemu_saveimage.h and QEMU's migration stream.

use super::{ImageError, PAGE, Run, elf};
use object::ReadRef;
use std::fs::File;
use std::path::Path;

/// A format that is not plain memory.
struct Format {
    magic: &'static [u8],
    what: &'static str,
    /// How to convert it to an image. FILE stands for the file's name.
    then: &'static str,
}

const FORMATS: [Format; 14] = [
    Format {
        magic: b"KDUMP   ",
        what: "a kdump-compressed dump",
        // makedumpfile cannot write ELF (-E) from this format.
        then: "makedumpfile cannot make an ELF core of it: dump again without compression \
               (virsh dump --memory-only --format elf DOMAIN OUT, or dump-guest-memory OUT in QEMU's monitor, without -z, -l, -s)",
    },
    Format {
        magic: b"makedumpfile\0\0\0\0",
        what: "a dump in makedumpfile's flattened format",
        then: "put it in order with: makedumpfile -R OUT <FILE",
    },
    Format { magic: &[0x1f, 0x8b], what: "compressed by gzip", then: "unpack it with: gzip -dc FILE >OUT" },
    Format {
        magic: &[0xfd, b'7', b'z', b'X', b'Z', 0],
        what: "compressed by xz",
        then: "unpack it with: xz -dc FILE >OUT",
    },
    Format {
        magic: &[0x28, 0xb5, 0x2f, 0xfd],
        what: "compressed by zstd",
        then: "unpack it with: zstd -d FILE -o OUT",
    },
    Format {
        magic: &[0x04, 0x22, 0x4d, 0x18],
        what: "compressed by lz4",
        then: "unpack it with: lz4 -d FILE OUT",
    },
    Format {
        magic: &[0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a],
        what: "compressed by lzop",
        then: "unpack it with: lzop -dc FILE >OUT",
    },
    Format { magic: b"BZh", what: "compressed by bzip2", then: "unpack it with: bzip2 -dc FILE >OUT" },
    Format {
        magic: &[b'Q', b'F', b'I', 0xfb],
        what: "a disk image (qcow2)",
        then: "memory is in it only as part of a snapshot: start the guest from that, stopped (-loadvm NAME -S), \
               and write dump-guest-memory OUT in QEMU's monitor",
    },
    Format {
        magic: b"LibvirtQemudSave",
        what: "a guest saved by libvirt",
        then: "restore it and dump it: virsh restore --paused FILE && virsh dump --memory-only DOMAIN OUT",
    },
    Format {
        magic: b"LibvirtQemudPart",
        what: "a guest that libvirt did not finish saving",
        then: "save it again, or dump it while it runs: virsh dump --memory-only --live DOMAIN OUT",
    },
    Format {
        magic: b"QEVM",
        what: "a migration stream of QEMU",
        then: "load it into the same machine, stopped (-incoming 'exec:cat FILE' -S), and write dump-guest-memory OUT \
               in its monitor",
    },
    Format {
        magic: b"PAGEDU",
        what: "a Windows crash dump",
        then: "dump the guest as an ELF core: virsh dump --memory-only --format elf DOMAIN OUT, or dump-guest-memory OUT \
               without -w in QEMU's monitor",
    },
    Format {
        magic: b"PAR1",
        what: "Parquet",
        then: "if it holds fingerprints, name the directory that `bifold share fingerprint` wrote",
    },
];

/// The length of a plain file.
pub fn length(path: &Path, file: &File) -> Result<u64, ImageError> {
    let meta = file.metadata().map_err(|e| ImageError::read(path, e))?;
    match meta.len() {
        _ if !meta.is_file() => Err(ImageError::NotAFile { path: path.into() }),
        0 => Err(ImageError::Empty { path: path.into() }),
        len => Ok(len),
    }
}

/// Guest memory is a multiple of this.
const MIB: u64 = 1 << 20;

/// The runs of a file of `len` bytes.
pub fn layout<'a, R: ReadRef<'a>>(data: R, len: u64, path: &Path) -> Result<Vec<Run>, ImageError> {
    if len == 0 {
        return Err(ImageError::Empty { path: path.into() });
    }
    for format in &FORMATS {
        let head = data.read_bytes_at(0, format.magic.len() as u64);
        if head.is_ok_and(|head| head == format.magic) {
            // Quoted for a shell, because the user copies the command.
            let file = format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"));
            let then = format.then.replace("FILE", &file);
            return Err(ImageError::OtherFormat { path: path.into(), what: format.what, then });
        }
    }
    // A guest whose kernel was loaded as an ELF file (PVH) has that file's header at address 0.
    let raw = len % MIB == 0 && !elf::is_core(data);
    if !raw && data.read_bytes_at(0, 4).is_ok_and(|head| head == object::elf::ELFMAG) {
        return elf::layout(data, len, path);
    }
    if len % PAGE as u64 != 0 {
        return Err(ImageError::NotWholePages { path: path.into(), len });
    }
    Ok(vec![Run { gfn: 0, bytes: 0..len as usize }])
}
