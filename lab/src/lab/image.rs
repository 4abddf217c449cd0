// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the laboratory's initramfs: init, the modules, KVM, and the files of inner guests.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bifold_guest::cpio::{Archive, Entry};
use bifold_guest::image;
use bifold_guest::modules::{self, Modules};

use super::job::{Job, at};
use super::kvm_module;
use super::{DATA_DIRS, FIRMWARE, Lab, LabError, Plan, beside, os};

fn plain_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.trim_end_matches(".xz").trim_end_matches(".zst").to_owned()
}

/// KVM's parameter for the mode of new VMs. Only a KVM that can switch VMs has it.
const SWITCHABLE: &str = "paging_mode:";

impl Lab {
    fn add_modules(&self, archive: &mut Archive, wanted: &[&str]) -> Result<(), LabError> {
        let (vendor, version) = (self.vendor, || self.kernel.version.clone());
        let no_kvm = || LabError::NoKvm { vendor, version: version() };
        let mut all = match &self.kernel.modules {
            Some(dir) => Modules::scan(dir)?,
            None => return Err(no_kvm()),
        };
        if let Some(own) = &self.own {
            all = all.with(own)?;
        }
        if !all.has(vendor.module) {
            return Err(no_kvm());
        }
        let (mut count, mut switchable) = (0, false);
        for path in all.with_dependencies(&[wanted, &[vendor.module]].concat()) {
            let name = plain_name(&path);
            let data = modules::read(&path)?;
            let built = modules::info(&data, "vermagic").pop().unwrap_or_default();
            let built = built.split(' ').next().unwrap_or_default();
            if built != self.kernel.version {
                return Err(LabError::OtherKernel { path, built: built.into(), version: version() });
            }
            let mut add = |at: String, data| archive.add(at.as_bytes(), Entry::File { mode: 0o600, data });
            match name.trim_end_matches(".ko").replace('-', "_").as_str() {
                name if name == vendor.module => {
                    let shadow = match vendor.shadow_fix {
                        Some(function) => kvm_module::for_shadow(&data, function)
                            .map_err(|why| LabError::Module { version: version(), why })?,
                        None => data.clone(),
                    };
                    if switchable {
                        // One module serves both modes.
                        add(format!("{}/{}", at::KVM, at::SWITCHABLE), shadow);
                    } else {
                        add(format!("{}/nested.ko", at::KVM), data);
                        add(format!("{}/shadow.ko", at::KVM), shadow);
                    }
                    continue;
                }
                // kvm.ko comes first, because the vendor's module needs it.
                "kvm" => {
                    switchable = modules::info(&data, "parm").iter().any(|p| p.starts_with(SWITCHABLE))
                        || modules::info(&data, "parmtype").iter().any(|p| p.starts_with(SWITCHABLE));
                }
                _ => {}
            }
            // Init loads them in the order of their names.
            add(format!("{}/{count:02}-{name}", at::MODULES), data);
            count += 1;
        }
        Ok(())
    }

    /// Adds stock QEMU, and the kernel of inner guests.
    fn add_emulator(&self, archive: &mut Archive) -> Result<(), LabError> {
        image::add_program(archive, &self.qemu.path)?;
        for name in FIRMWARE {
            let found = DATA_DIRS.iter().map(|d| Path::new(d).join(name)).find(|p| p.exists());
            if let Some(path) = found {
                let data = fs::read(&path).map_err(os("reading QEMU's firmware"))?;
                let at = Path::new(DATA_DIRS[0]).join(name);
                archive.add(at.as_os_str().as_bytes(), Entry::File { mode: 0o644, data });
            }
        }
        let data = fs::read(&self.inner.image).map_err(os("reading the kernel"))?;
        archive.add(at::INNER_KERNEL.as_bytes(), Entry::File { mode: 0o644, data });
        Ok(())
    }

    /// Modules of inner guests that are built in the laboratory. `wanted` are theirs.
    fn add_inner(&self, archive: &mut Archive, wanted: &[&str]) -> Result<(), LabError> {
        let Some(dir) = &self.inner.modules else { return Ok(()) };
        let mut wanted = Modules::scan(dir)?.with_dependencies(wanted);
        wanted.push(dir.join("modules.builtin"));
        for path in wanted {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let data = fs::read(&path).map_err(os("reading the kernel"))?;
            let at = format!("{}/{name}", at::INNER_MODULES);
            archive.add(at.as_bytes(), Entry::File { mode: 0o644, data });
        }
        Ok(())
    }

