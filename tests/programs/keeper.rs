//! Programs that a keeper pages from outside: all kinds, how they end, and what is left of a run.

use crate::kills::{assert_ends, leftovers, started_by};
use crate::random::Random;
use overspill_programs::bench::Bench;
use overspill_programs::job::{Ended, Job, MIB, assert_same, descendants, name_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";
const KILLS: usize = 10;

/// True if programs can be attached to here; otherwise says so.
pub(crate) fn is_possible() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/userfaultfd").exists();
    if !possible {
        println!("skipped: a keeper needs root and /dev/userfaultfd");
    }
    possible
}

/// Makes a bench if programs can be attached to here.
pub(crate) fn bench(tools: &[&str]) -> Option<Bench> {
    if is_possible() { Bench::with(tools) } else { None }
}

pub(crate) fn kept(job: &Job, limit: u64) -> Ended {
    let ended = job.clone().paged(&["--memory", &limit.to_string(), "--quiet"]).end();
    println!("most in use: {} KiB of {}", ended.stat("/held_bytes_max") >> 10, limit >> 10);
    ended
}

/// Runs it plain and kept: the same status and output, and pages went out.
fn compare(job: &Job, limit: u64) {
    let (plain, kept) = (job.plain().end(), kept(job, limit));
    assert_eq!(plain.status.code(), kept.status.code(), "{kept}");
    assert_same(&plain.output, &kept.output);
    assert!(kept.stat("/summary/pages_out") > 0, "no page went out: {kept}");
}

pub(crate) fn random_lines(bench: &Bench, lines: usize) {
    let mut random = Random::new(7);
    bench.file("input", |out| {
        for _ in 0..lines {
            writeln!(out, "{:016x}{:016x}", random.next(), random.next()).unwrap();
        }
    });
}

#[test]
fn sorts_random_lines() {
    let Some(bench) = bench(&["sort"]) else { return };
    random_lines(&bench, 1_000_000);
    compare(&bench.job(&["sort", "-S", "1G", "--parallel=2", "input"]), 32 * MIB);
}

/// Statically linked, where it is Debian's.
#[test]
fn sorts_by_busybox() {
    let Some(bench) = bench(&["busybox"]) else { return };
    random_lines(&bench, 300_000);
    compare(&bench.job(&["busybox", "sort", "input"]), 16 * MIB);
}

const DICTIONARY: &str = "
words = {i: str(i) * 20 for i in range(400000)}
for i in range(0, 400000, 3): words[i] = words[399999 - i] + 'x'
print(sum(map(len, words.values())), hash(tuple(words[i] for i in range(0, 400000, 7))))
";

#[test]
fn keeps_a_dictionary() {
    let Some(bench) = bench(&[PYTHON]) else { return };
    let job = bench.job(&[PYTHON, "-c", DICTIONARY]).env("PYTHONHASHSEED", "1");
    compare(&job, 32 * MIB);
}

/// Without libc: its own system calls, stacks and garbage collector.
#[test]
fn pages_a_static_go_program() {
    let Some(bench) = bench(&["go"]) else { return };
    compare(&bench.job(&[go_program(&bench)]), 32 * MIB);
}

/// Compiles `tree.go`.
pub(crate) fn go_program(bench: &Bench) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tree.go");
    let program = bench.path("go-program");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(source);
    go.env("CGO_ENABLED", "0").env("GOCACHE", bench.path("cache")).env("GOFLAGS", "-mod=mod");
    assert!(go.status().unwrap().success(), "{go:?}");
    program
}

#[test]
fn executable_memory_leaves() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "writes_code"), 16 * MIB);
}

/// What all hold together stays near the limit: how near depends on how soon a crowd that runs
/// stops. Without that it is all of the 200 MiB.
#[test]
fn a_crowd_is_stopped() {
    let Some(bench) = bench(&["cc"]) else { return };
    let limit = 64 * MIB;
    let kept = kept(&case(&bench, "crowd").patience(300), limit);
    assert_eq!(kept.text(), "ok\n", "{kept}");
    let most = kept.stat("/held_bytes_max");
    assert!(most < limit * 11 / 4, "{most} bytes in {limit}");
}

