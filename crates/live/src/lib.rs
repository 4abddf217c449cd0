// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches a host's VMs: what each cost over an interval.
//!
//! So far the crate knows which hardware events count TLB misses and walks on which processor
//! ([`hardware::Microarchitecture`]), and counts them of vCPU threads ([`hardware::Pmu`]). The facts of VMs are
//! `bifold_host`'s.
#![forbid(unsafe_code)]

pub mod hardware;
