// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the plugin's arguments for a region of the command.
//!
//! The plugin finds the region (`qemu-plugin/region.c`). It recognises a function by its offset in its page
//! and its first bytes of code, because the guest's loader may put the function at any page. This module
//! reads both from the program's file.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use object::elf::{PF_X, PT_LOAD, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Object, ObjectSymbol};

use crate::error::GuestError;
use crate::spec::{Begin, Region};

impl Region {
    /// Whether the command may have more regions than one.
    pub fn several(&self) -> bool {
        self.begin == Begin::Marker && self.regions != Some(1)
    }

    /// Whether the plugin can record it: what is sampled or skipped is of one region.
    pub(crate) fn fits(&self) -> bool {
        !self.several() || (self.sample.is_none() && self.skip == 0)
    }

    /// The place that the command did not reach, for a message.
    pub(crate) fn missed(&self, program: &Path, instructions: u64) -> String {
        let place = match &self.begin {
            Begin::Command => {
                return format!(
                    "it ran for {instructions} instructions, and the first {} are skipped",
                    self.skip
                );
            }
            Begin::Marker => "it never executed the marker bifold_begin()".to_owned(),
            Begin::Function(name) => format!("it never entered the function {name} of {}", program.display()),
        };
        if instructions == 0 {
            return place;
        }
        let from = if self.begin == Begin::Marker { "the marker" } else { "the function" };
        format!(
            "it ran for {instructions} instructions from {from} on, and the first {} are skipped",
            self.skip
        )
    }

    /// The plugin's arguments, each after a comma.
    pub(crate) fn arguments(&self, program: &Path) -> Result<String, GuestError> {
        let mut out = String::new();
        let mut put = |name: &str, n: u64| {
            if n > 0 {
                let _ = write!(out, ",{name}={n}");
            }
        };
        put("regions", self.regions.unwrap_or(0));
        put("skip", self.skip);
        put("length", self.length.unwrap_or(0));
        if let Some(w) = self.sample {
            put("window", w.window);
            put("warm_up", w.warm_up);
            put("period", w.period);
            put("head", w.head());
            put("doubles", w.doubles);
            put("seed", w.seed);
        }
        match &self.begin {
            Begin::Command => {}
            Begin::Marker => put("begin", 1),
            Begin::Function(name) => {
                let code = function(program, name)?;
                put("begin", 2);
                put("function", code.offset);
                put("function_bytes", code.bytes.len() as u64);
                for (i, word) in code.bytes.chunks(8).enumerate() {
                    let mut eight = [0; 8];
                    eight[..word.len()].copy_from_slice(word);
                    put(&format!("f{i}"), u64::from_le_bytes(eight));
                }
            }
        }
        Ok(out)
    }
}

/// A function's code, by which it is recognised at any address.
#[derive(Debug, PartialEq, Eq)]
struct Code {
    /// Offset of the first byte within a page, which loading keeps.
    offset: u64,
    /// The first bytes of code, 64 at most. No loader changes code.
    bytes: Vec<u8>,
}

fn function(program: &Path, name: &str) -> Result<Code, GuestError> {
    let data = fs::read(program).map_err(GuestError::file(program, "cannot read"))?;
    code_of(&data, name, program)
}

