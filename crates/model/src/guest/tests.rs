// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests in 32-bit mode. Tables of 64-bit mode: `tests/it/lookup.rs`.

use super::*;
use bifold_mmu::format::{PAE, X86_32};

const PAGE: u64 = 0x67;

#[test]
fn a_vcpu_s_registers_keep_what_they_loaded_whatever_was_looked_up_before() {
    // The root is the second of its page. Two page directories map one address to two frames.
    const CR3: u64 = 0x1020;
    const VA: Gva = Gva(0xc000_0000);
    let mut guest = GuestTables::new(&PAE);
    for (directory, table, frame) in [(2, 3, 0x10), (4, 5, 0x20)] {
        let entries = |entry| std::array::from_fn(|i| if i == 0 { entry } else { 0 });
        guest.add(directory, 2, &entries(table << 12 | PAGE));
        guest.add(table, 1, &entries(frame << 12 | PAGE));
    }
    guest.add(1, 3, &[0; 512]);
    let roots = [guest.root(0, CR3 | 1 << 3), guest.root(1, CR3)];
    let found = |guest: &mut GuestTables, vcpu: usize| guest.lookup(roots[vcpu], VA).map(|leaf| leaf.page.0);
    guest.load_registers(0, roots[0]);
    let absent = Step { level: 3, at: 0x1038, entry: 0 };
    assert_eq!(found(&mut guest, 0), Err(absent));
    guest.store(Gpa(0x1038), 2 << 12 | 1);
    assert_eq!(found(&mut guest, 0), Err(absent));
    guest.load_registers(0, roots[0]);
    assert_eq!(found(&mut guest, 0), Ok(0x1_0000), "writable and user are bits that the root's entry lacks");
    assert!(guest.lookup(roots[0], VA).unwrap().writable);
    guest.store(Gpa(0x1038), 4 << 12 | 1);
    guest.load_registers(1, roots[1]);
    assert_eq!([found(&mut guest, 1), found(&mut guest, 0)], [Ok(0x2_0000), Ok(0x1_0000)]);
    guest.load_registers(0, roots[0]);
    assert_eq!(found(&mut guest, 0), Ok(0x2_0000));
}

#[test]
fn a_word_of_a_table_has_two_entries_of_which_those_that_change_are_stored() {
    const ROOT: Gpa = Gpa(0x1000);
    let mut guest = GuestTables::new(&X86_32);
    let words = |word: u64| std::array::from_fn(|i| if i == 256 { word } else { 0 });
    // The first entries of the second half: 0x8000_0000 and, 4 MB further, a page of 4 MB.
    guest.add(1, 2, &words(0x0080_00e7 << 32 | 0x2067));
    guest.add(2, 1, &words(0x0001_1007 << 32 | 0x0001_0007));
    assert_eq!((guest.len(), guest.read(Gpa(0x2804))), (2, 0x1_1007));
    let page = |guest: &mut GuestTables, va| guest.lookup(ROOT, Gva(va)).map(|leaf| leaf.page.0);
    assert_eq!(page(&mut guest, 0x8020_0000), Ok(0x1_0000));
    assert_eq!(page(&mut guest, 0x8020_1000), Ok(0x1_1000));
    assert_eq!(page(&mut guest, 0x8040_0000), Ok(0x80_0000));
    assert_eq!(page(&mut guest, 0x8060_0000), Ok(0xa0_0000));
    // An access sets the bits of one entry, and the store to its neighbour does not know that.
    let leaf = guest.lookup(ROOT, Gva(0x8020_0000)).unwrap();
    assert_eq!(leaf.step.at, 0x2800);
    guest.touch(&leaf, true);
    guest.store_word(Gpa(0x2800), 0x0001_1007 << 32 | 0x0001_0007, 0x0001_2007 << 32 | 0x0001_0007);
    assert_eq!((guest.read(Gpa(0x2800)), guest.read(Gpa(0x2804))), (0x1_0067, 0x1_2007));
    // A frame that is a table again has new entries in both halves.
    guest.retire(2);
    assert_eq!(page(&mut guest, 0x8020_0000), Err(Step { level: 1, at: 0x2800, entry: 0 }));
    guest.add(2, 1, &[0x0001_4007 << 32 | 0x0001_3007; 512]);
    assert_eq!([0x8000_0000, 0x8020_1000].map(|va| page(&mut guest, va)), [Ok(0x1_3000), Ok(0x1_4000)]);
    assert_eq!(guest.len(), 2);
}
