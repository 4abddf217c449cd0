// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parameters of policies: TOML files, and the built-in sets.
//!
//! A file names its `policy` and gives the parameters; unknown keys are refused. A new
//! policy is a file under `policies/`, a line in [`Spec`] and a file under `params/`.

use crate::policies::*;
use crate::{Counters, Mode, ParameterError, Parameters, Policy};
use bifold_base::bounded;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

macro_rules! policies {
    (@every $params:ident, $seconds:literal) => { { let _ = $params; $seconds } };
    (@every $params:ident) => { $params.interval_s };
    ($( $name:literal = $variant:ident ( $params:ty ) $(every $seconds:literal)? ),* $(,)?) => {
        /// A policy and its parameters.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "policy")]
        #[allow(missing_docs)] // documented at the parameters
        pub enum Spec {
            $( #[serde(rename = $name)] $variant($params), )*
        }

        impl Spec {
            /// The policy's name, as in parameters: `policy = "NAME"`.
            pub fn name(&self) -> &'static str {
                match self { $( Spec::$variant(_) => $name, )* }
            }

            /// Length of the interval after which the policy decides, in seconds.
            pub fn interval_s(&self) -> f64 {
                match self { $( Spec::$variant(p) => policies!(@every p $(, $seconds)?), )* }
            }

            fn parameters(&self) -> &dyn Parameters {
                match self { $( Spec::$variant(p) => p, )* }
            }
        }
    };
}

policies! {
    "always" = Always(always::Always) every 1.0,
    "toggle" = Toggle(toggle::Toggle),
    "dsp" = Dsp(dsp::Dsp),
    "regret" = Regret(regret::Regret),
    "experts" = Experts(experts::Experts),
    "rpms" = Rpms(rpms::Rpms),
    "bae" = Bae(bae::Bae),
    "zhang" = Zhang(zhang::Zhang),
    "kuang" = Kuang(kuang::Kuang),
    "hiebel" = Hiebel(hiebel::Hiebel),
    "work-function" = WorkFunction(work_function::WorkFunction),
}

macro_rules! built_in {
    ($( $name:literal ),* $(,)?) => {
        /// The built-in parameter sets: name and TOML.
        pub const BUILT_IN: &[(&str, &str)] = &[
            $( ($name, include_str!(concat!("../params/", $name, ".toml"))) ),*
        ];
    };
}

built_in! {
    "always-shadow",
    "always-nested",
    "toggle",
    "dsp",
    "rpms-fixed-3",
    "rpms-fixed-20",
    "rpms-dynamic",
    "rpms-single",
    "rpms-shipped",
    "bae",
    "zhang",
    "kuang",
    "hiebel",
    "work-function",
    "regret",
    "experts",
}

/// Why parameters cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is neither a built-in set nor a file of that name.
    #[error("no policy `{name}`: give one of {known} or a TOML file")]
    Unknown {
        /// The name given.
        name: String,
        /// The names of the built-in sets.
        known: String,
    },
    /// Not TOML, or not the parameters of a policy.
    #[error("policy {name}: {message}")]
    Syntax {
        /// File or built-in name.
        name: String,
        /// What is wrong, with the place.
        message: String,
    },
    /// A parameter is out of its range, or contradicts another.
    #[error("policy {name}: {why}")]
    Range {
        /// File or built-in name.
        name: String,
        /// The parameter and its range.
        why: ParameterError,
    },
    /// No combination of a sweep's values is in range: the policy, their number, and why the first is not.
    #[error("policy {0}: none of {1} settings is in range: {2}")]
    NoneInRange(String, usize, String),
}

/// Parameters under a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Name for tables: the built-in set's, or the file's without extension.
    pub name: String,
    /// The policy and its parameters.
    #[serde(flatten)]
    pub spec: Spec,
}

impl Named {
    /// Parses and checks TOML text.
    pub fn parse(name: &str, text: &str) -> Result<Named, SpecError> {
        let spec: Spec = toml::from_str(text)
            .map_err(|e| SpecError::Syntax { name: name.into(), message: e.to_string().trim_end().into() })?;
        Named { name: name.into(), spec }.checked()
    }

