// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Functions of a program or library, by offset in its file. Names come from the file's symbol table,
//! then from separate debugging information if the machine has it, then from dynamic symbols. A
//! function without a name is shown by its first address, from the unwind table.

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ReadCache, ReadRef, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Longest name kept, in bytes of the file's.
const LONGEST: usize = 4096;

/// Directory of separate debugging information on Debian and others (gdb's default).
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// Why the functions of a file are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// The file does not exist or cannot be read.
    Unreadable,
    /// The file is no ELF file that can be parsed.
    NotElf,
    /// The file has another build ID than the file that the guest ran.
    Changed,
}

impl Unknown {
    /// In words, after the file's name.
    pub fn describe(&self) -> &'static str {
        match self {
            Unknown::Unreadable => "cannot be read here",
            Unknown::NotElf => "is no program that can be parsed",
            Unknown::Changed => "is not the file that the guest ran",
        }
    }
}

/// A function: first address, first address after it (equal if the size is unknown), name.
struct Function {
    start: u64,
    end: u64,
    name: String,
}

/// A name as in the source: demangled from Rust or C++.
pub fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let symbol = cpp_demangle::Symbol::new(name).ok();
        if let Some(cpp) = symbol.and_then(|s| s.demangle_with_options(&options).ok()) {
            return cpp;
        }
    }
    name.to_owned()
}

/// Adds the functions whose symbols cover at least one of `addresses`. Of several symbols at one
/// address, the name most likely from the source wins.
fn symbols<'a>(
    table: impl Iterator<Item = impl ObjectSymbol<'a>>,
    addresses: &BTreeSet<u64>,
    found: &mut BTreeMap<u64, Function>,
) {
    for s in table.filter(|s| s.kind() == SymbolKind::Text && s.address() != 0) {
        let (start, end) = (s.address(), s.address().saturating_add(s.size()));
        // A symbol without a size goes on until the next one: which is seen at the end.
        if s.size() > 0 && addresses.range(start..end).next().is_none() {
            continue;
        }
        let Some(name) = s.name_bytes().ok().filter(|n| !n.is_empty() && n.len() <= LONGEST) else {
            continue;
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let rank = |name: &str| (name.bytes().take_while(|b| *b == b'_').count(), name.len());
        match found.get(&start) {
            Some(f) if (f.end > start && s.size() == 0) || rank(&f.name) <= rank(&name) => {}
            _ => {
                found.insert(start, Function { start, end, name });
            }
        }
    }
}

/// First addresses of functions as the unwind table's index lists them, in its order.
fn unwound<'a>(elf: &impl Object<'a>) -> Vec<u64> {
    let Some(section) = elf.section_by_name(".eh_frame_hdr") else { return Vec::new() };
    let Ok(data) = section.data() else { return Vec::new() };
    let bases = BaseAddresses::default().set_eh_frame_hdr(section.address());
    let mut starts = Vec::new();
    if let Ok(header) = EhFrameHdr::new(data, LittleEndian).parse(&bases, 8) {
        if let Some(table) = header.table() {
            let mut entries = table.iter(&bases);
            while let Ok(Some((Pointer::Direct(start), _))) = entries.next() {
                starts.push(start);
            }
        }
    }
    starts.sort_unstable();
    starts
}

/// The file of separate debugging information for a build ID.
fn debug_file(id: &[u8]) -> Option<PathBuf> {
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    (hex.len() > 2).then(|| Path::new(DEBUG).join(&hex[..2]).join(format!("{}.debug", &hex[2..])))
}