/// Runs a case of `keeper.c`.
fn case(bench: &Bench, name: &str) -> Job {
    let program = bench.cc("keeper.c").display().to_string();
    bench.job(&[&program, name])
}

#[test]
fn threads_find_what_they_wrote() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "threads"), 32 * MIB);
}

#[test]
fn goes_on_when_the_first_thread_has_ended() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "ends_its_first_thread"), 32 * MIB);
}

#[test]
fn forked_children_have_what_their_parents_had() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "forks"), 32 * MIB);
}

#[test]
fn children_come_and_go_amid_the_work() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "forks_often"), 32 * MIB);
}

#[test]
fn children_that_are_paged_execute_others() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "children_execute"), 32 * MIB);
}

#[test]
fn starts_other_programs() {
    let Some(bench) = bench(&["cc"]) else { return };
    compare(&case(&bench, "starts_others"), 32 * MIB);
}

#[test]
fn pages_what_outlives_the_program() {
    let Some(bench) = bench(&["cc"]) else { return };
    let ended = kept(&case(&bench, "leaves_a_process"), 32 * MIB);
    assert_eq!(ended.status.code(), Some(4), "{ended}");
    assert_eq!(ended.text(), "all there\n");
    assert!(ended.stat("/summary/pages_out") > 0, "{ended}");
}

/// Nobody can be attached to who is traced, so nothing of that child can leave, and when the limit
/// is full it is ended, it alone, and its debugger sees how.
#[test]
fn a_child_that_cannot_be_attached_to_does_not_wait_for_ever() {
    let Some(bench) = bench(&["cc"]) else { return };
    let ended = kept(&case(&bench, "debugs_a_child"), 32 * MIB);
    assert_eq!(ended.text(), "child ended by signal 7\nok\n", "{ended}");
    assert_eq!(ended.status.code(), Some(125), "{ended}");
    assert!(ended.stat("/escaped/bytes") >= MIB, "{ended}");
}

/// The kernel refuses them that while we trace them, so they are left alone at first.
#[test]
fn children_may_ask_to_be_traced() {
    let Some(bench) = bench(&["cc"]) else { return };
    let ended = kept(&case(&bench, "children_ask_to_be_traced"), 32 * MIB);
    assert_eq!((ended.status.code(), ended.text().as_str()), (Some(0), "ok\n"), "{ended}");
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn agents_of(test: &Path) -> usize {
    let named = |pid: &i32| name_of(*pid) == "overspill-agent";
    started_by(test).into_iter().filter(named).count()
}

#[test]
fn another_program_has_no_agent_of_the_one_before() {
    let Some(bench) = bench(&["cc"]) else { return };
    let own = bench.path("own");
    let job = case(&bench, "executes").env("OVERSPILL_TEST", &own);
    let running = job.paged(&["--memory", "32M", "--quiet"]);
    wait_until("it was not paged", || agents_of(&own) == 1);
    let executes = |pid: &i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command == b"keeper\0waits\0"
    };
    wait_until("it executes nothing", || descendants(running.pid()).iter().any(executes));
    wait_until("its agent is there", || agents_of(&own) == 0);
    // SAFETY: kill touches no memory; the number is our child's, which is not reaped.
    unsafe { libc::kill(running.pid(), libc::SIGTERM) };
    assert_eq!(running.end().status.code(), Some(128 + libc::SIGTERM));
    started_by(&own).into_iter().for_each(assert_ends);
}

#[test]
fn statuses_and_signals_are_the_programs() {
    let Some(bench) = bench(&["sh"]) else { return };
    let status = |script: &str| kept(&bench.job(&["sh", "-c", script]), 32 * MIB);
    assert_eq!(status("exit 7").status.code(), Some(7));
    let killed = bench.job(&["sh", "-c", "kill -SEGV $$"]);
    let killed = killed.paged(&["--memory", "32M"]).end();
    assert_eq!(killed.status.code(), Some(128 + libc::SIGSEGV), "{killed}");
    assert!(killed.errors.contains("ended by SIGSEGV (signal 11)"), "{killed}");
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let running = bench.job(&["sh", "-c", script]);
    let running = running.paged(&["--memory", "32M", "--quiet"]);
    wait_until("the shell does not start", || {
        !descendants(running.pid()).iter().all(|&pid| name_of(pid) != "sleep")
    });
    // SAFETY: kill touches no memory; the number is our child's, which is not reaped.
    unsafe { libc::kill(running.pid(), libc::SIGTERM) };
    assert_eq!(running.end().status.code(), Some(9));
}

