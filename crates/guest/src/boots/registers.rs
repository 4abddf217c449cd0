// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the registers that the plugin follows during a boot, out of what QEMU's monitor prints for
//! `info registers -a`, whether an interrupt waits out of what it prints for `info lapic`, and sets the
//! guest's clock in a saved state.

/// A vCPU's registers at which its translations begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) cr3: u64,
    pub(crate) cr4: u64,
    /// Address of the interrupt descriptor table.
    pub(crate) idt: u64,
}

/// What the monitor says of a machine of one vCPU, which init has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) registers: Registers,
    /// The time stamp counter just before the stop, which init leaves in R12.
    pub(crate) counter: u64,
}

/// `None` if the text is not what QEMU 9 and 10 print of one vCPU in user mode.
pub(crate) fn parse(text: &str) -> Option<Stopped> {
    let after = |name: &str| {
        let at = text.find(name)? + name.len();
        u64::from_str_radix(text[at..].split_whitespace().next()?, 16).ok()
    };
    let one = text.matches("CPU#").count() == 1 && after("CPL=")? == 3;
    let registers = Registers { cr3: after("CR3=")?, cr4: after("CR4=")?, idt: after("IDT=")? };
    one.then_some(Stopped { registers, counter: after("R12=")? })
}

/// Whether an interrupt waits for the vCPU. `None` if the text is not what QEMU 9 and 10 print of an
/// interrupt controller.
pub(crate) fn interrupted(text: &str) -> Option<bool> {
    let requests = text.lines().find_map(|line| line.strip_prefix("IRR"))?;
    Some(requests.trim() != "(none)")
}

/// Sets the guest's clock in a state of a machine whose clock counts instructions to `ns`: QEMU's
/// `vmstate_icount_timers`, a subsection with its name, a version, and two numbers whose sum is the clock,
/// the second one the instructions. `None` if the state has no such part, or two, or has executed more
/// instructions.
pub(crate) fn set_clock(state: &mut [u8], ns: u64) -> Option<()> {
    const NAME: &[u8] = b"\x05\x0ctimer/icount\0\0\0\x01";
    let mut found = state.windows(NAME.len()).enumerate().filter(|(_, w)| *w == NAME);
    let at = found.next()?.0 + NAME.len();
    if found.next().is_some() {
        return None;
    }
    let instructions = u64::from_be_bytes(state.get(at + 8..at + 16)?.try_into().ok()?);
    state[at..at + 8].copy_from_slice(&ns.checked_sub(instructions)?.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\r\nCPU#0\r\nRAX=0000000000000001 RBX=0000000000000000\r\nR12=000000003a000000 R13=0\r\n\
        RIP=0000000000401234 RFL=00000246 [---Z-P-] CPL=3 II=0 A20=1 SMM=0 HLT=0\r\n\
        GDT=     fffffe0000001000 0000007f\r\nIDT=     fffffe0000000000 00000fff\r\n\
        CR0=80050033 CR2=00000000004c5f38 CR3=0000000003a4e000 CR4=000006f0\r\n";

    #[test]
    fn registers_and_counter_are_read() {
        let registers = Registers { cr3: 0x3a4e000, cr4: 0x6f0, idt: 0xfffffe0000000000 };
        assert_eq!(parse(ONE), Some(Stopped { registers, counter: 0x3a000000 }));
    }

    #[test]
    fn another_text_gives_nothing() {
        for (from, to) in
            [("CPL=3", "CPL=0"), ("CR3=0", "CR3=z"), ("R12", "R11"), ("IDT", "LDT"), ("CPU#0", "")]
        {
            assert_eq!(parse(&ONE.replace(from, to)), None, "{from}");
        }
        assert_eq!(parse(&ONE.repeat(2)), None);
    }

    #[test]
    fn a_tick_at_the_stop_is_noticed() {
        let text =
            |irr: &str| format!("PPR 0x00\r\nISR\t (none)\r\nIRR\t {irr}\r\n\r\nAPR 0x00 TPR 0x00\r\n");
        assert_eq!(interrupted(&text("(none)")), Some(false));
        assert_eq!(interrupted(&text("236 ")), Some(true));
        assert_eq!(interrupted("unknown command: 'info lapic'\r\n"), None);
    }

    #[test]
    fn the_clock_is_set_where_there_is_one() {
        let section = |bias: u64| {
            [&b"\x05\x0ctimer/icount\0\0\0\x01"[..], &bias.to_be_bytes(), &7_u64.to_be_bytes()].concat()
        };
        let whole = |bias| [&b"QEVM"[..], &section(bias), b"rest"].concat();
        let (mut state, section) = (whole(5), section(5));
        assert_eq!((set_clock(&mut state, 20), &state), (Some(()), &whole(13)));
        // Earlier than the instructions take.
        assert_eq!((set_clock(&mut state, 6), &state), (None, &whole(13)));
        let end = state.len() - 8;
        assert_eq!(set_clock(&mut state[..end], 20), None);
        assert_eq!(set_clock(&mut [&state[..], &section].concat(), 20), None);
        assert_eq!(set_clock(&mut b"QEVM".to_vec(), 20), None);
    }
}
