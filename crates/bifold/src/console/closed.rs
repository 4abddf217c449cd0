// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether stdout was closed when the program started (`>&-` of a shell).
//!
//! Rust's runtime opens /dev/null in place of a closed stdout before `main`, so data would vanish without an
//! error. A user's `> /dev/null` looks the same by then. So the only time to look is before the runtime: the
//! loader calls the functions of the section `.init_array` first (System V ABI, "Initialization and
//! Termination Functions").

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether stdout was closed when the program started.
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Looks at stdout. Runs before Rust's runtime: it makes one system call and writes one atomic, and needs
/// nothing of the runtime.
extern "C" fn look() {
    #[allow(unsafe_code)]
    // SAFETY: F_GETFD takes no argument and no memory, and fails on a closed descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags == -1, Ordering::Relaxed);
}

// SAFETY: entries of the section are pointers to C functions, which the loader calls once.
#[allow(unsafe_code)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
