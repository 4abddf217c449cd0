// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel's image from the user: its version, whether it fits the guest's tables, what boots fast in it.

use super::{Kernel, cache_dir};
use crate::error::GuestError;
use bifold_base::bounded;
use bifold_trace::TableFormat;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Upper limit for a kernel image in bytes, debug information included.
const MOST_IMAGE: u64 = 2 << 30;

/// A kernel from the user's file: a bzImage or an ELF vmlinux.
pub fn own(image: &Path, modules: Option<&Path>) -> Result<Kernel, GuestError> {
    own_for(image, modules, TableFormat::FourLevel)
}

pub(super) fn own_for(
    image: &Path,
    modules: Option<&Path>,
    tables: TableFormat,
) -> Result<Kernel, GuestError> {
    let data = bounded::read(image, MOST_IMAGE)
        .map_err(|e| GuestError::Kernel { path: image.to_path_buf(), why: format!("cannot be read: {e}") })?;
    let elf = data.starts_with(b"\x7fELF");
    let version = if elf { elf_version(&data) } else { bzimage_version(&data) };
    let version = version.ok_or_else(|| GuestError::Kernel {
        path: image.to_path_buf(),
        why: "is neither a bzImage nor an ELF vmlinux of Linux".into(),
    })?;
    if let Some(why) = unfit(&data, tables) {
        return Err(GuestError::Kernel { path: image.to_path_buf(), why });
    }
    let mut kernel = Kernel { image: image.to_path_buf(), modules: None, version };
    // DIR itself, or DIR/VERSION where DIR is a tree of several kernels' modules.
    let of_version = |dir: &Path| Some(dir.join(&kernel.version)).filter(|d| d.is_dir());
    kernel.modules = match modules {
        Some(dir) => Some(of_version(dir).unwrap_or(dir.to_path_buf())),
        None => of_version(Path::new("/lib/modules")),
    };
    let unpacks = !elf && tables != TableFormat::FiveLevel;
    if let Some(unpacked) = unpacks.then(|| payload(&data)).flatten() {
        let dir = cache_dir("images")?;
        let to = dir.join(format!("{}-{:016x}", kernel.version, checksum(&data)));
        if !to.exists() {
            fs::create_dir_all(&dir).map_err(GuestError::file(&dir, "cannot create"))?;
            let new = dir.join(format!(".new-{}", std::process::id()));
            fs::write(&new, unpacked)
                .and_then(|()| fs::rename(&new, &to))
                .map_err(GuestError::file(&to, "cannot write"))?;
        }
        kernel.image = to;
    }
    Ok(kernel)
}

/// Why an image cannot have these tables, as far as the image shows.
fn unfit(data: &[u8], tables: TableFormat) -> Option<String> {
    let elf = data.starts_with(b"\x7fELF");
    let long = match elf {
        true => data.get(4) == Some(&2),
        // XLF_KERNEL_64 of xloadflags (Documentation/arch/x86/boot.rst).
        false => data.get(0x236).is_some_and(|flags| flags & 1 != 0),
    };
    let asked = tables.name();
    match (long, tables.is_long()) {
        (true, false) => Some(format!("is a 64-bit kernel, and --guest-tables {asked} needs a 32-bit one")),
        (false, true) => Some(format!(
            "is a 32-bit kernel, and tables of format {asked} need a 64-bit one: add --guest-tables pae or 32-bit"
        )),
        _ if elf && tables == TableFormat::FiveLevel => {
            Some("is an unpacked kernel, and --guest-tables 5-level needs a bzImage, whose decompressor turns them on".into())
        }
        _ => None,
    }
}

/// Distinguishes images in the cache. It does not resist deliberate collisions.
fn checksum(data: &[u8]) -> u64 {
    data.chunks(8).fold(data.len() as u64, |sum, c| {
        let mut word = [0; 8];
        word[..c.len()].copy_from_slice(c);
        (sum.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

fn u32_at(data: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?) as usize)
}

/// The release string of a bzImage (Documentation/arch/x86/boot.rst).
fn bzimage_version(data: &[u8]) -> Option<String> {
    if data.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let at = u16::from_le_bytes(data.get(0x20e..0x210)?.try_into().ok()?) as usize + 0x200;
    let text = data.get(at..)?.split(|b| *b == 0 || *b == b' ').next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

fn elf_version(data: &[u8]) -> Option<String> {
    let banner = b"Linux version ";
    let at = data.windows(banner.len()).position(|w| w == banner)? + banner.len();
    let text = data[at..].split(|b| *b == b' ' || *b == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The ELF kernel within a bzImage, if its compression is known here and it has a PVH entry, through which
/// QEMU starts it.
pub(super) fn payload(data: &[u8]) -> Option<Vec<u8>> {
    if data.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup = (usize::from(*data.get(0x1f1)?) + 1) * 512;
    let at = setup + u32_at(data, 0x248)?;
    let packed = data.get(at..at + u32_at(data, 0x24c)?)?;
    let mut out = Vec::new();
    // The payload ends with its unpacked size, which no decompressor knows.
    if packed.starts_with(b"\xfd7zXZ") {
        liblzma::read::XzDecoder::new(packed).read_to_end(&mut out).ok()?;
    } else if packed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let body = packed.get(..packed.len() - 4)?;
        zstd::Decoder::new(body).ok()?.read_to_end(&mut out).ok()?;
    } else {
        return None;
    }
    // XEN_ELFNOTE_PHYS32_ENTRY: type 18, name "Xen".
    let note = [4, 0, 0, 0, 4, 0, 0, 0, 18, 0, 0, 0, b'X', b'e', b'n', 0];
    let note8 = [4, 0, 0, 0, 8, 0, 0, 0, 18, 0, 0, 0, b'X', b'e', b'n', 0];
    let has = |n: &[u8]| out.windows(n.len()).any(|w| w == n);
    (out.starts_with(b"\x7fELF") && (has(&note) || has(&note8))).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_cannot_have_the_tables_are_told_by_their_mode_and_packing() {
        let elf = |class: u8| [b"\x7fELF", &[class][..], &[0; 0x300]].concat();
        let packed = |flags: u8| {
            let mut image = vec![0; 0x300];
            image[0x236] = flags;
            image
        };
        let [four, five, pae, two] = TableFormat::ALL;
        for long in [elf(2), packed(3)] {
            assert_eq!(unfit(&long, four), None);
            assert_eq!(
                unfit(&long, pae).unwrap(),
                "is a 64-bit kernel, and --guest-tables pae needs a 32-bit one"
            );
        }
        for narrow in [elf(1), packed(2)] {
            assert_eq!((unfit(&narrow, pae), unfit(&narrow, two)), (None, None));
            assert!(
                unfit(&narrow, five).unwrap().starts_with("is a 32-bit kernel, and tables of format 5-level")
            );
        }
        assert_eq!(unfit(&packed(3), five), None);
        assert!(unfit(&elf(2), five).unwrap().starts_with("is an unpacked kernel"));
    }
}
