// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of figures for other programs: Parquet and Arrow, with the unit and the meaning of each column in
//! the file.
//!
//! A field's metadata has `unit` and `description`, which readers of Arrow see (in Parquet through the schema
//! that Arrow's libraries keep there). The metadata of the file has `bifold.schema` and, for readers without
//! Arrow, `bifold.units`: the units by column, as JSON.
//!
//! ```
//! use bifold_table::{Column, Format, Kind, TableWriter, Value};
//!
//! let columns = [
//!     Column::new("program", "", "Name of the program.", Kind::Text),
//!     Column::new("walk_cycles", "cycles", "Cycles of page walks.", Kind::Count),
//! ];
//! let mut table = TableWriter::new(Format::Parquet, "example/1", &columns, Vec::new())?;
//! table.push([Value::Text("gcc".into()), Value::Count(1234)])?;
//! assert!(table.finish()?.starts_with(b"PAR1"));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod writer;

pub use writer::TableWriter;

use std::borrow::Cow;

/// A format of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet, compressed by zstd.
    Parquet,
    /// Arrow's IPC file, also called Feather, version 2; not compressed, so that readers can map the file.
    Arrow,
}

/// Type of a column's values. Each may be unknown, which is null in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 64 bits without a sign.
    Count,
    /// A floating-point number of 64 bits.
    Number,
    /// UTF-8.
    Text,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: Cow<'static, str>,
    /// Unit; `1` for counts and shares, empty for names.
    pub unit: Cow<'static, str>,
    /// Meaning.
    pub doc: Cow<'static, str>,
    /// Type of its values.
    pub kind: Kind,
}

impl Column {
    /// A column.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        unit: impl Into<Cow<'static, str>>,
        doc: impl Into<Cow<'static, str>>,
        kind: Kind,
    ) -> Column {
        Column { name: name.into(), unit: unit.into(), doc: doc.into(), kind }
    }
}

/// The value of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// Not known.
    Unknown,
    /// A count, of the column's unit.
    Count(u64),
    /// A number, of the column's unit.
    Number(f64),
    /// A name.
    Text(Cow<'a, str>),
}

impl From<Option<u64>> for Value<'_> {
    fn from(n: Option<u64>) -> Self {
        n.map_or(Value::Unknown, Value::Count)
    }
}

impl From<Option<f64>> for Value<'_> {
    fn from(n: Option<f64>) -> Self {
        n.filter(|n| n.is_finite()).map_or(Value::Unknown, Value::Number)
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Value::Unknown, |t| Value::Text(t.into()))
    }
}
