// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file that describes a sweep.

use crate::fleet::Fingerprints;
use crate::plan::{Plan, Task, Verb};
use bifold_trace::generate::Generator;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most tasks of a sweep.
pub(crate) const MOST_TASKS: usize = 100_000;
/// Options of `compare` that a sweep gives itself, or that a task cannot have: its only output is its result.
const OWN: [&str; 18] = [
    "--baseline",
    "--save-baseline",
    "--worse-than",
    "--format",
    "--output",
    "-o",
    "--quiet",
    "-q",
    "--report",
    "--runs",
    "--timeline",
    "--trace",
    "--pprof",
    "--flames",
    "--keep",
    "--generate",
    "--help",
    "-h",
];

/// Why a description of a sweep cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The file cannot be read.
    #[error("cannot read {}; docs/guide/sweep.md has an example", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file does not have the form of a sweep.
    #[error("{} describes no sweep", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: toml::de::Error,
    },
    /// A value cannot be used.
    #[error("{}: {field} {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        field: String,
        /// What is wrong with its value, and what to do.
        problem: String,
    },
}

/// A description of a sweep.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Options of `compare` for every task.
    #[serde(default)]
    options: Vec<String>,
    /// Axes whose values repeat a measurement: means and intervals are over them.
    #[serde(default = "seed")]
    repeats: Vec<String>,
    /// Fingerprints of guests' pages, in place of programs.
    fingerprints: Option<Fingerprints>,
    /// The programs by name.
    #[serde(default)]
    programs: BTreeMap<String, Program>,
    /// What is varied.
    #[serde(default)]
    axes: BTreeMap<String, Axis>,
}

/// A source of events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    /// A command and its arguments.
    run: Option<Vec<String>>,
    /// A recording.
    recording: Option<String>,
    /// A built-in generator.
    generate: Option<String>,
    /// Further options of `compare`.
    #[serde(default)]
    options: Vec<String>,
    /// Variables of the command's environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The axes that are varied for this program; all without the key.
    axes: Option<Vec<String>>,
}

/// The values of an axis.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Axis {
    /// Values of the option of `compare` that is called like the axis.
    Option(Vec<Scalar>),
    /// Options of `compare` by the name of a value.
    Named(BTreeMap<String, Vec<String>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Truth(bool),
    Count(i64),
    Number(f64),
    Text(String),
}

impl Scalar {
    fn text(&self) -> String {
        match self {
            Scalar::Truth(v) => v.to_string(),
            Scalar::Count(v) => v.to_string(),
            Scalar::Number(v) => v.to_string(),
            Scalar::Text(v) => v.clone(),
        }
    }
}

fn seed() -> Vec<String> {
    vec!["seed".into()]
}

/// A value of an axis: its name and the options that set it.
struct Value {
    name: String,
    options: Vec<String>,
}

impl Axis {
    fn values(&self, axis: &str) -> Vec<Value> {
        let of_option = |v: &Scalar| {
            let options = match v {
                Scalar::Truth(true) => vec![format!("--{axis}")],
                Scalar::Truth(false) => vec![],
                other => vec![format!("--{axis}={}", other.text())],
            };
            Value { name: v.text(), options }
        };
        match self {
            Axis::Option(values) => values.iter().map(of_option).collect(),
            Axis::Named(values) => {
                let named = |(name, options): (&String, &Vec<String>)| Value {
                    name: name.clone(),
                    options: options.clone(),
                };
                values.iter().map(named).collect()
            }
        }
    }
}

/// Whether a name can be a column, a part of a file's name and a word on a command line.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain) && name.len() <= 64
}

impl Spec {
    /// The plan of the sweep that a file describes. Commands run in the file's folder.
    ///
    /// ```no_run
    /// let plan = bifold_sweep::Spec::plan("sweep.toml".as_ref())?;
    /// println!("{} tasks", plan.tasks.len());
    /// # Ok::<(), bifold_sweep::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read, or describes no sweep.
    pub fn plan(path: &Path) -> Result<Plan, SpecError> {
        let io = |source| SpecError::Io { path: path.into(), source };
        let text = bifold_base::bounded::read_to_string(path, bifold_base::bounded::TEXT).map_err(io)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = parent.canonicalize().map_err(io)?;
        Spec::plan_of(&text, path, &folder)
    }

