//! Touches a region and prints the number of touches per second:
//! `touch_region message|signal SWAP [THREADS [READS_PERCENT [SECONDS [PAGE_SIZE
//! [random|order]]]]]`.
//!
//! 256 MiB in 64 MiB of memory; every page is written once before. A touch reads or writes one word
//! at a random offset in 4 KiB, whatever the page size: in random ones, or one after the other. A
//! word is a function of its place except for its lowest bit, which every write flips, so that the
//! page has to be written out.

use overspill::{Bytes, Error, Faults, Overspill};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const MEMORY: Bytes = Bytes(64 << 20);
const SIZE: Bytes = Bytes(256 << 20);

fn word(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn next(random: &mut u64) -> usize {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

fn fill(part: &mut [u8]) {
    for (at, bytes) in part.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(at).to_ne_bytes());
    }
}

/// How a region is touched.
#[derive(Clone, Copy)]
struct How {
    in_order: bool,
    reads_percent: usize,
}

/// Touches for `time`; returns the number of touches.
fn touch(part: &mut [u8], seed: u64, how: How, time: Duration) -> u64 {
    let (mut random, mut count, start) = (seed, 0, Instant::now());
    while start.elapsed() < time {
        for n in 0..64 {
            let page = if how.in_order { count as usize + n } else { next(&mut random) };
            let page = page % (part.len() / PAGE);
            let at = page * (PAGE / 8) + next(&mut random) % (PAGE / 8);
            let bytes = &mut part[at * 8..at * 8 + 8];
            let value = u64::from_ne_bytes((&*bytes).try_into().expect("8 bytes"));
            assert_eq!(value | 1, word(at), "word {at} is wrong");
            if next(&mut random) % 100 >= how.reads_percent {
                bytes.copy_from_slice(&(value ^ 1).to_ne_bytes());
            }
        }
        count += 64;
    }
    count
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |n: usize, default: usize| {
        arguments.get(n).map_or(default, |text| text.parse().expect("a number"))
    };
    let faults = match arguments.get(1).map(String::as_str) {
        Some("message") => Faults::Message,
        Some("signal") => Faults::Signal,
        _ => panic!(
            "usage: touch_region message|signal SWAP [THREADS [READS_PERCENT [SECONDS \
             [PAGE_SIZE [random|order]]]]]"
        ),
    };
    let swap = arguments.get(2).map_or("ram:512M", String::as_str).parse()?;
    let (threads, reads_percent, seconds) = (number(3, 1), number(4, 80), number(5, 4));
    let in_order = arguments.get(7).is_some_and(|word| word == "order");
    let how = How { in_order, reads_percent };
    let page_size = Bytes(number(6, PAGE) as u64);
    let builder = Overspill::builder().memory(MEMORY).page_size(page_size);
    let overspill = builder.swap(swap).build()?;
    let mut region = overspill.region_options().faults(faults).build(SIZE)?;
    let part = region.len() / threads;
    region.chunks_exact_mut(part).for_each(fill);
    let before = overspill.summary();
    let time = Duration::from_secs(seconds as u64);
    let touches: u64 = std::thread::scope(|scope| {
        let parts = region.chunks_exact_mut(part).enumerate();
        let all: Vec<_> = parts
            .map(|(n, part)| scope.spawn(move || touch(part, n as u64 + 1, how, time)))
            .collect();
        all.into_iter().map(|thread| thread.join().expect("a toucher")).sum()
    });
    let after = overspill.summary();
    println!(
        "{} touches/s, {} pages in/s, {} pages out/s",
        touches / seconds as u64,
        (after.pages_in - before.pages_in) / seconds as u64,
        (after.pages_out - before.pages_out) / seconds as u64,
    );
    Ok(())
}
