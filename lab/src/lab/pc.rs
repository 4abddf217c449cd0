// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A PC's memory and ROM as an emulator loads them, so that Linux starts without a firmware, a boot loader or
//! a disk.
//!
//! The ROM enters protected mode and jumps to the kernel's PVH entry, which takes an ELF kernel with its
//! memory map, command line and initramfs (Linux, Documentation/arch/x86/boot.rst; Xen,
//! docs/misc/pvh.pandoc). An MP table (Intel, MultiProcessor Specification 1.4) lists the CPUs and the I/O
//! APIC. The PC has no PCI and no ACPI.

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

/// Physical address of [`rom`], whose last 16 bytes are the CPU's first instructions.
pub const ROM: u32 = 0xffff_0000;
/// Port of Bochs that takes the word `Shutdown` and ends the emulator (Bochs, docs-html, "Shutdown port").
const SHUTDOWN_PORT: u16 = 0x8900;

/// A word of memory that the ROM sets at its first run. A second run means that the machine was reset.
const STARTED: u32 = 0x500;
const START_INFO: u32 = 0x6000;
const MODULES: u32 = 0x6100;
const MEMORY_MAP: u32 = 0x6200;
const COMMAND_LINE: u32 = 0x7000;
/// Linux looks for the MP table in the last KiB of the lowest 640 (`default_find_smp_config`).
const MP_TABLE: u32 = 639 << 10;
const LOW_END: u64 = 640 << 10;
const HIGH: u64 = 1 << 20;
/// `hvm_start_info.magic`.
const MAGIC: u32 = 0x336e_c578;
/// XEN_ELFNOTE_PHYS32_ENTRY.
const PVH_ENTRY: u32 = 18;
/// Room behind the kernel for what it takes before it knows of the initramfs.
const ROOM: u64 = 32 << 20;

/// The PC's memory from address 0 and its ROM.
#[derive(Debug)]
pub struct Pc {
    /// Memory from address 0 to the kernel's end.
    pub memory: Vec<u8>,
    /// Address at which the initramfs is loaded.
    pub initrd_at: u64,
    /// The ROM, for [`ROM`].
    pub rom: Vec<u8>,
}

/// What the PC runs.
#[derive(Debug)]
pub struct Spec<'a> {
    /// The kernel, an ELF file with a PVH note.
    pub kernel: &'a [u8],
    /// Its command line.
    pub command_line: &'a str,
    /// Size of the initramfs.
    pub initrd: u64,
    /// Size of the memory.
    pub memory: u64,
    /// Number of CPUs.
    pub cpus: u8,
}

impl Pc {
    /// Lays out the memory. An error says why the kernel cannot be started so.
    pub fn new(spec: &Spec) -> Result<Pc, String> {
        let (mut memory, entry) = load(spec.kernel, spec.memory)?;
        let initrd_at = (memory.len() as u64 + ROOM).next_multiple_of(1 << 21);
        if initrd_at + spec.initrd + ROOM > spec.memory {
            return Err(format!(
                "its {} MiB and an initramfs of {} MiB do not fit into {} MiB",
                memory.len() >> 20,
                spec.initrd >> 20,
                spec.memory >> 20
            ));
        }
        let mut put = |at: u32, bytes: &[u8]| memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // struct hvm_start_info: magic, version; flags, modules; then addresses; entries of the memory map.
        let map = [(0, u64::from(MP_TABLE), 1), (u64::from(MP_TABLE), LOW_END, 2), (HIGH, spec.memory, 1)];
        put(
            START_INFO,
            &words(&[
                pair(MAGIC, 1),
                pair(0, 1),
                u64::from(MODULES),
                u64::from(COMMAND_LINE),
                0,
                u64::from(MEMORY_MAP),
                map.len() as u64,
            ]),
        );
        put(MODULES, &words(&[initrd_at, spec.initrd, 0, 0]));
        for (i, (begin, end, kind)) in map.into_iter().enumerate() {
            put(MEMORY_MAP + 24 * i as u32, &words(&[begin, end - begin, kind]));
        }
        // COMMAND_LINE_SIZE of x86.
        if spec.command_line.len() >= 2048 {
            return Err(format!("its command line of {} bytes is too long", spec.command_line.len()));
        }
        put(COMMAND_LINE, spec.command_line.as_bytes());
        put(MP_TABLE, &mp_table(spec.cpus));
        Ok(Pc { memory, initrd_at, rom: rom(entry) })
    }
}

