//! How long a run waits for pages, as in the kernel's PSI.

use crate::random::Random;
use overspill_programs::bench::Bench;
use overspill_programs::job::Ended;

/// Needs some four times the memory of [`OPTIONS`], in an order that nobody can foresee.
const SORT: &str = "sort -S 200M --parallel=1 -T . input | cksum";
const OPTIONS: [&str; 5] = ["--memory", "12M", "--swap", "ram:400M", "--quiet"];

fn ended(bench: &Bench, script: &str) -> Ended {
    bench.job(&["sh", "-c", script]).paged(&OPTIONS).success()
}

/// Seconds: some, full, and all.
fn stalls(ended: &Ended) -> (f64, f64, f64) {
    let [some, full, wall] = ["/stall_some_seconds", "/stall_full_seconds", "/wall_seconds"]
        .map(|name| ended.seconds(name));
    println!("some {some:.2} s, full {full:.2} s, of {wall:.2} s");
    assert!(0.0 <= full && full <= some && some <= 1.1 * wall + 0.2);
    (some, full, wall)
}

/// A thread that has its page and no CPU yet counts as one that runs, so the more others do on this
/// machine, the less is full. What is full at all tells the two runs apart.
#[test]
fn pressure_is_full_only_if_nothing_runs_beside() {
    let Some(bench) = Bench::with(&["sh", "sort", "cksum", "sha1sum"]) else { return };
    bench.file("input", |out| {
        let mut random = Random::new(1);
        (0..700_000).for_each(|n| writeln!(out, "{:016x} line {n:09}", random.next()).unwrap());
    });
    let (_, alone, wall) = stalls(&ended(&bench, SORT));
    assert!(alone > 0.05 * wall, "a sort that waits for most of its time");
    let beside = format!("sha1sum </dev/zero & {SORT}; kill $!");
    let (some, full, wall) = stalls(&ended(&bench, &beside));
    assert!(some > 0.2 * wall && full < 0.2 * alone, "somebody always runs");
    let (some, ..) = stalls(&ended(&bench, "sleep 1"));
    assert!(some < 0.2, "nobody waits for a page");
}
