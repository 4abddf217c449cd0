// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine monitor of a few hundred lines.

fn main() {}
