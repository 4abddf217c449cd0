// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold sweep merge`: all results as one table.

use super::args::{MergeArgs, MergedTable};
use crate::console::{Delivery, create, distinct, named, note};
use crate::full::export::{Rows, format_of};
use crate::status::Status;
use anyhow::bail;
use bifold_report::diff::Made;
use bifold_sweep::tables::{Source, Table, TableRow};
use bifold_sweep::{Plan, Task};
use bifold_table::{Column, Kind, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Merges.
pub fn run(args: &MergeArgs) -> anyhow::Result<Status> {
    let format = format_of(&args.output)?;
    let plan_file = args.folder.join("sweep.json");
    distinct(
        &named([("the sweep", Some(plan_file.as_path()))]),
        &named([("--output", Some(args.output.as_path()))]),
    )?;
    let folder = super::of_programs(&args.folder)?;
    let plan = folder.plan();
    let left = plan.tasks.iter().filter(|t| !folder.is_done(t.number)).count();
    if left > 0 && !args.partial {
        let at = args.folder.display();
        bail!(
            "{left} of {} tasks have no result: `bifold sweep status {at}` says why, `bifold sweep run {at}` runs them, and \
             --partial leaves them out",
            plan.tasks.len()
        );
    }
    let table = match args.table {
        MergedTable::Results => Some(Table::Results),
        MergedTable::Intervals => Some(Table::Intervals),
        MergedTable::Places => Some(Table::Places),
        MergedTable::Tasks => None,
    };
    let file = create(Some(&args.output))?;
    let mut rows = match table {
        Some(table) => Rows::new(
            format,
            &format!("bifold.sweep-{}/{}", table.name(), table.version()),
            first(plan),
            table,
        )?,
        None => Rows::of(format, "bifold.sweep-tasks/1", &[first(plan), of_tasks()].concat())?,
    };
    let mut same = Same::default();
    for task in &plan.tasks {
        let Some(finished) = folder.finished(task.number)? else { continue };
        same.check(task, finished.side.made())?;
        let Some(table) = table else {
            let machine = Value::Text(finished.host.into());
            rows.push(of_task(plan, task), vec![Value::Number(finished.seconds), machine])?;
            continue;
        };
        let shown = format!("task {}", task.words());
        let source = Source::Result(finished.side.into(), finished.bytes);
        for row in table.rows(&shown, &source)? {
            rows.push(of_task(plan, task), row)?;
        }
    }
    let mut delivery = Delivery::new(!args.quiet);
    if same.guests.len() > 1 {
        let guests = same.guests.iter().cloned().collect::<Vec<_>>().join(", ");
        note(!args.quiet, format_args!("guests differ, and their counts with them: {guests}"));
    }
    delivery.file("table", file, || rows.finish());
    delivery.done()?;
    Ok(Status::Done)
}

/// What tasks with the same settings have to agree in, wherever they ran.
#[derive(Default)]
struct Same<'a> {
    /// The hash of the profile, and the task that had it, by the task's options.
    profiles: BTreeMap<Vec<&'a str>, (String, &'a Task)>,
    /// Kernels and versions of QEMU, which machines may have others of.
    guests: BTreeSet<String>,
}

impl<'a> Same<'a> {
    fn check(&mut self, task: &'a Task, made: &Made) -> anyhow::Result<()> {
        if let Some(guest) = &made.guest {
            let version = |v: &Option<String>| v.clone().unwrap_or_else(|| "unknown".into());
            self.guests.insert(format!(
                "kernel {} under QEMU {}",
                version(&guest.kernel),
                version(&guest.qemu)
            ));
        }
        let hash = made.config_hash.as_str();
        let is_of_profile =
            |o: &&String| ["--profile", "--set"].iter().any(|p| o.split('=').next() == Some(p));
        // The plan has the profile; in a plan of an earlier version, an option names it.
        let mut options: Vec<&str> = task.profile.as_deref().into_iter().collect();
        options.extend(task.args.iter().filter(is_of_profile).map(String::as_str));
        // An option and its value may be two words.
        let pairs = task.args.windows(2).filter(|w| w[0] == "--profile" || w[0] == "--set");
        options.extend(pairs.map(|w| w[1].as_str()));
        match self.profiles.get(&options) {
            Some((other, with)) if other != hash => bail!(
                "tasks {} and {} have the same profile by name, and another one by content: the file changed between them, or \
                 differs between machines. Make the sweep again",
                with.number,
                task.number
            ),
            Some(_) => Ok(()),
            None => {
                self.profiles.insert(options, (hash.to_owned(), task));
                Ok(())
            }
        }
    }
}

/// The columns before those of every table: task, name and axes.
fn first(plan: &Plan) -> Vec<Column> {
    let mut columns = vec![
        Column::new("task", "", "Number of the task, from 0.", Kind::Count),
        Column::new("name", "", "Name of the program in the sweep's description.", Kind::Text),
    ];
    let doc = "Value of the axis; unknown where the program does not vary it.";
    columns
        .extend(plan.axes.iter().map(|(axis, _)| Column::new(format!("axis_{axis}"), "", doc, Kind::Text)));
    columns
}

fn of_task(plan: &Plan, task: &Task) -> TableRow {
    let text = |t: &str| Value::Text(t.to_owned().into());
    let axes = plan.axes.iter().map(|(axis, _)| task.setting(axis).map_or(Value::Unknown, text));
    [Value::Count(task.number as u64), text(&task.program)].into_iter().chain(axes).collect()
}

fn of_tasks() -> Vec<Column> {
    vec![
        Column::new("seconds", "s", "How long the task ran.", Kind::Number),
        Column::new("machine", "", "The machine on which the task ran.", Kind::Text),
    ]
}
