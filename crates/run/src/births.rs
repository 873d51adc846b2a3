//! Children that guests fork where no message of the kernel tells of them.
//!
//! Owns: finding a child by the number that its parent knows, and fetching its userfaultfd, or if
//! it has none a pidfd of it; which process a child is; the files that gates' letters are in.
//! Invariants: what a guest says of a child is believed only as far as that is a process of this
//! run, a child of the guest's own or of its parent's (CLONE_PARENT), one that the guest could end
//! itself, and no guest or child of another yet; and the descriptor a userfaultfd. The child waits
//! meanwhile, in its gate.
//! Not here: what it gets (`overspill_keeper`).

use crate::watch::{Users, Watched, parent_of, users_of};
use overspill_guest::userfault::GuestUserfault;
use overspill_guest::{FileId, Kernel, System, letter_files, own_number, pidfd};
use overspill_keeper::{Birth, SourceParts};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::Pid;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// What a descriptor of that kind is called in `/proc`.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";
/// Files of letters that are known at a time, beside those of living guests: of more than can end
/// while a child of one is born.
const FILES_MAX: usize = 4096;

/// Fetches it, with its number; `None` if there is no such child, or it is none of `parent`'s.
/// `family` are the processes of the run, without those that are known already.
pub(crate) fn fetch(
    birth: &Birth,
    parent: Pid,
    family: &HashMap<Pid, Watched>,
) -> Option<(OwnedFd, Pid)> {
    let kernel = Kernel::new();
    let is_it = |pid: &Pid| own_number(&kernel, *pid) == Some(birth.child);
    // As a rule it has the number that we see, too.
    let same = Pid::from_raw(birth.child).filter(|pid| family.contains_key(pid) && is_it(pid));
    let pid = same.or_else(|| family.keys().copied().find(is_it))?;
    let process = kernel.open_process(pid).ok()?;
    let is_child = is_child(pid, parent) && may_end(parent, pid) && is_it(&pid);
    // What was just read was of this process only if it still has its number.
    if !is_child || pidfd::has_ended(&process) {
        return None;
    }
    if birth.userfaultfd < 0 {
        return Some((process, pid));
    }
    let taken = kernel.take_descriptor(process.as_fd(), birth.userfaultfd).ok()?;
    let path = format!("/proc/self/fd/{}", taken.as_raw_fd());
    let is_one = std::fs::read_link(path).is_ok_and(|link| link.as_os_str() == USERFAULTFD);
    is_one.then_some((taken, pid))
}

/// True if `parent` has made a process, or could have: its own parent is that one's, too.
fn is_child(pid: Pid, parent: Pid) -> bool {
    let of = parent_of(pid);
    of.is_some() && pid != parent && (of == Some(parent) || of == parent_of(parent))
}

/// True if a process may send another one signals as far as their users go (kill(2)).
fn may_end(sender: Pid, other: Pid) -> bool {
    let (Some(sender), Some(other)) = (users_of(sender), users_of(other)) else { return false };
    let Users { real, effective, .. } = sender;
    let is_theirs = |user| user == other.real || user == other.saved;
    effective == 0 || is_theirs(real) || is_theirs(effective)
}

/// A child that a guest has forked, as the keeper told of it, and which process it is if that is
/// known.
#[derive(Debug)]
pub(crate) enum Child {
    /// It has this userfaultfd.
    Userfault(GuestUserfault, Option<Pid>),
    /// It has none.
    Process(Option<Pid>),
}

impl Child {
    pub(crate) fn new(source: SourceParts, fetched: Option<Pid>) -> Self {
        match source {
            SourceParts::Userfault(userfault) => Self::Userfault(userfault, fetched),
            SourceParts::Signals { process, .. } => Self::Process(pidfd::number(&process)),
        }
    }

    /// Which process it is.
    pub(crate) fn process(&self) -> Option<Pid> {
        let (Self::Userfault(_, process) | Self::Process(process)) = self;
        *process
    }
}

/// Children by their numbers.
pub(crate) type Children = BTreeMap<u64, Child>;

/// The number of the child without a userfaultfd that a process is known to be.
pub(crate) fn number_of(children: &Children, pid: Pid) -> Option<u64> {
    let is_it = |child: &Child| matches!(child, Child::Process(Some(child)) if *child == pid);
    children.iter().find(|(_, child)| is_it(child)).map(|(number, _)| *number)
}

/// Files of letters that guests were given, the latest last.
#[derive(Debug, Default)]
pub(crate) struct LetterFiles(VecDeque<FileId>);

impl LetterFiles {
    /// True if a process has one of them: its calls go by the gate that it has from its parent.
    pub(crate) fn are_of(&self, pid: Pid) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        // A process may call anything so, but has no file that was not given to it.
        letter_files(&maps).any(|file| self.0.contains(&file))
    }

    /// Adds one; forgets one that no living guest was given, if there are many.
    pub(crate) fn add(&mut self, file: FileId, is_living: impl Fn(&FileId) -> bool) {
        self.0.push_back(file);
        if self.0.len() > FILES_MAX
            && let Some(ended) = self.0.iter().position(|file| !is_living(file))
        {
            self.0.remove(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use std::process::Command;

    fn birth(child: Pid) -> Birth {
        Birth { parent: 1, fork: 1, child: child.as_raw_pid(), userfaultfd: -1 }
    }

    #[test]
    fn only_its_own_child_is_fetched_for_a_guest() {
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let mut other = Command::new("sh").args(["-c", "sleep 10 & wait"]).spawn().unwrap();
        let [pid, other_pid] = [&child, &other].map(Pid::from_child);
        let watched = |parent| Watched { pages: 1, parent: Some(parent) };
        let family = HashMap::from([(pid, watched(getpid())), (other_pid, watched(getpid()))]);
        let fetched = |child, parent| fetch(&birth(child), parent, &family).map(|(_, pid)| pid);
        assert_eq!(fetched(pid, getpid()), Some(pid));
        // A sibling of one user may have been made for its parent.
        assert_eq!(fetched(pid, other_pid), Some(pid));
        assert_eq!(fetched(pid, pid), None, "itself");
        assert_eq!(fetched(pid, Pid::INIT), None, "a stranger");
        assert_eq!(fetch(&birth(pid), getpid(), &HashMap::new()).map(drop), None, "known already");
        for child in [&mut child, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(fetched(pid, getpid()), None, "it has ended");
    }

    #[test]
    fn who_may_end_a_process_has_its_user_or_is_root() {
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(may_end(getpid(), pid) && may_end(pid, getpid()));
        if rustix::process::geteuid().is_root() {
            use std::os::unix::process::CommandExt;
            let mut other = Command::new("sleep").arg("10").uid(65534).spawn().unwrap();
            let other_pid = Pid::from_child(&other);
            assert!(may_end(pid, other_pid) && !may_end(other_pid, pid));
            other.kill().unwrap();
            other.wait().unwrap();
        } else {
            println!("skipped: processes of other users: not root");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_latest_files_are_known() {
        let mut files = LetterFiles::default();
        assert!(!files.are_of(getpid()));
        let file = |name| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let given = FileId::of(file("a")).unwrap();
        files.add(given, |_| true);
        assert!(!files.are_of(getpid()), "it is not mapped");
        let other = FileId::of(file("b")).unwrap();
        (0..FILES_MAX).for_each(|_| files.add(other, |file| *file == given));
        assert!(files.0.len() == FILES_MAX && files.0.contains(&given), "its guest lives");
        files.add(other, |_| false);
        assert!(!files.0.contains(&given));
    }
}
