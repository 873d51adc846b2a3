//! GNU sort: a log merged from many hosts, whose lines arrive late.

use crate::random::Random;
use overspill_programs::bench::Bench;
use overspill_programs::job::MIB;
use std::io::Write;

const LINES: u64 = 600_000;
/// Most lines by which a line may be out of order.
const JITTER: u64 = 10_000;

/// Writes lines of 470 bytes, sorted except for the jitter.
pub(crate) fn write_log(out: &mut dyn Write, lines: u64) {
    let mut random = Random::new(1);
    for line in 0..lines {
        let time = line + random.below(2 * JITTER);
        let (host, path, referrer) = (random.below(500), random.next(), random.next());
        writeln!(
            out,
            "{time:012} host{host:03} GET /{path:016x} HTTP/1.1 200 {:>8} {referrer:0>411x}",
            random.below(1 << 20),
        )
        .unwrap();
    }
}

#[test]
fn sorts_with_two_threads() {
    let Some(bench) = Bench::with(&["sort"]) else { return };
    let input = bench.file("input", |out| write_log(out, LINES));
    assert!(input.metadata().unwrap().len() >= 256 * MIB);
    let words = ["sort", "-S", "1G", "--parallel=2", "-T", ".", "input"];
    bench.job(&words).compare(64 * MIB, 0);
}
