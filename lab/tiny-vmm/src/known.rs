// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Known differences between KVM and the model, each with the KVM function that causes it. Every other
//! difference is a failure.

/// The cause of a difference in a phase of a guest. Differences that follow from a guest's first one are
/// listed too.
pub fn cause(guest: &str, phase: &str) -> Option<&'static str> {
    // Same linear address as the store before it, another instruction.
    let other_place = "retry_instruction compares the instruction's address too, which events do not carry";
    Some(match (guest, phase) {
        ("clear-bits", "write after reload") => {
            "FNAME(sync_page), FNAME(protect_clean_gpte): the guest's D bit stays clear after a write through \
             an spte made when it was set; the model keeps one guest table for all modes, and native sets it"
        }
        ("string-stores", "STOSQ to it again, the same place") => other_place,
        ("string-stores", "walk all again") => other_place,
        _ => return None,
    })
}
