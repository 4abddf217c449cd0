// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identical pages of virtual machines: how much memory guests could share, how much a scanner such
//! as the kernel's KSM would share, and at what price.
//!
//! A guest's memory is an [`image::Image`]: pages by guest frame number, whatever they were read from.
//! Everything else counts over images.

pub mod fingerprint;
pub mod image;
pub mod ksm;
pub mod potential;
pub mod tps;
