// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How each change is made, checked and undone, and what it costs: the catalogue in `changes.toml`.

use super::Change;
use serde::Deserialize;
use std::sync::LazyLock;

/// A change in words.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct How {
    /// The change.
    pub key: Change,
    /// The change, in a few words.
    pub name: String,
    /// Commands to copy, each after the place where it is run.
    pub commands: Vec<String>,
    /// How to see that the change is there.
    pub check: String,
    /// How to take the change back.
    pub undo: String,
    /// What the change costs beside memory that is counted.
    pub price: String,
}

#[derive(Deserialize)]
struct Catalogue {
    change: Vec<How>,
}

static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| toml::from_str(include_str!("changes.toml")).expect("a test reads the catalogue"));

/// The catalogue, in the order of changes' kinds.
pub fn catalogue() -> &'static [How] {
    &CATALOGUE.change
}

impl Change {
    /// The change in words, with how to make it.
    pub(crate) fn how(&self) -> How {
        let unknown = || How {
            key: self.clone(),
            name: match self {
                Change::Own(value) => value.clone(),
                other => format!("{other:?}"),
            },
            commands: vec!["the value of --axis".into()],
            check: "not known here".into(),
            undo: "the value of before".into(),
            price: "not known here".into(),
        };
        catalogue().iter().find(|how| how.key == *self).cloned().unwrap_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_each_change_once() {
        use Change::*;
        let all = [
            Host4k,
            Host2m,
            Host1g,
            Nested,
            Shadow,
            Inner4k,
            Inner2m,
            Inner1g,
            Outer4k,
            Outer2m,
            Outer1g,
            InnerNested,
            InnerShadow,
            Pvm,
            ThpAlways,
            ThpMadvise,
            ThpNever,
            MallocDefault,
            MallocThp,
            MallocHugetlb,
            KptiOff,
            KptiOn,
            BindNodes,
            FirstTouch,
            Interleave,
            OneNode,
        ];
        for change in &all {
            assert_eq!(catalogue().iter().filter(|how| how.key == *change).count(), 1, "{change:?}");
        }
        assert_eq!(catalogue().len(), all.len());
    }
}
