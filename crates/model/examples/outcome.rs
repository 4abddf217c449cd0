// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that a run of the model gives, as JSON, so that two revisions can be compared to the byte
//! (`tools/same-outcomes`):
//! `cargo run --release -p bifold-model --example outcome -- t:2000000 geometry-g 0.01`. The last argument is
//! the interval in seconds. Variables choose the rest: CACHES (`sampled` or `exact`), CONFIGS (names, with
//! commas), VCPUS, SWITCH (any value: a VM that changes its mode after every second interval), LOG (any
//! value: every exit, before the outcome), PLACED (any value: local and remote references), VM (the VM's
//! state at the start: `long-lived`, or `started` without the variable).

use bifold_model::{
    CacheMode, Config, Model, Options, Paging, Placement, PlacementOptions, Profile, Switching, VmState,
};
use bifold_trace::{DecodeError, Generator, Reader};
use std::env::var;
use std::path::Path;

type Sink<'a> = &'a mut dyn FnMut(&[u64]) -> Result<(), DecodeError>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, profile, rest @ ..] = &args[..] else {
        return Err("outcome STREAM PROFILE [SECONDS]".into());
    };
    let profile = Profile::load(profile, &[])?;
    let mut reader = Reader::open(Path::new(source)).ok();
    let (guest_frames, vcpus) = match &reader {
        Some(r) => (r.header().guest_frames, r.header().vcpus as usize),
        None => (Generator::parse(source)?.guest_frames(), 1),
    };
    let configs = match var("CONFIGS") {
        Ok(names) => names
            .split(',')
            .map(Config::from_name)
            .collect::<Option<_>>()
            .ok_or("CONFIGS has no such name")?,
        Err(_) => Config::ALL.to_vec(),
    };
    let options = Options {
        guest_frames,
        vcpus: var("VCPUS").ok().map_or(Ok(vcpus), |n| n.parse())?,
        caches: match var("CACHES").as_deref() {
            Ok("sampled") => CacheMode::Sampled,
            Ok("exact") => CacheMode::Exact,
            _ => CacheMode::Off,
        },
        vm: match var("VM") {
            Ok(name) => VmState::from_name(&name).ok_or("VM has no such state")?,
            Err(_) => VmState::Started,
        },
        placed: var("PLACED").is_ok().then(|| PlacementOptions {
            placements: vec![Placement::GuestNuma, Placement::Interleaved],
            host_nodes: 2,
            guest_nodes: Vec::new(),
        }),
        interval_seconds: rest.first().map_or(Ok(0.01), |s| s.parse())?,
        configs,
        ..Options::default()
    };
    let mut model = Model::new(&profile, options);
    if var("SWITCH").is_ok() {
        let to = |i: usize, now: Paging| match (i % 2, now) {
            (0, mode) => mode,
            (_, Paging::Nested) => Paging::Shadow,
            _ => Paging::Nested,
        };
        let switching = Switching {
            name: "by turns".into(),
            host_page: bifold_mmu::PageSize::Size4K,
            start: Paging::Nested,
            keep_nested: true,
        };
        model.add_switching(switching, Box::new(move |i, _, now| to(i, now)));
    }
    let log = var("LOG").is_ok();
    if log {
        model.log_exits();
    }
    let mut sink = |words: &[u64]| {
        let result = model.consume(words);
        model.take_exit_log().iter().for_each(|exit| println!("{exit:?}"));
        result
    };
    feed(source, reader.as_mut(), &mut sink)?;
    println!("{}", serde_json::to_string_pretty(&model.finish())?);
    Ok(())
}

/// A recording's words, or a built-in stream's.
fn feed(
    source: &str,
    reader: Option<&mut Reader>,
    model: Sink<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    let Some(reader) = reader else { return Ok(Generator::parse(source)?.run(model)?) };
    let mut words = Vec::new();
    while reader.next_block(&mut words)? {
        model(&words)?;
    }
    Ok(())
}
