// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patches Debian's kvm-amd.ko to work under an emulator with an error in MOV from CR3.
//!
//! QEMU since 9.1 (seen in 10.0) checks reads of CR3, CR4 and CR8 against the intercept of CR0 reads, because
//! it takes that intercept's number, 0, for "none" where it adds the register's number (`decode_op`, types C
//! and D). KVM without nested paging needs CR3 reads intercepted, but clears the intercept of CR0 reads when
//! the guest's CR0 equals KVM's (`svm_set_cr0`). The guest then reads the root of the shadow tables instead
//! of its own CR3. The patch changes one bit in the instruction of `svm_set_cr0` that clears the intercept,
//! so that it sets the intercept: `btrq $0,(%rax)` becomes `btsq $0,(%rax)` (debug kernels may have another
//! operand). CR3 reads then exit as CR0 reads. KVM has no decode assists here and emulates the instruction
//! (`cr_interception`), which gives the right value. CR0 reads exit too, but Linux hardly makes any.
//!
//! With nested paging KVM needs neither intercept, and the module is not changed.

use object::{Object, ObjectSection, ObjectSymbol};

/// Why a module cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModuleError {
    /// The file is not an ELF module.
    #[error("kvm-amd is not an ELF module: {0}")]
    NotElf(String),
    /// The instruction to change was not found.
    #[error(
        "kvm-amd: svm_set_cr0 clears the intercept of CR0 reads in {0} places instead of 1: this kernel's KVM cannot run shadow paging under this emulator (see lab/src/lab/kvm_module.rs)"
    )]
    Places(usize),
}

const SIGNED: &[u8] = b"~Module signature appended~\n";
/// The bits of the ModRM byte in which BTR (6 in the middle field) differs from BTS (5).
const FIELD: u8 = 0x38;
const BTR: u8 = 6 << 3;
const BTS: u8 = 5 << 3;

/// Whether there is a `btrq $0` of a word in memory here (the intercept of CR0 writes, `btrq $16`,
/// follows some instructions later).
fn clears_bit_0(code: &[u8]) -> bool {
    let [rex, 0x0f, 0xba, modrm, rest @ ..] = code else { return false };
    let (mode, base) = (modrm >> 6, modrm & 7);
    if rex & 0xf8 != 0x48 || modrm & FIELD != BTR || mode == 3 {
        return false;
    }
    let (sib, rest) = if base == 4 { (rest.first().copied(), rest.get(1..)) } else { (None, Some(rest)) };
    let absolute = mode == 0 && sib.map_or(base, |s| s & 7) == 5;
    let displacement = match mode {
        1 => 1,
        2 => 4,
        _ if absolute => 4,
        _ => 0,
    };
    rest.and_then(|r| r.get(displacement)) == Some(&0)
}

/// The module without its signature, which a change would break. Debian's kernels load unsigned modules
/// unless they are locked down.
fn unsigned(module: &[u8]) -> &[u8] {
    // struct module_signature: 12 bytes, the last 4 the signature's length, big-endian.
    let Some(body) = module.strip_suffix(SIGNED) else { return module };
    let Some((rest, tail)) = body.split_last_chunk::<12>() else { return module };
    let signature = u32::from_be_bytes([tail[8], tail[9], tail[10], tail[11]]) as usize;
    rest.get(..rest.len().saturating_sub(signature)).unwrap_or(module)
}

/// The patched module for shadow paging. `function` clears the intercept.
pub fn for_shadow(module: &[u8], function: &str) -> Result<Vec<u8>, ModuleError> {
    let mut out = unsigned(module).to_vec();
    let file = object::File::parse(&out[..]).map_err(|e| ModuleError::NotElf(e.to_string()))?;
    let places: Vec<usize> = file
        .symbols()
        .filter(|s| s.name() == Ok(function))
        .filter_map(|s| {
            let section = file.section_by_index(s.section_index()?).ok()?;
            let (start, _) = section.file_range()?;
            let from = (start + s.address()) as usize;
            Some((from, out.get(from..from + s.size() as usize)?))
        })
        .flat_map(|(from, code)| {
            let found: Vec<usize> = (0..code.len()).filter(|i| clears_bit_0(&code[*i..])).collect();
            found.into_iter().map(move |i| from + i)
        })
        .collect();
    let [place] = places[..] else { return Err(ModuleError::Places(places.len())) };
    out[place + 3] = out[place + 3] & !FIELD | BTS;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_cut_off_and_an_unsigned_module_left_alone() {
        let mut signed = b"module".to_vec();
        signed.extend([7; 5]);
        signed.extend([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
        signed.extend(SIGNED);
        assert_eq!(unsigned(&signed), b"module");
        assert_eq!(unsigned(b"module"), b"module");
    }

    #[test]
    fn the_instruction_is_known_with_any_operand() {
        for code in [
            &[0x48, 0x0f, 0xba, 0x30, 0x00][..],               // (%rax)
            &[0x49, 0x0f, 0xba, 0x75, 0x00, 0x00],             // 0x0(%r13)
            &[0x49, 0x0f, 0xba, 0x34, 0x24, 0x00],             // (%r12)
            &[0x48, 0x0f, 0xba, 0xb0, 0x10, 0, 0, 0, 0x00],    // 0x10(%rax)
            &[0x48, 0x0f, 0xba, 0x35, 0x10, 0, 0, 0, 0x00],    // 0x10(%rip)
            &[0x48, 0x0f, 0xba, 0x34, 0x25, 0, 0, 0, 0, 0x00], // absolute
        ] {
            assert!(clears_bit_0(code), "{code:x?}");
            let mut other = code.to_vec();
            *other.last_mut().unwrap() = 0x10;
            assert!(!clears_bit_0(&other), "{other:x?}");
            assert!(!clears_bit_0(&code[..code.len() - 1]), "{code:x?}");
            other = code.to_vec();
            other[3] = other[3] & !FIELD | BTS;
            assert!(!clears_bit_0(&other), "{other:x?}");
        }
        assert!(!clears_bit_0(&[0x48, 0x0f, 0xba, 0xf0, 0x00])); // %rax itself
    }

    #[test]
    fn what_is_no_module_is_refused() {
        assert!(matches!(for_shadow(b"text", "svm_set_cr0"), Err(ModuleError::NotElf(_))));
    }
}
