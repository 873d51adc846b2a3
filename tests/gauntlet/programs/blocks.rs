//! Four threads fill maps with blocks, over and over, and print their sums.

use std::collections::HashMap;
use std::thread;

fn work(thread: u64) -> u64 {
    let (mut blocks, mut random) = (HashMap::new(), thread + 1);
    for _ in 0..60_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        blocks.insert(random % 20_000, vec![(random >> 8) as u8; 100 + (random % 2000) as usize]);
    }
    let sum = |sum: u64, block: &Vec<u8>| {
        let middle = u64::from(block[block.len() / 2]);
        sum.wrapping_mul(31).wrapping_add(block.len() as u64 * middle)
    };
    (0..20_000).filter_map(|key| blocks.get(&key)).fold(0, sum)
}

fn main() {
    let threads: Vec<_> = (0..4).map(|thread| thread::spawn(move || work(thread))).collect();
    for thread in threads {
        println!("{}", thread.join().unwrap());
    }
}
