//! `calibrate`: the part of the cost model that can be measured on one CPU of this machine.
//!
//! Invariants: it changes nothing in the model. It shows how far this machine is from the simulated
//! one.
//! Not here: costs between CPUs, which two virtual CPUs cannot measure (taken from literature, see
//! [`overspill_vcpu::costs`]).

use overspill_vcpu::Costs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

const PAGE: usize = 4096;
/// Larger than any cache.
const BIG_BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

/// Returns measured costs beside those of the model, as a table.
pub fn calibrate() -> String {
    let model = Costs::DEFAULT;
    let rows = [
        ("load_ns: a load that depends on the last", best(load_ns), model.load_ns),
        ("update_ns: a read-modify-write", best(update_ns), model.update_ns),
        ("memory_ns: a load from memory", best(memory_ns), model.memory_ns),
        ("copy_page_ns: a page to another", best(copy_page_ns), model.copy_page_ns),
        (
            "wake_latency_ns + switch_ns: to a sleeper and back, halved",
            best(wake_ns),
            model.wake_latency_ns + model.switch_ns,
        ),
    ];
    let head = format!("{:60} {:>9} {:>9}\n", "ns, best of five", "measured", "model");
    let line = |(name, measured, model): (&str, f64, u64)| {
        format!("{name:60} {measured:>9.1} {model:>9}\n")
    };
    std::iter::once(head).chain(rows.map(line)).collect()
}

fn best(measure: fn() -> f64) -> f64 {
    (0..ROUNDS).map(|_| measure()).fold(f64::MAX, f64::min)
}

fn per_turn(turns: usize, f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_nanos() as f64 / turns as f64
}

/// Returns a ring through `bytes` bytes, one place per cache line, in random order.
fn ring(bytes: usize) -> Vec<u32> {
    const WORDS: usize = 64 / size_of::<u32>();
    let lines = bytes / 64;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut ring = vec![0; lines * WORDS];
    for pair in order.windows(2) {
        ring[pair[0] as usize * WORDS] = pair[1] * WORDS as u32;
    }
    ring[order[lines - 1] as usize * WORDS] = order[0] * WORDS as u32;
    ring
}

fn chase_ns(bytes: usize, turns: usize) -> f64 {
    let ring = ring(bytes);
    per_turn(turns, || {
        let mut at = 0;
        for _ in 0..turns {
            at = ring[at as usize];
        }
        black_box(at);
    })
}

fn load_ns() -> f64 {
    chase_ns(16 << 10, 10_000_000)
}

fn memory_ns() -> f64 {
    chase_ns(BIG_BYTES, 1_000_000)
}

fn update_ns() -> f64 {
    let word = AtomicU64::new(0);
    per_turn(10_000_000, || (0..10_000_000).for_each(|n| _ = black_box(word.fetch_add(n, Relaxed))))
}

fn copy_page_ns() -> f64 {
    let (from, mut to) = (vec![1u8; BIG_BYTES], vec![0u8; BIG_BYTES]);
    let pages = BIG_BYTES / PAGE;
    let mut random = fastrand::Rng::with_seed(2);
    let turns = 20_000;
    per_turn(turns, || {
        for _ in 0..turns {
            let (a, b) = (random.usize(..pages) * PAGE, random.usize(..pages) * PAGE);
            to[b..b + PAGE].copy_from_slice(&from[a..a + PAGE]);
        }
        black_box(&to);
    })
}

fn wake_ns() -> f64 {
    let turns = 2000;
    let ((there, hear), (back, hear_back)) = (sync_channel(0), sync_channel(0));
    let other = std::thread::spawn(move || {
        for word in hear {
            if back.send(word).is_err() {
                return;
            }
        }
    });
    let ns = per_turn(turns, || {
        for n in 0..turns {
            there.send(n).expect("the other thread lives");
            hear_back.recv().expect("the other thread lives");
        }
    });
    drop(there);
    other.join().expect("the other thread does not panic");
    ns / 2.0
}
