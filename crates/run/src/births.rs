//! Children that guests fork where no message of the kernel tells of them.
//!
//! Owns: finding a child by the number that its parent knows, and fetching its userfaultfd.
//! Invariants: what a guest says of a child is believed only as far as that is a process of this
//! run, and the descriptor a userfaultfd. The child waits meanwhile, in its gate.
//! Not here: what it gets (`overspill_keeper`).

use overspill_guest::{Kernel, System, own_number};
use overspill_keeper::Birth;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::Pid;

/// What a descriptor of that kind is called in `/proc`.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";

/// Fetches it; `None` if there is no such child, or it is none of ours. `family` are the processes
/// of the run.
pub(crate) fn fetch(birth: &Birth, family: impl Fn() -> Vec<Pid>) -> Option<OwnedFd> {
    let kernel = Kernel::new();
    let is_it = |pid: &Pid| own_number(&kernel, *pid) == Some(birth.child);
    // As a rule it has the number that we see, too.
    let same = Pid::from_raw(birth.child).filter(is_it);
    let family = family();
    let same = same.filter(|pid| family.contains(pid));
    let pid = same.or_else(|| family.into_iter().find(is_it))?;
    let process = kernel.open_process(pid).ok()?;
    let taken = kernel.take_descriptor(process.as_fd(), birth.userfaultfd).ok()?;
    let path = format!("/proc/self/fd/{}", taken.as_raw_fd());
    let is_one = std::fs::read_link(path).is_ok_and(|link| link.as_os_str() == USERFAULTFD);
    is_one.then_some(taken)
}
