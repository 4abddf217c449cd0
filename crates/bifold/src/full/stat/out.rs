// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where rows go. CSV, JSON lines and tables are written as intervals end, so that a watch of days
//! loses nothing if it is killed. Parquet and Arrow need their end.

use super::args::StatFormat;
use super::{StatArgs, table};
use crate::console::{not_stdout, note_file};
use crate::usage::UsageError;
use anyhow::Context as _;
use bifold_host::Vendor;
use bifold_live::files::{Format, RowWriter};
use bifold_live::{Interval, IntervalRow, Watched, columns};
use std::fs::File;
use std::io::{self, BufWriter, Write};

/// An open output.
pub enum Out {
    Table(Box<dyn Write + Send>),
    Rows(RowWriter<Box<dyn Write + Send>>),
}

impl Out {
    /// Opens the output that the arguments name, with columns for exits by this vendor's reasons.
    ///
    /// # Errors
    /// If the file cannot be created, or Parquet or Arrow would go to stdout.
    pub fn create(args: &StatArgs, reasons: Option<Vendor>) -> anyhow::Result<Out> {
        let format = match args.format {
            StatFormat::Table => return Ok(Out::Table(open(args)?)),
            StatFormat::Csv => Format::Csv,
            StatFormat::Jsonl => Format::Jsonl,
            StatFormat::Parquet => Format::Parquet,
            StatFormat::Arrow => Format::Arrow,
        };
        let binary = matches!(format, Format::Parquet | Format::Arrow);
        if not_stdout(args.output.as_deref()).is_none() && binary {
            let name = if format == Format::Arrow { "an Arrow" } else { "a Parquet" };
            return Err(UsageError::missing("--output", format!("{name} file is no text for stdout")).into());
        }
        Ok(Out::Rows(
            RowWriter::new(format, columns::with_reasons(reasons), open(args)?)
                .with_context(|| failed(args))?,
        ))
    }

    /// Writes an interval of these VMs. Returns whether stdout still has a reader.
    ///
    /// # Errors
    /// If the rows cannot be written.
    pub fn interval(
        &mut self,
        time: f64,
        vms: &[(&Watched, &Interval)],
        args: &StatArgs,
    ) -> anyhow::Result<bool> {
        let rows = vms.iter().flat_map(|(vm, interval)| {
            let each = args.vcpus.then(|| IntervalRow::of_vcpus(time, vm, interval));
            std::iter::once(IntervalRow::of_vm(time, vm, interval)).chain(each.into_iter().flatten())
        });
        let written = match self {
            Out::Table(to) => {
                let text = table::table(&rows.collect::<Vec<_>>());
                to.write_all(text.as_bytes()).and_then(|()| to.flush())
            }
            Out::Rows(writer) => {
                rows.into_iter().try_for_each(|r| writer.row(&r)).and_then(|()| writer.flush())
            }
        };
        match written {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true).with_context(|| failed(args)),
        }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// If the last rows cannot be written.
    pub fn finish(self, args: &StatArgs) -> anyhow::Result<()> {
        if let Out::Rows(writer) = self {
            match writer.finish() {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
                finished => drop(finished.with_context(|| failed(args))?),
            }
        }
        if let Some(path) = not_stdout(args.output.as_deref()) {
            note_file(!args.quiet, "intervals", path);
        }
        Ok(())
    }
}

fn open(args: &StatArgs) -> anyhow::Result<Box<dyn Write + Send>> {
    Ok(match not_stdout(args.output.as_deref()) {
        Some(path) => {
            let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            Box::new(BufWriter::new(file))
        }
        None => Box::new(io::stdout()),
    })
}

fn failed(args: &StatArgs) -> String {
    match not_stdout(args.output.as_deref()) {
        Some(path) => format!("cannot write {}", path.display()),
        None => "cannot write to stdout".into(),
    }
}
