//! The processes of a run that have ended, and its end.
//!
//! Owns: reaping, and killing all that is left.
//! Invariants: a process that this thread traces may be waited for only by whoever traces: a stop
//! that it has told must not be taken for it. So each child is looked at, and only then reaped.
//! Not here: which processes there are (`watch`).

use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::process::{pidfd_open, pidfd_send_signal, waitid, waitpid};

/// True if a child has ended and was not reaped yet.
pub fn has_ended(child: Pid) -> bool {
    overspill_guest::has_ended(child).unwrap_or(false)
}

/// Reaps a child if it has ended.
pub(crate) fn reap(child: Pid) {
    if has_ended(child) {
        let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Waits for the end of a process that was told to end, and reaps it if it is a child.
pub(crate) fn wait_for(pid: Pid) {
    // If it is no child, or the kernel has reaped it, there is nothing to wait for.
    let _ = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
}

/// Kills a process, if there is one of that number.
pub(crate) fn kill(pid: Pid) {
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_what_has_ended_is_reaped() {
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let pid = Pid::from_child(&child);
        reap(pid);
        assert!(!has_ended(pid));
        kill(pid);
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        reap(pid);
        assert!(child.wait().is_err(), "it was reaped");
    }
}
