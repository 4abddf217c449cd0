// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of Bifold's own TOML files. Each key is declared once, with its default and meaning: the struct
//! that serde reads and the reference pages are made of the declaration.

/// A text is no size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a size such as 512M or 2GiB")]
pub struct BadSize;

/// Bytes, from a number with a binary suffix: `512M`, `2GiB`, `4kB`. A number without a suffix counts `bare`
/// bytes.
///
/// ```
/// assert_eq!(bifold_host::keys::size("2GiB", 1), Ok(2 << 30));
/// ```
///
/// # Errors
/// If the text is no such number, or 16 EiB and more.
pub fn size(text: &str, bare: u64) -> Result<u64, BadSize> {
    const KIB: u64 = 1 << 10;
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix.strip_suffix("iB").or(suffix.strip_suffix('B')).unwrap_or(suffix) {
        "" if suffix.is_empty() => bare,
        "" => 1,
        "K" | "k" => KIB,
        "M" | "m" => KIB << 10,
        "G" | "g" => KIB << 20,
        "T" | "t" => KIB << 30,
        _ => return Err(BadSize),
    };
    number.parse().ok().and_then(|n: u64| n.checked_mul(unit)).ok_or(BadSize)
}

/// A key of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key.
    pub name: &'static str,
    /// Value if the key is not given, as text; empty if the key must be given.
    pub default: &'static str,
    /// Meaning, with unit and range.
    pub doc: &'static str,
}

/// A table of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The table as a file has it, or what stands for it in a list.
    pub head: &'static str,
    /// What the table is for.
    pub doc: &'static str,
    /// Its keys, in the order of the documentation.
    pub keys: &'static [Key],
}

/// Declares a table: the struct that serde reads, and the [`Table`] constant. Each key is a field with its
/// default, as text, and its meaning. Tables within the table stand behind the keys, after a `+`. The crate
/// needs serde.
///
/// ```ignore
/// bifold_host::toml_table! {
///     #[derive(Debug)]
///     Limits, LIMITS: "[limits]", "How often." {
///         #[serde(default)]
///         most: u64 = "0", "Most of all.";
///     }
/// }
/// assert_eq!(LIMITS.keys[0].name, "most");
/// ```
#[macro_export]
macro_rules! toml_table {
    (
        $( #[$meta:meta] )*
        $name:ident, $table:ident: $head:literal, $doc:literal {
            $( $( #[$attr:meta] )* $key:ident: $type:ty = $default:literal, $meaning:literal; )*
            $( + $( #[$table_attr:meta] )* $inner:ident: $inner_type:ty; )*
        }
    ) => {
        #[doc = $doc]
        $( #[$meta] )*
        #[derive(::serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $( #[doc = $meaning] $( #[$attr] )* pub $key: $type, )*
            $( #[doc = "A table."] $( #[$table_attr] )* pub $inner: $inner_type, )*
        }

        /// The table's keys.
        pub const $table: $crate::keys::Table = $crate::keys::Table {
            head: $head,
            doc: $doc,
            keys: &[$( $crate::keys::Key { name: stringify!($key), default: $default, doc: $meaning } ),*],
        };
    };
}
