//! Threads that wait for a page, of a guest without a userfaultfd.
//!
//! Owns: whether a thread's mapping allows what it was about to do.
//! Not here: how they are answered (`signal_faults`).

use super::letters::LetterId;
use overspill_agent::gate::access;
use overspill_guest::Vpn;
use overspill_guest::mappings::Mapping;
use rustix::io::Errno;
use std::time::Instant;

/// What a touch is answered with that is the program's mistake.
pub(crate) const MISTAKE: i64 = -(Errno::FAULT.raw_os_error() as i64);

/// A thread that waits for a page: its letter, and what it was about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) letter: LetterId,
    pub(crate) at: Vpn,
    pub(crate) access: u64,
    pub(crate) since: Instant,
}

/// True if some mapping allows a touch.
pub(crate) fn is_allowed(mappings: &[Mapping], waiting: &Waiting) -> bool {
    let there = mappings.iter().find(|mapping| mapping.place.contains(&waiting.at));
    there.is_some_and(|mapping| match waiting.access {
        access if access & access::WRITE != 0 => mapping.is_writable,
        access if access & access::EXECUTE != 0 => mapping.is_executable,
        // What can be written or executed can be read, too, on x86-64.
        _ => mapping.is_readable || mapping.is_writable || mapping.is_executable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_guest::mappings;

    #[test]
    fn who_may_touch_memory_its_mapping_says() {
        let maps = "1000-3000 r--p 0 0:0 0\n3000-4000 rw-p 0 0:0 0\n5000-6000 ---p 0 0:0 0\n";
        let mappings = mappings::parse_list(maps);
        let since = Instant::now();
        let letter = LetterId::OF_NOBODY;
        let may =
            |page, access| is_allowed(&mappings, &Waiting { letter, at: Vpn(page), access, since });
        assert!(may(1, 0) && may(3, 0) && may(3, access::WRITE));
        assert!(!may(2, access::WRITE) && !may(3, access::EXECUTE) && !may(4, 0) && !may(5, 0));
    }
}
