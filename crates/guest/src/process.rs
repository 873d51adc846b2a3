//! What `/proc` says of a process.
//!
//! Owns: reading its status, its namespaces, and what a thread waits in.
//! Invariants: a file that cannot be understood is an error, never a default.
//! Not here: its address space ([`crate::places`]).

use crate::arch::Blocked;
use crate::error::{About, AttachError, Found, Result};
use crate::system::System;
use rustix::process::Pid;

/// What the status of a task says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Status {
    /// Its state: one letter.
    pub(crate) state: char,
    pub(crate) parent: i32,
    /// 0 if nobody traces it.
    pub(crate) tracer: i32,
    /// Its process's number in its own namespace.
    pub(crate) own_number: i32,
    /// The task's number there.
    pub(crate) own_task: i32,
    /// Namespaces that it has a number in, as far as the reader sees them.
    pub(crate) numbers: usize,
    /// 0, or how its system calls are filtered.
    pub(crate) seccomp: u32,
    pub(crate) filters: u32,
    /// Signals that wait, and are not blocked.
    pub(crate) signals: u64,
    /// Signals that have a handler.
    pub(crate) caught: u64,
}

impl Status {
    /// Returns true if the task has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The status of a thread of a process.
pub(crate) fn status<S: System>(system: &S, pid: Pid, task: Pid) -> Result<Status> {
    let text =
        system.read_file(&task_path(pid, task, "status")).about(pid, "reading the status of")?;
    parse_status(&text).ok_or_else(|| AttachError::Unexpected {
        pid,
        doing: "reading its status",
        found: Found(format!("a status of {} bytes", text.len())),
    })
}

/// A process's number in its own namespace; `None` if there is no such process.
pub fn own_number<S: System>(system: &S, pid: Pid) -> Option<i32> {
    status(system, pid, pid).ok().map(|status| status.own_number)
}

fn task_path(pid: Pid, task: Pid, file: &str) -> String {
    format!("/proc/{}/task/{}/{file}", pid.as_raw_nonzero(), task.as_raw_nonzero())
}

fn parse_status(text: &str) -> Option<Status> {
    let mut status = Status { numbers: 1, ..Status::default() };
    let (mut pending, mut blocked, mut found) = (0, 0, 0);
    for (key, value) in text.lines().filter_map(|line| line.split_once(":\t")) {
        let value = value.trim();
        match key {
            "State" => status.state = value.chars().next()?,
            "PPid" => status.parent = value.parse().ok()?,
            "TracerPid" => status.tracer = value.parse().ok()?,
            "NStgid" => {
                status.numbers = value.split_whitespace().count();
                status.own_number = value.split_whitespace().last()?.parse().ok()?;
            }
            "NSpid" => status.own_task = value.split_whitespace().last()?.parse().ok()?,
            "SigCgt" => status.caught = u64::from_str_radix(value, 16).ok()?,
            "SigPnd" | "ShdPnd" => pending |= u64::from_str_radix(value, 16).ok()?,
            "SigBlk" => blocked = u64::from_str_radix(value, 16).ok()?,
            "Seccomp" => status.seccomp = value.parse().ok()?,
            "Seccomp_filters" => status.filters = value.parse().ok()?,
            _ => continue,
        }
        found += 1;
    }
    status.signals = pending & !blocked;
    // State to NStgid and the signals are in every status; Seccomp's are where there is seccomp.
    (found >= 9).then_some(status)
}

/// What a thread waits in; `None` if it runs, or waits in no call.
pub(crate) fn blocked_in<S: System>(system: &S, pid: Pid, task: Pid) -> Result<Option<Blocked>> {
    let text = system.read_file(&task_path(pid, task, "syscall"));
    let text = text.about(pid, "reading what call is made by")?;
    Ok(parse_blocked(&text))
}

fn parse_blocked(text: &str) -> Option<Blocked> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Blocked { number, arguments })
}

/// Whether a process sees the numbers that we see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Namespace {
    Ours,
    Another,
}

/// Returns which PID namespace a process is in, and fails if its children go to another.
pub(crate) fn namespace<S: System>(system: &S, pid: Pid) -> Result<Namespace> {
    let link = |process: &str, name: &str| {
        let link = system.read_link(&format!("/proc/{process}/ns/{name}"));
        link.about(pid, "reading the namespaces of")
    };
    let process = pid.as_raw_nonzero().to_string();
    let own = link(&process, "pid")?;
    if own != link(&process, "pid_for_children")? {
        return Err(AttachError::Namespaces { pid });
    }
    Ok(if own == link("self", "pid")? { Namespace::Ours } else { Namespace::Another })
}

/// Returns true if a process descends from this one. Then the filters that it has in number as we
/// have them are ours.
pub(crate) fn descends_from_us<S: System>(system: &S, pid: Pid) -> Result<bool> {
    let own = rustix::process::getpid();
    let mut ancestor = pid;
    while ancestor != own {
        match Pid::from_raw(status(system, ancestor, ancestor)?.parent) {
            Some(parent) => ancestor = parent,
            None => return Ok(false),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx: y\nState:\tt (tracing stop)\nTgid:\t12\nPid:\t12\nPPid:\t3\n\
        TracerPid:\t7\nNStgid:\t12\t1\nNSpid:\t13\t2\nSigPnd:\t0000000000000001\nShdPnd:\t0000000000000200\n\
        SigBlk:\t0000000000000200\nSigCgt:\t0000000000000400\nSeccomp:\t2\nSeccomp_filters:\t4\n";

    #[test]
    fn a_status_is_read() {
        let expected = Status {
            state: 't',
            parent: 3,
            tracer: 7,
            own_number: 1,
            own_task: 2,
            numbers: 2,
            seccomp: 2,
            filters: 4,
            signals: 1,
            caught: 0x400,
        };
        assert_eq!(parse_status(STATUS), Some(expected));
        assert_eq!(parse_status("State:\tS\n"), None);
        assert_eq!(parse_status(&STATUS.replace("0200", "02x0")), None);
    }

    #[test]
    fn what_a_thread_waits_in_is_read() {
        let call = parse_blocked("7 0x1 0x2 0x3 0x4 0x5 0xff 0x7ffc 0x7f12\n").unwrap();
        assert_eq!((call.number, call.arguments), (7, [1, 2, 3, 4, 5, 255]));
        assert_eq!(parse_blocked("running\n"), None);
        assert_eq!(parse_blocked("-1 0x7ffc 0x7f12\n"), None);
    }
}
