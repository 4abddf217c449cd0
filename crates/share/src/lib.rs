// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts identical pages of virtual machines: how much memory guests could share, and how much a scanner
//! such as the kernel's KSM would share, at what CPU time.
//!
//! A guest's memory is an [`image::Image`]: pages by guest frame number, read from a dump, a file or a
//! process. [`potential`] counts equal pages exactly, [`fingerprint`] counts them across hosts by keyed
//! hashes, and [`ksm`] and [`tps`] are models of scanners.
//!
//! This crate starts no guest and changes no host: that is `bifold-trial`.
//!
//! ```
//! use bifold_share::image::{Image, PAGE};
//! use bifold_share::potential::{self, Options};
//!
//! // Three pages of zeros in one guest, and a page that both guests have.
//! let page = [7; PAGE];
//! let a = Image::of_bytes("a", [[0; PAGE], [0; PAGE], [0; PAGE], page].concat());
//! let b = Image::of_bytes("b", page.to_vec());
//! let potential = potential::count(&[a, b], &Options::default())?;
//! assert_eq!((potential.small.zero, potential.small.inter), (3, 1));
//! # Ok::<(), potential::PotentialError>(())
//! ```

pub mod fingerprint;
pub mod image;
pub mod ksm;
pub mod potential;
pub mod tps;
