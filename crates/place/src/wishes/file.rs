// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wishes as they are written. Each value keeps its place in the text, so that an error can name the line.

use serde::Deserialize;
use toml::{Spanned, Value};

/// A value with its place.
pub type At<T> = Spanned<T>;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(default)]
    pub host: Host,
    #[serde(default)]
    pub guest: Vec<Guest>,
}

/// `[host]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub cpus: Option<At<String>>,
    pub reserve_cpus: Option<At<String>>,
    pub reserve_memory: Option<At<String>>,
    pub huge_pages: Option<At<String>>,
    pub numa_balancing: Option<At<String>>,
    pub halt_poll_ns: Option<At<i64>>,
}

/// `[[guest]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    pub name: At<String>,
    pub vcpus: At<i64>,
    pub memory: At<String>,
    pub page_size: Option<At<String>>,
    pub nodes: Option<At<Value>>,
    pub host_nodes: Option<At<String>>,
    pub smt: Option<At<String>>,
    pub emulator_cores: Option<At<i64>>,
    pub io_threads: Option<At<i64>>,
    #[serde(default)]
    pub near: Vec<At<String>>,
    #[serde(default)]
    pub tickless: bool,
    pub interrupts_away: Option<bool>,
    #[serde(default)]
    pub ksm: bool,
}
