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
            region.advise(0..region.len(), Advice::PageOut);
            assert_eq!(resident_pages(&region), 0, "pages of {page}");
            drop(child);
            exercise(&mut region, 2, 1_000);
        }
        assert_eq!(overspill.last_error(), None);
    }
}

/// It does not have it: swapped-out pages would read as zeros.
#[test]
fn a_forked_child_that_touches_a_region_ends_and_reads_no_zeros() {
    let Some(overspill) = overspill_of(PAGE, "ram:96M") else { return };
    for mut region in [by_signal(&overspill), overspill.region(SIZE).unwrap()] {
        fill(&mut region);
        // SAFETY: the child touches memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system calls; no core is wanted. The touch is what is tested.
            unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
                libc::_exit(i32::from(region.as_mut_ptr().add(8).read_volatile()));
            }
        }
        let mut status = 0;
        // SAFETY: our own child, not yet waited for.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "status {status:x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
        exercise(&mut region, 3, 1_000);
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