const TOUCHES: &str = "
b = bytearray(96 << 20)
n = 0
while True:
    n += 1
    for i in range(0, len(b), 4096):
        if b[i] != (n - 1) & 255: raise SystemExit('wrong: %d at %d' % (b[i], i))
        b[i] = n & 255
";

/// Kills one of the run's own processes at random moments: nothing is left, and no byte was wrong.
fn kill_at_random(seed: u64, victim: impl Fn(i32) -> i32, told: &str) {
    let Some(bench) = bench(&[PYTHON]) else { return };
    let own = bench.path("own");
    std::fs::create_dir(&own).unwrap();
    let files = leftovers();
    let mut random = Random::new(seed);
    for _ in 0..KILLS {
        let job = bench.job(&[PYTHON, "-c", TOUCHES]).patience(60);
        let job = job.env("OVERSPILL_TEST", &own).env("TMPDIR", &own);
        let running = job.paged(&["--memory", "16M", "--quiet"]);
        wait_until("it does not start", || descendants(running.pid()).len() >= 3);
        std::thread::sleep(Duration::from_micros(random.below(1_500_000)));
        let victim = victim(running.pid());
        // SAFETY: kill touches no memory; the victim is our child, or its child that runs until it
        // is killed.
        unsafe { libc::kill(victim, libc::SIGKILL) };
        assert_ends(victim);
        let ended = running.end();
        assert!(ended.errors.contains(told), "{ended}");
        assert!(!ended.errors.contains("wrong"), "{ended}");
        started_by(&own).into_iter().for_each(assert_ends);
    }
    assert_eq!(leftovers(), files);
    assert_eq!(own.read_dir().unwrap().count(), 0);
}

#[test]
fn nothing_is_left_after_a_kill_of_the_front() {
    kill_at_random(1, |front| front, "");
}

#[test]
fn nothing_is_left_after_a_kill_of_the_keeper() {
    kill_at_random(2, keeper_of, NO_KEEPER);
}

const NO_KEEPER: &str = "the keeper has ended, so the run is ended";

/// True while a process stands still, or is attached to.
fn is_traced(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    !status.lines().any(|line| line == "TracerPid:\t0")
}

fn keeper_of(front: i32) -> i32 {
    let children = descendants(front);
    children.into_iter().find(|&pid| name_of(pid) == "ovs-keeper").expect("there is a keeper")
}

/// The holder ends the guests, so that a front that has had no turn finds the program ended first.
#[test]
fn the_end_of_the_keeper_is_said_by_a_front_that_comes_late() {
    let Some(bench) = bench(&[PYTHON]) else { return };
    let own = bench.path("own");
    let job = bench.job(&[PYTHON, "-c", TOUCHES]).patience(60);
    let running = job.env("OVERSPILL_TEST", &own).paged(&["--memory", "16M", "--quiet"]);
    wait_until("it is not paged", || agents_of(&own) == 1);
    let (front, keeper) = (running.pid(), keeper_of(running.pid()));
    let program = descendants(front).into_iter().find(|&pid| name_of(pid) == "python3").unwrap();
    wait_until("it is not the keeper's", || !is_traced(program));
    // SAFETY: kill touches no memory; the front is our child, the keeper its.
    let kill = |pid, signal| unsafe { libc::kill(pid, signal) };
    kill(front, libc::SIGSTOP);
    kill(keeper, libc::SIGKILL);
    assert_ends(program);
    kill(front, libc::SIGCONT);
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(125), "{ended}");
    assert!(ended.errors.contains(NO_KEEPER), "{ended}");
}
