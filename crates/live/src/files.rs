// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of intervals: one row for each VM (or vCPU) and interval, one column for each figure of
//! [`columns`].
//!
//! CSV and JSON lines are complete after every interval. A Parquet or Arrow file is complete only when it is
//! finished.

use crate::columns::{self, Column, Type, Value};
use crate::row::IntervalRow;
use bifold_table::TableWriter;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{SerializeMap as _, Serializer as _};
use serde_json::{Map, json};
use std::borrow::Cow;
use std::io::{self, Write};

/// Name and version of the rows' schema, in every line of JSON.
pub const SCHEMA: &str = "bifold.stat/1";

/// A format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A head, and a line for each row; unknown figures are empty.
    Csv,
    /// An object for each row, with `schema`; unknown figures are left out.
    Jsonl,
    /// Columns that may be null.
    Parquet,
    /// The same as an Arrow file.
    Arrow,
}

/// Writes rows.
///
/// ```
/// use bifold_live::columns;
/// use bifold_live::files::{Format, RowWriter};
///
/// let writer = RowWriter::new(Format::Csv, columns::all(), Vec::new())?;
/// let head = String::from_utf8(writer.finish()?).unwrap();
/// assert!(head.starts_with("time,seconds,vm,name,pid,vcpu,mode,load,"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct RowWriter<W: Write + Send> {
    columns: Vec<Column>,
    to: To<W>,
}

enum To<W: Write + Send> {
    Csv(Box<csv::Writer<W>>),
    Jsonl(W),
    Table(Box<TableWriter<W>>),
}

impl<W: Write + Send> RowWriter<W> {
    /// Begins a file of these columns.
    ///
    /// # Errors
    /// If the head cannot be written.
    pub fn new(format: Format, columns: Vec<Column>, to: W) -> io::Result<RowWriter<W>> {
        let to = match format {
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(to);
                writer.write_record(columns.iter().map(|c| c.name.as_ref()))?;
                writer.flush()?;
                To::Csv(Box::new(writer))
            }
            Format::Jsonl => To::Jsonl(to),
            Format::Parquet => To::Table(table(bifold_table::Format::Parquet, &columns, to)?),
            Format::Arrow => To::Table(table(bifold_table::Format::Arrow, &columns, to)?),
        };
        Ok(RowWriter { columns, to })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If the row cannot be written.
    pub fn row(&mut self, row: &IntervalRow) -> io::Result<()> {
        let values = self.columns.iter().map(|c| c.value(row));
        match &mut self.to {
            To::Csv(writer) => Ok(writer.write_record(values.map(text))?),
            To::Jsonl(writer) => json_line(&self.columns, row, writer),
            To::Table(rows) => rows.push(values),
        }
    }

    /// Hands everything to the file, except an unfinished group of rows of Parquet or Arrow.
    ///
    /// # Errors
    /// If a row cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Csv(writer) => writer.flush(),
            To::Jsonl(writer) => writer.flush(),
            To::Table(_) => Ok(()),
        }
    }

    /// Completes the file and returns it.
    ///
    /// # Errors
    /// If the last rows cannot be written.
    pub fn finish(self) -> io::Result<W> {
        match self.to {
            To::Csv(writer) => writer.into_inner().map_err(|e| io::Error::from(e.error().kind())),
            To::Jsonl(mut writer) => writer.flush().map(|()| writer),
            To::Table(rows) => rows.finish(),
        }
    }
}

/// Begins a table of these columns.
fn table<W: Write + Send>(
    format: bifold_table::Format,
    columns: &[Column],
    to: W,
) -> io::Result<Box<TableWriter<W>>> {
    let about = |c: &Column| bifold_table::Column::new(c.name.clone(), c.unit, c.doc, c.kind);
    let columns: Vec<_> = columns.iter().map(about).collect();
    TableWriter::new(format, SCHEMA, &columns, to).map(Box::new)
}

/// A row as a line of JSON, for its schema.
pub struct Line;

impl JsonSchema for Line {
    fn schema_name() -> Cow<'static, str> {
        "Line".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut fields = Map::new();
        fields.insert("schema".into(), true.into());
        for column in columns::all() {
            let doc = match column.unit {
                "" | "1" => column.doc.into(),
                unit => format!("{} Unit: {unit}.", column.doc),
            };
            fields.insert(
                column.name.into(),
                match column.kind {
                    Type::Count => json!({ "type": "integer", "minimum": 0, "description": doc }),
                    Type::Number => json!({ "type": "number", "description": doc }),
                    Type::Text => json!({ "type": "string", "description": doc }),
                },
            );
        }
        json_schema!({
            "type": "object",
            "description": "What `bifold stat --format jsonl` writes, and the daemon into its recording: a VM or vCPU \
                            over an interval. A figure that the host cannot tell is absent.",
            "properties": fields,
            "patternProperties": { "^reason_": {
                "type": "integer",
                "minimum": 0,
                "description": "Exits for this reason, under the hardware's name.",
            } },
            "required": ["schema", "time", "seconds", "vm", "pid"],
        })
    }
}

/// Writes a row as a line of JSON.
///
/// # Errors
/// If the line cannot be written.
pub fn json_line(columns: &[Column], row: &IntervalRow, to: &mut impl Write) -> io::Result<()> {
    let mut json = serde_json::Serializer::new(&mut *to);
    let mut line = json.serialize_map(None)?;
    line.serialize_entry("schema", SCHEMA)?;
    for column in columns {
        match column.value(row) {
            Value::Unknown => {}
            Value::Count(n) => line.serialize_entry(&column.name, &n)?,
            Value::Number(n) => line.serialize_entry(&column.name, &n)?,
            Value::Text(t) => line.serialize_entry(&column.name, &t)?,
        }
    }
    line.end()?;
    to.write_all(b"\n")
}

fn text(value: Value) -> String {
    match value {
        Value::Unknown => String::new(),
        Value::Count(n) => n.to_string(),
        Value::Number(n) => n.to_string(),
        Value::Text(t) => t.into_owned(),
    }
}