    /// The initramfs of a guest with this first process: empty directories, and the modules of [`PORTS`] in
    /// /m.
    fn bare_guest(&self, init: Vec<u8>) -> Result<Archive, LabError> {
        let mut archive = Archive::default();
        archive.add(b"init", Entry::File { mode: 0o755, data: init });
        for dir in ["dev", "proc", "sys", "tmp", "m"] {
            archive.add(dir.as_bytes(), Entry::Dir { mode: 0o755 });
        }
        if let Some(dir) = &self.inner.modules {
            for (i, path) in Modules::scan(dir)?.with_dependencies(&PORTS).iter().enumerate() {
                let at = format!("m/{i:02}-{}", plain_name(path));
                archive.add(at.as_bytes(), Entry::File { mode: 0o600, data: modules::read(path)? });
            }
        }
        Ok(archive)
    }

    /// Makes the initramfs of a storm's guest, whose first process is the load.
    fn storm(&self) -> Result<Vec<u8>, LabError> {
        let load = fs::read(crate::STORM).map_err(os("reading the load of storms"))?;
        Ok(self.bare_guest(load)?.bytes())
    }

    /// Makes the initramfs of a guest whose first process is a script for busybox. The programs are there
    /// under their own paths, and modules for virtio-serial ports in /m, in the order of their needs.
    pub fn script_guest(&self, script: &str, programs: &[&Path]) -> Result<Vec<u8>, LabError> {
        Ok(self.script_guest_archive(script, programs)?.bytes())
    }

    /// The same, to which more files can be added.
    pub(crate) fn script_guest_archive(&self, script: &str, programs: &[&Path]) -> Result<Archive, LabError> {
        let init = format!("#!{} sh\n{script}", crate::BUSYBOX);
        let mut archive = self.bare_guest(init.into_bytes())?;
        for path in [&[Path::new(crate::BUSYBOX)], programs].concat() {
            image::add_program(&mut archive, path)?;
        }
        Ok(archive)
    }

    /// Builds the whole image.
    pub(super) fn image(&self, plan: &Plan) -> Result<Vec<u8>, LabError> {
        let mut archive = Archive::default();
        let init = beside("lab-init")?;
        image::add_program(&mut archive, &init)?;
        archive.add(b"init", Entry::Link { to: init.as_os_str().as_bytes().to_vec() });
        for (dir, mode) in
            [("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777), ("lab/out", 0o755)]
        {
            archive.add(dir.as_bytes(), Entry::Dir { mode });
        }
        for path in &plan.programs {
            if !image::executable(path) {
                return Err(LabError::Program { path: path.clone(), why: "not an executable file" });
            }
            image::add_program(&mut archive, path)?;
        }
        for path in &plan.files {
            image::add_tree(&mut archive, path)?;
        }
        for (path, data) in &plan.made {
            archive.add(path.as_bytes(), Entry::File { mode: 0o644, data: data.clone() });
        }
        let mut wanted = PORTS.to_vec();
        if plan.swap_mib > 0 {
            wanted.push("virtio_blk");
        }
        self.add_modules(&mut archive, &wanted)?;
        let has = |f: fn(&Job) -> bool| plan.jobs.jobs.iter().any(f);
        let (inner, storm) = (has(|j| matches!(j, Job::Inner(_))), has(|j| matches!(j, Job::Storm(_))));
        if inner || storm || plan.emulator || plan.inside.is_some() {
            self.add_emulator(&mut archive)?;
        }
        if inner {
            let host_root = has(|j| matches!(j, Job::Inner(inner) if inner.host_root));
            self.add_inner(&mut archive, if host_root { modules::WANTED } else { &PORTS })?;
        }
        if storm {
            archive.add(at::STORM.as_bytes(), Entry::File { mode: 0o600, data: self.storm()? });
        }
        if let Some(inside) = &plan.inside {
            archive.add(at::MACHINE.as_bytes(), Entry::File { mode: 0o600, data: self.image(inside)? });
        }
        let parameters = self.parameters.join(" ").into_bytes();
        archive.add(at::PARAMETERS.as_bytes(), Entry::File { mode: 0o600, data: parameters });
        let jobs = serde_json::to_vec(&plan.jobs).expect("jobs are plain data");
        archive.add(at::JOBS.as_bytes(), Entry::File { mode: 0o600, data: jobs });
        Ok(archive.bytes())
    }
}

const PORTS: [&str; 2] = ["virtio_pci", "virtio_console"];
