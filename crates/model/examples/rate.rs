// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses per CPU second of the model on a recording or a built-in stream:
//! `cargo run --release -p bifold-model --example rate -- t:20000000 geometry-g nested-4k`. Data caches are
//! off, unless the variable CACHES is `sampled` or `exact`. The variable SET replaces values of the profile:
//! `tlb.l2.ways=64`, more of them with spaces between. With USES, the use of memory is watched too; its value
//! is the number of references that Belady's optimum may keep.

use bifold_model::{CacheMode, Config, Model, Options, Profile, UseOptions};
use bifold_trace::{DecodeError, Generator, Reader};
use rustix::time::{ClockId, clock_gettime};
use std::num::NonZeroU64;
use std::path::Path;

/// CPU seconds of this thread: what else the machine does does not count.
fn cpu() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// A recording, or a built-in stream.
fn feed(source: &str, model: &mut dyn FnMut(&[u64]) -> Result<(), DecodeError>) {
    match Reader::open(Path::new(source)) {
        Ok(mut reader) => {
            let mut words = Vec::new();
            while reader.next_block(&mut words).expect("a whole recording") {
                model(&words).expect("well-formed events");
            }
        }
        Err(_) => Generator::parse(source)
            .expect("a recording or a generator")
            .run(model)
            .expect("well-formed events"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let set: Vec<String> =
        std::env::var("SET").unwrap_or_default().split_whitespace().map(String::from).collect();
    let profile = Profile::load(&args[1], &set).expect("a profile");
    let configs: Vec<Config> = match args.get(2) {
        Some(_) => args[2..].iter().map(|a| Config::from_name(a).expect("a configuration")).collect(),
        None => Config::ALL.to_vec(),
    };
    let (guest_frames, vcpus) = match Reader::open(Path::new(&args[0])) {
        Ok(reader) => (reader.header().guest_frames, reader.header().vcpus as usize),
        Err(_) => (Generator::parse(&args[0]).expect("a generator").guest_frames(), 1),
    };
    let caches = match std::env::var("CACHES").as_deref() {
        Ok("sampled") => CacheMode::Sampled,
        Ok("exact") => CacheMode::Exact,
        _ => CacheMode::Off,
    };
    let options = Options { configs, guest_frames, vcpus, caches, ..Options::default() };
    let mut model = Model::new(&profile, options);
    if let Ok(uses) = std::env::var("USES") {
        let optimum = uses.parse().expect("a number");
        let interval = NonZeroU64::new(100_000_000).expect("not 0");
        model.watch_uses(UseOptions { interval, optimum }).expect("native among the configurations");
    }
    let mut spent = 0.0;
    feed(&args[0], &mut |words| {
        let begun = cpu();
        let result = model.consume(words);
        spent += cpu() - begun;
        result
    });
    let accesses = model.accesses();
    println!("{accesses} accesses in {spent:.3} CPU s: {:.1} M/s", accesses as f64 / 1e6 / spent);
    for c in model.finish().configs {
        println!("{} {:?}", c.config.name(), c.total);
    }
}