/// The kernel's segments at their physical addresses, and its PVH entry.
fn load(kernel: &[u8], most: u64) -> Result<(Vec<u8>, u32), String> {
    let e = LittleEndian;
    let broken = |e: object::Error| format!("not an ELF kernel: {e}");
    let header = FileHeader64::<LittleEndian>::parse(kernel).map_err(broken)?;
    let (mut memory, mut entry) = (Vec::new(), None);
    for segment in header.program_headers(e, kernel).map_err(broken)? {
        if let Some(mut notes) = segment.notes(e, kernel).map_err(broken)? {
            while let Some(note) = notes.next().map_err(broken)? {
                if note.name() == b"Xen" && note.n_type(e) == PVH_ENTRY {
                    entry = note.desc().first_chunk().map(|b| u32::from_le_bytes(*b));
                }
            }
        }
        if segment.p_type(e) != PT_LOAD {
            continue;
        }
        let data = segment.data(e, kernel).map_err(|()| "a segment lies outside the file".to_owned())?;
        let (begin, end) = (segment.p_paddr(e), segment.p_paddr(e).saturating_add(segment.p_memsz(e)));
        if begin < HIGH || end > most || (data.len() as u64) > end - begin {
            return Err(format!("its segment at {begin:#x} to {end:#x} does not fit into the memory"));
        }
        if memory.len() < end as usize {
            memory.resize(end as usize, 0);
        }
        memory[begin as usize..][..data.len()].copy_from_slice(data);
    }
    match entry {
        Some(entry) if !memory.is_empty() => Ok((memory, entry)),
        _ => Err("it has no PVH entry (CONFIG_PVH)".into()),
    }
}

/// 64 KiB of ROM. It enters protected mode with flat segments and jumps to `entry`, with the start info's
/// address in EBX. After a reset it ends the emulator.
fn rom(entry: u32) -> Vec<u8> {
    const GDT: u32 = 0x80;
    const GDT_POINTER: u32 = 0xa0;
    const CODE32: u32 = 0x20;
    let word: Vec<u8> = b"Shutdown".iter().flat_map(|c| [0xb0, *c, 0xee]).collect();
    let mut rom = vec![0; 1 << 16];
    let mut put = |at: u32, bytes: &[&[u8]]| {
        let bytes = bytes.concat();
        rom[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    };
    put(
        0,
        &[
            &[0xfa], // cli
            &[0x2e, 0x66, 0x0f, 0x01, 0x16],
            &(GDT_POINTER as u16).to_le_bytes(), // lgdt %cs:GDT_POINTER
            &[0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0], // CR0.PE = 1
            &[0x66, 0xea],
            &(ROM + CODE32).to_le_bytes(),
            &[0x08, 0x00], // ljmpl $8, $CODE32
        ],
    );
    put(
        CODE32,
        &[
            &[0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0], // DS, ES, SS = 0x10
            &[0xb8],
            &STARTED.to_le_bytes(),          // mov $STARTED, %eax
            &[0x83, 0x38, 0x00, 0x75, 0x11], // cmpl $0, (%eax); jne 1f
            &[0xc6, 0x00, 0x01, 0x90],       // movb $1, (%eax)
            &[0xbb],
            &START_INFO.to_le_bytes(), // mov $START_INFO, %ebx
            &[0xb8],
            &entry.to_le_bytes(),
            &[0xff, 0xe0], // mov $entry, %eax; jmp *%eax
            &[0x90],
            // 1: mov $SHUTDOWN_PORT, %dx; then mov $LETTER, %al; out %al, %dx for each; hlt
            &[0x66, 0xba],
            &SHUTDOWN_PORT.to_le_bytes(),
            &word,
            &[0xf4],
        ],
    );
    // Flat code and data of 4 GiB.
    put(GDT + 8, &[&[0xff, 0xff, 0, 0, 0, 0x9b, 0xcf, 0], &[0xff, 0xff, 0, 0, 0, 0x93, 0xcf, 0]]);
    put(GDT_POINTER, &[&23u16.to_le_bytes(), &(ROM + GDT).to_le_bytes()]);
    // The first instruction: jmp to offset 0 of the ROM.
    put(0xfff0, &[&[0xe9, 0x0d, 0x00]]);
    rom
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)).wrapping_neg()
}

