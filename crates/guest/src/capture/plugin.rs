// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the capture plugin's file. The plugin is a separate file because it is GPL-2.0-or-later and QEMU
//! loads plugins from files.

use std::path::PathBuf;

use crate::error::GuestError;

const NAME: &str = "libbifold_capture_plugin.so";

/// The file that BIFOLD_PLUGIN names, else the first found beside the executable, in ../lib/bifold (an
/// installation), or in the parent directory (tests and examples run below the profile's directory).
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
