//! The mmap family.
//!
//! Owns: which mappings are managed: private anonymous ones wherever the kernel would be free to put
//! them, and everything a program does later to addresses in the managed range.
//! Invariant: a call that touches the managed range never reaches the kernel unexamined.
//! Not here: what the calls do (`overspill_space::memory`).

use crate::pager::{Process, any_process, is_managed, process};
use crate::real::{fail, kernel_mmap, set_errno, system_call};
use libc::{c_int, c_void, off_t};
use overspill_base::PAGE_SIZE;
use overspill_space::{Advice, MemoryError, Protection};

/// Mappings of these kinds are left to the kernel.
const UNMANAGED: c_int =
    libc::MAP_SHARED | libc::MAP_HUGETLB | libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_32BIT;
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

fn pages(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE)
}

fn protection(prot: c_int) -> Protection {
    Protection::from_bits_retain(prot as u32)
}

fn is_aligned(address: usize) -> bool {
    address.is_multiple_of(PAGE_SIZE)
}

/// The pager, for a call on an address it manages, even where the call comes from within: a block
/// freed while this thread works for the pager must not be unmapped behind its back.
fn pager_of(address: usize) -> Option<&'static Process> {
    any_process().filter(|_| is_managed(address))
}

/// True if the whole range is managed; a length that leaves the managed range is an error of the
/// program's that no system call would take either.
fn is_managed_range(start: usize, len: usize) -> bool {
    is_aligned(start) && start.checked_add(len).is_some_and(|end| is_managed(end - 1))
}

fn result(done: Result<(), MemoryError>) -> c_int {
    done.map_or_else(|error| fail(error.errno()), |()| 0)
}

/// mmap(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let Some(process) = process().filter(|_| len > 0 && len < isize::MAX as usize) else {
        return kernel_mmap(address, len, prot, flags, fd, offset);
    };
    let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & UNMANAGED == 0;
    if flags & FIXED != 0 {
        if !is_managed(address.addr()) {
            return kernel_mmap(address, len, prot, flags, fd, offset);
        }
        return mmap_over(process, anonymous, address, len, prot, flags, fd, offset);
    }
    if !anonymous || prot & libc::PROT_EXEC != 0 {
        return kernel_mmap(address, len, prot, flags, fd, offset);
    }
    match process.call(move |memory| memory.map(pages(len), protection(prot))) {
        Ok(address) => address as *mut c_void,
        Err(error) => map_failed(error.errno()),
    }
}

/// A mapping at a given place in the managed range.
#[expect(clippy::too_many_arguments, reason = "mmap has six")]
fn mmap_over(
    process: &'static Process,
    anonymous: bool,
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let start = address.addr();
    if !is_managed_range(start, len) {
        return map_failed(libc::EINVAL);
    }
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        return map_failed(libc::EEXIST);
    }
    let made = process.call(move |memory| {
        if anonymous {
            memory.map_at(start, pages(len), protection(prot))
        } else {
            memory.make_way(start, pages(len))
        }
    });
    match made {
        Err(error) => map_failed(error.errno()),
        Ok(()) if anonymous => address,
        Ok(()) => kernel_mmap(address, len, prot, flags, fd, offset),
    }
}

fn map_failed(errno: c_int) -> *mut c_void {
    set_errno(errno);
    libc::MAP_FAILED
}

/// mmap64: the same on 64-bit machines.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { mmap(address, len, prot, flags, fd, offset) }
}

/// munmap(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    let start = address.addr();
    match pager_of(start) {
        None => system_call!(libc::SYS_munmap, address, len) as c_int,
        Some(_) if len == 0 || !is_managed_range(start, len) => fail(libc::EINVAL),
        Some(process) => result(process.call(move |memory| memory.unmap(start, pages(len)))),
    }
}

/// mprotect(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, prot: c_int) -> c_int {
    let start = address.addr();
    match pager_of(start) {
        None => system_call!(libc::SYS_mprotect, address, len, prot) as c_int,
        Some(_) if len == 0 && is_aligned(start) => 0,
        Some(_) if len == 0 || !is_managed_range(start, len) => fail(libc::EINVAL),
        Some(process) => {
            let prot = protection(prot);
            result(process.call(move |memory| memory.protect(start, pages(len), prot)))
        }
    }
}

