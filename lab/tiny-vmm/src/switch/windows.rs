// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Widens the windows of the modules of `kernel/tests/windows`: places where the kernel looks at shared state without the
//! lock that protects this state, each with a parameter of `kvm` for a wait there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::vm::Unavailable;

const PARAMETERS: &str = "/sys/module/kvm/parameters";
/// All windows at once.
pub(super) const ALL: &str = "all";

/// The windows of this host's KVM.
pub(super) struct Windows(Vec<String>);

/// A window that is wide until this is dropped.
pub(super) struct Wide(PathBuf);

impl Windows {
    pub(super) fn here() -> Result<Windows> {
        let entries = fs::read_dir(PARAMETERS).context(PARAMETERS)?;
        let names =
            entries.filter_map(|e| Some(e.ok()?.file_name().to_str()?.strip_prefix("window_")?.to_owned()));
        let mut names: Vec<String> = names.filter(|n| n != "hits").collect();
        names.sort_unstable();
        if names.is_empty() {
            let lacks = "this KVM has no windows to widen: kernel/tests/windows builds modules that have";
            return Err(Unavailable(lacks.into()).into());
        }
        Ok(Windows(names))
    }

    pub(super) fn names(&self) -> &[String] {
        &self.0
    }

    /// Makes a window so many microseconds wide, or [`ALL`] of them.
    pub(super) fn widen(&self, name: &str, us: u64) -> Result<Wide> {
        let file = if name == ALL { "all_windows".into() } else { format!("window_{name}") };
        let path = Path::new(PARAMETERS).join(file);
        fs::write(&path, us.to_string()).with_context(|| path.display().to_string())?;
        Ok(Wide(path))
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "0");
    }
}

/// Whether any window is wide, so that cases with many rounds do fewer.
pub(crate) fn widened() -> bool {
    let Ok(windows) = Windows::here() else { return false };
    let wide = |name: &String| {
        fs::read_to_string(Path::new(PARAMETERS).join(format!("window_{name}")))
            .is_ok_and(|t| t.trim() != "0")
    };
    windows.names().iter().any(wide)
}
