// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes tables in groups of rows.

use crate::{Column, Format, Kind, Value};
use arrow_array::builder::{Float64Builder, StringBuilder, UInt64Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Rows of a group: an hour of 16 VMs at a row a second.
const GROUP: usize = 1 << 16;

/// Writes a table. The file is complete only when it is finished.
pub struct TableWriter<W: Write + Send> {
    to: To<Remembering<W>>,
    failed: Arc<Mutex<Option<io::Error>>>,
    schema: Arc<Schema>,
    columns: Vec<Cells>,
    rows: usize,
}

enum To<W: Write + Send> {
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<FileWriter<W>>),
}

/// The cells of a column in the group that is being filled.
enum Cells {
    Count(UInt64Builder),
    Number(Float64Builder),
    Text(StringBuilder),
}

impl Cells {
    fn of(column: &Column) -> Cells {
        match column.kind {
            Kind::Count => Cells::Count(UInt64Builder::new()),
            Kind::Number => Cells::Number(Float64Builder::new()),
            Kind::Text => Cells::Text(StringBuilder::new()),
        }
    }

    fn push(&mut self, value: Value) {
        match (self, value) {
            (Cells::Count(all), Value::Unknown) => all.append_null(),
            (Cells::Number(all), Value::Unknown) => all.append_null(),
            (Cells::Text(all), Value::Unknown) => all.append_null(),
            (Cells::Count(all), Value::Count(n)) => all.append_value(n),
            (Cells::Number(all), Value::Number(n)) => all.append_value(n),
            (Cells::Text(all), Value::Text(text)) => all.append_value(text),
            _ => unreachable!("a column has values of one type"),
        }
    }

    fn take(&mut self) -> ArrayRef {
        match self {
            Cells::Count(all) => Arc::new(all.finish()),
            Cells::Number(all) => Arc::new(all.finish()),
            Cells::Text(all) => Arc::new(all.finish()),
        }
    }
}

/// A writer that remembers the system's first error, such as a full disk: the libraries put their own words
/// around it.
struct Remembering<W> {
    to: W,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl<W> Remembering<W> {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|e| {
            let copy = e.raw_os_error().map_or(e.kind().into(), io::Error::from_raw_os_error);
            self.failed.lock().expect("no panic happens while it is held").get_or_insert(copy);
        })
    }
}

impl<W: Write> Write for Remembering<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.to.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.to.flush();
        self.note(result)
    }
}

fn schema(name: &str, columns: &[Column]) -> Schema {
    let field = |c: &Column| {
        let kind = match c.kind {
            Kind::Count => DataType::UInt64,
            Kind::Number => DataType::Float64,
            Kind::Text => DataType::Utf8,
        };
        let about = [("unit", &c.unit), ("description", &c.doc)];
        let about = about.into_iter().filter(|(_, text)| !text.is_empty());
        let about = about.map(|(key, text)| (key.to_owned(), text.to_string())).collect();
        Field::new(c.name.as_ref(), kind, true).with_metadata(about)
    };
    let units = columns.iter().filter(|c| !c.unit.is_empty());
    let units: serde_json::Map<_, _> = units.map(|c| (c.name.to_string(), c.unit.as_ref().into())).collect();
    let about =
        [("bifold.schema", name.to_owned()), ("bifold.units", serde_json::Value::from(units).to_string())];
    let about: HashMap<_, _> = about.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    Schema::new_with_metadata(columns.iter().map(field).collect::<Vec<_>>(), about)
}

impl<W: Write + Send> TableWriter<W> {
    /// Begins a file with these columns; `name` is the name and version of the table's schema.
    ///
    /// # Errors
    /// If the head cannot be written.
    pub fn new(format: Format, name: &str, columns: &[Column], to: W) -> io::Result<TableWriter<W>> {
        let schema = Arc::new(schema(name, columns));
        let failed = Arc::new(Mutex::new(None));
        let error = |e| system(&failed, e);
        let to = Remembering { to, failed: failed.clone() };
        let to = match format {
            Format::Parquet => {
                // In the order of their names: two files of the same rows are equal.
                let mut about: Vec<_> = schema.metadata.iter().collect();
                about.sort();
                let about = about.into_iter().map(|(key, text)| KeyValue::new(key.clone(), text.clone()));
                let properties = WriterProperties::builder()
                    .set_key_value_metadata(Some(about.collect()))
                    .set_created_by(format!("bifold {}", bifold_base::version()))
                    .set_compression(Compression::ZSTD(ZstdLevel::default()))
                    .build();
                let writer = ArrowWriter::try_new(to, schema.clone(), Some(properties));
                let writer = writer.map_err(io::Error::other).map_err(error)?;
                To::Parquet(Box::new(writer))
            }
            Format::Arrow => To::Arrow(Box::new(
                FileWriter::try_new(to, &schema).map_err(io::Error::other).map_err(error)?,
            )),
        };
        Ok(TableWriter { to, failed, schema, columns: columns.iter().map(Cells::of).collect(), rows: 0 })
    }

