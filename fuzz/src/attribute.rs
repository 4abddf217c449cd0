// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-attribute`: the logs of a guest and its programs.

/// Logs of a guest's kernel and compilers, and programs: the attribution loses no cost.
pub fn attribution(data: &[u8]) {
    use bifold_attribute::{Attribution, Metric, View, elf};
    use bifold_mmu::Gva;
    use bifold_model::{Charge, Config, Costs, Entry, Place};
    let mut attribution = Attribution::new(&Config::ALL[..1]);
    let cost = Costs {
        tlb_misses: 1,
        walk_cycles: 2,
        walk_hidden_cycles: 1,
        exits: 3,
        vmm_cycles: 4,
        data_wait_cycles: -5,
    };
    let mut charged = Costs::default();
    for (i, part) in data.chunks(256).enumerate() {
        let (stream, number) = (1 + i as u64 % 3, i as u64 % 5);
        attribution.take(Charge::Log { stream, number, bytes: part });
        // Addresses that the logs may describe.
        for word in part.chunks_exact(8).take(4) {
            let at = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            let fault = (at & 1 == 0).then_some(Gva(at));
            let entry = Entry { vcpu: i % 3, user: Gva(at >> 1), fault, kernel: Gva(!at) };
            attribution.take(Charge::Entry(entry));
            let place = Place { vcpu: i % 3, code: Gva(at), data: Some(Gva(at.rotate_left(9))), size: None };
            attribution.take(Charge::Cost(place, &[cost]));
            charged.add(&cost);
        }
    }
    let costs = attribution.finish(1.0);
    assert_eq!(costs.totals(View::Code), [charged]);
    for view in View::ALL {
        let stacks = costs.folded(view, 0, Metric::Exits);
        let exits =
            stacks.lines().map(|l| l.rsplit_once(' ').expect("a count").1.parse::<u64>().expect("a number"));
        assert_eq!(exits.sum::<u64>(), charged.exits);
        assert!(stacks.lines().all(|l| l.matches(';').count() == 3), "{stacks}");
    }
    let offsets = [0, 0x1000, 0x1234, u64::MAX].into();
    if let Ok(names) = elf::functions_in(data, None, &offsets) {
        assert!(names.keys().all(|o| offsets.contains(o)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_attributed_whole(data in bytes(), at in 0usize..20_000, value: u8) {
            attribution(&data);
            // A program with one byte changed and its end cut off.
            let mut program = std::fs::read("/proc/self/exe").unwrap();
            program.truncate(1 << 16);
            program[at] = value;
            attribution(&program);
        }
    }
}
