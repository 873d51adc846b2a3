//! Regions of a process that forks, by signal and by message.

use super::{PAGE, SIZE, by_signal, exercise, fill, overspill_of, resident_pages};
use overspill::Advice;
use std::ffi::c_int;

#[test]
fn a_fork_leaves_the_parent_its_regions() {
    for page in [PAGE, 64 << 10] {
        let Some(overspill) = overspill_of(page, "ram:96M") else { return };
        for mut region in [by_signal(&overspill), overspill.region(SIZE).unwrap()] {
            fill(&mut region);
            let child = Child::fork();
            // What is in memory is shared now, and must be evicted all the same.
            region.advise(0..region.len(), Advice::PageOut);
            assert_eq!(resident_pages(&region), 0, "pages of {page}");
            drop(child);
            exercise(&mut region, 2, 1_000);
        }
        assert_eq!(overspill.last_error(), None);
    }
}

/// A forked process that only waits until it is killed.
struct Child(c_int);

impl Child {
    fn fork() -> Self {
        // SAFETY: the child only waits, and ends with this process.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system calls.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(child > 0);
        Self(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
