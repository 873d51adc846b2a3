//! Reads and writes by libc's functions: the frequent calls, held without a signal.
//!
//! libc's own functions do the rest, so cancellation and errno are theirs; `transfers.c` calls
//! them. A transfer that is longer than what may be held at a time is done in parts, where a
//! program expects all of it.
//! Invariant: works in a signal handler: does not allocate, and locks nothing with signals enabled.

use super::here;
use super::hold::{self, file_type, is_whole, most_at_once};
use super::thread::{NO_VECTOR, VECTORS_MAX};
use crate::pager::{Process, is_managed};
use crate::signals;
use libc::{c_char, c_int, c_void, iovec, ssize_t};
use overspill_calls::Span;

/// What a transfer does, if it is longer than a part: `enum kind` in C.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(dead_code, reason = "made in C")]
enum Kind {
    /// Goes on as long as it need not wait.
    Read,
    /// Goes on until it has all.
    ReadAll,
    Write,
}

/// A transfer between a file and memory.
#[repr(C)]
struct Transfer {
    /// Of the part: its buffer or vectors, and how many bytes or vectors.
    at: *const c_void,
    count: usize,
    /// Bytes before it.
    done: usize,
    /// What the function returns.
    result: ssize_t,
    fd: c_int,
    kind: Kind,
    /// Bytes of the part, and the most of any.
    part: usize,
    most: usize,
    rest: Rest,
}

/// `struct transfer` in C.
const TRANSFER_BYTES: usize = (4 + 152) * 8;
const _: () = assert!(size_of::<Transfer>() <= TRANSFER_BYTES);

/// What is left to do.
#[expect(clippy::large_enum_variant, reason = "on the stack of who calls libc")]
enum Rest {
    /// Of no managed memory: all of it, at once.
    Unmanaged,
    /// Bytes of a buffer.
    Buffer(usize),
    Vectors(Scattered, [iovec; VECTORS_MAX]),
}

impl Transfer {
    /// True if a part that has been done whole is followed by the next.
    fn goes_on(&self) -> bool {
        let is_file = || matches!(file_type(self.fd as usize), Some(libc::S_IFREG | libc::S_IFBLK));
        self.kind != Kind::Read || is_file()
    }
}

/// The most bytes of a part.
fn most_of(process: &Process, fd: c_int, bytes: usize) -> usize {
    let most = most_at_once(process);
    if bytes > most && is_whole(fd as usize) { usize::MAX } else { most }
}

/// Begins a transfer of one buffer; false if libc's function does it all.
#[unsafe(no_mangle)]
extern "C" fn overspill_begin_buffer(
    transfer: *mut Transfer,
    fd: c_int,
    kind: Kind,
    buffer: *const c_void,
    len: usize,
) -> bool {
    let Some((_, process)) = here() else { return false };
    let (start, end) = (buffer.addr(), buffer.addr().saturating_add(len.max(1) - 1));
    let (most, rest) = match is_managed(start) || is_managed(end) {
        true => (most_of(process, fd, len), Rest::Buffer(len)),
        false => (0, Rest::Unmanaged),
    };
    let (done, result, part) = (0, 0, 0);
    let new = Transfer { at: buffer, count: len, done, result, fd, kind, part, most, rest };
    // SAFETY: room that C has for it.
    unsafe { transfer.write(new) };
    true
}

/// As above, of several buffers.
#[unsafe(no_mangle)]
extern "C" fn overspill_begin_vectors(
    transfer: *mut Transfer,
    fd: c_int,
    kind: Kind,
    vectors: *const iovec,
    count: c_int,
) -> bool {
    let Some((_, process)) = here() else { return false };
    let all = signals::blocked(|| Scattered::new(process, vectors, count));
    let (most, rest) = match all {
        Some(all) => {
            (most_of(process, fd, all.bytes), Rest::Vectors(all, [NO_VECTOR; VECTORS_MAX]))
        }
        // The kernel says what is wrong with them.
        None => (0, Rest::Unmanaged),
    };
    let (at, count, done, result, part) = (vectors.cast(), count as usize, 0, 0, 0);
    let new = Transfer { at, count, done, result, fd, kind, part, most, rest };
    // SAFETY: room that C has for it.
    unsafe { transfer.write(new) };
    true
}

