// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes words of the laboratory's memory when a program in it asks: the line
//! `{"poke":[[PA,VALUE],...]}` is answered by `poked` (lab/tiny-vmm/src/poke.rs).

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::lab::job::Poke;

/// Largest memory in which the file has the machine's layout; beyond, a part lies above 4 GiB.
const LINEAR: u64 = 2 << 30;

/// Writes all words that the line names, or none. The answer is empty if it cannot.
pub fn poke(line: &str, memory: &mut File) -> String {
    let done = || -> Option<()> {
        let request: Poke = serde_json::from_str(line).ok()?;
        let bytes = memory.metadata().ok()?.len();
        let fits = |pa: u64| pa % 8 == 0 && pa < bytes.min(LINEAR);
        request.poke.iter().all(|(pa, _)| fits(*pa)).then_some(())?;
        request.poke.iter().try_for_each(|(pa, value)| memory.write_all_at(&value.to_le_bytes(), *pa)).ok()
    };
    done().map_or(String::new(), |()| Poke::DONE.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_all_or_none() {
        let path = std::env::temp_dir().join(format!("bifold-poke-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(64).unwrap();
        assert_eq!(poke(r#"{"poke":[[8,258],[56,1]]}"#, &mut file), "poked");
        for wrong in
            [r#"{"poke":[[16,1],[64,1]]}"#, r#"{"poke":[[16,1],[4,1]]}"#, r#"{"poke":[[16,-1]]}"#, "{"]
        {
            assert_eq!(poke(wrong, &mut file), "");
        }
        let mut bytes = [0; 64];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let set: Vec<_> = bytes.iter().enumerate().filter(|(_, b)| **b != 0).collect();
        assert_eq!(set, [(8, &2), (9, &1), (56, &1)]);
        assert_eq!(file.metadata().unwrap().len(), 64);
    }
}
