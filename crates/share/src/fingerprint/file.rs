// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes the Parquet files of a directory of fingerprints.
//!
//! Metadata that must agree between files is in Parquet's key-value metadata, under names that begin with
//! `bifold.`. The rows are plain columns that any Parquet reader understands. Files are written uncompressed,
//! because fingerprints do not compress, and counts and guests are dictionaries.

use super::{About, ContentCount, FingerprintError, VERSION, part_file, part_of};
use crate::image::{HUGE, PAGE};
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of a row group, and rows read at a time.
const GROUP: usize = 1 << 16;
const BATCH: usize = 1 << 13;
/// Columns, in order.
const COLUMNS: [&str; 4] = ["fingerprint", "page_bytes", "guest", "count"];
const PAGE_BYTES: [i32; 2] = [PAGE as i32, (PAGE as u64 * HUGE) as i32];

fn schema() -> Result<Type, ParquetError> {
    let column = |name: &'static str, of: Physical| {
        Type::primitive_type_builder(name, of).with_repetition(Repetition::REQUIRED)
    };
    let fields = vec![
        column(COLUMNS[0], Physical::FIXED_LEN_BYTE_ARRAY).with_length(16).build()?,
        column(COLUMNS[1], Physical::INT32).build()?,
        column(COLUMNS[2], Physical::BYTE_ARRAY).with_converted_type(ConvertedType::UTF8).build()?,
        column(COLUMNS[3], Physical::INT64).build()?,
    ];
    let fields = fields.into_iter().map(Arc::new).collect();
    Type::group_type_builder("fingerprints").with_fields(fields).build()
}

/// Writes one part.
pub struct Writer {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    names: Vec<ByteArray>,
    rows: Vec<ContentCount>,
}

impl Writer {
    /// Creates the file of a part.
    pub fn create(dir: &Path, about: &About, part: u32) -> Result<Writer, FingerprintError> {
        let path = part_file(dir, part);
        let fail = |source| FingerprintError::Parquet { path: path.clone(), source };
        let guests = serde_json::to_string(&about.guests).expect("strings");
        let metadata = [
            ("version", about.version.to_string()),
            ("key_id", about.key_id.clone()),
            ("bits", about.bits.to_string()),
            ("parts", about.parts.to_string()),
            ("part", part.to_string()),
            ("page_size", PAGE.to_string()),
            ("guests", guests),
        ];
        let metadata = metadata.map(|(name, value)| KeyValue::new(format!("bifold.{name}"), value));
        let properties = WriterProperties::builder()
            .set_key_value_metadata(Some(metadata.into()))
            .set_column_dictionary_enabled(ColumnPath::from(COLUMNS[0]), false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_created_by(format!("bifold {}", bifold_base::version()))
            .build();
        let file = File::create_new(&path).map_err(FingerprintError::io("create", &path))?;
        let schema = Arc::new(schema().map_err(fail)?);
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(fail)?;
        let names = about.guests.iter().map(|n| ByteArray::from(n.as_str())).collect();
        Ok(Writer { file, names, rows: Vec::with_capacity(GROUP), path })
    }

    /// Adds a row.
    pub fn push(&mut self, row: ContentCount) -> Result<(), FingerprintError> {
        self.rows.push(row);
        if self.rows.len() == GROUP { self.group() } else { Ok(()) }
    }

    /// Completes the file.
    pub fn finish(mut self) -> Result<(), FingerprintError> {
        if !self.rows.is_empty() {
            self.group()?;
        }
        self.file.finish().map(drop).map_err(|source| FingerprintError::Parquet { path: self.path, source })
    }

    fn group(&mut self) -> Result<(), FingerprintError> {
        let rows = std::mem::take(&mut self.rows);
        let done =
            self.write(&rows).map_err(|source| FingerprintError::Parquet { path: self.path.clone(), source });
        self.rows = rows;
        self.rows.clear();
        done
    }

    fn write(&mut self, rows: &[ContentCount]) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        while let Some(mut column) = group.next_column()? {
            match column.untyped() {
                ColumnWriter::FixedLenByteArrayColumnWriter(c) => {
                    let bytes = |r: &ContentCount| {
                        r.fingerprint.iter().flat_map(|h| h.to_be_bytes()).collect::<Vec<u8>>()
                    };
                    let values: Vec<FixedLenByteArray> = rows.iter().map(|r| bytes(r).into()).collect();
                    c.write_batch(&values, None, None)?;
                }
                ColumnWriter::Int32ColumnWriter(c) => {
                    let values: Vec<i32> = rows.iter().map(|r| PAGE_BYTES[usize::from(r.huge())]).collect();
                    c.write_batch(&values, None, None)?;
                }
                ColumnWriter::ByteArrayColumnWriter(c) => {
                    let values: Vec<ByteArray> = rows.iter().map(|r| self.names[r.guest()].clone()).collect();
                    c.write_batch(&values, None, None)?;
                }
                ColumnWriter::Int64ColumnWriter(c) => {
                    let values: Vec<i64> = rows.iter().map(|r| i64::from(r.count)).collect();
                    c.write_batch(&values, None, None)?;
                }
                _ => unreachable!("the schema has no other column"),
            }
            column.close()?;
        }
        group.close().map(drop)
    }
}

/// Reads one part.
pub struct Reader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    /// The file's metadata.
    pub about: About,
    /// The file's part.
    pub part: u32,
}

