// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast events are generated, recorded and read back, in million words a
//! CPU second of one core, and how many bytes a word takes. Arguments: generators
//! and recordings (default: every generator).

use bifold_trace::{Generator, Header, Reader, Trailer, Writer};
use std::convert::Infallible;
use std::hint::black_box;

/// CPU time of this thread, in seconds: others may use the machine meanwhile.
fn now() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    let ns: f64 = text.split(' ').next().and_then(|t| t.parse().ok()).expect("a number of nanoseconds");
    ns / 1e9
}

fn rate(words: usize, start: f64) -> f64 {
    words as f64 / 1e6 / (now() - start)
}

fn events(what: &str, generated: &mut f64) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    let Ok(generator) = Generator::parse(what) else {
        let (mut reader, mut block) = (Reader::open(what)?, Vec::new());
        while reader.next_block(&mut block)? {
            all.extend_from_slice(&block);
        }
        return Ok(all);
    };
    let start = now();
    let (mut words, mut sum) = (0, 0u64);
    let Ok(()) = generator.run::<Infallible>(&mut |w| {
        words += w.len();
        sum ^= black_box(w)[w.len() - 1];
        Ok(())
    });
    black_box(sum);
    *generated = rate(words, start);
    let Ok(()) = generator.run::<Infallible>(&mut |w| {
        all.extend_from_slice(w);
        Ok(())
    });
    Ok(all)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut what: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if what.is_empty() {
        what =
            ["t:20m", "t-seq:20m", "t-4m:20m", "pointer-chase:10m", "fork-storm:300"].map(Into::into).into();
    }
    let path = std::env::temp_dir().join(format!("bifold-rates-{}", std::process::id()));
    println!(
        "{:<20} {:>10} {:>9} {:>9} {:>9} {:>7}",
        "events", "words", "generate", "record", "read", "B/word"
    );
    for what in what {
        let mut generated = f64::NAN;
        let all = events(&what, &mut generated)?;
        let header = Header { vcpus: 1, ..Header::default() };
        let start = now();
        let mut writer = Writer::create(&path, &header)?;
        writer.write(&all)?;
        writer.finish(&Trailer::default())?;
        let recorded = rate(all.len(), start);
        let bytes = std::fs::metadata(&path)?.len();
        let start = now();
        let (mut reader, mut block, mut words) = (Reader::open(&path)?, Vec::new(), 0);
        while reader.next_block(&mut block)? {
            words += black_box(&block).len();
        }
        let read = rate(words, start);
        std::fs::remove_file(&path)?;
        assert_eq!(words, all.len());
        println!(
            "{what:<20} {words:>10} {generated:>9.0} {recorded:>9.0} {read:>9.0} {:>7.2}",
            bytes as f64 / words as f64
        );
    }
    Ok(())
}
