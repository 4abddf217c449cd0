// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Distances, the optimum and working sets against slow references and closed forms.

mod distances;
mod growth;
mod memory_use;
mod optimum;
mod plan;
mod streams;
mod working_set;