/// What of the advice of madvise(2) is about paging; the rest is about how the *kernel* does it.
fn paging_advice(advice: c_int) -> Option<Advice> {
    match advice {
        libc::MADV_NORMAL => Some(Advice::Normal),
        libc::MADV_SEQUENTIAL => Some(Advice::Sequential),
        libc::MADV_RANDOM => Some(Advice::Random),
        libc::MADV_WILLNEED => Some(Advice::WillNeed),
        libc::MADV_COLD => Some(Advice::Cold),
        libc::MADV_PAGEOUT => Some(Advice::PageOut),
        _ => None,
    }
}

/// madvise(2). Advice that drops content drops it, advice about paging is the pager's to take.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let start = address.addr();
    let Some(process) = pager_of(start) else {
        return system_call!(libc::SYS_madvise, address, len, advice) as c_int;
    };
    if len == 0 {
        return if is_aligned(start) { 0 } else { fail(libc::EINVAL) };
    }
    if !is_managed_range(start, len) {
        return fail(libc::EINVAL);
    }
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => {
            result(process.call(move |memory| memory.discard(start, pages(len))))
        }
        libc::MADV_REMOVE | libc::MADV_HWPOISON => fail(libc::EINVAL),
        _ => match paging_advice(advice) {
            Some(advice) => {
                result(process.call(move |memory| memory.advise(start, pages(len), advice)))
            }
            None => 0,
        },
    }
}

/// posix_madvise(3), which must not drop content.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: passed on; the numbers of what is left are madvise's.
    match unsafe { madvise(address, len, advice) } {
        0 => 0,
        // SAFETY: this thread's errno.
        _ => unsafe { *libc::__errno_location() },
    }
}

/// mremap(2). The new address is there only with MREMAP_FIXED.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let start = old.addr();
    let Some(process) = pager_of(start) else {
        let moved =
            system_call!(libc::SYS_mremap, old, old_len, new_len, flags, new) as *mut c_void;
        return moved;
    };
    let sound = new_len > 0 && old_len > 0 && is_managed_range(start, old_len);
    if !sound || flags & !libc::MREMAP_MAYMOVE != 0 {
        // MREMAP_FIXED and MREMAP_DONTUNMAP on managed memory: nobody but allocators of virtual
        // machines uses them, and they have a way without.
        return map_failed(libc::EINVAL);
    }
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    let resized =
        process.call(move |memory| memory.resize(start, pages(old_len), pages(new_len), may_move));
    match resized {
        Ok(address) => address as *mut c_void,
        Err(error) => map_failed(error.errno()),
    }
}

fn set_locked(address: *const c_void, len: usize, lock: bool) -> Option<c_int> {
    let process = pager_of(address.addr())?;
    let first = address.addr() / PAGE_SIZE * PAGE_SIZE;
    let Some(bytes) = (address.addr() - first).checked_add(len).filter(|&n| n > 0) else {
        return Some(if len == 0 { 0 } else { fail(libc::EINVAL) });
    };
    if !is_managed_range(first, bytes) {
        return Some(fail(libc::ENOMEM));
    }
    let pages = pages(bytes);
    Some(result(process.call(move |memory| memory.set_locked(first, pages, lock))))
}

/// mlock(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, len: usize) -> c_int {
    set_locked(address, len, true)
        .unwrap_or_else(|| system_call!(libc::SYS_mlock, address, len) as c_int)
}

/// mlock2(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(address: *const c_void, len: usize, flags: c_int) -> c_int {
    set_locked(address, len, true)
        .unwrap_or_else(|| system_call!(libc::SYS_mlock2, address, len, flags) as c_int)
}

/// munlock(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(address: *const c_void, len: usize) -> c_int {
    set_locked(address, len, false)
        .unwrap_or_else(|| system_call!(libc::SYS_munlock, address, len) as c_int)
}

/// mlockall(2). Locking everything would lock the whole reservation; the limit forbids it.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    match process() {
        Some(_) => fail(libc::ENOMEM),
        None => system_call!(libc::SYS_mlockall, flags) as c_int,
    }
}
