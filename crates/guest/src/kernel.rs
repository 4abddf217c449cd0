// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the guest's kernel: an image that boots fast, and its modules.
//!
//! The default is the kernel that Debian's `linux-image-amd64` depends on, or Ubuntu's `linux-image-virtual`.
//! It is downloaded as a package and unpacked into a cache, never installed. A bzImage is stored with its
//! payload unpacked beside it: QEMU starts an ELF kernel directly (PVH), and the guest need not unpack itself
//! under emulation, which takes some 3 s. An image without such a payload boots as it is, and so does the
//! kernel of a guest with 5-level tables, because the decompressor turns these on. Guests in 32-bit mode have
//! Debian's i386 kernels.

mod image;
mod series;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Apt;
use crate::error::GuestError;
use bifold_trace::TableFormat;
pub use image::own;
use image::{own_for, payload};
pub use series::{Series, series};
use series::{apt_with, newest_of_series};

/// A kernel and where its modules are.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The image that QEMU boots.
    pub image: PathBuf,
    /// A directory with *.ko files below it.
    pub modules: Option<PathBuf>,
    /// The release, as `uname -r` prints it.
    pub version: String,
}

/// A cache of fetched kernels, where they come from, and the modules that it keeps of each.
struct Store {
    name: &'static str,
    apt: Apt,
    /// Packages that depend on the default kernel's: the first that apt knows.
    defaults: &'static [&'static str],
    modules: &'static [&'static [&'static str]],
}

impl Store {
    /// The kernels of captured guests with these tables.
    fn of(tables: TableFormat) -> &'static Store {
        match tables {
            TableFormat::FourLevel | TableFormat::FiveLevel => &GUESTS,
            TableFormat::Pae => &PAE,
            TableFormat::TwoLevel => &TWO_LEVEL,
        }
    }

    fn names(&self) -> String {
        self.modules.concat().join(" ")
    }

    /// The package of the default kernel, e.g. linux-image-6.1.0-56-amd64. If apt knows none, the error is
    /// about the first.
    fn default(&self) -> Result<String, GuestError> {
        let mut found = self.defaults.iter().map(|d| self.apt.depends(d, PREFIX));
        let first = found.next().expect("each store has a default");
        first.or_else(|e| found.find_map(Result::ok).ok_or(e))
    }
}

/// The file that marks a stored kernel as complete. It lists the modules that are stored.
const COMPLETE: &str = "complete";

const GUESTS: Store = Store {
    name: "kernels",
    apt: Apt::Own,
    // Debian's, and Ubuntu's.
    defaults: &["linux-image-amd64", "linux-image-virtual"],
    modules: &[crate::modules::WANTED],
};
const PAE: Store =
    Store { name: "kernels-pae", apt: Apt::I386, defaults: &["linux-image-686-pae"], ..GUESTS };
const TWO_LEVEL: Store =
    Store { name: "kernels-32-bit", apt: Apt::I386, defaults: &["linux-image-686"], ..GUESTS };
/// The laboratory's kernels, which have the modules of KVM, of the balloon and of virtio-mem. They have a
/// cache of their own, so that fetching one does not change the guests' default.
const LAB: Store = Store {
    name: "lab-kernels",
    modules: &[crate::modules::WANTED, crate::modules::KVM, crate::modules::RECLAIM],
    ..GUESTS
};

pub(crate) fn cache_dir(name: &str) -> Result<PathBuf, GuestError> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => match std::env::var_os("HOME").filter(|v| !v.is_empty()) {
            Some(home) => Path::new(&home).join(".cache"),
            None => {
                return Err(GuestError::Spec(
                    "neither XDG_CACHE_HOME nor HOME says where Bifold's cache is".into(),
                ));
            }
        },
    };
    Ok(base.join("bifold").join(name))
}

const PREFIX: &str = "linux-image-";

/// The newest kernel in the guests' cache.
pub(crate) fn cached() -> Option<PathBuf> {
    newest_cached(&GUESTS)
}

fn newest_cached(store: &Store) -> Option<PathBuf> {
    let found = fs::read_dir(cache_dir(store.name).ok()?).into_iter().flatten();
    let complete = found.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.join(COMPLETE).exists());
    // By version: the order of fetching would not be reproducible.
    complete.max_by_key(|p| numbers(p))
}

