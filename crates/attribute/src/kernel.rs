// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's kernel: the regions of its address space and its symbols.

/// The name of the region that a kernel address is in, by Linux's memory map of x86-64 with
/// four-level and five-level tables, whose regions lie apart (Documentation/arch/x86/x86_64/mm.rst; the
/// guest's regions are not randomised).
pub fn region(address: u64) -> &'static str {
    match address {
        0xff11_0000_0000_0000..=0xff90_ffff_ffff_ffff | 0xffff_8880_0000_0000..=0xffff_c87f_ffff_ffff => {
            "direct map"
        }
        0xffa0_0000_0000_0000..=0xffd1_ffff_ffff_ffff | 0xffff_c900_0000_0000..=0xffff_e8ff_ffff_ffff => {
            "vmalloc"
        }
        0xffd4_0000_0000_0000..=0xffd5_ffff_ffff_ffff | 0xffff_ea00_0000_0000..=0xffff_eaff_ffff_ffff => {
            "page structs"
        }
        0xffff_fe00_0000_0000..=0xffff_fe7f_ffff_ffff => "CPU entry area",
        0xffff_ffff_8000_0000..=0xffff_ffff_9fff_ffff => "kernel image",
        0xffff_ffff_a000_0000..=0xffff_ffff_feff_ffff => "modules",
        0xffff_ffff_ff00_0000..=0xffff_ffff_ffff_ffff => "fixmap",
        _ => "kernel",
    }
}

/// How user code came into the kernel, by the entry point's name (arch/x86/entry/entry_64.S).
pub fn entered_by(entry: &str) -> &'static str {
    let starts = |names: &[&str]| names.iter().any(|n| entry.starts_with(n));
    if starts(&["entry_SYS", "entry_INT80", "asm_int80"]) {
        "system call"
    } else if starts(&["asm_sysvec_", "asm_common_interrupt", "irq_entries_start", "asm_spurious_interrupt"])
    {
        INTERRUPT
    } else if starts(&["asm_exc_"]) {
        "exception"
    } else {
        KERNEL_MEMORY
    }
}

/// The name of the kernel's memory where its regions do not matter.
pub const KERNEL_MEMORY: &str = "kernel memory";

/// The name of interrupts, which no user code causes.
pub const INTERRUPT: &str = "interrupt";

/// Functions of a kernel or a run-time compiler, by address.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Sorted by first address.
    functions: Vec<Function>,
}

#[derive(Debug, PartialEq, Eq)]
struct Function {
    start: u64,
    /// First address after the function.
    end: u64,
    name: String,
    module: Option<String>,
}

/// Longest name kept, in bytes.
const LONGEST: usize = 1024;

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn cut(name: &str) -> String {
    name.chars().take(LONGEST).collect()
}

impl Symbols {
    /// Symbols of the lines of `/proc/kallsyms`: address, type, name, module in brackets. A function
    /// extends to the next function.
    pub fn of_kallsyms(text: &[u8]) -> Symbols {
        let mut functions = Vec::new();
        for line in String::from_utf8_lossy(text).lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some(_), Some(name)) =
                (words.next().and_then(hex), words.next(), words.next())
            else {
                continue;
            };
            // What a user without rights sees.
            if address == 0 {
                continue;
            }
            let module = words.next().map(cut);
            functions.push(Function { start: address, end: u64::MAX, name: cut(name), module });
        }
        functions.sort_by_key(|f| f.start);
        // Of several names of one address the first is kept.
        functions.dedup_by(|b, a| a.start == b.start);
        for i in 1..functions.len() {
            functions[i - 1].end = functions[i].start;
        }
        Symbols { functions }
    }

    /// Symbols of a run-time compiler's map: start and length in hexadecimal, then the name. Functions
    /// overlap where the compiler replaced code; the later line wins.
    pub fn of_perf_map(text: &[u8]) -> Symbols {
        let mut functions = Vec::new();
        for line in String::from_utf8_lossy(text).lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(start), Some(length), Some(name)) =
                (words.next().and_then(hex), words.next().and_then(hex), words.next())
            else {
                continue;
            };
            let end = start.saturating_add(length);
            functions.push(Function { start, end, name: cut(name.trim()), module: None });
        }
        // A stable sort: among those of one start the last line comes last.
        functions.sort_by_key(|f| f.start);
        Symbols { functions }
    }

    /// Name and module of the function that an address is in.
    pub fn at(&self, address: u64) -> Option<(&str, Option<&str>)> {
        let after = self.functions.partition_point(|f| f.start <= address);
        let f = self.functions.get(after.checked_sub(1)?)?;
        (address < f.end).then_some((&f.name, f.module.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_functions_go_on_until_the_next_and_name_their_module() {
        let s = Symbols::of_kallsyms(
            b"ffffffff81000000 T _stext\nffffffff81000000 T _text\nbad line\n\
              ffffffffa0000000 t ovl_open\t[overlay]\nffffffff81000100 t do_one\n0000000000000000 T hidden\n",
        );
        assert_eq!(s.at(0xffffffff80ffffff), None);
        assert_eq!(s.at(0xffffffff81000000), Some(("_stext", None)));
        assert_eq!(s.at(0xffffffff810000ff), Some(("_stext", None)));
        assert_eq!(s.at(0xffffffff81000100), Some(("do_one", None)));
        assert_eq!(s.at(0xffffffffa0000005), Some(("ovl_open", Some("[overlay]"))));
    }

    #[test]
    fn a_perf_map_has_lengths_and_names_with_spaces_and_its_last_word_counts() {
        let s = Symbols::of_perf_map(b"1000 10 LazyCompile:~f a.js:1\n0x2000 0x8 old\n2000 8 new\nzz 1 x\n");
        assert_eq!(s.at(0x100f), Some(("LazyCompile:~f a.js:1", None)));
        assert_eq!(s.at(0x1010), None);
        assert_eq!(s.at(0x2000), Some(("new", None)));
    }

    #[test]
    fn entry_points_tell_system_calls_from_interrupts() {
        for (entry, how) in [
            ("entry_SYSCALL_64", "system call"),
            ("asm_sysvec_apic_timer_interrupt", "interrupt"),
            ("irq_entries_start", "interrupt"),
            ("asm_exc_general_protection", "exception"),
            ("do_idle", "kernel memory"),
        ] {
            assert_eq!(entered_by(entry), how);
        }
    }

    #[test]
    fn regions_are_those_of_the_kernels_memory_map() {
        for (address, name) in [
            (0xffff_8880_0010_0000, "direct map"),
            (0xff11_0000_0010_0000, "direct map"),
            (0xffd4_0000_0000_0040, "page structs"),
            (0xffff_c900_0001_2000, "vmalloc"),
            (0xffff_ea00_0001_2000, "page structs"),
            (0xffff_fe00_0000_1000, "CPU entry area"),
            (0xffff_ffff_8100_0000, "kernel image"),
            (0xffff_ffff_c000_0000, "modules"),
            (0xffff_ffff_ff5f_f000, "fixmap"),
        ] {
            assert_eq!(region(address), name, "{address:x}");
        }
    }
}
