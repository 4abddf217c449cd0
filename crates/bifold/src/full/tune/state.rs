// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was tried, kept in a file between calls of `tune`.

use super::args::TuneArgs;
use super::settings::Base;
use crate::run::{ModelArgs, ProfileArg};
use anyhow::{Context as _, bail};
use bifold_base::whole;
use bifold_model::Profile;
use bifold_report::{Setting, Tried};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Name and version of the file's schema.
const SCHEMA: &str = "bifold.tune-state/2";
/// Most bytes of the file.
const MOST_BYTES: u64 = 16 << 20;

/// Runs that were made, of one command under one set of options.
pub struct State {
    file: Option<PathBuf>,
    /// What the runs are of.
    pub identity: Value,
    hardware: Profile,
    /// The runs; the first has the setting of now.
    pub tried: Vec<Tried>,
    /// What each says about huge pages.
    bases: Vec<[f64; 2]>,
}

/// What `bifold tune --state FILE` writes into FILE: the runs that were made, for the next call.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Document {
    /// Name and version of this schema.
    schema: String,
    /// What the runs depend on beside their setting: another call with the same file has to have the same.
    #[schemars(with = "Identity")]
    of: Value,
    /// The hardware profile of the runs; absent in files of earlier versions.
    #[serde(default)]
    hardware: Option<Profile>,
    /// The runs; the first has the setting of now.
    tried: Vec<Tried>,
    /// What each run says about huge pages: walks and waits of the cheapest configuration, and page faults of
    /// the guest. Unit: % of that configuration's time.
    bases: Vec<[f64; 2]>,
}

/// What runs depend on beside their setting.
#[derive(Serialize, JsonSchema)]
struct Identity<'a> {
    /// Version of Bifold.
    bifold: &'a str,
    /// The command and its arguments.
    command: Vec<Cow<'a, str>>,
    /// Name of the hardware profile.
    profile: &'a str,
    /// XXH3-64 of the profile as resolved, overrides included.
    profile_hash: String,
    /// The axes of the user's own, in Rust's notation.
    axes: String,
    /// Configuration of now, as given.
    now: &'a str,
    /// Whether every combination of the guest's settings was to be tried.
    all: bool,
    /// State of the VM when the program begins.
    vm: &'a str,
    /// Options of the model, in Rust's notation.
    model: String,
    /// Options of the guest, in Rust's notation.
    guest: String,
}

/// The schema of the file.
pub fn schema() -> Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// What runs depend on beside their setting.
pub fn identity(args: &TuneArgs, profile: &Profile) -> Value {
    // The profile counts by its values, however it was named.
    let model = ModelArgs { named: ProfileArg::default(), ..args.model.clone() };
    let identity = Identity {
        bifold: bifold_base::version(),
        command: args.command.iter().map(|w| w.to_string_lossy()).collect(),
        profile: &profile.name,
        profile_hash: profile.hash(),
        axes: format!("{:?}", args.axis),
        now: &args.now,
        all: args.all,
        vm: args.model.vm.name(),
        model: format!("{model:?}"),
        guest: format!("{:?}", args.guest),
    };
    serde_json::to_value(identity).expect("text alone")
}

/// Two values as shown: of options, the parts that differ.
fn differing(then: &str, now: &str) -> (String, String) {
    let parts = |text: &str| text.split(", ").map(String::from).collect::<Vec<_>>();
    let (then, now) = (parts(then), parts(now));
    if then.len() != now.len() {
        return (then.join(", "), now.join(", "));
    }
    let (then, now): (Vec<_>, Vec<_>) = then.into_iter().zip(now).filter(|(then, now)| then != now).unzip();
    (then.join(", "), now.join(", "))
}

fn read(path: &Path) -> anyhow::Result<Document> {
    let shown = path.display();
    let bytes =
        bifold_base::bounded::read(path, MOST_BYTES).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} was not written by `tune --state`: name another file"))
}

/// The profile of the runs that a file has; none without a file, and in a file of earlier versions.
///
/// # Errors
/// If the file is damaged.
pub fn profile(file: Option<&Path>) -> anyhow::Result<Option<Profile>> {
    let Some(path) = file.filter(|p| p.exists()) else { return Ok(None) };
    Ok(read(path)?.hardware)
}

impl State {
    /// Begins with what the file has, if there is one.
    ///
    /// # Errors
    /// If the file is of another command or other options, or damaged.
    pub fn open(file: Option<&Path>, identity: Value, hardware: &Profile) -> anyhow::Result<State> {
        let mut state = State {
            file: file.map(Path::to_path_buf),
            identity,
            hardware: hardware.clone(),
            tried: Vec::new(),
            bases: Vec::new(),
        };
        let Some(path) = file.filter(|p| p.exists()) else {
            state.save()?; // a path that cannot be written costs no run
            return Ok(state);
        };
        let shown = path.display();
        let Document { schema, of, tried, bases, .. } = read(path)?;
        if schema != SCHEMA || tried.len() != bases.len() {
            bail!("{shown} is not of schema {SCHEMA}: name another file");
        }
        if let Some(key) = state.identity.as_object().and_then(|o| o.keys().find(|k| o[*k] != of[*k])) {
            let text = |v: &Value| match &v[key] {
                Value::String(text) => text.clone(),
                Value::Null => "unknown".into(),
                other => other.to_string(),
            };
            let (then, now) = differing(&text(&of), &text(&state.identity));
            bail!(
                "{shown} has runs of another {key} ({then}, now {now}): name another file, or remove this one"
            );
        }
        (state.tried, state.bases) = (tried, bases);
        Ok(state)
    }

    /// What a run said about huge pages, if it was made.
    pub fn known(&self, setting: &Setting) -> Option<Base> {
        let i = self.tried.iter().position(|t| t.setting == *setting)?;
        let [walk_percent, fault_percent] = self.bases[i];
        Some(Base { walk_percent, fault_percent })
    }

    /// Adds a run, and writes the file.
    pub fn add(&mut self, tried: Tried, base: Base) -> anyhow::Result<()> {
        self.tried.push(tried);
        self.bases.push([base.walk_percent, base.fault_percent]);
        self.save()
    }

    fn save(&self) -> anyhow::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let document = Document {
            schema: SCHEMA.into(),
            of: self.identity.clone(),
            hardware: Some(self.hardware.clone()),
            tried: self.tried.clone(),
            bases: self.bases.clone(),
        };
        let text = serde_json::to_string_pretty(&document)?;
        whole::write(path, &[text.as_bytes()]).with_context(|| format!("cannot write {}", path.display()))
    }
}
