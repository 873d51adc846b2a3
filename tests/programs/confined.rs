//! What other processes may do with ours, and ours with the kernel, while a program is paged.

use crate::attach::send;
use crate::gates::USER;
use crate::keeper::{self, wait_until};
use overspill_programs::job::{Job, Running, descendants, name_of};
use std::os::unix::fs::MetadataExt;

/// What the keeper keeps: CAP_KILL, CAP_IPC_LOCK, CAP_SYS_NICE, CAP_SYS_RESOURCE (capability.h).
const KEPT: u64 = 1 << 5 | 1 << 14 | 1 << 23 | 1 << 24;

/// Runs a program in less memory than it has, until it is paged.
fn paged(job: &Job) -> Running {
    let running = job.paged(&["--memory", "16M", "--swap", "compressed:256M"]);
    wait_until("the program is ready", || running.errors().contains("ready"));
    wait_until("it is paged", || !called(&running, "ovs-holder").is_empty());
    running
}

fn called(running: &Running, name: &str) -> Vec<i32> {
    descendants(running.pid()).into_iter().filter(|pid| name_of(*pid) == name).collect()
}

/// What `/proc` says of each thread of a process.
fn of_threads(pid: i32, field: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let statuses = threads.map(|thread| std::fs::read_to_string(thread.path().join("status")));
    let value = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    statuses.flatten().map(value).collect()
}

#[test]
fn a_keeper_may_do_what_it_does_and_no_more() {
    let Some(bench) = keeper::bench(&["cc"]) else { return };
    let program = bench.cc("long_runs.c").display().to_string();
    let running = paged(&bench.job(&[&program, "holds"]));
    for pid in [called(&running, "ovs-keeper"), called(&running, "ovs-holder")].concat() {
        for (field, expected) in [("Seccomp", "2"), ("NoNewPrivs", "1")] {
            assert!(
                of_threads(pid, field).iter().all(|value| value == expected),
                "{field} of {pid}"
            );
        }
        for bits in of_threads(pid, "CapPrm") {
            assert_eq!(u64::from_str_radix(&bits, 16).unwrap() & !KEPT, 0, "{bits}");
        }
    }
    end(running);
}

/// The files of a process that cannot be dumped are root's: its user can neither trace it nor open
/// what it has open.
#[test]
fn nothing_of_ours_is_its_users() {
    let Some(bench) = crate::gates::bench(&["cc"]) else { return };
    let program = bench.cc("long_runs.c").display().to_string();
    let running = paged(&bench.job(&[&program, "holds"]).user(USER));
    let ours = ["ovs-keeper", "ovs-holder"].map(|name| called(&running, name)).concat();
    for pid in ours.into_iter().chain([running.pid()]) {
        let user = std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
        assert_eq!(user, 0, "{}", name_of(pid));
    }
    end(running);
}

fn end(running: Running) {
    called(&running, "long_runs").into_iter().for_each(|pid| send(pid, libc::SIGTERM));
    running.success();
}
