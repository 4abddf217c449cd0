// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KSM's settings from `--set NAME=VALUE`.

use crate::usage::UsageError;
use bifold_host::ksm::Settings;

/// The settings of `--set NAME=VALUE`.
pub fn settings(words: &[String]) -> Result<Settings, UsageError> {
    let mut settings = Settings::default();
    for word in words {
        let refused = |problem: &str| UsageError::value(format!("--set {word}"), problem).failing();
        let (name, value) = word.split_once('=').ok_or_else(|| refused("write it as NAME=VALUE"))?;
        settings
            .put_text(name.strip_prefix("ksm.").unwrap_or(name), value)
            .map_err(|e| refused(&e.to_string()))?;
    }
    Ok(settings)
}
