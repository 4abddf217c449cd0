// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trials of page sharing with real guests and the real KSM.
//!
//! [`experiment`] runs Linux guests under KSM and measures what sharing saves and costs; [`ksm_check`]
//! compares the model of KSM with this kernel's ksmd, pass by pass; [`advise`] reads a host and says
//! what its KSM is worth. The counting and the models themselves are in `bifold_share`.
#![forbid(unsafe_code)]

pub mod advise;
pub mod experiment;
pub mod ksm_check;
