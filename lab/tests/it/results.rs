// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of results.

use std::path::Path;
use std::process::Command;

#[test]
fn pages_say_of_which_model_and_modules_they_are() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../evidence/tools/stamps");
    let out = Command::new(tool).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}evidence/tools/stamps --help has both options");
}
