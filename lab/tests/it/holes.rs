// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The public holes of KVM's shadow MMU that the command knows are those that the modules' build looks for.

use std::collections::BTreeMap;
use std::path::Path;

use bifold_host::holes::HOLES;

#[test]
fn the_command_and_the_build_of_the_modules_know_the_same_holes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/holes");
    let mut built = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        built.insert(name, std::fs::read_to_string(path).unwrap());
    }
    let known: BTreeMap<_, _> = HOLES.iter().map(|hole| (hole.name.to_owned(), hole)).collect();
    assert!(built.keys().eq(known.keys()), "{:?} and {:?}", built.keys(), known.keys());
    for (name, text) in built {
        for fixed in text.lines().filter_map(|l| l.strip_prefix("// fixed: ")) {
            let (_, release) = fixed.split_once(' ').unwrap();
            // Releases of one distribution, and series that never had the hole, are the build's business.
            if release.contains(' ') || release.matches('.').count() < 2 {
                continue;
            }
            assert!(known[&name].fixed.contains(&release), "{name}: the command does not know {release}");
        }
    }
}
