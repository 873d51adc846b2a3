//! Processes that run already: put into a limit, and let go again.

use crate::keeper::{is_possible, wait_until};
use crate::kills::{assert_ends, started_by};
use crate::random::Random;
use overspill_programs::bench::{Bench, overspill};
use overspill_programs::job::{Ended, MIB, Running, descendants, name_of};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Output};
use std::time::Duration;

/// Of 160 MiB that the program has.
const LIMIT: u64 = 48 * MIB;

struct Scene {
    bench: Bench,
    program: Running,
}

impl Scene {
    /// Starts a case of the program, a static one, and waits until it has its memory.
    fn of(case: &str) -> Option<Self> {
        let scene = Self::start(&[], case)?;
        wait_until("it has its memory", || scene.memory() > 3 * LIMIT);
        Some(scene)
    }

    /// Starts a case in a run.
    fn run(case: &str, options: &[&str]) -> Option<Self> {
        let (overspill, limit) = (overspill(), LIMIT.to_string());
        let run = [overspill.to_str().unwrap(), "run", "--memory", &limit];
        Self::start(&[&run[..], options, &["--swap", "compressed:1G", "--"]].concat(), case)
    }

    fn start(before: &[&str], case: &str) -> Option<Self> {
        let bench = if is_possible() { Bench::with(&[])? } else { return None };
        let program = bench.cc_with("attach.c", &["-static"], "attach");
        let words = [before, &[program.to_str().unwrap(), case]].concat();
        let program = bench.job(&words).patience(60 + 10 * rounds() as u64).plain();
        Some(Self { bench, program })
    }

    /// Attaches, and waits until that is said.
    fn attach(&self) -> Running {
        self.attach_with("compressed:1G")
    }

    fn attach_with(&self, swap: &str) -> Running {
        let mut words = vec![overspill().into_os_string(), "attach".into()];
        words.extend([self.program.pid().to_string().into(), "--memory".into()]);
        words.extend([LIMIT.to_string().into(), "--swap".into(), swap.into()]);
        let attached = self.bench.job(&words).env("OVERSPILL_TEST", self.bench.path("own")).plain();
        wait_until("it is attached to", || attached.errors().contains("is in a limit of"));
        attached
    }

    /// As above, and waits until the program is in its limit.
    fn attached(&self) -> Running {
        let attached = self.attach();
        wait_until("it is in its limit", || self.memory() < LIMIT + 16 * MIB);
        attached
    }

    fn detach(&self) -> Output {
        let detach = &["detach", &self.program.pid().to_string()];
        Command::new(overspill()).args(detach).output().unwrap()
    }

    /// Has a run that was let go in its limit again.
    fn limit_again(&self) {
        let (process, limit) = (self.program.pid().to_string(), LIMIT.to_string());
        let set = Command::new(overspill()).args(["set", &process, "--memory", &limit]).output();
        assert!(set.as_ref().unwrap().status.success(), "{set:?}");
    }

    /// Private memory that the program has, in bytes.
    fn memory(&self) -> u64 {
        anonymous(self.program.pid())
    }

    /// Its mappings, each without its size: those beside one another may have become one.
    fn mappings(&self) -> Vec<String> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.program.pid())).unwrap();
        let mut kinds: Vec<String> = maps
            .lines()
            .map(|line| line.split_ascii_whitespace().skip(1).collect::<Vec<_>>().join(" "))
            .collect();
        kinds.dedup();
        kinds
    }

    /// Nothing of ours is in it or beside it.
    fn assert_untouched(&self, before: &[String]) {
        assert_eq!(self.program.errors(), "");
        assert!(!has_registered(self.program.pid()));
        assert_eq!(self.mappings(), before);
        let status = self.status();
        assert!(
            status.contains("TracerPid:\t0") && !status.contains("THP_enabled:\t0"),
            "{status}"
        );
        assert_eq!(started_by(&self.bench.path("own")), [0; 0], "left behind");
    }

    fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.program.pid())).unwrap()
    }

    /// Has the program end, which then checks all that it has.
    fn end(self) -> Bench {
        send(self.program.pid(), libc::SIGTERM);
        assert_eq!(self.program.success().text(), "ok\n");
        self.bench
    }
}

/// Private memory that a process has, in bytes.
pub(crate) fn anonymous(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}

/// True if a mapping of it is registered with a userfaultfd.
fn has_registered(pid: i32) -> bool {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut flags = smaps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.any(|flags| flags.contains(" um") || flags.contains(" uw"))
}

/// Sends a signal to a process that was started here.
pub(crate) fn send(pid: i32, signal: i32) {
    // SAFETY: the process was started here, and not reaped.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn assert_let_go(attached: Running) -> Ended {
    let ended = attached.end();
    assert_eq!(ended.status.code(), Some(0), "{ended}");
    ended
}

#[test]
fn who_runs_already_is_limited_and_let_go() {
    let Some(scene) = Scene::of("works_on") else { return };
    let before = scene.mappings();
    for _ in 0..3 {
        let attached = scene.attached();
        std::thread::sleep(Duration::from_millis(300));
        assert!(scene.memory() < LIMIT + 16 * MIB, "{} of {LIMIT}", scene.memory());
        let detached = scene.detach();
        assert!(detached.status.success(), "{detached:?}");
        let told = assert_let_go(attached).to_string();
        assert!(told.contains("memory 48 MiB, most in use"), "{told}");
        assert!(scene.memory() > 2 * LIMIT, "{} of {LIMIT}", scene.memory());
        scene.assert_untouched(&before);
    }
    scene.end();
}

