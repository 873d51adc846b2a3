//! Blocking signals while the pager works on a program's thread.
//!
//! A handler of the program that ran meanwhile could touch a page whose fault needs a lock that
//! this thread holds. libc's functions never block two signals, by which it cancels threads and
//! changes their user; here they are blocked too.

use crate::calls::{self, Passing};

/// A set of signals as the kernel has it.
type Mask = u64;

fn set_mask(mask: Mask) -> Mask {
    let mut before: Mask = 0;
    let (how, size) = (libc::SIG_SETMASK as usize, size_of::<Mask>());
    let (new, old) = ((&raw const mask).addr(), (&raw mut before).addr());
    // SAFETY: both are sets of the given size.
    unsafe { calls::uncaught(libc::SYS_rt_sigprocmask, how, new, old, size, 0, 0) };
    before
}

/// A thread's previous signal mask; restored when dropped.
#[derive(Debug)]
pub(crate) struct Blocked {
    mask: Mask,
    /// SIGSYS is blocked too.
    passing: Option<Passing>,
}

impl Blocked {
    /// Blocks every signal on this thread.
    pub(crate) fn begin() -> Self {
        let mask = set_mask(Mask::MAX);
        Self { mask, passing: Some(Passing::begin()) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.passing = None;
        set_mask(self.mask);
    }
}

/// Runs `f` with every signal blocked.
pub(crate) fn blocked<R>(f: impl FnOnce() -> R) -> R {
    let _blocked = Blocked::begin();
    f()
}
