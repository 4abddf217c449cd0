// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold export`: results and timelines as tables for other programs.

use crate::console::{Delivery, create, distinct, named};
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::Context as _;
use bifold_report::diff::MOST_BYTES;
use bifold_sweep::tables::{Source, Table, TableRow};
use bifold_table::{Column, Format, Kind, TableWriter, Value};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  bifold compare --format json -o gcc.json -- gcc -O2 -c mid_size.c
  bifold export gcc.json -o gcc.parquet
  bifold export --table intervals *.timeline -o timelines.arrow";

/// Write results and timelines as a table: Parquet, Arrow or CSV
///
/// Reads results of `compare --format json`, baselines, and timelines of `compare --timeline`. All files go
/// into one table, with the file of each row in the column `file`. Parquet and Arrow have the unit and the
/// meaning of each column in its metadata. docs/reference/tables.md lists the columns.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// Results and timelines
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Write the table to FILE; its end names the format: .parquet, .arrow or .csv
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// The rows: `results` for each configuration, `intervals` over time, `places` of --where
    #[arg(
        long,
        value_enum,
        default_value = "results",
        hide_possible_values = true,
        value_name = "results|intervals|places"
    )]
    pub table: TableName,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// A table's name on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableName {
    Results,
    Intervals,
    Places,
}

impl From<TableName> for Table {
    fn from(name: TableName) -> Table {
        match name {
            TableName::Results => Table::Results,
            TableName::Intervals => Table::Intervals,
            TableName::Places => Table::Places,
        }
    }
}

/// Carries out the verb.
pub fn run(args: ExportArgs) -> anyhow::Result<Status> {
    let format = format_of(&args.output)?;
    let inputs: Vec<_> = args.files.iter().flat_map(|f| named([("the input", Some(f.as_path()))])).collect();
    distinct(&inputs, &named([("--output", Some(args.output.as_path()))]))?;
    let table = Table::from(args.table);
    let file = create(Some(&args.output))?;
    let column = Column::new("file", "", "The file that the row is from.", Kind::Text);
    let mut rows = Rows::new(format, &table.schema(), vec![column], table)?;
    for path in &args.files {
        let shown = path.display().to_string();
        let bytes =
            bifold_base::bounded::read(path, MOST_BYTES).with_context(|| format!("cannot read {shown}"))?;
        let source = Source::of(&shown, bytes)?;
        for row in table.rows(&shown, &source)? {
            rows.push(vec![Value::Text(shown.clone().into())], row)?;
        }
    }
    let mut delivery = Delivery::new(!args.quiet);
    delivery.file("table", file, || rows.finish());
    delivery.done()?;
    Ok(Status::Done)
}

/// A format of tables in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFormat {
    Typed(Format),
    Csv,
}

/// The format that a file's name ends with.
///
/// # Errors
/// If the name ends otherwise.
pub fn format_of(path: &Path) -> Result<TableFormat, UsageError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("parquet") => Ok(TableFormat::Typed(Format::Parquet)),
        Some("arrow" | "feather") => Ok(TableFormat::Typed(Format::Arrow)),
        Some("csv") => Ok(TableFormat::Csv),
        _ => Err(UsageError::value(
            format!("--output {}", path.display()),
            "has no format in its name: end it with .parquet, .arrow or .csv",
        )),
    }
}

/// Rows of a table with columns of the caller's before them, written to memory.
pub struct Rows(To);

enum To {
    Typed(Box<TableWriter<Vec<u8>>>),
    Csv(Box<csv::Writer<Vec<u8>>>),
}

impl Rows {
    /// Begins a table.
    ///
    /// # Errors
    /// If the head cannot be made.
    pub fn new(format: TableFormat, schema: &str, first: Vec<Column>, table: Table) -> anyhow::Result<Rows> {
        Rows::of(format, schema, &[first, table.columns()].concat())
    }

    /// Begins a table of these columns.
    ///
    /// # Errors
    /// If the head cannot be made.
    pub fn of(format: TableFormat, schema: &str, columns: &[Column]) -> anyhow::Result<Rows> {
        Ok(Rows(match format {
            TableFormat::Typed(format) => {
                To::Typed(TableWriter::new(format, schema, columns, Vec::new())?.into())
            }
            TableFormat::Csv => {
                let mut writer = csv::Writer::from_writer(Vec::new());
                writer.write_record(columns.iter().map(|c| c.name.as_ref()))?;
                To::Csv(writer.into())
            }
        }))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If the row cannot be written.
    pub fn push(&mut self, first: TableRow, row: TableRow) -> anyhow::Result<()> {
        let values = first.into_iter().chain(row);
        match &mut self.0 {
            To::Typed(writer) => writer.push(values)?,
            To::Csv(writer) => writer.write_record(values.map(|value| match value {
                Value::Unknown => String::new(),
                Value::Count(n) => n.to_string(),
                Value::Number(n) => n.to_string(),
                Value::Text(text) => text.into_owned(),
            }))?,
        }
        Ok(())
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// If the end cannot be made.
    pub fn finish(self) -> anyhow::Result<Vec<u8>> {
        Ok(match self.0 {
            To::Typed(writer) => writer.finish()?,
            To::Csv(writer) => writer.into_inner().map_err(|e| e.into_error())?,
        })
    }
}