/// Names of the functions at these offsets of a file; offsets without a known function are left out.
///
/// # Errors
/// If the file cannot be read, is no ELF file, or has another build ID.
pub fn functions(
    path: &Path,
    build_id: Option<&[u8]>,
    offsets: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, String>, Unknown> {
    // The guest's path may name a pipe on this machine, whose open never returns.
    let regular = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    let file = regular.then(|| File::open(path).ok()).flatten().ok_or(Unknown::Unreadable)?;
    functions_in(&ReadCache::new(file), build_id, offsets)
}

/// [`functions`] of the contents of a file.
///
/// # Errors
/// As [`functions`].
pub fn functions_in<'a>(
    contents: impl ReadRef<'a>,
    build_id: Option<&[u8]>,
    offsets: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, String>, Unknown> {
    let elf = object::File::parse(contents).map_err(|_| Unknown::NotElf)?;
    let own_id = elf.build_id().ok().flatten();
    if build_id.is_some() && own_id != build_id {
        return Err(Unknown::Changed);
    }
    let segments: Vec<(u64, u64, u64)> =
        elf.segments().map(|s| (s.file_range().0, s.file_range().1, s.address())).collect();
    let address = |offset: u64| {
        let (from, _, at) = segments.iter().find(|(from, n, _)| offset.wrapping_sub(*from) < *n)?;
        Some(offset - from + at)
    };
    let by_offset: Vec<(u64, u64)> = offsets.iter().filter_map(|o| Some((*o, address(*o)?))).collect();
    let addresses: BTreeSet<u64> = by_offset.iter().map(|(_, a)| *a).collect();

    let mut found = BTreeMap::new();
    symbols(elf.symbols(), &addresses, &mut found);
    let debug = own_id.and_then(debug_file).and_then(|p| File::open(p).ok()).map(ReadCache::new);
    if let Some(debug) = debug.as_ref().and_then(|d| object::File::parse(d).ok()) {
        symbols(debug.symbols(), &addresses, &mut found);
    }
    symbols(elf.dynamic_symbols(), &addresses, &mut found);
    let starts = unwound(&elf);

    let mut names = BTreeMap::new();
    for (offset, address) in by_offset {
        let symbol = found.range(..=address).next_back().map(|(_, f)| f);
        let unwound = starts[..starts.partition_point(|s| *s <= address)].last();
        let name = match (symbol, unwound) {
            (Some(f), _) if address < f.end => demangled(&f.name),
            // Without a size: unless another function is known to begin in between.
            (Some(f), start) if f.end == f.start && start.is_none_or(|s| *s <= f.start) => demangled(&f.name),
            (_, Some(start)) => format!("at {start:#x}"),
            _ => continue,
        };
        names.insert(offset, name);
    }
    // Calls into libraries go through stubs, which have no symbols.
    for section in elf.sections().filter(|s| s.name().is_ok_and(|n| n.starts_with(".plt"))) {
        if let Some((from, n)) = section.file_range() {
            for (_, name) in names.range_mut(from..from.saturating_add(n)) {
                *name = "[calls into libraries]".into();
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const SOURCE: &str = "
        __attribute__((noinline)) int first(int x) { for (int i = 0; i < 9; i++) x += x * i; return x; }
        __attribute__((noinline)) int second(int x) { return first(x) * 3 + 1; }
        int main(int argc, char **argv) { (void)argv; return second(argc); }";

    /// A program's path and the offset of a function in it, as `nm` and the headers have it.
    fn program(dir: &Path) -> (PathBuf, u64) {
        let (c, path) = (dir.join("p.c"), dir.join("p"));
        std::fs::write(&c, SOURCE).unwrap();
        let built = Command::new("cc").args(["-O1", "-Wl,--build-id=sha1", "-o"]).arg(&path).arg(&c).status();
        assert!(built.unwrap().success());
        let nm = Command::new("nm").arg(&path).output().unwrap();
        let text = String::from_utf8(nm.stdout).unwrap();
        let line = text.lines().find(|l| l.ends_with(" T second")).unwrap();
        // A small program is linked so that offsets and addresses of its code agree.
        (path, u64::from_str_radix(&line[..16], 16).unwrap())
    }

    fn name(path: &Path, offset: u64) -> Option<String> {
        functions(path, None, &BTreeSet::from([offset])).unwrap().remove(&offset)
    }

    #[test]
    fn a_function_has_its_name_and_a_stripped_one_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = program(dir.path());
        assert_eq!(name(&path, second).as_deref(), Some("second"));
        assert_eq!(name(&path, second + 3).as_deref(), Some("second"));
        assert_eq!(name(&path, second - 1).as_deref(), Some("first"));
        assert_eq!(name(&path, 1 << 40), None);
        assert!(Command::new("strip").arg(&path).status().unwrap().success());
        assert_eq!(name(&path, second + 3), Some(format!("at {second:#x}")));
    }

    #[test]
    fn what_is_no_program_or_another_one_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (path, second) = program(dir.path());
        let at = |p: &Path, id: Option<&[u8]>| functions(p, id, &BTreeSet::from([second])).unwrap_err();
        assert_eq!(at(&path, Some(&[1, 2, 3])), Unknown::Changed);
        assert_eq!(at(&dir.path().join("p.c"), None), Unknown::NotElf);
        assert_eq!(at(dir.path(), None), Unknown::Unreadable);
        assert_eq!(at(Path::new("/nowhere"), None), Unknown::Unreadable);
    }

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(demangled("_ZN3std2io5stdio6_print17h0123456789abcdefE"), "std::io::stdio::_print");
        assert_eq!(
            demangled("_ZNSt6vectorIiSaIiEE9push_backEOi"),
            "std::vector<int, std::allocator<int> >::push_back"
        );
        assert_eq!(demangled("_Zbroken"), "_Zbroken");
        assert_eq!(demangled("malloc"), "malloc");
    }
}
