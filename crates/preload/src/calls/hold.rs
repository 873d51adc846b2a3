//! Bringing in what a call touches, and holding it.
//!
//! Owns: the way from the table of calls to the engine's holds; cutting calls that touch more than
//! may be held at a time. Works in handlers, so it does not allocate.
//! Invariants: what a call touches of managed memory is in memory from before the call until it has
//! returned, or does not exist, in which case the kernel finds out as without us.

use super::system;
use super::thread::{Thread, VECTORS_MAX};
use crate::pager::{Process, is_managed};
use crate::signals;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_calls::{Arg, Call, Memory, Span};
use overspill_engine::RANGES_MAX;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The most bytes that are held for a transfer that goes on with the rest, or may end short.
pub(super) fn most_at_once(process: &Process) -> usize {
    const ENOUGH: usize = 256 << 10;
    (process.pager.engine().hold_pages_max() * PAGE_SIZE).min(ENOUGH)
}

/// Pages held for any other call, at least: a message of a network.
const MESSAGE_PAGES: usize = 17;

/// The memory of this process, as a system call sees it.
pub(super) struct Own<'a>(pub(super) &'a Process);

impl Memory for Own<'_> {
    fn read(&self, address: usize, bytes: &mut [u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        if !is_managed(address) {
            return copy(Toward::Here, bytes.as_mut_ptr().addr(), address, bytes.len());
        }
        if !self.0.memory().permits(address, bytes.len(), false) {
            return 0;
        }
        settle(self.0, address, bytes.len());
        // SAFETY: mapped and readable. A program that unmaps what another of its threads passes to
        // a call gets a signal where the kernel would say EFAULT.
        unsafe { std::ptr::copy(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        bytes.len()
    }

    fn matters(&self, address: usize) -> bool {
        is_managed(address)
    }
}

/// Brings in what code of ours is about to touch of the program's memory, and holds it until the
/// next time, where a touch would raise a signal: that is blocked now.
pub(crate) fn settle(process: &Process, start: usize, len: usize) {
    if !process.memory().space().waits_by_signal() {
        return;
    }
    let Some(thread) = super::thread::current() else { return };
    if let Some(pages) = managed_pages(process, Span { start, len }) {
        process.pager.engine().hold(thread.own_holder, std::slice::from_ref(&pages));
        process.memory().bring_in(pages);
    }
}

/// Writes what a call returns; false where that is no memory.
pub(super) fn write<T: Copy>(process: &Process, address: usize, value: &T) -> bool {
    let (from, len) = (std::ptr::from_ref(value), size_of::<T>());
    if !is_managed(address) {
        return copy(Toward::There, from.addr(), address, len) == len;
    }
    let permitted = process.memory().permits(address, len, true);
    if permitted {
        settle(process, address, len);
        // SAFETY: as above, and writable.
        unsafe { std::ptr::copy(from.cast::<u8>(), address as *mut u8, len) };
    }
    permitted
}

/// Reads what a call is given.
pub(super) fn read<T: Copy>(process: &Process, address: usize) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: bytes of `value`, which `read` only writes.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    let read = Own(process).read(address, bytes);
    // SAFETY: written whole, with a plain structure of the kernel's.
    (read == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// Which way a copy goes.
#[derive(Clone, Copy)]
enum Toward {
    Here,
    There,
}

/// True if `there` can be touched, found out by a call that every filter allows which lets a
/// program have threads: a futex in each page. Nothing changes; whoever waits for one of these
/// words may be woken for nothing, which every waiter must expect. What is no address, as numbers
/// among the arguments of fcntl and prctl are, is no futex either.
fn is_touchable(toward: Toward, there: usize, len: usize) -> bool {
    const WORD: usize = size_of::<u32>();
    // Adds 0 to the word, and compares it with a number that hardly any is.
    const ADD_NOTHING: usize = (libc::FUTEX_OP_ADD as usize) << 28 | 0x7ff;
    let (no_time, own) = (libc::timespec { tv_sec: 0, tv_nsec: 0 }, 0u32);
    let (no_time, own) = ((&raw const no_time).addr(), (&raw const own).addr());
    let Some(end) = there.checked_add(len) else { return false };
    let pages = (there / PAGE_SIZE..end.div_ceil(PAGE_SIZE)).map(|page| page * PAGE_SIZE);
    pages.map(|page| page.max(there) / WORD * WORD).all(|word| {
        let private = |op: i32| (op | libc::FUTEX_PRIVATE_FLAG) as usize;
        let [first, op, count, last, second, how] = match toward {
            Toward::Here => [word, private(libc::FUTEX_WAIT), 0, no_time, 0, 0],
            Toward::There => [own, private(libc::FUTEX_WAKE_OP), 1, 1, word, ADD_NOTHING],
        };
        // SAFETY: waits for no time on the word, or leaves it as it is; nobody waits for `own`.
        let answer = unsafe { system::call(libc::SYS_futex, first, op, count, last, second, how) };
        answer != -(libc::EFAULT as isize)
    })
}

/// True if the system refuses to copy between processes, as profiles of containers may.
static COPIES_REFUSED: AtomicBool = AtomicBool::new(false);

/// Copies between `here` and any address, which may be a bad one; returns the bytes copied.
fn copy(toward: Toward, here: usize, there: usize, len: usize) -> usize {
    if !crate::sandbox::is_filtered() && !COPIES_REFUSED.load(Relaxed) {
        let copied = copy_by_kernel(toward, here, there, len);
        if copied != -(libc::EPERM as isize) && copied != -(libc::ENOSYS as isize) {
            return copied.max(0) as usize;
        }
        COPIES_REFUSED.store(true, Relaxed);
    }
    if !is_touchable(toward, there, len) {
        return 0;
    }
    let (from, to) = match toward {
        Toward::Here => (there, here),
        Toward::There => (here, there),
    };
    // SAFETY: `here` is ours; `there` the program wants touched, and it was there a moment ago.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
    len
}

/// As above, by the kernel, which reports a bad address; the filter of a program that has one may
/// end it at this call.
fn copy_by_kernel(toward: Toward, here: usize, there: usize, len: usize) -> isize {
    let how = match toward {
        Toward::Here => libc::SYS_process_vm_readv,
        Toward::There => libc::SYS_process_vm_writev,
    };
    let vector = |start: usize| libc::iovec { iov_base: start as *mut _, iov_len: len };
    let (local, remote) = (vector(here), vector(there));
    let own = rustix::process::getpid().as_raw_pid() as usize;
    let (local, remote) = ((&raw const local).addr(), (&raw const remote).addr());
    // SAFETY: `here` is ours; whether `there` may be touched, the kernel decides.
    unsafe { system::call(how, own, local, 1, remote, 1, 0) }
}

/// The managed pages of a span; none if there are none.
fn managed_pages(process: &Process, span: Span) -> Option<Range<PageNo>> {
    let space = process.memory().space();
    let start = space.address_of(PageNo(0));
    let end = start + space.pages() * PAGE_SIZE;
    let (low, high) = (span.start.max(start), span.start.saturating_add(span.len).min(end));
    (low < high).then(|| space.page_at(low)..space.page_at(high - 1).plus(1))
}

/// Pages of a structure.
const SMALL_PAGES: usize = 2;

/// Ranges of managed pages that a thread can hold.
struct Ranges {
    ranges: [Range<PageNo>; RANGES_MAX],
    count: usize,
    /// How many pages more may be added: whatever a program passes, not all of its memory.
    room_pages: usize,
}

fn len(pages: &Range<PageNo>) -> usize {
    pages.end.index() - pages.start.index()
}

fn hull(a: &Range<PageNo>, b: &Range<PageNo>) -> Range<PageNo> {
    a.start.min(b.start)..a.end.max(b.end)
}

impl Ranges {
    const NONE: Range<PageNo> = PageNo(0)..PageNo(0);

    /// Room for `bytes` in each place, wherever in a page they begin.
    fn new(bytes: usize) -> Self {
        let room_pages = (bytes / PAGE_SIZE).max(MESSAGE_PAGES) + RANGES_MAX;
        Self { ranges: [Self::NONE; RANGES_MAX], count: 0, room_pages }
    }

    /// Adds the managed pages of a span, as many as there is room for. One range more than there
    /// are places is joined to the nearest.
    fn add(&mut self, process: &Process, span: Span) {
        let Some(mut new) = managed_pages(process, span) else { return };
        // A long one leaves room for the structures after it.
        let most = self.room_pages.saturating_sub(RANGES_MAX).max(SMALL_PAGES);
        new.end = new.end.min(new.start.plus(most));
        let Some(place) = self.place_for(&new) else {
            let pages = len(&new).min(self.room_pages);
            self.ranges[self.count] = new.start..new.start.plus(pages);
            self.count += usize::from(pages > 0);
            self.room_pages -= pages;
            return;
        };
        let old = &mut self.ranges[place];
        let all = hull(old, &new);
        let more = len(&all) - len(old);
        if more <= self.room_pages {
            *old = all;
            self.room_pages -= more;
        } else if all.start == old.start {
            old.end = old.end.plus(self.room_pages);
            self.room_pages = 0;
        }
    }

    /// The range that `new` is to be joined to, if it is not to have a place of its own.
    fn place_for(&self, new: &Range<PageNo>) -> Option<usize> {
        let all = &self.ranges[..self.count];
        let touches = |old: &Range<PageNo>| new.start <= old.end && old.start <= new.end;
        all.iter().position(touches).or_else(|| {
            let is_full = self.count == RANGES_MAX;
            is_full
                .then(|| (0..self.count).min_by_key(|&n| len(&hull(&all[n], new)) - len(&all[n])))?
        })
    }
}

/// Holds what a call touches; shortens it if that is too much at a time.
pub(super) fn hold_for(process: &Process, thread: &mut Thread, call: &Call, args: &mut [usize; 6]) {
    let most = most_at_once(process);
    shorten(process, thread, call, args, most);
    let mut ranges = Ranges::new(most);
    overspill_calls::walk(call.args, args, &Own(process), &mut |span| ranges.add(process, span));
    if matches!(call.name, "process_vm_readv" | "process_vm_writev") && is_own(args[0]) {
        add_other_side(process, &mut ranges, args);
    }
    hold(process, thread, &ranges);
}

fn is_own(pid: usize) -> bool {
    pid == crate::apart::program().as_raw_pid() as usize
}

/// Adds the other side's buffers, as much of them as this side's, where both are this process.
fn add_other_side(process: &Process, ranges: &mut Ranges, args: &[usize; 6]) {
    let vector =
        |at: usize, n: usize| read::<libc::iovec>(process, at + n * size_of::<libc::iovec>());
    let here = (0..args[2].min(VECTORS_MAX)).map_while(|n| vector(args[1], n));
    let mut room = here.map(|vector| vector.iov_len).sum::<usize>();
    for other in (0..args[4].min(VECTORS_MAX)).map_while(|n| vector(args[3], n)) {
        let len = other.iov_len.min(room);
        ranges.add(process, Span { start: other.iov_base.addr(), len });
        room -= len;
    }
}

/// Holds a page or two behind each register, for calls that are not in the table.
pub(super) fn hold_behind(process: &Process, thread: &mut Thread, registers: &[usize]) {
    let spans = registers.iter().map(|&start| Span { start, len: PAGE_SIZE });
    hold_spans(process, thread, registers.len() * PAGE_SIZE, spans);
}

/// Holds buffers of `bytes` together.
pub(super) fn hold_spans(
    process: &Process,
    thread: &mut Thread,
    bytes: usize,
    spans: impl Iterator<Item = Span>,
) {
    let mut ranges = Ranges::new(bytes.min(most_at_once(process)));
    spans.for_each(|span| ranges.add(process, span));
    hold(process, thread, &ranges);
}

fn hold(process: &Process, thread: &Thread, ranges: &Ranges) {
    let (memory, engine) = (process.memory(), process.pager.engine());
    let ranges = &ranges.ranges[..ranges.count];
    if ranges.is_empty() {
        return;
    }
    engine.hold(thread.holder, ranges);
    let misses = |range: &Range<PageNo>| {
        (range.start.0..range.end.0).any(|page| engine.is_missing(PageNo(page)))
    };
    if ranges.iter().any(misses) {
        signals::blocked(|| ranges.iter().for_each(|range| memory.bring_in(range.clone())));
    }
}

/// Holds again what a handler's calls have taken the place of.
pub(super) fn hold_again(process: &Process, thread: &Thread, held: &overspill_engine::Held) {
    let ranges = process.pager.engine().hold_again(thread.holder, held);
    ranges.for_each(|range| process.memory().bring_in(range));
}

/// Cuts a transfer to what may be held at a time.
fn shorten(
    process: &Process,
    thread: &mut Thread,
    call: &Call,
    args: &mut [usize; 6],
    most: usize,
) {
    match (call.name, call.args) {
        ("read" | "write" | "pread64" | "pwrite64", _) if args[2] > most && !is_whole(args[0]) => {
            args[2] = most;
        }
        ("sendto", _) if args[2] > most && is_stream(args[0]) => args[2] = most,
        ("recvfrom", _) if args[2] > most && args[3] & WAITS_FOR_ALL == 0 && is_stream(args[0]) => {
            args[2] = most;
        }
        ("sendmsg", _) if is_stream(args[0]) => shorten_message(process, thread, args, most),
        (_, [Arg::Value, Arg::Vectors(2), ..]) if !is_whole(args[0]) => {
            if let Some(count) = shorten_vectors(process, thread, args[1], args[2], most) {
                (args[1], args[2]) = (thread.vectors.as_ptr().addr(), count);
            }
        }
        _ => {}
    }
}

/// Flag of a receive that is not to end short.
const WAITS_FOR_ALL: usize = libc::MSG_WAITALL as usize;

fn shorten_message(process: &Process, thread: &mut Thread, args: &mut [usize; 6], most: usize) {
    let Some(mut header) = read::<libc::msghdr>(process, args[1]) else { return };
    let (vectors, count) = (header.msg_iov.addr(), header.msg_iovlen);
    if let Some(count) = shorten_vectors(process, thread, vectors, count, most) {
        (header.msg_iov, header.msg_iovlen) = (thread.vectors.as_mut_ptr(), count);
        thread.header = header;
        args[1] = (&raw const thread.header).addr();
    }
}

/// Addresses that a program can have are below this.
const ADDRESSES: usize = 1 << 47;

/// Copies the first vectors, cut to `most` bytes; returns how many. None if they are short enough.
fn shorten_vectors(
    process: &Process,
    thread: &mut Thread,
    vectors: usize,
    count: usize,
    most: usize,
) -> Option<usize> {
    let vector = |n: usize| {
        read::<libc::iovec>(process, vectors.wrapping_add(n * size_of::<libc::iovec>()))
            // Otherwise the call fails before it does anything.
            .filter(|vector| vector.iov_base.addr().saturating_add(vector.iov_len) < ADDRESSES)
    };
    if count > libc::UIO_MAXIOV as usize {
        // The call fails.
        return None;
    }
    let mut total = 0usize;
    for n in 0..count.min(VECTORS_MAX) {
        let one = vector(n)?;
        thread.vectors[n] = one;
        let room = most - total;
        if one.iov_len > room || n + 1 == VECTORS_MAX && count > VECTORS_MAX {
            thread.vectors[n].iov_len = one.iov_len.min(room);
            return (n + 1..count).all(|n| vector(n).is_some()).then_some(n + 1);
        }
        total += one.iov_len;
    }
    None
}

/// True if what is transferred at a time belongs together: messages, records of a device.
pub(super) fn is_whole(fd: usize) -> bool {
    match file_type(fd) {
        Some(libc::S_IFSOCK) => !is_stream(fd),
        Some(kind) => kind == libc::S_IFCHR,
        None => false,
    }
}

/// The type of the file that a descriptor refers to.
pub(super) fn file_type(fd: usize) -> Option<libc::mode_t> {
    // SAFETY: fstat writes a structure of plain data, which is on this stack.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let got = system::call(libc::SYS_fstat, fd, (&raw mut stat).addr(), 0, 0, 0, 0);
        (got == 0).then_some(stat.st_mode & libc::S_IFMT)
    }
}

pub(super) fn is_stream(fd: usize) -> bool {
    let (mut kind, mut len) = (0i32, 4u32);
    let (kind_at, len_at) = ((&raw mut kind).addr(), (&raw mut len).addr());
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_TYPE as usize);
    // SAFETY: writes both, which are on this stack.
    let got =
        unsafe { system::call(libc::SYS_getsockopt, fd, level, option, kind_at, len_at, 0) == 0 };
    got && kind == libc::SOCK_STREAM
}
