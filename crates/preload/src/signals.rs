//! Blocking signals while the pager works on a program's thread.
//!
//! A handler of the program that ran meanwhile could touch a page whose fault needs a lock that
//! this thread holds. libc's functions never block two signals, by which it cancels threads and
//! changes their user; here they are blocked too.

/// A set of signals as the kernel has it.
type Mask = u64;

fn set_mask(mask: Mask) -> Mask {
    let mut before: Mask = 0;
    // SAFETY: both are sets of the given size.
    unsafe {
        let (how, size) = (libc::SIG_SETMASK, size_of::<Mask>());
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size);
    }
    before
}

/// A thread's previous signal mask; restored when dropped.
#[derive(Debug)]
pub(crate) struct Blocked(Mask);

impl Blocked {
    /// Blocks every signal on this thread.
    pub(crate) fn begin() -> Self {
        Self(set_mask(Mask::MAX))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Runs `f` with every signal blocked.
pub(crate) fn blocked<R>(f: impl FnOnce() -> R) -> R {
    let _blocked = Blocked::begin();
    f()
}
