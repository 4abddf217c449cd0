// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The KVM laboratory: boots a kernel under QEMU's TCG with AMD's virtualization
//! emulated, so that the real KVM runs inside, and runs named tests there.
