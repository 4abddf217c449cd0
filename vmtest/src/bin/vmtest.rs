// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs tests in the KVM laboratory.
use bifold_vmtest::job::*;
use bifold_vmtest::*;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let series = args.next().unwrap_or("6.1".into());
    let nested = args.next().as_deref() == Some("nested");
    let names: Vec<String> = args.collect();
    let lab = lab::Lab::new(&series, &mut |p| eprintln!("{p:?}"))?;
    let mut command = vec![SUITE.to_owned()];
    command.extend(names);
    let plan = lab::Plan {
        jobs: Jobs {
            jobs: vec![
                Job::Kvm { nested },
                Job::Inner(Inner {
                    command,
                    include: vec![],
                    memory_mib: 512,
                    kpti: false,
                    backing: Backing::Small,
                    delay_us: 0,
                    trace: exits::EVENTS.map(String::from).to_vec(),
                    trace_mib: 256,
                }),
            ],
            huge_pages: 0,
        },
        programs: vec![SUITE.into()],
        files: vec![],
        exact: true,
        memory_mib: 2048,
        seconds: 200,
    };
    let t = std::time::Instant::now();
    let out = lab.boot(&plan, &mut |_, _| String::new())?;
    eprintln!("{:?}", t.elapsed());
    let inner = &out[1];
    println!("{} {}\n{}", inner.done.status, inner.done.stdout, inner.done.stderr);
    let mut formats = ftrace::Formats::default();
    for (name, data) in &inner.files {
        eprintln!("{name} {}", data.len());
        if name.starts_with("format/") {
            formats.add(&String::from_utf8_lossy(data))?;
        }
    }
    println!("{}", String::from_utf8_lossy(&inner.files["stats"]));
    for (n, w) in exits::windows(&inner.files["trace"], &formats, false)? {
        println!("{n}: {w:?}");
    }
    Ok(())
}
