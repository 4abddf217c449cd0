// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use bifold_daemon::Config;
use bifold_policy::{Estimator, Mode, Named};
use clap::Parser as _;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: TrainArgs,
}

fn args(words: &[&str]) -> TrainArgs {
    Line::try_parse_from([&["train", "--quiet"], words].concat()).unwrap().args
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A host whose law is known: in shadow paging walks cost `WALKS` of what they cost in nested paging, and a
/// page fault costs `FAULT` cycles.
const WALKS: f64 = 0.4;
const FAULT: f64 = 6000.0;

/// What a guest does in a phase, per step.
#[derive(Clone, Copy)]
struct Phase {
    instructions: f64,
    walks: f64,
    faults: f64,
}

/// A row of the recording. Speed is what the host's cycles allow: a second has 2e9.
fn row(out: &mut String, time: f64, name: &str, mode: Option<Mode>, phase: Phase, random: &mut Random) {
    let mut noisy = |x: f64| x * (1.0 + 0.02 * (random.next() - 0.5));
    let (walks, vmm) = match mode {
        Some(Mode::Shadow) => (phase.walks * WALKS, phase.faults * FAULT),
        // The interval of a switch is cold.
        None => (phase.walks * 5.0, phase.faults * FAULT),
        _ => (phase.walks, 0.0),
    };
    let steps = (2e9 / noisy(phase.instructions + walks + vmm)).round();
    let mode = mode.map_or(String::new(), |m| format!("\"mode\":\"{}\",", m.name()));
    let _ = writeln!(
        out,
        "{{\"schema\":\"bifold.stat/1\",\"time\":{time},\"seconds\":1.0,\"vm\":\"1-{name}\",\"name\":\"{name}\",{mode}\
         \"cycles\":2e9,\"load\":1.0,\"reported_progress\":{steps},\"instructions\":{:.0},\"walk_cycles\":{:.0},\
         \"vmm_cycles\":{:.0},\"tlb_misses_4k\":{:.0},\"tlb_misses_2m\":0,\"tlb_misses_1g\":0,\"guest_page_faults\":{:.0}}}",
        phase.instructions * steps,
        walks * steps,
        vmm * steps,
        phase.walks / 35.0 * steps,
        phase.faults * steps,
    );
}

/// A recording of a VM: phases of two minutes with a probe of 20 s in each. `following`: a policy also
/// switches exactly at the phases' changes, for 40 s, so that other work was done in the other mode.
fn recording(name: &str, seed: u64, phases: usize, following: bool) -> String {
    let (mut random, mut out) = (Random(seed), String::new());
    for n in 0..phases {
        let chasing = (n + seed as usize) % 2 == 0;
        let phase = match chasing {
            true => Phase { instructions: 1e7, walks: 2e6 + 6e6 * random.next(), faults: 5.0 },
            false => Phase { instructions: 8e6, walks: 1e5, faults: 200.0 + 300.0 * random.next() },
        };
        let other = Phase { instructions: 3e6, walks: 3e6, faults: 900.0 };
        for second in 0..120 {
            let (mode, work) = match second {
                40 | 60 => (None, phase),
                41..60 => (Some(Mode::Shadow), phase),
                80 | 100 if following => (None, other),
                81..100 if following => (Some(Mode::Shadow), other),
                _ => (Some(Mode::Nested), phase),
            };
            row(&mut out, (120 * n + second) as f64, name, mode, work, &mut random);
        }
    }
    out
}

/// Trains on these recordings; the result's text.
fn train(what: &str, recordings: &[String]) -> anyhow::Result<Trained> {
    let dir = tempfile::tempdir().unwrap();
    let mut args = args(&[what]);
    for (n, text) in recordings.iter().enumerate() {
        let path = dir.path().join(format!("r{n}.jsonl"));
        std::fs::write(&path, text).unwrap();
        args.timelines.push(path);
    }
    learn(&args)
}

fn host(following: bool) -> [String; 3] {
    [("web", 1), ("db", 2), ("mail", 3)].map(|(name, seed)| recording(name, seed, 10, following))
}

/// A coefficient of the estimator's file.
fn coefficient(toml: &str, mode: &str, counter: &str) -> f64 {
    toml.parse::<toml::Table>().unwrap()[mode]["extra"][counter].as_float().unwrap()
}

#[test]
fn recordings_of_a_known_law_give_the_law_back_and_phases_do_not_spoil_it() {
    for following in [false, true] {
        let trained = train("estimator", &host(following)).unwrap();
        let near = |is: f64, law: f64| {
            assert!((is / law - 1.0).abs() < 0.1, "{is}, {law} is the law\n{}", trained.toml)
        };
        // A miss is 35 cycles in this host, so either counter may carry the walks.
        let e = Estimator::parse(&trained.toml).unwrap();
        let tell = |walk_cycles, guest_page_faults| {
            let sample = bifold_model::Sample {
                walk_cycles,
                tlb_misses_4k: walk_cycles / 35,
                guest_page_faults,
                ..bifold_model::Sample::default()
            };
            e.other(Mode::Nested, &sample, 1.0).unwrap().extra_cycles
        };
        near(tell(7_000_000, 0), 7e6 * WALKS);
        near(tell(0, 10_000), 1e4 * FAULT);
        near(coefficient(&trained.toml, "nested", "guest_page_faults"), FAULT);
        assert!(trained.table.contains("Found 30 pairs"), "{}", trained.table);
        assert_eq!(trained.table.contains("tries left out: none"), !following, "{}", trained.table);
        assert!(trained.toml.contains("Not known in all pairs: tlb_flushes"), "{}", trained.toml);
    }
}

#[test]
fn bifold_toml_reads_what_was_learnt() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, trained: Trained| std::fs::write(dir.path().join(name), trained.toml).unwrap();
    write("here.toml", train("estimator", &host(false)).unwrap());
    write("dsp.toml", train("dsp", &host(false)).unwrap());
    let text = "estimator = \"here.toml\"\n[[vm]]\nname = \"*\"\npolicy = \"dsp.toml\"\n";
    let config = Config::parse(text, &dir.path().join("bifold.toml")).unwrap();
    assert_ne!(config.estimator, *Estimator::fitted());
    let text = std::fs::read_to_string(dir.path().join("dsp.toml")).unwrap();
    assert!(text.contains("`bifold policy train dsp RECORDING...`"), "{text}");
    assert_ne!(Named::parse("dsp", &text).unwrap().spec, Named::load("dsp").unwrap().spec);
}

