// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Formats of data on stdout or in a file.

/// A format of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tables for a terminal.
    Table,
    /// A single document, schema `bifold.compare/2`.
    Json,
    /// One object per line, tagged `run`, `total`, `policy` or `interval`.
    Jsonl,
    /// One row per interval and configuration.
    Csv,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 4] = [Format::Table, Format::Json, Format::Jsonl, Format::Csv];

    /// The value of `--format`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Table => "table",
            Format::Json => "json",
            Format::Jsonl => "jsonl",
            Format::Csv => "csv",
        }
    }
}
