// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One file per policy: what was published, its parameters, the decision.

pub mod always;
