// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the potential of the guests' memory at a marked time.

use super::{Runner, available_mib};
use crate::ExperimentError;
use crate::experiment::guests::Guest;
use crate::experiment::outcome::{Mark, Sample};
use crate::run::Tell;
use bifold_base::with_causes;
use bifold_share::image::{Image, PAGE};
use bifold_share::potential::{Options, Watch, count_watched};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Instant;

/// Memory of the host that a count must leave free, MiB.
const SPARE_MIB: u64 = 512;

impl Runner<'_> {
    /// Pauses the guests, copies their memory, resumes them, and counts.
    pub(super) fn count(&mut self, at_s: f64, tell: Tell<Sample>) -> Result<(), ExperimentError> {
        let living: u64 = self.guests.iter().filter_map(Guest::watched).map(|w| w.ram >> 20).sum();
        if living + SPARE_MIB > available_mib(self.options.host)? {
            let why = "the potential was not counted: there is no memory for copies of the guests'";
            self.note(format!("at {at_s:.1} s {why}"), tell);
            return Ok(());
        }
        let stood = Instant::now();
        let stopped = self.order_all("stop");
        let images: Result<Vec<Image>, _> = match &stopped {
            Ok(()) => self
                .guests
                .iter()
                .filter_map(|g| Some((g.watched()?, g.outcome.name.clone())))
                .map(|(w, name)| Image::of_process_resident(w.pid).map(|i| i.named(name)))
                .collect(),
            Err(_) => Ok(Vec::new()),
        };
        // After an error too, no guest stays paused.
        let resumed = self.order_all("cont");
        let paused_s = stood.elapsed().as_secs_f64();
        if let Err((guest, why)) = stopped.and(resumed) {
            self.note(format!("at {at_s:.1} s the potential was not counted: {guest}: {why}"), tell);
            return Ok(());
        }
        let images = match images {
            Ok(images) => images,
            // The next poll notices a guest that died just now.
            Err(e) => {
                self.note(format!("at {at_s:.1} s the potential was not counted: {}", with_causes(&e)), tell);
                return Ok(());
            }
        };
        let watch = Watch { progress: &|_| (), stop: self.options.stop };
        match count_watched(&images, &Options::default(), watch) {
            Ok(potential) => self.marks.push(Mark::of(at_s, paused_s, &potential)),
            Err(e) => {
                self.note(format!("at {at_s:.1} s the potential was not counted: {}", with_causes(&e)), tell)
            }
        }
        if let Some(dir) = self.options.dump {
            for image in &images {
                let name = format!("{}-{}-{at_s:.0}s.raw", file_name(&self.case.name), image.name());
                let ram = self.guests.iter().find(|g| g.outcome.name == image.name());
                let ram = ram.map_or(0, |g| g.outcome.memory_mib << 20);
                if let Err((path, e)) = dump(image, ram, dir.join(name)) {
                    self.note(format!("{}: cannot be written: {e}", path.display()), tell);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gives all guests an order; the error has the name of the first that did not take it.
    fn order_all(&mut self, command: &str) -> Result<(), (String, io::Error)> {
        let mut result = Ok(());
        for guest in &mut self.guests {
            if let Err(e) = guest.order(command) {
                // A guest that is ending does not answer; that is no failure of the count.
                let ended = matches!(
                    e.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                );
                if !ended {
                    result = result.and(Err((guest.outcome.name.clone(), e)));
                }
            }
        }
        result
    }
}

/// A case's name as a part of a file's name.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Writes an image as raw RAM of `ram` bytes, with holes for zero and missing pages. The file gets its name
/// when it is complete.
fn dump(image: &Image, ram: u64, path: PathBuf) -> Result<(), (PathBuf, io::Error)> {
    let new = path.with_extension("raw.new");
    let write = || {
        let file = File::create(&new)?;
        for (gfn, page) in image.pages() {
            if page.iter().any(|b| *b != 0) {
                file.write_all_at(page, gfn * PAGE as u64)?;
            }
        }
        file.set_len(ram)?;
        std::fs::rename(&new, &path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&new);
        (path, e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_the_image_and_leaves_nothing_where_it_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; 4 * PAGE];
        bytes[PAGE..2 * PAGE].fill(7);
        let image = Image::of_bytes("g", bytes.clone());
        let at = dir.path().join("g.raw");
        dump(&image, 4 * PAGE as u64, at.clone()).unwrap();
        assert_eq!(std::fs::read(&at).unwrap(), bytes);
        assert!(dump(&image, 0, dir.path().join("no/g.raw")).is_err());
        // A full disk, on the one device that every Linux has for that.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("full.raw.new")).unwrap();
        let (_, e) = dump(&image, 0, dir.path().join("full.raw")).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::StorageFull);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["g.raw"]);
    }
}
