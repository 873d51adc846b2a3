//! A process for each rule.
//!
//! Owns: starting this program again for one test, its deadline, and what it says.
//! Invariants: a rule shares its address space with nobody. Each fork of a process is told to every
//! userfaultfd of it, so two tests in one process would wait for each other; and a rule may change
//! limits of its process, or leave threads in the kernel that only the end of it wakes.
//! Rejected: one test at a time in one process (a thread that waits for ever hangs all of them).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::any::type_name;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Says to a process that it was started for one rule.
const VARIABLE: &str = "OVERSPILL_RULE_ALONE";
/// A rule takes a second; on an emulated machine that does other things, up to a minute.
const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// What a rule says besides that it holds.
const REMARKS: [&str; 2] = ["skipped: ", "found: "];

/// Runs a rule in a process of its own. To be called with a closure from the test itself, whose
/// name is taken from the type of the closure.
///
/// # Panics
/// The rule does not hold.
pub fn alone<F: FnOnce()>(rule: F) {
    if std::env::var_os(VARIABLE).is_some() {
        rule();
        std::process::exit(0);
    }
    let (succeeded, output) = run(name_of::<F>());
    assert!(succeeded, "{output}");
    for line in output.lines().filter(|line| REMARKS.iter().any(|word| line.starts_with(word))) {
        println!("{line}");
    }
}

/// Ends the rule: it cannot be tried here. Not for children of a rule, which nobody asks why. (The
/// test's name stands on the line before.)
pub fn skip(reason: &str) -> ! {
    println!("\nskipped: {reason}");
    std::process::exit(0)
}

/// Says what was seen, where a rule leaves it open.
pub fn found(what: &str) {
    println!("\nfound: {what}");
}

/// The test's name without that of its crate: `rules::events::name::{{closure}}`.
fn name_of<F>() -> &'static str {
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_, name)| name)
}

fn run(name: &str) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program's file"));
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "1")
        .env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().expect("this program again");
    let in_time = ends_in_time(&child);
    let _ = kill_process_group(pid_of(&child), Signal::KILL);
    let status = child.wait().expect("its status");
    let mut output = said_by(&mut child);
    if !in_time {
        output.push_str("\nit had not ended in time");
    }
    (in_time && status.success() && !output.contains("running 0 tests"), output)
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn ends_in_time(child: &Child) -> bool {
    let pidfd = pidfd_open(pid_of(child), PidfdFlags::empty()).expect("a child's pidfd");
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PATIENCE)) {
            Err(Errno::INTR) => {}
            ready => return ready.expect("poll of a pidfd") > 0,
        }
    }
}

/// What it wrote; less than a pipe holds, since nobody reads before its end.
fn said_by(child: &mut Child) -> String {
    let mut bytes = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut bytes).expect("a pipe's bytes");
    child.stderr.take().expect("a pipe").read_to_end(&mut bytes).expect("a pipe's bytes");
    String::from_utf8_lossy(&bytes).into_owned()
}
