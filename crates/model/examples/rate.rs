// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses per CPU second of the model on a built-in stream:
//! `cargo run --release -p bifold-model --example rate -- t:20000000 geometry-g nested-4k`.

use bifold_model::{Config, Model, Options, Profile};
use bifold_trace::{DecodeError, Generator};
use rustix::time::{ClockId, clock_gettime};

/// CPU seconds of this thread: what else the machine does does not count.
fn cpu() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let generator = Generator::parse(&args[0]).expect("a generator");
    let profile = Profile::load(&args[1], &[]).expect("a profile");
    let configs: Vec<Config> = match args.get(2) {
        Some(_) => args[2..].iter().map(|a| Config::from_name(a).expect("a configuration")).collect(),
        None => Config::ALL.to_vec(),
    };
    let options = Options { configs, guest_frames: generator.guest_frames(), ..Options::default() };
    let mut model = Model::new(&profile, options);
    let mut spent = 0.0;
    generator
        .run::<DecodeError>(&mut |words| {
            let begun = cpu();
            let result = model.consume(words);
            spent += cpu() - begun;
            result
        })
        .expect("well-formed events");
    let accesses = model.accesses();
    println!("{accesses} accesses in {spent:.3} CPU s: {:.1} M/s", accesses as f64 / 1e6 / spent);
    for c in model.finish().configs {
        println!("{} {:?}", c.config.name(), c.total);
    }
}
