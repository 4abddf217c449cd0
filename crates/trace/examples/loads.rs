// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts loads of recordings, and how many of them are dependent or begin a chain; in all and in user
//! memory. Of several recordings it also says whether they differ in more than which loads are dependent.
//! `cargo run --release -p bifold-trace --example loads -- FILE...`

use std::hash::{DefaultHasher, Hasher};

use bifold_trace::{Event, FileError, Reader, decode};

/// Loads, dependent loads and those before a chain, of the kernel's half and of the user's, and a digest of
/// the events in which every load is of one kind.
fn count(path: &str) -> Result<([[u64; 3]; 2], u64), FileError> {
    let (mut reader, mut words) = (Reader::open(path)?, Vec::new());
    let (mut counts, mut digest) = ([[0; 3]; 2], DefaultHasher::new());
    let mut plain = Vec::new();
    while reader.next_block(&mut words)? {
        let mut at = 0;
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).expect("a block holds whole events");
            plain.clear();
            match event {
                Event::Load(gva) | Event::LoadDependent(gva) | Event::LoadBeforeChain(gva) => {
                    let half = &mut counts[usize::from(gva >> 63 == 0)];
                    half[0] += 1;
                    half[1] += u64::from(matches!(event, Event::LoadDependent(_)));
                    half[2] += u64::from(matches!(event, Event::LoadBeforeChain(_)));
                    Event::Load(gva).encode(&mut plain);
                }
                _ => plain.extend_from_slice(&words[at..at + n]),
            }
            plain.iter().for_each(|w| digest.write_u64(*w));
            at += n;
        }
    }
    Ok((counts, digest.finish()))
}

fn main() {
    let mut digests = Vec::new();
    for path in std::env::args().skip(1) {
        match count(&path) {
            Err(e) => {
                eprintln!("error: {path}: {e}");
                std::process::exit(1);
            }
            Ok(([kernel, user], digest)) => {
                let percent = |[all, dependent, _]: [u64; 3]| 100.0 * dependent as f64 / all.max(1) as f64;
                let all = [0, 1, 2].map(|n| kernel[n] + user[n]);
                println!(
                    "{path}: {} loads, {:.1} % dependent; of the {} in user memory {:.1} %; chains begin behind {}",
                    all[0],
                    percent(all),
                    user[0],
                    percent(user),
                    all[2]
                );
                digests.push(digest);
            }
        }
    }
    if let [first, rest @ ..] = &digests[..] {
        if !rest.is_empty() {
            let same = rest.iter().all(|d| d == first);
            println!("but for kinds of loads, the recordings {}", if same { "are equal" } else { "differ" });
        }
    }
}
