// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sweeps: programs under every combination of settings, as tasks that may run on several machines, and
//! results as tables.
//!
//! A [`Spec`] lists programs and axes, and its [`Plan`] has a task for each combination. A [`Folder`] holds
//! the plan and the result of each task in a file of its own, under the task's number. A task that runs twice
//! writes the same result over the first, so a worker that is killed loses nothing, and nothing is counted
//! twice. [`tables`] turns results into rows, and [`effects`] compares the values of an axis.
//!
//! The crate starts no program: the caller runs [`Task::args`] with the task's [`Verb`].
#![forbid(unsafe_code)]

pub mod effects;
mod error;
mod fleet;
mod folder;
mod plan;
mod spec;
pub mod tables;

pub use error::FolderError;
pub use folder::{Claim, Failure, Finished, Folder, State, schemas};
pub use plan::{Plan, Task, Verb};
pub use spec::{Spec, SpecError};
