//! What the kernel may answer to each call of userfaultfd, and somebody who may stand in between.
//!
//! Owns: the one table of errnos. It says what an errno means for the call that got it; what to do
//! about that is its caller's. An errno that is not in it is unexpected: it is said and counted,
//! and whoever gets it changes nothing.
//! Not here: the calls ([`crate::uffd`]); where a page is after a move that stopped, which no errno
//! tells ([`crate::whereabouts`]).

use rustix::io::Errno;

/// A call of userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// UFFDIO_REGISTER.
    Register,
    /// UFFDIO_UNREGISTER.
    Unregister,
    /// UFFDIO_COPY.
    Copy,
    /// UFFDIO_ZEROPAGE.
    Zero,
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_WAKE.
    Wake,
    /// UFFDIO_WRITEPROTECT.
    WriteProtect,
    /// UFFDIO_POISON.
    Poison,
}

impl Call {
    /// As the kernel calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Register => "UFFDIO_REGISTER",
            Self::Unregister => "UFFDIO_UNREGISTER",
            Self::Copy => "UFFDIO_COPY",
            Self::Zero => "UFFDIO_ZEROPAGE",
            Self::Move => "UFFDIO_MOVE",
            Self::Wake => "UFFDIO_WAKE",
            Self::WriteProtect => "UFFDIO_WRITEPROTECT",
            Self::Poison => "UFFDIO_POISON",
        }
    }
}

/// What an errno means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Something changed meanwhile, or a signal came: ask again.
    Again,
    /// The kernel has no memory: ask again.
    NoMemory,
    /// A page is at the target.
    Present,
    /// A device or another process has the page.
    InUse,
    /// No page is at the source, no mapping of ours at the target, or one of the ranges is more
    /// than one mapping.
    Absent,
    /// The two ranges differ in protection, or one of them cannot be moved from or to.
    Unlike,
    /// The address space is being torn down.
    Gone,
    /// The caller passes it on to the user.
    Refused,
    /// Not in the table.
    Unexpected,
}

/// The table. Linux 6.18, `fs/userfaultfd.c` and `mm/userfaultfd.c`, read for what they answer;
/// older kernels answer the same or less.
pub fn meaning(call: Call, errno: Errno) -> Meaning {
    use Call::{Copy, Move, Poison, Register, Unregister, Wake, WriteProtect, Zero};
    match (call, errno) {
        (Register | Unregister, _) => Meaning::Refused,
        (Wake, _) => Meaning::Unexpected,
        (_, Errno::AGAIN | Errno::INTR) => Meaning::Again,
        (_, Errno::NOMEM) => Meaning::NoMemory,
        (_, Errno::SRCH) => Meaning::Gone,
        (_, Errno::NOENT) => Meaning::Absent,
        (Copy | Zero | Move | Poison, Errno::EXIST) => Meaning::Present,
        (Move, Errno::BUSY) => Meaning::InUse,
        (Move, Errno::INVAL) => Meaning::Unlike,
        (Copy | Zero | Move | Poison | WriteProtect, _) => Meaning::Unexpected,
    }
}

/// A call on its way to the kernel.
pub trait Request {
    /// Bytes it is about.
    fn bytes(&mut self) -> u64;

    /// Has the kernel do it for the first `bytes` bytes.
    ///
    /// # Errors
    /// What the kernel says.
    fn perform(&mut self, bytes: u64) -> Result<(), Errno>;

    /// The field in which the kernel says how many bytes it has done, or a negated errno.
    fn done(&mut self) -> Option<&mut i64>;
}

/// Stands between us and the kernel: tests have it answer as kernels do once in ten million calls.
pub trait Between: Send + Sync + std::fmt::Debug {
    /// Answers a call.
    ///
    /// # Errors
    /// What the kernel said, or might have.
    fn answer(&self, call: Call, request: &mut dyn Request) -> Result<(), Errno>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_mean_what_this_table_says() {
        use Meaning::{Absent, Again, Gone, InUse, NoMemory, Present, Unexpected, Unlike};
        let errnos = [
            Errno::AGAIN,
            Errno::INTR,
            Errno::NOMEM,
            Errno::EXIST,
            Errno::BUSY,
            Errno::NOENT,
            Errno::INVAL,
            Errno::SRCH,
            Errno::FAULT,
            Errno::NOSPC,
        ];
        let fills = [
            Again, Again, NoMemory, Present, Unexpected, Absent, Unexpected, Gone, Unexpected,
            Unexpected,
        ];
        let table = [
            (Call::Copy, fills),
            (Call::Zero, fills),
            (Call::Poison, fills),
            (
                Call::Move,
                [
                    Again, Again, NoMemory, Present, InUse, Absent, Unlike, Gone, Unexpected,
                    Unexpected,
                ],
            ),
            (
                Call::WriteProtect,
                [
                    Again, Again, NoMemory, Unexpected, Unexpected, Absent, Unexpected, Gone,
                    Unexpected, Unexpected,
                ],
            ),
            (Call::Wake, [Unexpected; 10]),
            (Call::Register, [Meaning::Refused; 10]),
            (Call::Unregister, [Meaning::Refused; 10]),
        ];
        for (call, meanings) in table {
            for (errno, expected) in errnos.into_iter().zip(meanings) {
                assert_eq!(meaning(call, errno), expected, "{} {errno}", call.name());
            }
        }
    }
}
