// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses per second of the model on a built-in stream:
//! `cargo run --release -p bifold-model --example rate -- t:20000000 geometry-g nested-4k`.

use bifold_model::{Config, Model, Options, Profile};
use bifold_trace::{DecodeError, Generator};
use std::time::{Duration, Instant};

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
    let mut spent = Duration::ZERO;
    generator
        .run::<DecodeError>(&mut |words| {
            let begun = Instant::now();
            let result = model.consume(words);
            spent += begun.elapsed();
            result
        })
        .expect("well-formed events");
    let accesses = model.accesses();
    println!("{} accesses in {:.3} s: {:.1} M/s", accesses, spent.as_secs_f64(), accesses as f64 / 1e6 / spent.as_secs_f64());
    for c in model.finish().configs {
        println!("{} {:?}", c.config.name(), c.total);
    }
}