/// Finds a function in the ELF file of a program. The error says why the function was not found.
fn code_of(data: &[u8], name: &str, program: &Path) -> Result<Code, GuestError> {
    let no = |why: String| {
        GuestError::Spec(format!("cannot begin at function {name} of {}: {why}", program.display()))
    };
    if data.starts_with(b"#!") {
        return Err(no("it is a script; run its interpreter's program itself".into()));
    }
    let file =
        ElfFile64::<object::Endianness>::parse(data).map_err(|_| no("it is no 64-bit ELF file".into()))?;
    let all = || file.symbols().chain(file.dynamic_symbols());
    let of_kind = |s: &object::read::elf::ElfSymbol64<'_, '_>| {
        let kind = s.elf_symbol().st_type();
        s.is_definition() && (kind == STT_FUNC || kind == STT_GNU_IFUNC)
    };
    let functions = || all().filter(of_kind);
    let Some(symbol) = functions().find(|s| s.name() == Ok(name)) else {
        let count = functions().count();
        return Err(no(match all().find(|s| s.name() == Ok(name)) {
            Some(s) if !s.is_definition() => "it only uses that function, which is a library's".into(),
            Some(_) => "that symbol is no function".into(),
            None if file.symbols().next().is_none() => format!(
                "none of its {count} function symbols has that name; its symbol table is stripped: build it without -s"
            ),
            None => format!(
                "none of its {count} function symbols has that name (see nm; C++ and Rust names are mangled)"
            ),
        }));
    };
    let address = symbol.address();
    let endian = file.endian();
    let segments = file.elf_header().program_headers(endian, data).map_err(|e| no(e.to_string()))?;
    let code = segments.iter().find_map(|p| {
        let from = p.p_vaddr(endian);
        let inside = (p.p_type(endian) == PT_LOAD && p.p_flags(endian) & PF_X != 0)
            .then(|| address.checked_sub(from))
            .flatten()?;
        p.data(endian, data).ok()?.get(usize::try_from(inside).ok()?..)
    });
    let size = if symbol.size() == 0 { 64 } else { symbol.size().min(64) as usize };
    match code {
        Some(code) if !code.is_empty() => {
            Ok(Code { offset: address & 0xfff, bytes: code[..code.len().min(size)].to_vec() })
        }
        _ => Err(no("its symbol table puts the function outside the program's code".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_trace::Windows;
    use std::process::Command;

    fn found(data: &[u8], name: &str) -> Result<Code, String> {
        code_of(data, name, Path::new("p")).map_err(|e| e.to_string())
    }

    fn compiled(flags: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let (c, out) = (dir.path().join("p.c"), dir.path().join("p"));
        fs::write(
            &c,
            "int data = 3;\n__attribute__((noinline)) int inner(int n) { return n * data; }\n\
             int main(int n, char **v) { (void)v; return inner(n); }\n",
        )
        .unwrap();
        let ok = Command::new("cc").arg("-O1").args(flags).arg("-o").arg(&out).arg(&c).status().unwrap();
        assert!(ok.success());
        fs::read(&out).unwrap()
    }

    #[test]
    fn a_function_is_found_by_name_with_its_page_offset_and_code() {
        for flags in [&["-static"][..], &["-pie", "-fPIE"]] {
            let data = compiled(flags);
            let code = found(&data, "inner").unwrap();
            assert!(!code.bytes.is_empty() && code.bytes.len() <= 64);
            let at = data.windows(code.bytes.len()).position(|w| w == code.bytes).unwrap();
            // Segments lie in a file as in memory, up to whole pages.
            assert_eq!(at as u64 & 0xfff, code.offset);
        }
    }

    #[test]
    fn what_is_no_function_is_refused_with_the_reason() {
        let data = compiled(&["-pie", "-fPIE"]);
        for (name, why) in [("inner2", "has that name"), ("data", "that symbol is no function")] {
            assert!(found(&data, name).unwrap_err().contains(why), "{name}: {:?}", found(&data, name));
        }
        assert!(found(&compiled(&["-s"]), "inner").unwrap_err().contains("stripped"));
        assert!(found(b"#!/bin/sh\n", "main").unwrap_err().contains("script"));
        assert!(found(b"\x7fELF and no more", "main").unwrap_err().contains("no 64-bit ELF"));
    }

    #[test]
    fn the_plugin_is_told_only_what_is_asked_for() {
        let of = |r: Region| r.arguments(Path::new("/nowhere")).unwrap();
        assert_eq!(of(Region::default()), "");
        let sample = Some(Windows { window: 4, warm_up: 2, period: 20, seed: 1, doubles: 3 });
        let region = Region { begin: Begin::Marker, regions: Some(1), skip: 5, length: Some(7), sample };
        assert_eq!(
            of(region),
            ",regions=1,skip=5,length=7,window=4,warm_up=2,period=20,head=200,doubles=3,seed=1,begin=1"
        );
    }
}
