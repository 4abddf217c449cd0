// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the verbs have in common at the terminal: the terminal itself, and the files that a user names.

pub mod files;
pub mod terminal;
