//! A limit that is changed while a program goes on.

use crate::random::Random;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Ended, MIB, assert_same};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const LINES: u64 = 900_000;
/// Longest that a run takes to keep to a lower limit, on a machine that does other things too.
const SECONDS_MAX: f64 = 5.0;

/// Sets a limit; the seconds that the run took to keep to it, if it goes on.
fn set(run: i32, limit: u64) -> Option<f64> {
    let words = ["set", &run.to_string(), "--memory", &limit.to_string()].map(str::to_owned);
    let output = Command::new(overspill()).args(words).output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    let error = String::from_utf8_lossy(error);
    if !output.status.success() {
        assert!(error.contains("in no run"), "{error}");
        return None;
    }
    let seconds = said.trim_end().strip_suffix(" s").and_then(|said| said.rsplit(' ').next());
    Some(seconds.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{said}{error}")))
}

/// Runs `work`, and changes limits at random until it has ended; the seconds of each change.
fn change_meanwhile(run: i32, work: impl FnOnce() -> Ended) -> (Ended, Vec<f64>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let (mut random, mut taken) = (Random::new(1), Vec::new());
            while !over.load(Relaxed) {
                // Half of them are enough for all of it: so it comes to an end.
                let limit = [8, 16, 40, 64, 150, 256, 256, 256][random.below(8) as usize];
                taken.extend(set(run, limit * MIB));
                std::thread::sleep(Duration::from_millis(random.below(60)));
            }
            taken
        });
        let ended = work();
        over.store(true, Relaxed);
        (ended, changes.join().unwrap())
    })
}

#[test]
fn a_limit_that_goes_up_and_down_costs_no_byte() {
    let Some(bench) = Bench::with(&["sort"]) else { return };
    bench.file("input", |out| {
        let mut random = Random::new(1);
        (0..LINES).for_each(|n| writeln!(out, "{:016x} line {n:09}", random.next()).unwrap());
    });
    let job = bench.job(&["sort", "-S", "400M", "--parallel=2", "-T", ".", "input"]);
    let plain = job.plain().success();
    let running = job.paged(&["--memory", "64M", "--swap", "compressed:600M", "--quiet"]);
    let (ended, taken) = change_meanwhile(running.pid(), || running.success());
    assert_same(&plain.output, &ended.output);
    let longest = taken.iter().copied().fold(0.0, f64::max);
    assert!(taken.len() > 10 && longest < SECONDS_MAX, "{taken:?}");
}
