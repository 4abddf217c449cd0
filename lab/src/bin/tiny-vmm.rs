// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tiny VMM (`lab/tiny-vmm`) as a program for the laboratory.

use std::process::ExitCode;

fn main() -> ExitCode {
    bifold_tiny_vmm::main()
}