impl Reader {
    /// Opens a file and reads its metadata.
    pub fn open(path: &Path) -> Result<Reader, FingerprintError> {
        let fail = |source| FingerprintError::Parquet { path: path.into(), source };
        let file = File::open(path).map_err(FingerprintError::io("open", path))?;
        let file = SerializedFileReader::new(file).map_err(fail)?;
        let about = file.metadata().file_metadata();
        let bad = |what: String| FingerprintError::Content { path: path.into(), what };
        let pairs = about.key_value_metadata().into_iter().flatten();
        let values: HashMap<&str, &str> =
            pairs.filter_map(|kv| Some((kv.key.strip_prefix("bifold.")?, kv.value.as_deref()?))).collect();
        let get = |name: &str| {
            values
                .get(name)
                .copied()
                .ok_or_else(|| bad(format!("no file of fingerprints: it has no bifold.{name}")))
        };
        let number = |name: &str| -> Result<u32, FingerprintError> {
            let value = get(name)?;
            value.parse().map_err(|_| bad(format!("its bifold.{name} is no number: {value}")))
        };
        let version = number("version")?;
        if version != VERSION {
            return Err(bad(format!(
                "written in version {version} of the format; this Bifold reads {VERSION}"
            )));
        }
        let page = number("page_size")?;
        if page as usize != PAGE {
            return Err(bad(format!("of pages of {page} bytes; only those of {PAGE} are counted")));
        }
        let names: Vec<&str> = about.schema_descr().columns().iter().map(|c| c.name()).collect();
        if names != COLUMNS {
            return Err(bad(format!("its columns are {names:?} and not {COLUMNS:?}")));
        }
        let guests =
            serde_json::from_str(get("guests")?).map_err(|e| bad(format!("its list of guests: {e}")))?;
        let about = About {
            version,
            key_id: get("key_id")?.to_string(),
            bits: number("bits")?,
            parts: number("parts")?,
            guests,
        };
        let part = number("part")?;
        if part >= about.parts {
            return Err(bad(format!("part {part} of {}", about.parts)));
        }
        Ok(Reader { path: path.into(), file, about, part })
    }

    /// Passes every row to `then`, with guests numbered from `first` on.
    pub fn rows(
        &self,
        first: u32,
        mut then: impl FnMut(ContentCount) -> Result<(), FingerprintError>,
    ) -> Result<(), FingerprintError> {
        let fail = |source| FingerprintError::Parquet { path: self.path.clone(), source };
        let bad = |what: String| FingerprintError::Content { path: self.path.clone(), what };
        let numbers: HashMap<&[u8], u32> =
            self.about.guests.iter().map(|n| n.as_bytes()).zip(first..).collect();
        for group in 0..self.file.num_row_groups() {
            let group = self.file.get_row_group(group).map_err(fail)?;
            let column = |i: usize| group.get_column_reader(i).map_err(fail);
            let (Cols::F(mut prints), Cols::I(mut sizes), Cols::B(mut guests), Cols::L(mut counts)) =
                (cols(column(0)?), cols(column(1)?), cols(column(2)?), cols(column(3)?))
            else {
                return Err(bad("its columns have other types".into()));
            };
            loop {
                let prints = batch(&mut prints).map_err(fail)?;
                let sizes = batch(&mut sizes).map_err(fail)?;
                let guests = batch(&mut guests).map_err(fail)?;
                let counts = batch(&mut counts).map_err(fail)?;
                if [sizes.len(), guests.len(), counts.len()] != [prints.len(); 3] {
                    return Err(bad("its columns differ in length".into()));
                }
                if prints.is_empty() {
                    break;
                }
                for (((print, size), guest), count) in prints.iter().zip(sizes).zip(guests).zip(counts) {
                    let half =
                        |at: usize| print.data().get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
                    let (Some(high), Some(low)) = (half(0), half(8)) else {
                        return Err(bad("a fingerprint is shorter than 16 bytes".into()));
                    };
                    let Some(huge) = PAGE_BYTES.iter().position(|b| *b == size) else {
                        return Err(bad(format!("a page of {size} bytes")));
                    };
                    let Some(guest) = numbers.get(guest.data()) else {
                        return Err(bad("a guest that is not in its list".into()));
                    };
                    let Some(count) = u32::try_from(count).ok().filter(|c| *c > 0) else {
                        return Err(bad(format!("a count of {count} pages")));
                    };
                    if part_of([high, low], self.about.parts) != self.part {
                        return Err(bad("a fingerprint that belongs to another part".into()));
                    }
                    then(ContentCount::new([high, low], huge == 1, *guest, count))?;
                }
            }
        }
        Ok(())
    }
}

enum Cols {
    F(ColumnReaderImpl<FixedLenByteArrayType>),
    I(ColumnReaderImpl<Int32Type>),
    B(ColumnReaderImpl<ByteArrayType>),
    L(ColumnReaderImpl<Int64Type>),
    Other,
}

fn cols(reader: ColumnReader) -> Cols {
    match reader {
        ColumnReader::FixedLenByteArrayColumnReader(c) => Cols::F(c),
        ColumnReader::Int32ColumnReader(c) => Cols::I(c),
        ColumnReader::ByteArrayColumnReader(c) => Cols::B(c),
        ColumnReader::Int64ColumnReader(c) => Cols::L(c),
        _ => Cols::Other,
    }
}

fn batch<T: DataType>(column: &mut ColumnReaderImpl<T>) -> Result<Vec<T::T>, ParquetError> {
    let mut values = Vec::with_capacity(BATCH);
    // Optional columns would come with levels; ours are required, and others have none here.
    column.read_records(BATCH, None, None, &mut values)?;
    Ok(values)
}
