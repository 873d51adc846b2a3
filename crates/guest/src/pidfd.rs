//! Whether a process has ended, by its pidfd, and how.
//!
//! Owns: waiting for that. See pidfd_open(2): it is readable when the process has ended.
//! Not here: reaping, which only a parent can do.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::process::Pid;
use std::time::Duration;

/// True if the process has ended, whether it was reaped or not.
pub fn has_ended(process: &impl AsFd) -> bool {
    ends_within(process, Duration::ZERO)
}

/// Waits for the end of the process, `at_most` so long; false if it has not ended, or if a signal
/// came before.
pub fn ends_within(process: &impl AsFd, at_most: Duration) -> bool {
    let at_most = Timespec::try_from(at_most).ok();
    poll(&mut [PollFd::new(process, PollFlags::IN)], at_most.as_ref()) == Ok(1)
}

/// Waits for the end of the process.
pub fn wait_for_end(process: &impl AsFd) {
    while poll(&mut [PollFd::new(process, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

/// The number of the process; `None` if it was reaped, or is in no namespace of ours.
pub fn number(process: &impl AsFd) -> Option<Pid> {
    let path = format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(path).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    Pid::from_raw(number.trim().parse().ok().filter(|number| *number > 0)?)
}

/// The start of `struct pidfd_info` (`linux/pidfd.h`).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    numbers: [u32; 11],
    status: i32,
}

const GET_INFO: Opcode = opcode::read_write::<Info>(0xff, 11);
/// `PIDFD_INFO_EXIT`.
const STATUS: u64 = 1 << 3;

/// The status with which a process has ended, as `wait` returns it, whoever reaped it; `None`
/// before Linux 6.15, or if it goes on, or has not been reaped yet.
pub fn status(process: &impl AsFd) -> Option<i32> {
    let mut info = Info { mask: STATUS, ..Info::default() };
    // SAFETY: the opcode was made from Info, which the kernel reads and writes.
    unsafe { ioctl(process, Updater::<GET_INFO, _>::new(&mut info)) }.ok()?;
    (info.mask & STATUS != 0).then_some(info.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, pidfd_open};
    use std::process::Command;

    #[test]
    fn a_process_has_ended_also_before_it_is_reaped() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        assert!(!has_ended(&process));
        assert_eq!(number(&process), Some(Pid::from_child(&child)));
        assert!(!ends_within(&process, Duration::from_millis(1)));
        child.kill().unwrap();
        wait_for_end(&process);
        assert!(has_ended(&process));
        child.wait().unwrap();
        assert!(has_ended(&process));
        assert_eq!(number(&process), None);
        assert!(status(&process).is_none_or(|status| status == libc::SIGKILL));
    }
}