    /// Adds a row, with a value for each column.
    ///
    /// # Errors
    /// If a group of rows is full and cannot be written.
    ///
    /// # Panics
    /// If the values are not of the columns' number and types.
    pub fn push<'a>(&mut self, values: impl IntoIterator<Item = Value<'a>>) -> io::Result<()> {
        let mut values = values.into_iter();
        for cells in &mut self.columns {
            cells.push(values.next().expect("a row has a value for each column"));
        }
        assert!(values.next().is_none(), "a row has no more values than columns");
        self.rows += 1;
        if self.rows == GROUP { self.group() } else { Ok(()) }
    }

    /// Completes the file and returns it.
    ///
    /// # Errors
    /// If the last rows cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.group()?;
        }
        let ended = match self.to {
            To::Parquet(writer) => writer.into_inner().map_err(io::Error::other),
            To::Arrow(writer) => writer.into_inner().map_err(io::Error::other),
        };
        ended.map(|inner| inner.to).map_err(|e| system(&self.failed, e))
    }

    fn group(&mut self) -> io::Result<()> {
        let columns = self.columns.iter_mut().map(Cells::take).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(io::Error::other)?;
        self.rows = 0;
        let written = match &mut self.to {
            To::Parquet(writer) => {
                writer.write(&batch).and_then(|()| writer.flush()).map_err(io::Error::other)
            }
            To::Arrow(writer) => writer.write(&batch).map_err(io::Error::other),
        };
        written.map_err(|e| system(&self.failed, e))
    }
}

/// The system's error behind a library's, if there was one.
fn system(failed: &Mutex<Option<io::Error>>, e: io::Error) -> io::Error {
    failed.lock().expect("no panic happens while it is held").take().unwrap_or(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{Float64Type, UInt64Type};
    use arrow_ipc::reader::FileReader;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    fn columns() -> [Column; 3] {
        [
            Column::new("name", "", "A name.", Kind::Text),
            Column::new("count", "cycles", "A count.", Kind::Count),
            Column::new("number", "%", "", Kind::Number),
        ]
    }

    fn row(i: usize) -> [Value<'static>; 3] {
        if i % 3 == 0 {
            return [Value::Unknown, Value::Unknown, Value::Unknown];
        }
        [
            Value::Text(format!("n{i}").into()),
            Value::Count(u64::MAX - i as u64),
            Value::Number(i as f64 / 7.0),
        ]
    }

    fn written(format: Format, rows: usize) -> Vec<u8> {
        let mut table = TableWriter::new(format, "test/1", &columns(), Vec::new()).unwrap();
        (0..rows).for_each(|i| table.push(row(i)).unwrap());
        table.finish().unwrap()
    }

    /// The rows of the batches are those that were written.
    fn same(batches: impl Iterator<Item = RecordBatch>, rows: usize) {
        let mut i = 0;
        for batch in batches {
            let (names, counts) =
                (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<UInt64Type>());
            let numbers = batch.column(2).as_primitive::<Float64Type>();
            for (at, ((name, count), number)) in names.iter().zip(counts).zip(numbers).enumerate() {
                let found = [name.into(), count.into(), Value::from(number)];
                assert_eq!(found, row(i + at));
            }
            i += batch.num_rows();
            let field = batch.schema().field(1).clone();
            assert_eq!(field.metadata()["unit"], "cycles");
            assert_eq!(field.metadata()["description"], "A count.");
        }
        assert_eq!(i, rows);
    }

    #[test]
    fn what_was_written_is_read() {
        for rows in [0, 1, 1000, GROUP, GROUP + 5] {
            let bytes = written(Format::Parquet, rows);
            let reader = ParquetRecordBatchReaderBuilder::try_new(parquet_bytes(bytes)).unwrap();
            let about = reader.metadata().file_metadata().key_value_metadata().unwrap().clone();
            let of = |key: &str| about.iter().find(|k| k.key == key).and_then(|k| k.value.clone());
            assert_eq!(of("bifold.schema").as_deref(), Some("test/1"));
            assert_eq!(of("bifold.units").as_deref(), Some(r#"{"count":"cycles","number":"%"}"#));
            same(reader.build().unwrap().map(Result::unwrap), rows);
            let arrow = FileReader::try_new(io::Cursor::new(written(Format::Arrow, rows)), None).unwrap();
            assert_eq!(arrow.schema().metadata()["bifold.schema"], "test/1");
            same(arrow.map(Result::unwrap), rows);
        }
    }

    fn parquet_bytes(bytes: Vec<u8>) -> std::fs::File {
        use io::Seek as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn the_same_rows_are_the_same_bytes() {
        assert_eq!(written(Format::Parquet, 100), written(Format::Parquet, 100));
    }

    #[test]
    fn a_full_disk_is_the_systems_error() {
        for format in [Format::Parquet, Format::Arrow] {
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let tried = TableWriter::new(format, "test/1", &columns(), full).and_then(|mut table| {
                (0..10).try_for_each(|i| table.push(row(i)))?;
                table.finish()
            });
            let e = tried.err().unwrap();
            assert_eq!(e.raw_os_error(), Some(28), "{format:?}: {e:?}");
        }
    }
}
