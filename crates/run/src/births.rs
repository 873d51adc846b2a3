//! Children that guests fork where no message of the kernel tells of them.
//!
//! Owns: finding a child by the number that its parent knows, and fetching its userfaultfd, or if
//! it has none a pidfd of it; which process a child is.
//! Invariants: what a guest says of a child is believed only as far as that is a process of this
//! run, and the descriptor a userfaultfd. The child waits meanwhile, in its gate.
//! Not here: what it gets (`overspill_keeper`).

use overspill_guest::userfault::GuestUserfault;
use overspill_guest::{Kernel, System, own_number, pidfd};
use overspill_keeper::{Birth, EyeParts};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::Pid;
use std::collections::BTreeMap;

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
    if birth.userfaultfd < 0 {
        return Some(process);
    }
    let taken = kernel.take_descriptor(process.as_fd(), birth.userfaultfd).ok()?;
    let path = format!("/proc/self/fd/{}", taken.as_raw_fd());
    let is_one = std::fs::read_link(path).is_ok_and(|link| link.as_os_str() == USERFAULTFD);
    is_one.then_some(taken)
}

/// A child that a guest has forked, as the keeper told of it.
#[derive(Debug)]
pub(crate) enum Child {
    /// It has this userfaultfd.
    Userfault(GuestUserfault),
    /// It has none, and is this process.
    Process(Option<Pid>),
}

impl From<EyeParts> for Child {
    fn from(eye: EyeParts) -> Self {
        match eye {
            EyeParts::Userfault(userfault) => Self::Userfault(userfault),
            EyeParts::Touches { process, .. } => Self::Process(pidfd::number(&process)),
        }
    }
}

/// Children by their numbers.
pub(crate) type Children = BTreeMap<u64, Child>;

/// The number of the child that a process is known to be.
pub(crate) fn number_of(children: &Children, pid: Pid) -> Option<u64> {
    let is_it = |child: &Child| matches!(child, Child::Process(Some(child)) if *child == pid);
    children.iter().find(|(_, child)| is_it(child)).map(|(number, _)| *number)
}
