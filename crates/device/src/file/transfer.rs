//! Carries one request through to its end, however many system calls that takes.
//!
//! Owns: the list of memory pieces still to be moved, and the one translation of a system call's
//! result into the next step.
//! Invariants: a transfer ends with all bytes moved or with an error. Only interruptions are
//! retried without progress, and a limited number of times: a device that returns EAGAIN forever is
//! an error, not a hang.
//! Not here: the system calls ([`super::uring`], [`super::positioned`]).

use crate::error::{DeviceError, is_full};
use crate::{DeviceInfo, IoOp, IoRequest};
use overspill_base::{Bytes, PAGE_SIZE, Slot};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Consecutive interruptions before a transfer fails.
const MAX_STALLS: u32 = 64;

/// The target of requests: an open file, and its description for errors.
#[derive(Debug)]
pub(super) struct Target {
    fd: OwnedFd,
    name: String,
    size: Bytes,
}

impl Target {
    /// The device `info` describes, open as `fd`.
    pub(super) fn new(fd: OwnedFd, info: &DeviceInfo) -> Self {
        let size = Bytes::of_pages(info.slots_max.into());
        Self { fd, name: info.name.clone(), size }
    }

    /// The device's name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The error of a request, worded for the user.
    pub(super) fn error(&self, op: IoOp, slot: Slot, failure: Failure) -> DeviceError {
        let name = self.name.clone();
        match failure {
            Failure::Ended => DeviceError::Short { name, op, slot },
            Failure::NoSpace => DeviceError::DiskFull { name, size: self.size },
            Failure::Errno(errno) => DeviceError::Io { name, op, slot, errno },
        }
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A piece of memory, in the layout of the kernel's `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct IoVec {
    /// Its start.
    pub(super) base: *mut u8,
    /// Its length in bytes.
    pub(super) len: usize,
}

// SAFETY: an IoVec is an address and a length of pages that the request beside it owns, and goes to
// another thread only together with it. Alone it gives access to nothing without unsafe code.
unsafe impl Send for IoVec {}

/// What a transfer needs next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: all bytes are moved.
    Finished,
    /// Another system call, for what remains.
    Again,
    /// It has failed.
    Failed(Failure),
}

/// Why a transfer has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The file is shorter than the request.
    Ended,
    /// The file system has no space.
    NoSpace,
    /// Anything else.
    Errno(Errno),
}

/// The rest of a request. Reused for the next requests, to avoid allocations.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    pieces: Vec<IoVec>,
    moved_pieces: usize,
    offset_bytes: u64,
    remaining_bytes: usize,
    stalls: u32,
}

impl Transfer {
    /// An empty transfer with room for a request whose pages are adjacent in memory.
    pub(super) fn for_one_piece() -> Self {
        Self { pieces: Vec::with_capacity(1), ..Self::default() }
    }

    /// Starts on `request`. Pages that are adjacent in memory become one piece.
    pub(super) fn begin(&mut self, request: &IoRequest) {
        self.pieces.clear();
        for page in &request.pages {
            let base = page.as_ptr();
            match self.pieces.last_mut() {
                Some(last) if last.base.wrapping_add(last.len) == base => last.len += PAGE_SIZE,
                _ => self.pieces.push(IoVec { base, len: PAGE_SIZE }),
            }
        }
        self.moved_pieces = 0;
        self.offset_bytes = Bytes::of_pages(request.slot.0.into()).0;
        self.remaining_bytes = request.pages.len() * PAGE_SIZE;
        self.stalls = 0;
    }

    /// The memory still to be moved. The slice is valid until the next call of any method.
    pub(super) fn pieces(&self) -> &[IoVec] {
        &self.pieces[self.moved_pieces..]
    }

