// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of plans from outside: against brute force, for large machines, and of what QEMU and libvirt take.

mod brute;
mod checked;
mod large;
mod libvirt;
mod machine;
mod messages;
mod packed;
mod qemu;
mod random;
mod steps;
mod trees;
