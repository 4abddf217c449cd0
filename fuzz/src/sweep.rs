// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-sweep`: descriptions of sweeps, plans and results in a folder, rows of tables.

use bifold_sweep::tables::{Source, Table};
use bifold_sweep::{Folder, Spec};
use std::path::Path;

/// A description: an error, or a plan whose tasks have their numbers.
pub fn sweep_spec(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = Spec::plan_of(text, Path::new("fuzz"), Path::new("/")) else { return };
    assert!(!plan.tasks.is_empty());
    assert!(plan.tasks.iter().enumerate().all(|(i, t)| t.number == i && !t.words().is_empty()));
    let named = |name: &String| plan.axes.iter().any(|(axis, _)| axis == name);
    assert!(plan.repeats.iter().all(named));
    let before = |t: &bifold_sweep::Task| plan.sources(t).iter().all(|source| source.number < t.number);
    assert!(plan.tasks.iter().all(before));
}

/// The files of a sweep's folder: the first half is its plan, the second the result of task 0.
pub fn sweep_folder(data: &[u8]) {
    let dir = tempfile::tempdir().expect("there is a folder for temporary files");
    let (plan, result) = data.split_at(data.len() / 2);
    std::fs::create_dir(dir.path().join("results")).expect("a folder");
    std::fs::write(dir.path().join("sweep.json"), plan).expect("a file");
    std::fs::write(dir.path().join("results/0000.json"), result).expect("a file");
    let Ok(folder) = Folder::open(dir.path()) else { return };
    let _ = folder.finished(0);
    folder.task(0).expect("a plan has tasks");
}

/// A result or timeline: an error, or rows with a value for each column.
pub fn sweep_tables(data: &[u8]) {
    let Ok(source) = Source::of("fuzz", data.to_vec()) else { return };
    for table in Table::ALL {
        let columns = table.columns().len();
        if let Ok(rows) = table.rows("fuzz", &source) {
            assert!(rows.iter().all(|row| row.len() == columns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{bytes, changed_lines, leaves, number, toml_value};
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const SPEC: &str = "options = ['--fast']\nrepeats = ['seed']\n[programs.a]\ngenerate = 't'\naxes = ['seed']\n\
         [programs.b]\nrun = ['true']\nenv = { A = '1' }\n[axes]\nseed = [1, 2]\n[axes.guest]\nsmall = ['-m', '1']\n";

    const FLEET: &str = "[fingerprints]\nimages = ['a=x', 'y']\nkey = 'k'\nparts = 4\nmemory = '1GiB'\n";

    fn plan() -> Value {
        serde_json::to_value(Spec::plan_of(SPEC, Path::new("good"), Path::new("/")).unwrap()).unwrap()
    }

    #[test]
    fn the_small_plan_opens() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("sweep.json"), plan().to_string()).unwrap();
        assert_eq!(Folder::open(dir.path()).unwrap().plan().tasks.len(), 2 + 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sweep_or_refused(
            data in bytes(), line in any::<usize>(), value in toml_value(),
            at in any::<prop::sample::Index>(), new in number(),
        ) {
            sweep_spec(&data);
            sweep_folder(&data);
            sweep_tables(&data);
            changed_lines(SPEC, line, &value, sweep_spec);
            changed_lines(FLEET, line, &value, sweep_spec);
            let mut document = plan();
            let mut all = leaves(&mut document);
            let i = at.index(all.len());
            *all[i] = new;
            let plan = document.to_string();
            let mut files = plan.clone().into_bytes();
            files.resize(2 * plan.len(), b' ');
            sweep_folder(&files);
        }
    }
}
