// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guests of the switch tests execute: position-independent routines that end with an OUT to
//! [`PORT_MARKER`](crate::asm::PORT_MARKER). Arguments are in registers, as the comments say. Unlike the
//! guests of `count`, these loop: a switch has to find them running.

use std::arch::global_asm;

global_asm!(
    ".pushsection .rodata.guest, \"a\", @progbits",
    ".code64",
    ".global bifold_guest_begin, bifold_guest_end",
    ".global bifold_guest_fill, bifold_guest_check, bifold_guest_spin, bifold_guest_halt",
    ".global bifold_guest_churn, bifold_guest_sweep, bifold_guest_real, bifold_guest_pae, bifold_guest_smi",
    ".global bifold_guest_msr, bifold_guest_vmxon, bifold_guest_toggle",
    ".global bifold_guest_steps, bifold_guest_steps_fault, bifold_guest_vmrun, bifold_guest_inner, bifold_guest_read32",
    "bifold_guest_begin:",
    // Writes RAX + address to every RDX-th byte from RDI, RSI times.
    "bifold_guest_fill:",
    "2: lea rcx, [rax + rdi]",
    "mov [rdi], rcx",
    "add rdi, rdx",
    "dec rsi",
    "jnz 2b",
    "out 0x10, al",
    // Counts in RBX the words there that are not so.
    "bifold_guest_check:",
    "xor ebx, ebx",
    "2: lea rcx, [rax + rdi]",
    "cmp [rdi], rcx",
    "je 3f",
    "inc rbx",
    "3: add rdi, rdx",
    "dec rsi",
    "jnz 2b",
    "out 0x10, al",
    // Counts at RSI until the word at RDI is not 0.
    "bifold_guest_spin:",
    "2: inc qword ptr [rsi]",
    "cmp dword ptr [rdi], 0",
    "je 2b",
    "out 0x10, al",
    // Halts for good: no interrupt comes.
    "bifold_guest_halt:",
    "cli",
    "2: hlt",
    "jmp 2b",
    // Changes page tables until the word at RDI is not 0. RSI: two pages that hold their own numbers
    // 1 and 2 in their first word. R8: where the entries of the leaf table for these two are seen,
    // R9: the one of the directory above it, R10 and R11: the two values of the leaf entries without
    // A and D, R12: that of the directory. Each round unmaps, flushes, maps the other way round,
    // reads both pages and compares; wrong reads are counted in RBX, rounds in RBP.
    "bifold_guest_churn:",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "2:",
    // The directory's entry goes and comes back, without its A bit: a table that KVM never lets out of sync.
    "mov qword ptr [r9], 0",
    "invlpg [rsi]",
    "invlpg [rsi + 4096]",
    "mov [r9], r12",
    "mov [r8], r10",
    "mov [r8 + 8], r11",
    "invlpg [rsi]",
    "invlpg [rsi + 4096]",
    "cmp qword ptr [rsi], 1",
    "je 3f",
    "inc rbx",
    "3: mov qword ptr [rsi + 8], rbp",
    "cmp qword ptr [rsi + 4096], 2",
    "je 4f",
    "inc rbx",
    "4: mov [r8], r11",
    "mov [r8 + 8], r10",
    "invlpg [rsi]",
    "invlpg [rsi + 4096]",
    "cmp qword ptr [rsi], 2",
    "je 5f",
    "inc rbx",
    "5: cmp qword ptr [rsi + 4096], 1",
    "je 6f",
    "inc rbx",
    "6: cmp [rsi + 4104], rbp",
    "je 7f",
    "inc rbx",
    "7: inc rbp",
    "cmp dword ptr [rdi], 0",
    "je 2b",
    "out 0x10, al",
    // Writes RAX + address to every RDX-th byte from RDI, RSI times, again and again until the word at R8
    // is not 0.
    "bifold_guest_sweep:",
    "2: mov rbx, rdi",
    "mov rbp, rsi",
    "3: lea rcx, [rax + rbx]",
    "mov [rbx], rcx",
    "add rbx, rdx",
    "dec rbp",
    "jnz 3b",
    "cmp dword ptr [r8], 0",
    "je 2b",
    "out 0x10, al",
    // Sets the bits of R9 in MSR R8, and writes what it then reads to RSI.
    "bifold_guest_msr:",
    "mov ecx, r8d",
    "rdmsr",
    "or eax, r9d",
    "wrmsr",
    "rdmsr",
    "mov [rsi], eax",
    "out 0x10, al",
    // Sets CR4.VMXE, executes VMXON with the region whose address is at RDI, and writes 1 to RSI if that
    // succeeded.
    "bifold_guest_vmxon:",
    "mov rcx, cr4",
    "or rcx, 0x2000",
    "mov cr4, rcx",
    "vmxon [rdi]",
    "jbe 2f",
    "mov qword ptr [rsi], 1",
    "2: out 0x10, al",
    // Executes the RSI steps at RDI, of 32 bytes each: address, value, kind (0 load, 1 store, 2 INVLPG, 3
    // WRPKRU, 4 MOV to CR4), and where the error code of a page fault goes, or -1. RDX is the stack's top.
    "bifold_guest_steps:",
    "mov r12, rdx",
    "2: mov rsp, r12",
    "mov r8, -1",
    "mov r9, [rdi]",
    "mov rax, [rdi + 8]",
    "mov r11, [rdi + 16]",
    "cmp r11, 1",
    "je 4f",
    "cmp r11, 2",
    "je 5f",
    "cmp r11, 3",
    "je 6f",
    "cmp r11, 4",
    "je 7f",
    "mov rax, [r9]",
    "jmp 3f",
    "4: mov [r9], rax",
    "jmp 3f",
    "5: invlpg [r9]",
    "jmp 3f",
    "6: xor ecx, ecx",
    "xor edx, edx",
    "wrpkru",
    "jmp 3f",
    "7: mov cr4, rax",
    "jmp 3f",
    // The handler of page faults: the step is over.
    "bifold_guest_steps_fault:",
    "mov r8, [rsp]",
    "3: mov [rdi + 24], r8",
    "add rdi, 32",
    "dec rsi",
    "jnz 2b",
    "out 0x10, al",
    // Becomes a hypervisor: EFER.SVME, R9 is the page for its state. Runs the guest of the VMCB at RAX from
    // R10, again and again, and counts in RBP. The guest adds 1 at R11, in one of 64 pages after the other.
    // After RSI rounds the vCPU is a hypervisor no more.
    "bifold_guest_vmrun:",
    "mov r8, rax",
    "mov rdi, r11",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "or eax, 0x1000",
    "wrmsr",
    "mov rax, r9",
    "xor edx, edx",
    "mov ecx, 0xc0010117",
    "wrmsr",
    "mov rax, r8",
    "xor ebp, ebp",
    "2: mov [rax + 0x578], r10",
    "mov r11, rbp",
    "and r11, 63",
    "shl r11, 12",
    "add r11, rdi",
    "vmrun rax",
    // Anything but VMMCALL ends it.
    "cmp qword ptr [rax + 0x70], 0x81",
    "jne 3f",
    "inc rbp",
    "cmp rbp, rsi",
    "jb 2b",
    "3: mov rbx, [r8 + 0x70]",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "and eax, 0xffffefff",
    "wrmsr",
    "out 0x10, al",
    "bifold_guest_inner:",
    "inc qword ptr [r11]",
    "vmmcall",
    "ud2",
    // Goes from mode to mode until the word at RDI is not 0. The block there is as `toggles` in toggles.rs
    // fills it in. Each round changes bits of CR4 and EFER, adds 1 to a word under long mode, PAE paging and
    // 32-bit paging, and counts in RBX the rounds after which the word is not three times their number, which
    // is in RBP. Without paging it changes bits of CR4.
    "bifold_guest_toggle:",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "lea rax, [rip + 4f]",
    "mov [rdi + 0x58], eax",
    "lea rax, [rip + 3f]",
    "mov [rdi + 0x50], eax",
    "2: mov rax, cr4",
    "xor rax, [rdi + 0x10]",
    "mov cr4, rax",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "xor eax, [rdi + 0x18]",
    "wrmsr",
    "mov rsi, [rdi + 0x20]",
    "inc dword ptr [rsi]",
    // JMP to [RDI + 0x50] and, below, [EDI + 0x58], each with its code segment.
    ".byte 0xff, 0x6f, 0x50",
    ".code32",
    "3: mov eax, cr0",
    "and eax, 0x7fffffff",
    "mov cr0, eax",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "and eax, 0xfffffeff",
    "wrmsr",
    "mov eax, cr4",
    "xor eax, [edi + 0x28]",
    "mov cr4, eax",
    "mov eax, [edi + 0x40]",
    "mov cr3, eax",
    "mov esi, [edi + 0x30]",
    "mov eax, cr0",
    "or eax, 0x80000000",
    "mov cr0, eax",
    "inc dword ptr [esi]",
    "and eax, 0x7fffffff",
    "mov cr0, eax",
    "mov eax, cr4",
    "and eax, 0xffffffdf",
    "mov cr4, eax",
    "mov eax, [edi + 0x44]",
    "mov cr3, eax",
    "mov eax, cr0",
    "or eax, 0x80000000",
    "mov cr0, eax",
    "inc dword ptr [esi]",
    "and eax, 0x7fffffff",
    "mov cr0, eax",
    "mov edx, [edi + 0x48]",
    "mov eax, cr4",
    "or eax, 0x20",
    "mov cr4, eax",
    "test eax, 0x1000",
    "jz 5f",
    "mov edx, [edi + 0x4c]",
    "5: mov cr3, edx",
    "rdmsr",
    "or eax, 0x100",
    "wrmsr",
    "mov eax, cr0",
    "or eax, 0x80000000",
    "mov cr0, eax",
    ".byte 0xff, 0x6f, 0x58",
    ".code64",
    "4: inc ebp",
    "mov [rdi + 8], ebp",
    "lea eax, [rbp + 2 * rbp]",
    "mov rsi, [rdi + 0x20]",
    "cmp [rsi], eax",
    "je 6f",
    "inc ebx",
    "mov [rsi], eax",
    "6: cmp dword ptr [rdi], 0",
    "je 2b",
    "out 0x10, al",
    // In real mode: counts at 0x3100 (CX) and 0x3108 (CX times three) until the word at 0x3000 is not 0.
    ".code16",
    "bifold_guest_real:",
    "xor cx, cx",
    "mov ds, cx",
    "xor dx, dx",
    "2: inc cx",
    "add dx, 3",
    "mov word ptr [0x3100], cx",
    "mov word ptr [0x3108], dx",
    "cmp word ptr [0x3000], 0",
    "je 2b",
    "out 0x10, al",
    // Under PAE paging: ESI is where the entry of the PDPT for 1 GB is seen, EAX and EDX its two values.
    // Behind the first a page at 1 GB holds 1, behind the second 2; the 256 pages from 1 GB + 8 KB hold 3
    // behind both. Each round writes the second without telling the processor, touches one of the 256,
    // and then loads CR3. Wrong reads are counted in EBX, rounds in EBP, until the word at EDI is not 0.
    ".code32",
    "bifold_guest_pae:",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "mov ecx, cr3",
    "2: mov [esi], eax",
    "mov cr3, ecx",
    "cmp dword ptr [0x40000000], 1",
    "je 3f",
    "inc ebx",
    "3: mov [esi], edx",
    "mov esp, ebp",
    "and esp, 255",
    "shl esp, 12",
    "add esp, 0x40002000",
    "cmp dword ptr [esp], 3",
    "je 4f",
    "inc ebx",
    "4: mov cr3, ecx",
    "cmp dword ptr [0x40000000], 2",
    "je 5f",
    "inc ebx",
    "5: inc ebp",
    "cmp dword ptr [edi], 0",
    "je 2b",
    "out 0x10, al",
    // Under PAE paging: reads the word at EDI.
    "bifold_guest_read32:",
    "mov eax, [edi]",
    "out 0x10, al",
    // In system management mode, with all data segments flat: counts at 0x3200, and stays while the word at
    // 0x3210 is not 0. The word at 0x3208 is 1 meanwhile.
    ".code16",
    "bifold_guest_smi:",
    "inc dword ptr [0x3200]",
    "mov dword ptr [0x3208], 1",
    "2: cmp dword ptr [0x3210], 0",
    "jne 2b",
    "mov dword ptr [0x3208], 0",
    "rsm",
    ".code64",
    "bifold_guest_end:",
    ".popsection",
);

