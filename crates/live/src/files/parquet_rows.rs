// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows as Parquet: an optional column for each figure.

use crate::columns::{Column, Type, Value};
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types;
use std::io::{self, Write};
use std::sync::Arc;

/// Rows of a row group: an hour of 16 VMs at a row a second.
const GROUP: usize = 1 << 16;

/// Writes rows in groups.
pub struct ParquetRows<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: Vec<Cells>,
    rows: usize,
}

/// The cells of a column in the group that is being filled: its known values, and for each row whether it has one.
struct Cells {
    values: Values,
    known: Vec<i16>,
}

enum Values {
    Count(Vec<i64>),
    Number(Vec<f64>),
    Text(Vec<ByteArray>),
}

fn failed(e: ParquetError) -> io::Error {
    match e {
        // Not the words of the library around the system's error, such as a full disk.
        ParquetError::External(e) => match e.downcast::<io::Error>() {
            Ok(e) => *e,
            Err(e) => io::Error::other(e),
        },
        e => io::Error::other(e),
    }
}

fn schema(columns: &[Column]) -> Result<types::Type, ParquetError> {
    let field = |c: &Column| {
        let (physical, converted) = match c.kind {
            Type::Count => (Physical::INT64, ConvertedType::UINT_64),
            Type::Number => (Physical::DOUBLE, ConvertedType::NONE),
            Type::Text => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
        };
        let field = types::Type::primitive_type_builder(&c.name, physical).with_converted_type(converted);
        field.with_repetition(Repetition::OPTIONAL).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<_, _>>()?;
    types::Type::group_type_builder("intervals").with_fields(fields).build()
}

impl<W: Write + Send> ParquetRows<W> {
    pub fn new(columns: &[Column], to: W) -> io::Result<ParquetRows<W>> {
        let about = KeyValue::new("bifold.schema".to_owned(), super::SCHEMA.to_owned());
        let properties = WriterProperties::builder()
            .set_key_value_metadata(Some(vec![about]))
            .set_created_by(format!("bifold {}", env!("CARGO_PKG_VERSION")))
            .build();
        let schema = Arc::new(schema(columns).map_err(failed)?);
        let file = SerializedFileWriter::new(to, schema, Arc::new(properties)).map_err(failed)?;
        let cells = |c: &Column| {
            let values = match c.kind {
                Type::Count => Values::Count(Vec::new()),
                Type::Number => Values::Number(Vec::new()),
                Type::Text => Values::Text(Vec::new()),
            };
            Cells { values, known: Vec::new() }
        };
        Ok(ParquetRows { file, columns: columns.iter().map(cells).collect(), rows: 0 })
    }

    /// Adds a row, with a value for each column.
    pub fn push<'a>(&mut self, values: impl Iterator<Item = Value<'a>>) -> io::Result<()> {
        for (cells, value) in self.columns.iter_mut().zip(values) {
            cells.known.push(i16::from(value != Value::Unknown));
            match (&mut cells.values, value) {
                (_, Value::Unknown) => {}
                // The column is unsigned: the same bits.
                (Values::Count(all), Value::Count(n)) => all.push(n as i64),
                (Values::Number(all), Value::Number(n)) => all.push(n),
                (Values::Text(all), Value::Text(t)) => all.push(ByteArray::from(t.as_ref())),
                _ => unreachable!("a column has values of one type"),
            }
        }
        self.rows += 1;
        if self.rows == GROUP { self.group().map_err(failed) } else { Ok(()) }
    }

    pub fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.group().map_err(failed)?;
        }
        self.file.into_inner().map_err(failed)
    }

    fn group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for cells in &mut self.columns {
            let mut column = group.next_column()?.expect("the schema has these columns");
            let known = Some(&cells.known[..]);
            match (column.untyped(), &cells.values) {
                (ColumnWriter::Int64ColumnWriter(c), Values::Count(v)) => c.write_batch(v, known, None)?,
                (ColumnWriter::DoubleColumnWriter(c), Values::Number(v)) => c.write_batch(v, known, None)?,
                (ColumnWriter::ByteArrayColumnWriter(c), Values::Text(v)) => c.write_batch(v, known, None)?,
                _ => unreachable!("the schema has these types"),
            };
            column.close()?;
            cells.known.clear();
            match &mut cells.values {
                Values::Count(v) => v.clear(),
                Values::Number(v) => v.clear(),
                Values::Text(v) => v.clear(),
            }
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}