fn numbers(path: &Path) -> Vec<u64> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// The kernel of a captured guest with these tables: the user's, else the newest in the cache, else a fetched
/// one.
pub(crate) fn find(
    image: Option<&Path>,
    modules: Option<&Path>,
    tables: TableFormat,
    stage: &mut dyn FnMut(&str),
) -> Result<Kernel, GuestError> {
    if let Some(image) = image {
        return own_for(image, modules, tables);
    }
    let store = Store::of(tables);
    if newest_cached(store).is_none() {
        store.apt.update(stage)?;
        fetch(store, &store.default()?, stage)?;
    }
    let dir = newest_cached(store)
        .ok_or_else(|| GuestError::KernelFetch { why: "the cache is empty after fetching".into() })?;
    let mut kernel = stored(&dir);
    if tables == TableFormat::FiveLevel {
        kernel.image = dir.join("vmlinuz");
    }
    Ok(Kernel { modules: modules.map(Path::to_path_buf).or(kernel.modules), ..kernel })
}

/// The default kernel of guests with these tables, which is fetched if the cache has none.
///
/// # Errors
/// If this machine's sources of packages have none, or there is no network.
pub fn default_of(tables: TableFormat, stage: &mut dyn FnMut(&str)) -> Result<Kernel, GuestError> {
    find(None, None, tables, stage)
}

/// The kernel of a guest that keeps running. `wanted` is an image (a path with a slash), a series such as
/// `6.12` (its newest Debian kernel) or a package; without it, the guest gets the default of captures.
///
/// # Errors
/// If there is no such kernel, and none can be fetched.
pub fn for_guest(wanted: Option<&str>, stage: &mut dyn FnMut(&str)) -> Result<Kernel, GuestError> {
    match wanted {
        None => find(None, None, TableFormat::FourLevel, stage),
        Some(path) if path.contains('/') => own(Path::new(path), None),
        Some(series) => for_lab(series, stage),
    }
}

fn stored(dir: &Path) -> Kernel {
    let elf = dir.join("vmlinux");
    Kernel {
        image: if elf.exists() { elf } else { dir.join("vmlinuz") },
        modules: Some(dir.join("modules")),
        version: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

/// A kernel with KVM's modules for the laboratory: of a package, or the newest of a series such as `6.1`. If
/// apt does not know the series, the newest kernel of the series in the cache.
pub fn for_lab(wanted: &str, stage: &mut dyn FnMut(&str)) -> Result<Kernel, GuestError> {
    let cache = cache_dir(LAB.name)?;
    let (apt, package) = if wanted.starts_with(PREFIX) {
        (apt_with(wanted, stage), wanted.to_owned())
    } else {
        match newest_of_series(wanted, stage) {
            Ok(found) => found,
            Err(e) => return newest_stored(&cache, wanted).ok_or(e),
        }
    };
    let dir = cache.join(version_of(&package));
    let kept = fs::read_to_string(dir.join(COMPLETE));
    if kept.as_ref().map(String::as_str).ok() != Some(LAB.names().as_str()) {
        match fetch(&Store { apt, ..LAB }, &package, stage) {
            // The stored kernel lacks modules of the present list; few boots need those.
            Err(_) if kept.is_ok() => {}
            other => other?,
        }
    }
    Ok(stored(&dir))
}

fn newest_stored(cache: &Path, series: &str) -> Option<Kernel> {
    let stem = format!("{series}.");
    fs::read_dir(cache)
        .ok()?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.join(COMPLETE).exists())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&stem)))
        .max_by_key(|p| numbers(p))
        .map(|p| stored(&p))
}

fn version_of(package: &str) -> &str {
    package.trim_start_matches(PREFIX).trim_end_matches("-unsigned")
}

pub(crate) fn tool(command: &mut Command, what: &str) -> Result<Vec<u8>, GuestError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command
        .output()
        .map_err(|e| GuestError::KernelFetch { why: format!("{name}: {e} (a Debian system has it)") })?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(GuestError::KernelFetch { why: format!("{what}: {}", text.trim()) })
}

/// The package of the kernel that guests get by default.
pub(crate) fn default_package() -> Result<String, GuestError> {
    GUESTS.default()
}

/// Downloads, unpacks and stores a kernel; all or nothing.
fn fetch(store: &Store, package: &str, stage: &mut dyn FnMut(&str)) -> Result<(), GuestError> {
    let cache = cache_dir(store.name)?;
    fs::create_dir_all(&cache).map_err(GuestError::file(&cache, "cannot create"))?;
    let tmp = cache.join(format!(".new-{}", std::process::id()));
    let result = fetch_into(&tmp, &cache, store, package, stage);
    let _ = fs::remove_dir_all(&tmp);
    result
}

