// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which Bifold wrote a result: the version, and the revision that the program was built from.

use std::sync::OnceLock;

const RELEASE: &str = env!("CARGO_PKG_VERSION");

static WHOLE: OnceLock<String> = OnceLock::new();

/// Notes the revision that the program was built from: 12 digits of `git`'s, and `.modified` behind them if
/// files had changed. A program that knows its revision calls this first. Libraries do not know it: they
/// would all be built again after each commit.
pub fn built_from(revision: &str) {
    if !revision.is_empty() {
        let _ = WHOLE.set(format!("{RELEASE}+{revision}"));
    }
}

/// The version with the revision, as Semantic Versioning writes build metadata: `0.2.0+204b6cbb1234`. The
/// version alone where the revision is unknown.
pub fn version() -> &'static str {
    WHOLE.get().map_or(RELEASE, String::as_str)
}

/// The version without the revision, and the revision, which is empty if it is unknown.
///
/// ```
/// assert_eq!(bifold_base::version::parts("0.2.0+204b6cbb1234"), ("0.2.0", "204b6cbb1234"));
/// ```
pub fn parts(version: &str) -> (&str, &str) {
    version.split_once('+').unwrap_or((version, ""))
}
