//! When a thread runs.
//!
//! Not here: where (`read`).

/// Has this thread run before all others, as soon as it wants to: for one that wants to seldom.
pub(crate) fn run_first() {
    // The kernel's sched_param. Not by the libc, of which musl's refuses it: it speaks of
    // processes.
    let priority: libc::c_int = 1;
    // Where that is not permitted it waits for its turn, behind a crowd if there is one.
    // SAFETY: the call reads the parameter.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority)
    };
}
