// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the plugin's file. The plugin is a file of its own because it is GPL-2.0-or-later and QEMU
//! loads plugins from files.

use std::path::PathBuf;

use crate::error::GuestError;

const NAME: &str = "libbifold_capture_plugin.so";

/// Looks at BIFOLD_PLUGIN, beside the executable, in the installed place, then in the parent directory
/// (tests and examples run from a directory below the profile's).
pub(crate) fn find() -> Result<PathBuf, GuestError> {
    if let Some(path) = std::env::var_os("BIFOLD_PLUGIN").filter(|p| !p.is_empty()) {
        let path = PathBuf::from(path);
        return if path.is_file() { Ok(path) } else { Err(GuestError::PluginMissing) };
    }
    let exe = std::env::current_exe().map_err(GuestError::os("finding the executable"))?;
    let dir = exe.parent().unwrap_or(&exe);
    [dir.join(NAME), dir.join("../lib/bifold").join(NAME), dir.join("..").join(NAME)]
        .into_iter()
        .find(|p| p.is_file())
        .ok_or(GuestError::PluginMissing)
}
