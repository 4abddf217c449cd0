// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KSM's settings as a user writes them.

use anyhow::Context as _;
use bifold_host::ksm::Settings;

/// Settings written as NAME=VALUE.
pub fn settings(words: &[String]) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    for word in words {
        let (name, value) =
            word.split_once('=').with_context(|| format!("--set {word}: it takes NAME=VALUE"))?;
        settings.put_text(name.strip_prefix("ksm.").unwrap_or(name), value)?;
    }
    Ok(settings)
}