#[test]
fn too_few_pairs_say_what_was_found_and_how_to_get_more() {
    let one = recording("web\\u001b\\nx = 1", 1, 10, true);
    let told = train("estimator", &[one]).unwrap_err().to_string();
    let name = "web\\u{1b}\\nx = 1 has 10";
    for part in ["found 10 usable pairs", name, "of 2 VMs or more", "[vm.probe]", "did other work"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let without = host(false).map(|text| text.replace("reported_progress", "progress_by_nobody"));
    let told = train("dsp", &without).unwrap_err().to_string();
    assert!(told.contains("found 0 usable pairs") && told.contains("30 lack the guest's progress"), "{told}");
    // Without a PMU.
    let without = host(false).map(|text| text.replace("\"walk_cycles\"", "\"w\""));
    let told = train("estimator", &without).unwrap_err().to_string();
    assert!(told.contains("30 more pairs lack walk_cycles in shadow paging"), "{told}");
    assert!(train("dsp", &without).is_ok(), "dsp reads no walk cycles");
}

#[test]
fn pairs_of_a_vm_that_was_started_anew_belong_together() {
    let second = recording("web", 2, 10, false).replace("\"vm\":\"1-web\"", "\"vm\":\"2-web\"");
    let told = train("estimator", &[recording("web", 1, 10, false), second]).unwrap_err().to_string();
    assert!(told.contains("web has 20"), "{told}");
}

#[test]
fn options_of_timelines_and_missing_values_are_refused() {
    for option in [&["--other", "known"][..], &["--dropped"], &["--time-scale", "2"], &["--host-page", "2m"]]
    {
        let told = learn(&args(&[&["dsp", "r.jsonl"], option].concat())).unwrap_err().to_string();
        assert!(told.contains(option[0]) && told.contains("is for timelines"), "{told}");
    }
    for (words, problem) in [
        (&["kuang", "r.jsonl"][..], "kuang is trained by trying values of its parameters: give --set"),
        (&["estimator", "r.jsonl", "--set", "a=1,2"], "--set is for policies"),
        (&["zhang", "r.jsonl"], "give --set"),
    ] {
        let told = learn(&args(words)).unwrap_err().to_string();
        assert!(told.contains(problem), "{told}");
    }
    assert!(Path::new("r.jsonl").metadata().is_err(), "no file was needed");
}
