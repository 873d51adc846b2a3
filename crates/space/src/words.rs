//! What is said to a source of touches, and what it says: a userfaultfd or guards.

use rustix::io::Errno;

/// Which touches of missing pages are served, and how they are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// All, also those of the kernel in a system call. Needs a permission.
    All,
    /// Only those of the program itself; a system call that meets a missing page fails with EFAULT
    /// (`UFFD_USER_MODE_ONLY`, 5.11). Permitted to everybody, but not in every container.
    Program,
    /// As [`Program`](Self::Program), by SIGSEGV: missing pages are guard regions (6.13).
    Guards,
    /// As [`Guards`](Self::Guards) on any kernel: missing pages are without access. Few pages can
    /// be in memory.
    Shut,
}

impl Reach {
    /// True if touches raise signals, whatever a region asks for.
    pub fn is_by_signal(self) -> bool {
        matches!(self, Self::Guards | Self::Shut)
    }
}

/// A touch of a missing page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultMessage {
    /// The address touched.
    pub address: usize,
    /// The id of the thread that touched it, in its own PID namespace; 0 if not reported.
    pub thread: i32,
}

/// How far a call over several pages got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Bytes done, from the start.
    pub bytes: usize,
    /// Of those, bytes skipped because pages were present.
    pub present: usize,
    /// What stopped the call; `None` if all was done.
    pub stopped: Option<Errno>,
}