unsafe extern "C" {
    static bifold_guest_begin: u8;
    static bifold_guest_end: u8;
    static bifold_guest_steps_fault: u8;
}

macro_rules! routines {
    ($($(#[$doc:meta])* $routine:ident $symbol:ident,)*) => {
        unsafe extern "C" {
            $(static $symbol: u8;)*
        }

        /// A routine.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Routine {
            $($(#[$doc])* $routine,)*
        }

        impl Routine {
            /// Its place within [`code`].
            pub fn offset(self) -> u64 {
                let at = match self {
                    $(Routine::$routine => &raw const $symbol,)*
                };
                at as u64 - &raw const bifold_guest_begin as u64
            }
        }
    };
}

routines! {
    Fill bifold_guest_fill,
    Check bifold_guest_check,
    Spin bifold_guest_spin,
    Halt bifold_guest_halt,
    Churn bifold_guest_churn,
    Sweep bifold_guest_sweep,
    Real bifold_guest_real,
    Pae bifold_guest_pae,
    Smi bifold_guest_smi,
    Msr bifold_guest_msr,
    Vmxon bifold_guest_vmxon,
    Steps bifold_guest_steps,
    Vmrun bifold_guest_vmrun,
    /// Of the guest's own guest.
    Inner bifold_guest_inner,
    Read32 bifold_guest_read32,
    Toggle bifold_guest_toggle,
}

/// Offset of the page-fault handler of [`Routine::Steps`].
pub fn steps_fault() -> u64 {
    &raw const bifold_guest_steps_fault as u64 - &raw const bifold_guest_begin as u64
}

/// All of them.
pub fn code() -> &'static [u8] {
    let (begin, end) = (&raw const bifold_guest_begin, &raw const bifold_guest_end);
    // SAFETY: both symbols are in one section, which is never written.
    unsafe { std::slice::from_raw_parts(begin, end as usize - begin as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routines_fit_a_page_and_lie_apart() {
        assert!((64..4096).contains(&code().len()));
        assert!(Routine::Fill.offset() < Routine::Check.offset());
        assert!(Routine::Churn.offset() < Routine::Real.offset());
        // OUT 0x10, AL ends each but the halt and the handler.
        assert_eq!(code().windows(2).filter(|w| *w == [0xe6, 0x10]).count(), 13);
    }
}