/// Makes and holds the next part. Calls pass.
#[unsafe(no_mangle)]
extern "C" fn overspill_hold_part(transfer: &mut Transfer) {
    let Some((thread, process)) = super::thread::current().zip(super::any_process()) else {
        return;
    };
    match &mut transfer.rest {
        Rest::Unmanaged => {}
        Rest::Buffer(left) => {
            transfer.part = transfer.most.min(*left);
            transfer.count = transfer.part;
            *left -= transfer.part;
            let span = Span { start: transfer.at.addr(), len: transfer.part };
            hold::hold_spans(process, thread, transfer.part, [span].into_iter());
        }
        Rest::Vectors(rest, part) => {
            let most = transfer.most;
            let (count, bytes) = signals::blocked(|| rest.take(process, most, part));
            (transfer.at, transfer.count, transfer.part) = (part.as_ptr().cast(), count, bytes);
            let span = |vector: &iovec| Span { start: vector.iov_base.addr(), len: vector.iov_len };
            hold::hold_spans(process, thread, bytes, part[..count].iter().map(span));
        }
    }
}

/// Notes what came of a part; true if there is another to do.
#[unsafe(no_mangle)]
extern "C" fn overspill_goes_on(transfer: &mut Transfer, moved: ssize_t) -> bool {
    let left = match &transfer.rest {
        Rest::Unmanaged => {
            transfer.result = moved;
            return false;
        }
        Rest::Buffer(left) => *left,
        Rest::Vectors(rest, _) => rest.bytes,
    };
    if let Some((thread, process)) = here() {
        process.pager.engine().let_go(thread.holder);
    }
    if moved < 0 {
        transfer.result = if transfer.done > 0 { transfer.done as ssize_t } else { moved };
        return false;
    }
    transfer.done += moved as usize;
    transfer.result = transfer.done as ssize_t;
    if let Rest::Buffer(_) = transfer.rest {
        transfer.at = transfer.at.wrapping_byte_add(moved as usize);
    }
    moved as usize == transfer.part && left > 0 && transfer.goes_on()
}

/// Returns libc's function of a name.
#[unsafe(no_mangle)]
extern "C" fn overspill_next(name: *const c_char) -> *mut c_void {
    // SAFETY: a terminated name, from C.
    crate::real::next(unsafe { std::ffi::CStr::from_ptr(name) })
}

/// The buffers that are left of a transfer.
struct Scattered {
    vectors: *const iovec,
    left: usize,
    /// Bytes of the first that have been moved.
    skipped: usize,
    /// Bytes left.
    bytes: usize,
}

impl Scattered {
    /// Looks what a call was given; none if the call will fail.
    fn new(process: &Process, vectors: *const iovec, count: c_int) -> Option<Self> {
        let left = (0..=libc::UIO_MAXIOV).contains(&count).then_some(count as usize)?;
        let bytes = (0..left).try_fold(0isize, |sum, n| {
            let vector = hold::read::<iovec>(process, vectors.wrapping_add(n).addr())?;
            sum.checked_add_unsigned(vector.iov_len)
        })?;
        Some(Self { vectors, left, skipped: 0, bytes: bytes as usize })
    }

    /// Takes the first `most` bytes, if they are in so many vectors; returns how many vectors and
    /// bytes it took.
    fn take(&mut self, process: &Process, most: usize, part: &mut [iovec]) -> (usize, usize) {
        let (mut count, mut taken) = (0, 0);
        while taken < most && self.left > 0 && count < part.len() {
            let Some(vector) = hold::read::<iovec>(process, self.vectors.addr()) else { break };
            // A program may have changed it meanwhile.
            let rest = vector.iov_len.saturating_sub(self.skipped);
            let len = rest.min(most - taken).min(self.bytes);
            let start = vector.iov_base.wrapping_byte_add(self.skipped);
            part[count] = iovec { iov_base: start, iov_len: len };
            (count, taken) = (count + 1, taken + len);
            (self.skipped, self.bytes) = (self.skipped + len, self.bytes - len);
            if len == rest {
                (self.vectors, self.left) = (self.vectors.wrapping_add(1), self.left - 1);
                self.skipped = 0;
            }
        }
        if count == 0 {
            // The program has taken away or shortened what was there: this ends the transfer.
            self.bytes = 0;
        }
        (count, taken)
    }
}

/// Defines functions of libc's that go on in C.
macro_rules! interpose {
    ($($name:ident $in_c:ident)*) => {$(
        unsafe extern "C" {
            fn $in_c();
        }

        #[doc = concat!(stringify!($name), "(2)")]
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!("endbr64", "jmp {}", sym $in_c)
        }
    )*};
}

interpose! {
    read overspill_read
    write overspill_write
    pread overspill_pread
    pread64 overspill_pread64
    pwrite overspill_pwrite
    pwrite64 overspill_pwrite64
    recv overspill_recv
    send overspill_send
    readv overspill_readv
    writev overspill_writev
    preadv overspill_preadv
    preadv64 overspill_preadv64
    pwritev overspill_pwritev
    pwritev64 overspill_pwritev64
}
