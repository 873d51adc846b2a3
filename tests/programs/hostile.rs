//! Programs that do all they can to their keeper, with others beside them in the same run.

use crate::gates::{self, USER};
use overspill_programs::bench::Bench;
use overspill_programs::job::{Ended, assert_same};

/// So many as HOSTILE_SEEDS says, from HOSTILE_FIRST on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("HOSTILE_FIRST").unwrap_or(1);
    first..first + number("HOSTILE_SEEDS").unwrap_or(4)
}

fn try_seeds(way: &'static str) {
    let Some(bench) = gates::bench(&["cc", "sh", "timeout"]) else { return };
    let hostile = bench.cc("hostile.c").display().to_string();
    let good = bench.cc("keeper.c").display().to_string();
    let plain = bench.job(&[&good, "threads"]).plain().success();
    for seed in seeds() {
        // With all that it has forked, which may have left it.
        let killed = format!("timeout -s KILL 3 sh -c '{hostile} does_all_it_can; sleep 9'");
        let hostile = format!("SEED={seed} {killed}");
        let beside = format!("{hostile} >/dev/null 2>&1 & {good} threads || exit 9; wait; exit 0");
        assert_same(&plain.output, &beside_it(&bench, way, &beside).output);
    }
}

/// What it does is its own harm: the run ends in its time.
fn beside_it(bench: &Bench, way: &'static str, beside: &str) -> Ended {
    let job = bench.job(&["sh", "-c", beside]);
    let job = if way == "faults" { job } else { job.by(way).user(USER) };
    let ended = job.paged(&["--memory", "64M", "--swap", "compressed:1G"]).end();
    assert_eq!(ended.status.code(), Some(0), "{ended}");
    for mistake in ["a mistake of the keeper", "the keeper has ended", "the keeper ends"] {
        assert!(!ended.errors.contains(mistake), "{ended}");
    }
    ended
}

/// As root, which has the messages of forks; the program gives that up.
#[test]
fn a_keeper_outlives_a_guest() {
    try_seeds("faults");
}

#[test]
fn a_keeper_outlives_a_guest_with_a_gate() {
    try_seeds("calls");
}

#[test]
fn a_keeper_outlives_a_guest_without_a_userfaultfd() {
    try_seeds("touches");
}
