// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the registers that the plugin follows during a boot, out of what QEMU's monitor prints for
//! `info registers -a`, and the guest's clock out of a saved state.

/// A vCPU's registers at which its translations begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) cr3: u64,
    pub(crate) cr4: u64,
    /// Address of the interrupt descriptor table.
    pub(crate) idt: u64,
}

/// One for each vCPU, in order; `None` if the text is not what QEMU 9 and 10 print.
pub(crate) fn parse(text: &str, vcpus: u32) -> Option<Vec<Registers>> {
    let all: Option<Vec<Registers>> = text.split("CPU#").skip(1).map(one).collect();
    all.filter(|a| a.len() == vcpus as usize)
}

/// The time stamp counter with which init stopped the machine: R12 of the vCPU that is in user mode.
pub(crate) fn stopped_at(text: &str) -> Option<u64> {
    let mut in_user_mode = text.split("CPU#").skip(1).filter(|t| t.contains("CPL=3"));
    let text = in_user_mode.next()?;
    let number = text[text.find("R12=")? + 4..].split_whitespace().next()?;
    u64::from_str_radix(number, 16).ok().filter(|_| in_user_mode.next().is_none())
}

/// Sets the guest's clock in a state of a machine whose clock counts instructions to `ns`: QEMU's `vmstate_icount_timers`,
/// a subsection with its name, a version, and two numbers whose sum is the clock, the second one the instructions.
/// Returns what the clock was; `None` if the state has no such part, or two.
pub(crate) fn set_clock(state: &mut [u8], ns: u64) -> Option<u64> {
    const NAME: &[u8] = b"\x05\x0ctimer/icount\0\0\0\x01";
    let mut found = state.windows(NAME.len()).enumerate().filter(|(_, w)| *w == NAME);
    let at = found.next()?.0 + NAME.len();
    if found.next().is_some() {
        return None;
    }
    let number = |at: usize| Some(u64::from_be_bytes(state.get(at..at + 8)?.try_into().ok()?));
    let (bias, instructions) = (number(at)?, number(at + 8)?);
    state[at..at + 8].copy_from_slice(&ns.checked_sub(instructions)?.to_be_bytes());
    bias.checked_add(instructions)
}

fn one(text: &str) -> Option<Registers> {
    let after = |name: &str| {
        let at = text.find(name)? + name.len();
        u64::from_str_radix(text[at..].split_whitespace().next()?, 16).ok()
    };
    Some(Registers { cr3: after("CR3=")?, cr4: after("CR4=")?, idt: after("IDT=")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\r\nCPU#0\r\nRAX=0000000000000001 RBX=0000000000000000\r\n\
        GDT=     fffffe0000001000 0000007f\r\nIDT=     fffffe0000000000 00000fff\r\n\
        CR0=80050033 CR2=00000000004c5f38 CR3=0000000003a4e000 CR4=000006f0\r\n";

    #[test]
    fn registers_of_every_vcpu_are_read() {
        let r = Registers { cr3: 0x3a4e000, cr4: 0x6f0, idt: 0xfffffe0000000000 };
        assert_eq!(parse(ONE, 1), Some(vec![r]));
        let two = format!("{ONE}\r\nCPU#1\r\nIDT=     0 0\r\nCR0=1 CR2=0 CR3=1000 CR4=20\r\n");
        assert_eq!(parse(&two, 2), Some(vec![r, Registers { cr3: 0x1000, cr4: 0x20, idt: 0 }]));
    }

    #[test]
    fn the_clock_is_set_where_there_is_one() {
        let section =
            [&b"\x05\x0ctimer/icount\0\0\0\x01"[..], &5_u64.to_be_bytes(), &7_u64.to_be_bytes()].concat();
        let mut state = [&b"QEVM"[..], &section, b"rest"].concat();
        assert_eq!(
            (set_clock(&mut state, 10), set_clock(&mut state, 20), set_clock(&mut state, 20)),
            (Some(12), Some(10), Some(20))
        );
        // Earlier than the instructions take.
        assert_eq!((set_clock(&mut state, 6), set_clock(&mut state, 20)), (None, Some(20)));
        let end = state.len() - 8;
        assert_eq!(set_clock(&mut state[..end], 20), None);
        assert_eq!(set_clock(&mut [&state[..], &section].concat(), 20), None);
        assert_eq!(set_clock(&mut b"QEVM".to_vec(), 20), None);
    }

    #[test]
    fn init_is_on_the_vcpu_with_the_counter() {
        let cpu = |i, r12: &str, cpl| format!("CPU#{i} R12={r12} R13=1 RIP=1 CPL={cpl} HLT=0\n");
        let idle = cpu(0, "000000003b000000", 0);
        assert_eq!(stopped_at(&(idle.clone() + &cpu(1, "000000003a000000", 3))), Some(0x3a000000));
        assert_eq!(stopped_at(&idle), None);
        assert_eq!(stopped_at(&(cpu(0, "1", 3) + &cpu(1, "2", 3))), None);
        assert_eq!(stopped_at("CPU#0 CPL=3"), None);
    }

    #[test]
    fn another_text_gives_nothing() {
        assert_eq!(parse("", 1), None);
        assert_eq!(parse(ONE, 2), None);
        assert_eq!(parse("CPU#0 CR3=zz CR4=1 IDT= 1", 1), None);
    }
}