    /// The plan of the sweep that a text describes; `path` is for messages.
    ///
    /// # Errors
    /// If the text describes no sweep.
    pub fn plan_of(text: &str, path: &Path, folder: &Path) -> Result<Plan, SpecError> {
        let spec: Spec =
            toml::from_str(text).map_err(|source| SpecError::Form { path: path.into(), source })?;
        let bad = |field: String, problem: &str| {
            Err(SpecError::Value { path: path.into(), field, problem: problem.into() })
        };
        if let Some(fingerprints) = &spec.fingerprints {
            let alone = spec.programs.is_empty() && spec.axes.is_empty() && spec.options.is_empty();
            if !alone || spec.repeats != seed() {
                return bad(
                    "fingerprints".into(),
                    "goes with no program, axis, repeat or option: make two sweeps",
                );
            }
            let tasks = match fingerprints.tasks(folder) {
                Ok(tasks) => tasks,
                Err((key, problem)) => return bad(format!("fingerprints.{key}"), &problem),
            };
            return Ok(Plan::new(folder.to_path_buf(), vec![], vec![], tasks));
        }
        if spec.programs.is_empty() {
            return bad(
                "programs".into(),
                "is empty: add [programs.NAME] with run, recording or generate, or [fingerprints]",
            );
        }
        spec.check(&bad)?;
        let mut axes = Vec::new();
        let mut of_axes = BTreeMap::new();
        for (name, axis) in &spec.axes {
            let values = axis.values(name);
            if values.is_empty() {
                return bad(format!("axes.{name}"), "has no value");
            }
            for (i, value) in values.iter().enumerate() {
                if values[..i].iter().any(|v| v.name == value.name) {
                    return bad(format!("axes.{name}"), &format!("has the value {} twice", value.name));
                }
                if let Some(option) = own(&value.options) {
                    return bad(format!("axes.{name}"), &format!("sets {option}, which a task cannot have"));
                }
            }
            axes.push((name.clone(), values.iter().map(|v| v.name.clone()).collect()));
            of_axes.insert(name, values);
        }
        let mut tasks = Vec::new();
        for (name, program) in &spec.programs {
            let used = of_axes.iter().filter(|(axis, _)| program.varies(axis));
            let used: Vec<(&String, &Vec<Value>)> = used.map(|(axis, values)| (*axis, values)).collect();
            let combinations = used.iter().try_fold(1usize, |n, (_, values)| n.checked_mul(values.len()));
            if combinations.is_none_or(|n| tasks.len().saturating_add(n) > MOST_TASKS) {
                return bad("axes".into(), &format!("make more than {MOST_TASKS} tasks: sweep in parts"));
            }
            for i in 0..combinations.expect("checked above") {
                tasks.push(spec.task(tasks.len(), name, program, &used, i));
            }
        }
        let repeats = spec.repeats.iter().filter(|axis| spec.axes.contains_key(*axis)).cloned().collect();
        Ok(Plan::new(folder.to_path_buf(), axes, repeats, tasks))
    }

    fn check(&self, bad: &impl Fn(String, &str) -> Result<Plan, SpecError>) -> Result<(), SpecError> {
        let bad = |field: String, problem: &str| bad(field, problem).map(drop);
        let refuse = |wrong, field: String, problem: &str| if wrong { bad(field, problem) } else { Ok(()) };
        if let Some(option) = own(&self.options) {
            return bad("options".into(), &format!("has {option}, which a task cannot have"));
        }
        if let Some(axis) = self.repeats.iter().find(|r| *r != "seed" && !self.axes.contains_key(*r)) {
            return bad("repeats".into(), &format!("names {axis}, which is no axis"));
        }
        for axis in self.axes.keys() {
            let taken = ["task", "program", "config", "run", "mode", "host_page"];
            let problem =
                "names a column: use letters, digits, '-', '_' and '.', and no name of another column";
            refuse(!is_plain(axis) || taken.contains(&axis.as_str()), format!("axes.{axis}"), problem)?;
        }
        for (name, program) in &self.programs {
            let field = |key: &str| format!("programs.{name}{key}");
            refuse(!is_plain(name), field(""), "is a bad name: use letters, digits, '-', '_' and '.'")?;
            let sources = [program.run.is_some(), program.recording.is_some(), program.generate.is_some()];
            let one = sources.iter().filter(|s| **s).count() == 1;
            refuse(!one, field(""), "needs one of run, recording and generate")?;
            refuse(program.run.as_ref().is_some_and(Vec::is_empty), field(".run"), "is empty")?;
            if let Some(Err(e)) = program.generate.as_deref().map(Generator::parse) {
                return bad(field(".generate"), &e.to_string());
            }
            let useless = program.run.is_none() && !program.env.is_empty();
            refuse(useless, field(".env"), "is for a command, and the program has none")?;
            if let Some(option) = own(&program.options) {
                return bad(field(".options"), &format!("has {option}, which a task cannot have"));
            }
            let unknown = program.axes.iter().flatten().find(|axis| !self.axes.contains_key(*axis));
            if let Some(axis) = unknown {
                return bad(field(".axes"), &format!("names {axis}, which is no axis"));
            }
        }
        Ok(())
    }

    /// The task of a combination of values: the last axis varies first.
    fn task(
        &self,
        number: usize,
        name: &str,
        program: &Program,
        axes: &[(&String, &Vec<Value>)],
        mut i: usize,
    ) -> Task {
        let mut chosen = Vec::new();
        for (axis, values) in axes.iter().rev() {
            chosen.push(((*axis).clone(), &values[i % values.len()]));
            i /= values.len();
        }
        chosen.reverse();
        let mut args = [&self.options[..], &program.options].concat();
        args.extend(chosen.iter().flat_map(|(_, value)| value.options.iter().cloned()));
        match (&program.generate, &program.recording) {
            (Some(generator), _) => args.push(format!("--generate={generator}")),
            (_, Some(recording)) => args.push(recording.clone()),
            _ => {}
        }
        Task {
            number,
            verb: Verb::Compare,
            program: name.into(),
            settings: chosen.into_iter().map(|(axis, value)| (axis, value.name.clone())).collect(),
            args,
            profile: None,
            command: program.run.clone().unwrap_or_default(),
            env: program.env.clone().into_iter().collect(),
        }
    }
}