/// The MP floating pointer and, behind it, the configuration table.
fn mp_table(cpus: u8) -> Vec<u8> {
    let io_apic = cpus; // the first id that no CPU has
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for id in 0..cpus {
        // Usable, and the first is the boot processor; signature and features of any CPU with an APIC.
        let flags = 1 | u8::from(id == 0) << 1;
        entries.push([&[0, id, 0x14, flags, 0, 6, 0, 0, 1, 2, 0, 0][..], &[0; 8]].concat());
    }
    entries.push([&[1, 0][..], b"ISA   "].concat());
    entries.push([&[2, io_apic, 0x11, 1][..], &0xfec0_0000u32.to_le_bytes()].concat());
    // The timer's line goes to pin 2, where the cascade would be; all others to the pin of their number.
    for line in (0..16).filter(|l| *l != 2) {
        entries.push(vec![3, 0, 0, 0, 0, line, io_apic, if line == 0 { 2 } else { line }]);
    }
    // Local: the 8259 at LINT0, NMI at LINT1 of all CPUs.
    entries.push(vec![4, 3, 0, 0, 0, 0, 0xff, 0]);
    entries.push(vec![4, 1, 0, 0, 0, 0, 0xff, 1]);
    let mut table = [&b"PCMP"[..], &[0, 0, 4, 0], b"BIFOLD  ", b"LABORATORY  ", &[0; 6]].concat();
    table.extend((entries.len() as u16).to_le_bytes());
    table.extend(0xfee0_0000u32.to_le_bytes());
    table.extend([0; 4]);
    table.extend(entries.concat());
    let length = table.len() as u16;
    table[4..6].copy_from_slice(&length.to_le_bytes());
    table[7] = checksum(&table);
    let mut pointer = [&b"_MP_"[..], &(MP_TABLE + 16).to_le_bytes(), &[1, 4, 0, 0, 0, 0, 0, 0]].concat();
    pointer[10] = checksum(&pointer);
    [pointer, table].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF kernel with one segment of `bytes` at 16 MiB and, if any, a PVH note.
    fn kernel(bytes: &[u8], entry: Option<u32>) -> Vec<u8> {
        let note: Vec<u8> = entry.map_or(Vec::new(), |e| {
            [4u32, 4, PVH_ENTRY]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .chain(*b"Xen\0")
                .chain(e.to_le_bytes())
                .collect()
        });
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for word in [0u64, 64, 0] {
            elf.extend(word.to_le_bytes());
        }
        elf.extend([0; 4]);
        for half in [64u16, 56, 2, 0, 0, 0] {
            elf.extend(half.to_le_bytes());
        }
        let at = 64 + 2 * 56;
        for (kind, offset, size, room) in
            [(1u32, at, bytes.len(), 0x2000), (4, at + bytes.len(), note.len(), note.len())]
        {
            elf.extend(kind.to_le_bytes());
            elf.extend([0; 4]);
            for word in [offset as u64, 0, 16 << 20, size as u64, room as u64, 4] {
                elf.extend(word.to_le_bytes());
            }
        }
        elf.extend(bytes);
        elf.extend(note);
        elf
    }

    fn pc(kernel: &[u8], memory: u64) -> Result<Pc, String> {
        Pc::new(&Spec { kernel, command_line: "quiet", initrd: 1 << 20, memory, cpus: 2 })
    }

    #[test]
    fn segments_lie_where_the_kernel_wants_them_and_the_rom_jumps_to_its_entry() {
        let pc = pc(&kernel(b"code", Some(0x123_4567)), 256 << 20).unwrap();
        assert_eq!(&pc.memory[16 << 20..][..5], b"code\0");
        assert_eq!(pc.memory.len(), (16 << 20) + 0x2000);
        assert!(pc.initrd_at >= pc.memory.len() as u64 && pc.initrd_at % (1 << 21) == 0);
        assert_eq!(&pc.memory[COMMAND_LINE as usize..][..6], b"quiet\0");
        let jump = [&[0xb8][..], &0x123_4567u32.to_le_bytes(), &[0xff, 0xe0]].concat();
        assert!(pc.rom.windows(jump.len()).any(|w| w == jump));
        assert_eq!(pc.rom.len(), 1 << 16);
    }

    #[test]
    fn the_roms_jump_for_a_reset_ends_at_the_shutdown_port() {
        let rom = rom(0);
        let jne = rom.windows(2).position(|w| w == [0x75, 0x11]).unwrap();
        assert_eq!(rom[jne + 2 + 0x11..][..4], [0x66, 0xba, 0x00, 0x89]);
        assert_eq!(rom[jne + 2 + 0x11 + 4..][..3], [0xb0, b'S', 0xee]);
    }

    #[test]
    fn kernels_that_cannot_be_started_are_refused() {
        let of = |kernel: &[u8], memory| pc(kernel, memory).unwrap_err();
        assert!(of(b"MZ", 256 << 20).contains("not an ELF kernel"));
        assert!(of(&kernel(b"code", None), 256 << 20).contains("PVH"));
        assert!(of(&kernel(b"code", Some(1)), 8 << 20).contains("does not fit"));
        assert!(of(&kernel(b"code", Some(1)), 32 << 20).contains("do not fit"));
    }

    #[test]
    fn the_mp_tables_sums_are_zero() {
        let table = mp_table(3);
        let sum = |b: &[u8]| b.iter().fold(0u8, |s, b| s.wrapping_add(*b));
        assert_eq!((sum(&table[..16]), sum(&table[16..])), (0, 0));
        let length = usize::from(u16::from_le_bytes([table[20], table[21]]));
        assert_eq!(table.len(), 16 + length);
        let entries = usize::from(u16::from_le_bytes([table[16 + 34], table[16 + 35]]));
        // Processors have 20 bytes, all other entries 8; the header has 44.
        assert_eq!(length, 44 + 3 * 20 + (entries - 3) * 8);
    }
}