    /// The file offset of the next byte.
    pub(super) fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Processes the result of a system call for all remaining pieces.
    pub(super) fn advance(&mut self, result: Result<usize, Errno>) -> Step {
        match result {
            Ok(moved) if moved >= self.remaining_bytes => Step::Finished,
            Ok(0) => Step::Failed(Failure::Ended),
            Ok(moved) => {
                self.skip(moved);
                Step::Again
            }
            Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) if self.stalls < MAX_STALLS => {
                self.stalls += 1;
                Step::Again
            }
            Err(errno) if is_full(errno) => Step::Failed(Failure::NoSpace),
            Err(errno) => Step::Failed(Failure::Errno(errno)),
        }
    }

    fn skip(&mut self, moved: usize) {
        self.stalls = 0;
        self.offset_bytes += moved as u64;
        self.remaining_bytes -= moved;
        let mut left = moved;
        while left > 0 {
            let piece = &mut self.pieces[self.moved_pieces];
            let part = left.min(piece.len);
            piece.base = piece.base.wrapping_add(part);
            piece.len -= part;
            left -= part;
            self.moved_pieces += usize::from(piece.len == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_base::shared::PageArena;

    const PAGE: usize = PAGE_SIZE;

    /// A transfer of slots 10.., its pages at `places` of an arena.
    fn transfer(places: &[usize]) -> (PageArena, Transfer) {
        let arena = PageArena::new(8).unwrap();
        // SAFETY: different places, one handle each, and the arena is returned with them.
        let pages = places.iter().map(|&place| unsafe { arena.page(place) }).collect();
        let mut transfer = Transfer::default();
        transfer.begin(&IoRequest { op: IoOp::Read, slot: Slot(10), pages, tag: 0 });
        (arena, transfer)
    }

    #[test]
    fn neighbours_in_memory_are_one_piece() {
        let (arena, transfer) = transfer(&[0, 1, 3, 2]);
        let pieces: Vec<_> = transfer.pieces().iter().map(|p| (p.base, p.len)).collect();
        let at = |place| arena.address(place);
        assert_eq!(pieces, [(at(0), 2 * PAGE), (at(3), PAGE), (at(2), PAGE)]);
        assert_eq!(transfer.offset_bytes(), 10 * PAGE as u64);
    }

    #[test]
    fn every_result_has_one_meaning() {
        let errno = |errno| Step::Failed(Failure::Errno(errno));
        let table = [
            (Ok(2 * PAGE), Step::Finished),
            (Ok(2 * PAGE - 512), Step::Again),
            (Ok(1), Step::Again),
            (Ok(0), Step::Failed(Failure::Ended)),
            (Err(Errno::INTR), Step::Again),
            (Err(Errno::AGAIN), Step::Again),
            (Err(Errno::CANCELED), Step::Again),
            (Err(Errno::NOSPC), Step::Failed(Failure::NoSpace)),
            (Err(Errno::DQUOT), Step::Failed(Failure::NoSpace)),
            (Err(Errno::FBIG), Step::Failed(Failure::NoSpace)),
            (Err(Errno::IO), errno(Errno::IO)),
            (Err(Errno::INVAL), errno(Errno::INVAL)),
            (Err(Errno::NODEV), errno(Errno::NODEV)),
        ];
        for (result, step) in table {
            let (_arena, mut transfer) = transfer(&[0, 1]);
            assert_eq!(transfer.advance(result), step, "{result:?}");
        }
    }

    #[test]
    fn short_transfers_go_on_where_they_stopped() {
        let (arena, mut transfer) = transfer(&[0, 2, 4]);
        assert_eq!(transfer.advance(Ok(PAGE + 512)), Step::Again);
        assert_eq!(transfer.offset_bytes(), (11 * PAGE + 512) as u64);
        let pieces: Vec<_> = transfer.pieces().iter().map(|p| (p.base, p.len)).collect();
        let half = arena.address(2).wrapping_add(512);
        assert_eq!(pieces, [(half, PAGE - 512), (arena.address(4), PAGE)]);
        assert_eq!(transfer.advance(Ok(PAGE - 512)), Step::Again);
        assert_eq!(transfer.pieces().len(), 1);
        assert_eq!(transfer.advance(Ok(PAGE)), Step::Finished);
    }

    #[test]
    fn interruptions_are_forgiven_only_so_often_without_progress() {
        let (_arena, mut transfer) = transfer(&[0]);
        for _ in 0..2 {
            for _ in 0..MAX_STALLS {
                assert_eq!(transfer.advance(Err(Errno::AGAIN)), Step::Again);
            }
            assert_eq!(transfer.advance(Ok(512)), Step::Again);
        }
        for _ in 0..MAX_STALLS {
            transfer.advance(Err(Errno::AGAIN));
        }
        let given_up = Step::Failed(Failure::Errno(Errno::AGAIN));
        assert_eq!(transfer.advance(Err(Errno::AGAIN)), given_up);
    }

    #[test]
    fn a_request_without_pages_is_finished_by_a_result_of_zero() {
        let (_arena, mut transfer) = transfer(&[]);
        assert_eq!(transfer.advance(Ok(0)), Step::Finished);
    }
}