/// More of them: ATTACHMENTS, or `make armings`.
fn rounds() -> usize {
    let wanted = std::env::var("ATTACHMENTS").ok();
    wanted.map_or(8, |wanted| wanted.parse().expect("a number"))
}

/// At any moment: in the middle of an attach, of a fork, of a batch.
#[test]
fn at_random_moments() {
    let Some(scene) = Scene::of("works_on_and_forks") else { return };
    let mut random = Random::new(11);
    let before = scene.mappings();
    for round in 0..rounds() {
        let attached = scene.attach();
        std::thread::sleep(Duration::from_micros(random.next() % 400_000));
        send(attached.pid(), [libc::SIGINT, libc::SIGTERM, libc::SIGHUP][round % 3]);
        assert_let_go(attached);
        scene.assert_untouched(&before);
    }
    scene.end();
}

/// What is brought back while the front waits for that does not wait for a guest that the front has
/// stopped in the middle of a fork.
#[test]
fn in_touches_at_random_moments() {
    let Some(scene) = Scene::run("works_on_and_forks", &["--way", "touches"]) else { return };
    let mut random = Random::new(7);
    for _ in 0..rounds() {
        std::thread::sleep(Duration::from_micros(random.next() % 400_000));
        let detached = scene.detach();
        assert!(detached.status.success(), "{detached:?}");
        scene.limit_again();
    }
    send(scene.program.pid(), libc::SIGTERM);
    assert_eq!(scene.program.success().text(), "ok\n");
}

/// It goes on without a terminal, and is found by the process.
#[test]
fn in_the_background() {
    let Some(scene) = Scene::of("works_on") else { return };
    let before = scene.mappings();
    let process = scene.program.pid().to_string();
    let words = ["attach", "--background", &process, "--memory", "48M", "--swap", "compressed:1G"];
    let started = Command::new(overspill()).args(words).output().unwrap();
    assert!(started.status.success() && started.stdout.is_empty(), "{started:?}");
    wait_until("it is in its limit", || scene.memory() < LIMIT + 16 * MIB);
    let detached = scene.detach();
    assert!(detached.status.success(), "{detached:?}");
    scene.assert_untouched(&before);
    let refused =
        Command::new(overspill()).args(["attach", "--background", "1", "-m", "1K"]).output();
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(String::from_utf8_lossy(&refused.stderr).lines().count(), 1, "{refused:?}");
    scene.end();
}

#[test]
fn a_run_is_let_go_and_taken_again() {
    let Some(scene) = Scene::run("works_on", &[]) else { return };
    let all = || descendants(scene.program.pid()).into_iter();
    let find = || all().find(|pid| name_of(*pid) == "attach" && anonymous(*pid) > LIMIT / 2);
    wait_until("it has its memory, or is in its limit", || find().is_some());
    let program = find().unwrap();
    for _ in 0..3 {
        wait_until("it is in its limit", || has_registered(program));
        let detached = scene.detach();
        assert!(detached.status.success(), "{detached:?}");
        assert!(!has_registered(program));
        wait_until("it has all of its memory", || anonymous(program) > 3 * LIMIT);
        scene.limit_again();
        assert!(anonymous(program) < LIMIT + 16 * MIB);
    }
    send(program, libc::SIGTERM);
    let ended = scene.program.end();
    assert_eq!((ended.status.code(), ended.text().as_str()), (Some(0), "ok\n"), "{ended}");
}

#[test]
fn the_end_of_the_process_ends_it() {
    let Some(scene) = Scene::of("works_on") else { return };
    let attached = scene.attached();
    let _bench = scene.end();
    assert_let_go(attached);
}

/// What is out cannot come back, and must not read as zeros.
#[test]
fn a_kill_of_it_ends_who_is_paged() {
    let Some(scene) = Scene::of("works_on") else { return };
    let attached = scene.attached();
    let keeper = descendants(attached.pid()).into_iter().find(|pid| name_of(*pid) == "ovs-keeper");
    send(attached.pid(), libc::SIGKILL);
    assert_eq!(scene.program.end().status.code(), None);
    assert_ends(keeper.unwrap());
    drop(attached.end());
}

/// Of what was brought back by then all is paged again.
#[test]
fn who_lost_a_page_stays_in_the_limit() {
    let Some(scene) = Scene::of("rests") else { return };
    let swap = scene.bench.path("swap");
    let file = File::create(&swap).unwrap();
    let attached = scene.attach_with(&format!("file:{}:1G", swap.display()));
    let is_limited = || scene.memory() < LIMIT + 16 * MIB;
    wait_until("it is in its limit", is_limited);
    file.write_all_at(&[0x5a; 1 << 20], 32 * MIB).unwrap();
    let detached = scene.detach();
    assert_eq!(detached.status.code(), Some(125), "{detached:?}");
    wait_until("it is in its limit again", is_limited);
    send(scene.program.pid(), libc::SIGKILL);
    drop(scene.program.end());
    let ended = assert_let_go(attached).to_string();
    assert!(ended.contains("stays in its limit: a page of it is lost"), "{ended}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let Some(scene) = Scene::of("works_on") else { return };
    let refused = |process: &str, why: &str| {
        let words = ["attach", process, "--memory", "48M", "--swap", "compressed:1G"];
        let refused = Command::new(overspill()).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(125), "{said}");
        assert!(said.lines().count() == 1 && said.contains(why), "{said}");
    };
    refused("2147483647", "there is no process");
    refused("many", "give the number of a process");
    let attached = scene.attached();
    let process = scene.program.pid().to_string();
    refused(&process, "is in the limit of");
    let detached = scene.detach();
    assert!(detached.status.success(), "{detached:?}");
    assert_let_go(attached);
    assert_eq!(scene.detach().status.code(), Some(125));
    scene.end();
}
