//! Whether two processes have the same memory.
//!
//! Owns: kcmp(2), and what follows from its answers.
//! Invariant: that an answer could not be had is never taken for one.

use rustix::process::Pid;

/// `KCMP_VM`, of `linux/kcmp.h`.
const KCMP_VM: libc::c_int = 1;

/// True if two processes have one address space; `None` if that cannot be found out: one of them
/// has ended, or may not be looked at. A first thread that has ended while others go on has none.
pub(crate) fn have_same_memory(a: Pid, b: Pid) -> Option<bool> {
    let (a, b) = (a.as_raw_pid(), b.as_raw_pid());
    // SAFETY: only numbers are passed.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) } {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}

/// True if a process has other memory than its parent: it is not about to execute something else.
/// Of a parent with more rights than ours only sizes can be seen.
pub(crate) fn has_memory_of_its_own(pid: Pid, parent: Pid) -> bool {
    match have_same_memory(pid, parent) {
        Some(same) => !same,
        None => have_other_sizes(pid, parent),
    }
}

/// That sizes are the same says nothing, nor that they differ if one was seen to change.
fn have_other_sizes(pid: Pid, parent: Pid) -> bool {
    let [before, other, after] = [pid, parent, pid].map(sizes);
    before == after && before != other && !before.is_empty() && !other.is_empty()
}

/// True if `pid` has memory, and other memory than `agent`, which is mapped at `base`: it executes
/// another program. Only a first thread is compared, which has no memory when it has ended before
/// its process.
pub(crate) fn has_executed(pid: Pid, agent: Pid, base: u64) -> bool {
    let has_left = match have_same_memory(pid, agent) {
        Some(same) => !same,
        // Sizes of one memory may have changed in between, and back.
        None => have_other_sizes(pid, agent) && !has_mapping(pid, base),
    };
    has_left && has_memory(pid)
}

/// True if something is mapped from an address on, or nobody can tell.
fn has_mapping(pid: Pid, address: u64) -> bool {
    let start = format!("{address:x}-");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.map_or(true, |maps| maps.is_empty() || maps.lines().any(|line| line.starts_with(&start)))
}

fn has_memory(pid: Pid) -> bool {
    sizes(pid).split(' ').next().is_some_and(|size| size.parse().is_ok_and(|size: u64| size > 0))
}

/// Of its memory, in pages, as the kernel tells everybody; empty if it has ended.
fn sizes(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use std::process::Command;

    #[test]
    fn sizes_tell_two_memories_apart() {
        let own = getpid();
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let other = Pid::from_child(&child);
        while !(has_memory_of_its_own(other, own) && have_other_sizes(other, own)) {
            std::thread::yield_now();
        }
        assert!(!have_other_sizes(other, other));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!have_other_sizes(other, own));
    }

    #[test]
    fn a_process_has_its_own_memory_and_another_one_another() {
        let own = getpid();
        assert_eq!(have_same_memory(own, own), Some(true));
        assert!(!has_executed(own, own, 0));
        let mut child = Command::new("sleep").arg("10").spawn().unwrap();
        let other = Pid::from_child(&child);
        assert_eq!(have_same_memory(own, other), Some(false));
        assert!(has_executed(other, own, 0));
        child.kill().unwrap();
        while has_memory(other) {
            std::thread::yield_now();
        }
        // A zombie, as a first thread is that has ended before its process.
        assert!(!has_executed(other, own, 0));
        child.wait().unwrap();
        assert_eq!(have_same_memory(own, other), None);
    }
}