    /// These parameters, if they are in range.
    pub fn checked(self) -> Result<Named, SpecError> {
        match self.spec.check() {
            Ok(()) => Ok(self),
            Err(why) => Err(SpecError::Range { name: self.name, why }),
        }
    }

    /// Loads a built-in set, or a TOML file.
    pub fn load(name: &str) -> Result<Named, SpecError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) {
            return Named::parse(name, text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|e| e != "toml") && !path.exists() {
            let known = BUILT_IN.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ");
            return Err(SpecError::Unknown { name: name.into(), known });
        }
        let text = bounded::read_to_string(path, bounded::TEXT)
            .map_err(|source| SpecError::Io { path: path.into(), source })?;
        let stem = path.file_stem().map_or_else(|| name.into(), |s| s.to_string_lossy().into_owned());
        Named::parse(&stem, &text)
    }

    /// These parameters with some changed.
    ///
    /// # Errors
    /// If the policy has no such parameter, or a value is out of its range.
    pub fn with(&self, changes: &toml::Table) -> Result<Named, SpecError> {
        let syntax = |message: String| SpecError::Syntax { name: self.name.clone(), message };
        if changes.contains_key("policy") {
            return Err(syntax("`policy` is no parameter".into()));
        }
        let mut table = toml::Table::try_from(&self.spec).map_err(|e| syntax(e.to_string()))?;
        table.extend(changes.clone());
        Named::parse(&self.name, &toml::to_string(&table).map_err(|e| syntax(e.to_string()))?)
    }

    /// All built-in sets.
    pub fn all() -> Vec<Named> {
        BUILT_IN.iter().map(|(n, t)| Named::parse(n, t).expect("a test parses every built-in set")).collect()
    }

    /// The built-in sets that decide by what they see: all except [`toggle`], which switches at a fixed pace.
    pub fn policies() -> Vec<Named> {
        Named::all().into_iter().filter(|n| !matches!(n.spec, Spec::Toggle(_))).collect()
    }
}

impl Spec {
    /// Checks the parameters; the error names the parameter and its range.
    pub fn check(&self) -> Result<(), ParameterError> {
        let interval = self.interval_s();
        if !(interval > 0.0 && interval <= 3600.0) {
            return Err(ParameterError::Interval(interval));
        }
        self.parameters().check()
    }

    /// The counters that the policy reads.
    pub fn needs(&self) -> Counters {
        self.parameters().needs()
    }

    /// Whether the policy reads the other mode's cost.
    pub fn needs_other(&self) -> bool {
        self.parameters().needs_other()
    }

    /// The policy at the start of a VM that runs in mode `start`.
    pub fn policy(&self, start: Mode) -> Box<dyn Policy> {
        self.parameters().policy(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_set_parses_is_in_range_and_survives_a_round_trip() {
        for named in Named::all() {
            let text = toml::to_string(&named.spec).unwrap();
            assert_eq!(Named::parse(&named.name, &text).unwrap(), named);
        }
    }

    #[test]
    fn changed_parameters_are_checked_like_those_of_a_file() {
        let dsp = Named::load("dsp").unwrap();
        let with = |text: &str| dsp.with(&toml::from_str(text).unwrap());
        assert_eq!(with("interval_s = 2.0").unwrap().spec.interval_s(), 2.0);
        assert_eq!(with("").unwrap(), dsp);
        for (text, told) in [
            ("intervall_s = 2.0", "unknown field"),
            ("interval_s = -1.0", "interval_s = -1"),
            ("policy = \"rpms\"", "no parameter"),
        ] {
            let e = with(text).unwrap_err().to_string();
            assert!(e.contains(told), "{e}");
        }
    }

    #[test]
    fn unknown_names_keys_and_values_out_of_range_are_told() {
        let e = Named::load("dps").unwrap_err().to_string();
        assert!(e.starts_with("no policy `dps`: give one of always-shadow"), "{e}");
        let e = Named::parse("x", "policy = \"always\"\nmode = \"shadow\"\nmod = 1").unwrap_err().to_string();
        assert!(e.contains("unknown field `mod`"), "{e}");
        let e = Named::parse("x", "policy = \"allways\"").unwrap_err().to_string();
        assert!(e.contains("unknown variant"), "{e}");
    }
}