fn fetch_into(
    tmp: &Path,
    cache: &Path,
    store: &Store,
    package: &str,
    stage: &mut dyn FnMut(&str),
) -> Result<(), GuestError> {
    let lost = |what| GuestError::file(tmp, what);
    let tree = tmp.join("tree");
    fs::create_dir_all(&tree).map_err(lost("cannot create"))?;
    let version = version_of(package);
    unpack(tmp, &tree, store, package, stage)?;
    let folders = ["lib/modules", "usr/lib/modules"].map(|d| tree.join(d).join(version));
    let modules =
        || folders.iter().find(|d| d.join("kernel").is_dir() && d.join("modules.builtin").is_file());
    let image = || {
        let boot = tree.join("boot").join(format!("vmlinuz-{version}"));
        [boot].into_iter().chain(folders.iter().map(|d| d.join("vmlinuz"))).find(|p| p.is_file())
    };
    // Ubuntu has the modules in a package of their own; Debian has since 7.2 the image, modules and lists so.
    for part in ["linux-modules", "linux-base", "linux-binary"] {
        if modules().is_none() || image().is_none() {
            unpack(tmp, &tree, store, &format!("{part}-{version}"), stage)?;
        }
    }
    let lacks = |what| GuestError::KernelFetch { why: format!("{package} has no {what}") };
    let lib = modules().ok_or_else(|| lacks("modules"))?;
    let vmlinuz = image().ok_or_else(|| lacks("image"))?;
    let done = tmp.join(version);
    fs::create_dir_all(&done).map_err(lost("cannot create"))?;
    let data = fs::read(&vmlinuz).map_err(GuestError::file(&vmlinuz, "cannot read"))?;
    if let Some(elf) = payload(&data) {
        fs::write(done.join("vmlinux"), elf).map_err(lost("cannot write"))?;
    }
    fs::rename(&vmlinuz, done.join("vmlinuz")).map_err(lost("cannot write"))?;
    for config in [tree.join("boot").join(format!("config-{version}")), lib.join("config")] {
        let _ = fs::rename(config, done.join("config"));
    }
    keep_needed(lib, &done.join("modules"), store.modules)?;
    fs::write(done.join(COMPLETE), store.names()).map_err(lost("cannot write"))?;
    let to = cache.join(version);
    if to.join(COMPLETE).exists() {
        // The kernel is stored already, with fewer modules or by another process. Modules are moved one by
        // one, because a laboratory may be booting from this directory.
        for module in fs::read_dir(done.join("modules")).map_err(lost("cannot read"))?.flatten() {
            let at = to.join("modules").join(module.file_name());
            fs::rename(module.path(), &at).map_err(GuestError::file(&at, "cannot write"))?;
        }
        let at = to.join(COMPLETE);
        return fs::rename(done.join(COMPLETE), &at).map_err(GuestError::file(&at, "cannot write"));
    }
    fs::rename(&done, &to).map_err(GuestError::file(&to, "cannot create"))
}

/// Downloads a package and unpacks it into `tree`.
fn unpack(
    tmp: &Path,
    tree: &Path,
    store: &Store,
    package: &str,
    stage: &mut dyn FnMut(&str),
) -> Result<(), GuestError> {
    stage(&format!("downloading {package}"));
    let deb = download(store.apt, package, tmp)?;
    stage(&format!("unpacking {package}"));
    tool(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(tree), "dpkg-deb -x")?;
    fs::remove_file(&deb).map_err(GuestError::file(&deb, "cannot remove"))
}

/// Downloads a package's file into a directory without another such file.
pub(crate) fn download(apt: Apt, package: &str, to: &Path) -> Result<PathBuf, GuestError> {
    let mut command = apt.command("apt-get")?;
    tool(command.args(["-q", "download", package]).current_dir(to), "apt-get download")?;
    fs::read_dir(to)
        .map_err(GuestError::file(to, "cannot read"))?
        .filter_map(|e| Some(e.ok()?.path()))
        .find(|p| p.extension() == Some(OsStr::new("deb")))
        .ok_or_else(|| GuestError::KernelFetch { why: "apt-get left no package".into() })
}

/// Copies the wanted modules and their dependencies out of a whole kernel's modules.
fn keep_needed(lib: &Path, to: &Path, wanted: &[&[&str]]) -> Result<(), GuestError> {
    fs::create_dir_all(to).map_err(GuestError::file(to, "cannot create"))?;
    let all = crate::modules::Modules::scan(lib)?;
    for module in all.with_dependencies(&wanted.concat()) {
        let name = module.file_name().unwrap_or_default();
        fs::copy(&module, to.join(name)).map_err(GuestError::file(&module, "cannot copy"))?;
    }
    let builtin = lib.join("modules.builtin");
    fs::copy(&builtin, to.join("modules.builtin")).map_err(GuestError::file(&builtin, "cannot copy"))?;
    Ok(())
}
