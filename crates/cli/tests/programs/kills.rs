//! A program killed at any moment leaves nothing behind.

use crate::bench::{Bench, disk};
use crate::job::{MIB, descendants};
use crate::random::Random;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const KILLS: u64 = 50;

/// Pages with two processes of its own.
const PROGRAM: &str = "
import os
os.fork()
b = bytearray(128 << 20)
while True:
    for i in range(0, len(b), 4096): b[i] = 1
";

/// Files of Overspill's by name where swap goes, and the memory of files without one. Others come
/// and go there: compilers', browsers'.
fn leftovers() -> (BTreeSet<String>, u64) {
    let directories = [disk(), "/var/tmp".into(), "/dev/shm".into()];
    let entries = directories.iter().filter_map(|path| path.read_dir().ok()).flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    let ours = |name: &String| name.contains("overspill") && !name.contains("overspill-test-");
    (names.filter(ours).collect(), shared_memory())
}

fn shared_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

fn is_alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

fn assert_ends(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        let stack = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
        assert!(Instant::now() < deadline, "process {pid} is alive:\n{stack}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills by turns the supervisor, the program, and the program's child.
#[test]
fn nothing_is_left_after_a_kill() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let own = bench.path("own");
    std::fs::create_dir(&own).unwrap();
    let (files, shared) = leftovers();
    let mut random = Random::new(50);
    for round in 0..KILLS {
        let job = bench.job(&["/usr/bin/python3", "-c", PROGRAM]).patience(30);
        // Where nobody else makes files, every other time.
        let job = if round % 2 == 0 { job.env("TMPDIR", &own) } else { job };
        let running = job.paged(&["--memory", "16M", "--quiet"]);
        std::thread::sleep(Duration::from_micros(random.below(700_000)));
        let tree = descendants(running.pid());
        let all: Vec<i32> = [running.pid()].into_iter().chain(tree).collect();
        let victim = all[(round as usize % 3).min(all.len() - 1)];
        // SAFETY: kill touches no memory; the number is our child's, unreaped, or its descendant's,
        // which runs until it is killed.
        unsafe { libc::kill(victim, libc::SIGKILL) };
        end_the_rest(&all, victim);
        running.end();
        all.into_iter().for_each(assert_ends);
    }
    let (files_after, shared_after) = leftovers();
    assert_eq!(files_after, files);
    assert_eq!(own.read_dir().unwrap().count(), 0);
    assert!(shared_after < shared + 4 * MIB, "shared memory grew from {shared} to {shared_after}");
}

/// What the kill does not reach: a child that nobody supervises, and the program if only its child was
/// the victim.
fn end_the_rest(all: &[i32], victim: i32) {
    assert_ends(victim);
    for &pid in all.iter().skip(1).filter(|&&pid| is_alive(pid)) {
        // SAFETY: kill touches no memory; descendants of ours, alive a moment ago.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}
