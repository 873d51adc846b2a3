//! Random accesses per second to a pool's pages, and their latency.
//!
//! ```text
//! cargo run --release --example pool_rate -- ram:512M --threads 2 --memory 64M --data 256M
//! ```
//!
//! Each access reads a word of a random page, or in one of five cases changes it. Every word is
//! checked: a page begins with its number and its count of changes.

use overspill::{Bytes, PageNo, Pool, parse_bytes};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Settings {
    swap: String,
    threads: u64,
    memory: Bytes,
    data: Bytes,
    page: Bytes,
    seconds: f64,
}

fn settings() -> Result<Settings, Failure> {
    let mut args = std::env::args().skip(1);
    let mut settings = Settings {
        swap: args.next().unwrap_or("ram:512M".into()),
        threads: 1,
        memory: Bytes(64 << 20),
        data: Bytes(256 << 20),
        page: Bytes(4096),
        seconds: 3.0,
    };
    while let (Some(option), Some(value)) = (args.next(), args.next()) {
        match option.as_str() {
            "--threads" => settings.threads = value.parse()?,
            "--memory" => settings.memory = parse_bytes(&value)?,
            "--data" => settings.data = parse_bytes(&value)?,
            "--page" => settings.page = parse_bytes(&value)?,
            "--seconds" => settings.seconds = value.parse()?,
            _ => return Err(format!("unknown option {option}").into()),
        }
    }
    Ok(settings)
}

/// A third of the page is random, the rest repetitive, like programs' pages.
fn fill(page: u64, bytes: &mut [u8]) {
    let mut random = page * 2 + 1;
    let third = bytes.len() / 3 / 8 * 8;
    for word in bytes[..third].chunks_exact_mut(8) {
        word.copy_from_slice(&next(&mut random).to_ne_bytes());
    }
    bytes[third..].fill(page as u8);
    bytes[..8].copy_from_slice(&page.to_ne_bytes());
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Returns the number of accesses and the latency of every 16th.
fn run(pool: &Pool, pages: u64, seed: u64, time: Duration) -> Result<(u64, Vec<u64>), Failure> {
    let (start, mut accesses, mut sampled) = (Instant::now(), 0u64, Vec::new());
    let mut random = seed * 0x9e37_79b9_7f4a_7c15 + 1;
    while start.elapsed() < time {
        for n in 0..256 {
            let choice = next(&mut random);
            let page = choice % pages;
            let begun = (n % 16 == 0).then(Instant::now);
            if (choice >> 40).is_multiple_of(5) {
                pool.write(PageNo(page as u32))?[16] += 1;
            } else {
                let guard = pool.read(PageNo(page as u32))?;
                assert_eq!(guard[..8], page.to_ne_bytes(), "page {page}");
            }
            sampled.extend(begun.map(|begun| begun.elapsed().as_nanos() as u64));
        }
        accesses += 256;
    }
    Ok((accesses, sampled))
}

fn main() -> Result<(), Failure> {
    let Settings { swap, threads, memory, data, page, seconds } = settings()?;
    let pool = Pool::builder().memory(memory).page_size(page).swap(swap.parse()?).build()?;
    let pages = data.0 / page.0;
    for page in 0..pages {
        fill(page, &mut pool.write(PageNo(page as u32))?);
    }
    let time = Duration::from_secs_f64(seconds);
    let before = pool.summary();
    let parts: Vec<_> = std::thread::scope(|scope| {
        let run = |seed| {
            scope.spawn({
                let pool = &pool;
                move || run(pool, pages, seed, time)
            })
        };
        let threads: Vec<_> = (1..=threads).map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no check fails"))
            .collect::<Result<_, _>>()
    })?;
    let after = pool.summary();
    let accesses: u64 = parts.iter().map(|(accesses, _)| accesses).sum();
    let mut sampled: Vec<u64> = parts.into_iter().flat_map(|(_, sampled)| sampled).collect();
    sampled.sort_unstable();
    let quantile = |q: f64| sampled[((sampled.len() - 1) as f64 * q) as usize];
    println!(
        "{swap} threads={threads} accesses/s={:.0} misses={:.1}% written={:.1}% p50={}ns p99={}ns",
        accesses as f64 / seconds,
        (after.pages_in - before.pages_in) as f64 * 100.0 / accesses as f64,
        (after.pages_out - before.pages_out) as f64 * 100.0 / accesses as f64,
        quantile(0.5),
        quantile(0.99),
    );
    Ok(())
}
