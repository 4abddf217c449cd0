// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values by paging mode, for as many modes as there are values.

use crate::Mode;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize, Serializer};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::{Index, IndexMut};

/// The mode of that name, as in every input and output.
pub fn mode_from_name(name: &str) -> Option<Mode> {
    Mode::deserialize(StrDeserializer::<Error>::new(name)).ok()
}

/// A value for each of some modes: first shadow and nested, which a hypervisor switches between, then the
/// others. A mode without a value is unknown. Outputs have the values alone, in this order.
#[derive(Debug, Clone, PartialEq)]
pub struct PerMode<T>(Values<T>);

/// Without an allocation for as many modes as there are: policies make such values in every interval.
type Values<T> = SmallVec<[(Mode, T); 4]>;

impl<T> Default for PerMode<T> {
    fn default() -> Self {
        PerMode(SmallVec::new())
    }
}

impl<T> PerMode<T> {
    /// The mode's value; none if the mode has none.
    #[inline]
    pub fn get(&self, mode: Mode) -> Option<&T> {
        self.0.iter().find(|(m, _)| *m == mode).map(|(_, value)| value)
    }

    /// The mode's value, for changes.
    #[inline]
    pub fn get_mut(&mut self, mode: Mode) -> Option<&mut T> {
        self.0.iter_mut().find(|(m, _)| *m == mode).map(|(_, value)| value)
    }

    /// The mode's value, which is `new` if the mode had none.
    pub fn or_insert(&mut self, mode: Mode, new: T) -> &mut T {
        if self.get(mode).is_none() {
            let rank = |m: Mode| (m.switchable().is_none(), m.switchable(), m);
            let at = self.0.partition_point(|(m, _)| rank(*m) < rank(mode));
            self.0.insert(at, (mode, new));
        }
        &mut self[mode]
    }

    /// Sets the mode's value.
    pub fn insert(&mut self, mode: Mode, value: T) {
        match self.0.iter().position(|(m, _)| *m == mode) {
            Some(at) => self.0[at].1 = value,
            None => _ = self.or_insert(mode, value),
        }
    }

    /// Removes the mode's value.
    pub fn remove(&mut self, mode: Mode) -> Option<T> {
        let at = self.0.iter().position(|(m, _)| *m == mode)?;
        Some(self.0.remove(at).1)
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The modes that have a value.
    pub fn modes(&self) -> impl DoubleEndedIterator<Item = Mode> + '_ {
        self.0.iter().map(|(mode, _)| *mode)
    }

    /// The modes and their values.
    pub fn iter(&self) -> impl Iterator<Item = (Mode, &T)> {
        self.0.iter().map(|(mode, value)| (*mode, value))
    }

    /// The values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    /// The modes and their values, for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Mode, &mut T)> {
        self.0.iter_mut().map(|(mode, value)| (*mode, value))
    }

    /// A value of another kind for each mode.
    pub fn map<U>(&self, mut of: impl FnMut(Mode, &T) -> U) -> PerMode<U> {
        PerMode(self.0.iter().map(|(mode, value)| (*mode, of(*mode, value))).collect())
    }
}

impl<T> IntoIterator for PerMode<T> {
    type Item = (Mode, T);
    type IntoIter = smallvec::IntoIter<[(Mode, T); 4]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T> FromIterator<(Mode, T)> for PerMode<T> {
    fn from_iter<I: IntoIterator<Item = (Mode, T)>>(values: I) -> Self {
        let mut all = PerMode::default();
        values.into_iter().for_each(|(mode, value)| all.insert(mode, value));
        all
    }
}

impl<T, const N: usize> From<[(Mode, T); N]> for PerMode<T> {
    fn from(values: [(Mode, T); N]) -> Self {
        values.into_iter().collect()
    }
}

/// # Panics
/// If the mode has no value.
impl<T> Index<Mode> for PerMode<T> {
    type Output = T;

    #[inline]
    fn index(&self, mode: Mode) -> &T {
        self.get(mode).unwrap_or_else(|| panic!("nothing is known of {}", mode.words()))
    }
}

impl<T> IndexMut<Mode> for PerMode<T> {
    #[inline]
    fn index_mut(&mut self, mode: Mode) -> &mut T {
        self.get_mut(mode).unwrap_or_else(|| panic!("nothing is known of {}", mode.words()))
    }
}

impl<T: JsonSchema> JsonSchema for PerMode<T> {
    fn schema_name() -> Cow<'static, str> {
        Vec::<T>::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Vec::<T>::json_schema(generator)
    }
}

impl<T: Serialize> Serialize for PerMode<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.values())
    }
}
