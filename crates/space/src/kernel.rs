//! The meaning of the kernel's errnos for each call of userfaultfd, and a trait by which tests
//! intercept the calls.
//!
//! Owns: the one table of errnos. It gives the meaning of an errno for the call that returned it;
//! the caller decides what to do. An errno that is not in it is unexpected: it is reported and
//! counted, and the caller changes nothing.
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
    /// The kernel's name of the call.
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
    /// Something changed meanwhile, or a signal arrived: retry.
    Again,
    /// The kernel has no memory: retry.
    NoMemory,
    /// A page is at the target.
    Present,
    /// A device or another process uses the page.
    InUse,
    /// No page is at the source, no mapping of ours at the target, or one of the ranges spans
    /// several mappings.
    Absent,
    /// The two ranges differ in protection, or one of them does not support moves.
    Unlike,
    /// The address space is being torn down.
    Gone,
    /// The caller reports it to the user.
    Refused,
    /// Not in the table.
    Unexpected,
}

/// The table, from `fs/userfaultfd.c` and `mm/userfaultfd.c` of Linux 6.18; older kernels return
/// the same errnos or fewer.
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
    /// Its length in bytes.
    fn bytes(&mut self) -> u64;

    /// Makes the kernel process the first `bytes` bytes.
    ///
    /// # Errors
    /// The kernel's errno.
    fn perform(&mut self, bytes: u64) -> Result<(), Errno>;

    /// The field for the number of bytes done, or a negated errno.
    fn done(&mut self) -> Option<&mut i64>;
}

/// Intercepts calls: tests inject answers that kernels give once in ten million calls.
pub trait Between: Send + Sync + std::fmt::Debug {
    /// Answers a call.
    ///
    /// # Errors
    /// The kernel's errno, or one it might return.
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
