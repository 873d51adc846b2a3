//! A program killed at any moment leaves nothing behind.

use crate::random::Random;
use overspill_programs::bench::{Bench, disk};
use overspill_programs::job::{descendants, name_of, processes};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const KILLS: u64 = 50;

/// Pages in two processes.
const PROGRAM: &str = "
import os
os.fork()
b = bytearray(128 << 20)
while True:
    for i in range(0, len(b), 4096): b[i] = 1
";

/// Files of Overspill in the swap directories, where other programs make files too. Unnamed files
/// end with the processes that have them open.
pub(crate) fn leftovers() -> BTreeSet<String> {
    let directories = [disk(), "/var/tmp".into(), "/dev/shm".into()];
    let entries = directories.iter().filter_map(|path| path.read_dir().ok()).flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    let ours = |name: &String| name.contains("overspill") && !name.contains("overspill-test-");
    names.filter(ours).collect()
}

/// Processes that a run of this test started, whatever their parent is now: by their environment.
pub(crate) fn started_by(test: &Path) -> Vec<i32> {
    let mark = format!("OVERSPILL_TEST={}", test.display()).into_bytes();
    let is_ours = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark)
    };
    processes().into_iter().map(|(pid, _)| pid).filter(is_ours).collect()
}

fn is_alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

pub(crate) fn assert_ends(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        let stack = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
        assert!(Instant::now() < deadline, "process {pid} is alive:\n{stack}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the supervisor, the program, and the program's child in turn.
#[test]
fn nothing_is_left_after_a_kill() {
    let Some(bench) = Bench::with(&["/usr/bin/python3"]) else { return };
    let own = bench.path("own");
    std::fs::create_dir(&own).unwrap();
    let files = leftovers();
    let mut random = Random::new(50);
    for round in 0..KILLS {
        let job = bench.job(&["/usr/bin/python3", "-c", PROGRAM]).patience(30);
        let job = job.env("OVERSPILL_TEST", &own);
        // Every other time in a directory that no other program uses.
        let job = if round % 2 == 0 { job.env("TMPDIR", &own) } else { job };
        let running = job.paged(&["--memory", "16M", "--quiet"]);
        std::thread::sleep(Duration::from_micros(random.below(700_000)));
        let tree = descendants(running.pid());
        let all: Vec<i32> = [running.pid()].into_iter().chain(tree).collect();
        let victim = all[(round as usize % 3).min(all.len() - 1)];
        // SAFETY: kill touches no memory; the number is our child's, unreaped, or its descendant's,
        // which runs until it is killed.
        unsafe { libc::kill(victim, libc::SIGKILL) };
        assert_ends(victim);
        end_the_rest(&own, running.pid());
        running.end();
        all.into_iter().for_each(assert_ends);
    }
    started_by(&own).into_iter().for_each(assert_ends);
    assert_eq!(leftovers(), files);
    assert_eq!(own.read_dir().unwrap().count(), 0);
}

/// The pager needs no lock of the heap to notice that its program is gone.
#[test]
fn nothing_is_left_after_a_kill_amid_a_fork() {
    let Some(bench) = Bench::with(&["cc"]) else { return };
    let own = bench.path("own");
    std::fs::create_dir(&own).unwrap();
    let program = bench.cc("apart.c").display().to_string();
    let job = bench.job(&[&program, "killed_forking"]).patience(30).env("OVERSPILL_TEST", &own);
    let ended = job.paged(&["--memory", "32M", "--quiet"]).end();
    assert_eq!(ended.status.code(), Some(128 + libc::SIGKILL), "{ended}");
    started_by(&own).into_iter().for_each(assert_ends);
}

/// Kills what the kill did not reach: a child without a supervisor, and the program if only its
/// child was the victim. Pagers end by themselves.
fn end_the_rest(test: &Path, supervisor: i32) {
    let rest = || {
        let mut all = started_by(test);
        all.retain(|&pid| pid != supervisor && is_alive(pid) && name_of(pid) != "ovs-pager");
        all
    };
    for pid in std::iter::from_fn(|| rest().first().copied()) {
        // SAFETY: kill touches no memory; the process is this test's and was alive a moment ago.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}