impl Program {
    fn varies(&self, axis: &str) -> bool {
        self.axes.as_ref().is_none_or(|axes| axes.iter().any(|a| a == axis))
    }
}

/// The first of the options that a task cannot have.
fn own(options: &[String]) -> Option<&str> {
    let name = |o: &String| OWN.iter().find(|own| o.split('=').next() == Some(**own)).copied();
    options.iter().take_while(|o| *o != "--").find_map(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn plan(text: &str) -> Result<Plan, SpecError> {
        Spec::plan_of(text, Path::new("sweep.toml"), Path::new("/tmp"))
    }

    #[test]
    fn every_combination_is_a_task() {
        let text = "options = ['--configs=nested-4k']\n\
             [programs.cc]\nrun = ['gcc', '-c', 'a.c']\noptions = ['--where']\nenv = { A = '1' }\n\
             [programs.table]\ngenerate = 'gups:100'\naxes = ['seed']\n\
             [axes]\nseed = [1, 2]\nfast = [true, false]\n\
             [axes.guest]\nsmall = ['--memory', '1G']\nbig = ['--memory', '8G', '--vcpus=2']\n";
        let plan = plan(text).unwrap();
        assert_eq!(plan.tasks.len(), 2 * 2 * 2 + 2);
        assert_eq!(plan.repeats, ["seed"]);
        let first = &plan.tasks[0];
        assert_eq!((first.program.as_str(), first.command[0].as_str()), ("cc", "gcc"));
        let options = ["--configs=nested-4k", "--where", "--fast", "--memory", "8G", "--vcpus=2", "--seed=1"];
        assert_eq!(first.args, options);
        assert_eq!(
            first.settings,
            [("fast", "true"), ("guest", "big"), ("seed", "1")].map(|(a, b)| (a.into(), b.into()))
        );
        let last = plan.tasks.last().unwrap();
        assert_eq!(last.args, ["--configs=nested-4k", "--seed=2", "--generate=gups:100"]);
        assert_eq!(plan.tasks.iter().map(|t| t.number).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn what_describes_no_sweep_is_refused_with_what_to_change() {
        let one = "[programs.a]\nrun = ['true']\n";
        for (text, says) in [
            ("".to_string(), "programs is empty"),
            ("[programs]".into(), "is empty"),
            ("[programs.a]\nrun = []".into(), "programs.a.run is empty"),
            ("[programs.a]".into(), "needs one of run, recording and generate"),
            ("[programs.a]\nrun = ['x']\ngenerate = 't'".into(), "needs one of"),
            ("[programs.a]\ngenerate = 'tt:5'".into(), "programs.a.generate"),
            ("[programs.'a b']\nrun = ['x']".into(), "is a bad name"),
            (format!("{one}[axes]\nseed = []"), "axes.seed has no value"),
            (format!("{one}[axes]\nseed = [1, 1]"), "has the value 1 twice"),
            (format!("{one}[axes]\nconfig = ['x']"), "names a column"),
            (format!("{one}[axes]\nruns = [1, 2]"), "sets --runs"),
            (format!("{one}[axes.x]\na = ['--output=f']"), "sets --output"),
            (format!("{one}options = ['--format', 'csv']"), "programs.a.options has --format"),
            (format!("repeats = ['x']\n{one}"), "names x, which is no axis"),
            (format!("{one}axes = ['x']"), "names x, which is no axis"),
            ("[programs.a]\ngenerate = 't'\nenv = { A = '1' }".into(), "is for a command"),
            (
                format!(
                    "{one}[axes]\na = [{0}]\nb = [{0}]",
                    (0..400).map(|i| i.to_string() + ",").collect::<String>()
                ),
                "sweep in parts",
            ),
        ] {
            let e = plan(&text).unwrap_err();
            let e =
                format!("{e}: {}", std::error::Error::source(&e).map_or(String::new(), |s| s.to_string()));
            assert!(e.contains(says), "{text:?}: {e}");
        }
    }

    proptest! {
        #[test]
        fn combinations_are_distinct_and_complete(sizes in prop::collection::vec(1usize..5, 0..4)) {
            let axis = |(i, n): (usize, &usize)| {
                format!("a{i} = [{}]\n", (0..*n).map(|v| format!("'{v}',")).collect::<String>())
            };
            let axes: String = sizes.iter().enumerate().map(axis).collect();
            let plan = plan(&format!("[programs.p]\ngenerate = 't'\n[axes]\n{axes}")).unwrap();
            let all: BTreeSet<_> = plan.tasks.iter().map(|t| t.settings.clone()).collect();
            prop_assert_eq!(all.len(), sizes.iter().product::<usize>());
            prop_assert_eq!(all.len(), plan.tasks.len());
        }
    }
}
