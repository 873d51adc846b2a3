//! The mmap family.
//!
//! Owns: which mappings are managed: private anonymous ones that the kernel could put anywhere, and
//! everything a program does later to addresses in the managed range.
//! Invariant: a call that touches the managed range never reaches the kernel unexamined.
//! Not here: what the calls do (`overspill_space::memory`); advice ([`crate::advice`]); mappings
//! that move ([`crate::remap`]).

use crate::hints;
use crate::pager::{Process, any_process, is_managed, process};
use crate::real::{fail, kernel_mmap, kernel_mremap, set_errno, system_call};
use libc::{c_int, c_long, c_uint, c_void, off_t};
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_space::{ManagedMemory, MemoryError, Protection};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Mappings of these kinds are left to the kernel.
const UNMANAGED: c_int =
    libc::MAP_SHARED | libc::MAP_HUGETLB | libc::MAP_STACK | libc::MAP_GROWSDOWN | MAP_32BIT;
#[cfg(target_arch = "x86_64")]
const MAP_32BIT: c_int = libc::MAP_32BIT;
/// There is no such flag.
#[cfg(not(target_arch = "x86_64"))]
const MAP_32BIT: c_int = 0;
/// Flags that put a mapping at an address.
const MOVE_TO: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

pub(crate) fn pages(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE)
}

fn protection(prot: c_int) -> Protection {
    Protection::from_bits_retain(prot as u32)
}

pub(crate) fn is_aligned(address: usize) -> bool {
    address.is_multiple_of(PAGE_SIZE)
}

/// Returns the pager, for a call on an address it manages, even if the call comes from within: a
/// block freed while this thread works for the pager must not be unmapped without its knowledge.
pub(crate) fn pager_of(address: usize) -> Option<&'static Process> {
    any_process().filter(|_| is_managed(address))
}

/// Returns true if the whole range is managed; a length that leaves the managed range is an error
/// of the program, which every system call would reject.
pub(crate) fn is_managed_range(start: usize, len: usize) -> bool {
    is_aligned(start) && start.checked_add(len).is_some_and(|end| is_managed(end - 1))
}

/// Returns true if the managed range and this one overlap.
pub(crate) fn touches_managed(start: usize, len: usize) -> bool {
    let Some(process) = any_process().filter(|_| len > 0) else { return false };
    let space = process.memory().space();
    let managed = space.address_of(PageNo(0));
    is_managed(start) || start < managed && start.saturating_add(len - 1) >= managed
}

pub(crate) fn result(done: Result<(), MemoryError>) -> c_int {
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
        if !touches_managed(address.addr(), len) {
            return kernel_mmap(address, len, prot, flags, fd, offset);
        }
        return mmap_over(process, anonymous, address, len, prot, flags, fd, offset);
    }
    let hint = address.addr();
    if !anonymous || prot & libc::PROT_EXEC != 0 || hints::insists(hint, prot) {
        return kernel_mmap(address, len, prot, flags, fd, offset);
    }
    match process.call(move |memory| memory.map(pages(len), protection(prot))) {
        Ok(address) => {
            hints::not_heeded(hint, prot, address);
            address as *mut c_void
        }
        Err(error) => map_failed(error.errno()),
    }
}

/// Makes a mapping at a given place in the managed range.
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
    if anonymous {
        let map = move |memory: &ManagedMemory| memory.map_at(start, pages(len), protection(prot));
        return match process.call(map) {
            Ok(()) => address,
            Err(error) => map_failed(error.errno()),
        };
    }
    // A call that fails must keep what is there: the mapping is made elsewhere first, then moved.
    let huge = huge_page_bytes(flags, fd).unwrap_or(PAGE_SIZE);
    let Some(len) = len.checked_next_multiple_of(huge).filter(|_| start.is_multiple_of(huge))
    else {
        return map_failed(libc::EINVAL);
    };
    let elsewhere = flags & !FIXED;
    let place = kernel_mmap(std::ptr::null_mut(), len, prot, elsewhere, fd, offset);
    if place == libc::MAP_FAILED {
        return place;
    }
    put_over(process, place, len, address)
}

/// Returns the page size of a mapping of huge pages.
fn huge_page_bytes(flags: c_int, fd: c_int) -> Option<usize> {
    const DEFAULT: usize = 2 << 20;
    let anonymous = flags & libc::MAP_ANONYMOUS != 0;
    if anonymous && flags & libc::MAP_HUGETLB != 0 {
        let power = flags as u32 >> libc::MAP_HUGE_SHIFT & libc::MAP_HUGE_MASK as u32;
        return Some(if power == 0 { DEFAULT } else { 1 << power });
    }
    if anonymous || fd < 0 {
        return None;
    }
    // SAFETY: the program's descriptor, which stays open during its call.
    let stat = rustix::fs::fstatfs(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    (stat.f_type == libc::HUGETLBFS_MAGIC).then_some(stat.f_bsize as usize)
}

/// Moves a kernel mapping to an address in the managed range; if that fails, unmaps it.
pub(crate) fn put_over(
    process: &'static Process,
    place: *mut c_void,
    len: usize,
    address: *mut c_void,
) -> *mut c_void {
    let (from, start) = (place.addr(), address.addr());
    let put = move || match kernel_mremap(from, len, len, MOVE_TO, start) {
        libc::MAP_FAILED => Err(last_errno()),
        _ => Ok(()),
    };
    match process.call(move |memory| memory.replace(start, pages(len), put)) {
        Ok(()) => address,
        Err(error) => {
            system_call!(libc::SYS_munmap, from, len);
            map_failed(error.errno())
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOMEM)
}

pub(crate) fn map_failed(errno: c_int) -> *mut c_void {
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
        None if touches_managed(start, len) => fail(libc::EINVAL),
        None => system_call!(libc::SYS_munmap, address, len) as c_int,
        Some(_) if len == 0 || !is_managed_range(start, len) => fail(libc::EINVAL),
        Some(process) => {
            hints::given_back(start);
            result(process.call(move |memory| memory.unmap(start, pages(len))))
        }
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
        None if touches_managed(start, len) => fail(libc::ENOMEM),
        None => system_call!(libc::SYS_mprotect, address, len, prot) as c_int,
        Some(_) if len == 0 && is_aligned(start) => 0,
        Some(_) if len == 0 || !is_managed_range(start, len) => fail(libc::EINVAL),
        Some(process) => {
            let prot = protection(prot);
            result(process.call(move |memory| memory.protect(start, pages(len), prot)))
        }
    }
}

/// mincore(2): a page that is out is not in core. To the kernel the whole managed range is mapped.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(address: *mut c_void, len: usize, found: *mut u8) -> c_int {
    let start = address.addr();
    if let Some(process) = pager_of(start).filter(|_| is_aligned(start) && len > 0) {
        let mapped = move |memory: &ManagedMemory| memory.expect_mapped(start, pages(len));
        if !is_managed_range(start, len) || process.call(mapped).is_err() {
            return fail(libc::ENOMEM);
        }
    }
    system_call!(libc::SYS_mincore, address, len, found) as c_int
}

/// pkey_alloc(2). A page's key would be lost when its place in the managed range is reused, so
/// there are none: fails as on a processor without keys.
#[unsafe(no_mangle)]
pub extern "C" fn pkey_alloc(flags: c_uint, rights: c_uint) -> c_int {
    match process() {
        Some(_) => fail(libc::ENOSPC),
        None => system_call!(libc::SYS_pkey_alloc, flags, rights) as c_int,
    }
}

/// pkey_mprotect(2). Without a key, or with the default key, it is mprotect.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    pkey: c_int,
) -> c_int {
    match pkey {
        // SAFETY: passed on.
        -1 | 0 if touches_managed(address.addr(), len) => unsafe { mprotect(address, len, prot) },
        _ if touches_managed(address.addr(), len) => fail(libc::EINVAL),
        _ => system_call!(libc::SYS_pkey_mprotect, address, len, prot, pkey) as c_int,
    }
}

/// Locks or unlocks a range: the pager its parts, the kernel the others.
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
    let call = if lock { libc::SYS_mlock } else { libc::SYS_munlock };
    let done = move |memory: &ManagedMemory| {
        memory.set_locked(first, pages, lock)?;
        each_foreign(memory, first, pages, |start, len| system_call!(call, start, len))
    };
    Some(result(process.call(done)))
}

/// Has the kernel do its part of a call, for the foreign mappings in a range.
pub(crate) fn each_foreign(
    memory: &ManagedMemory,
    start: usize,
    pages: usize,
    call: impl Fn(usize, usize) -> c_long,
) -> Result<(), MemoryError> {
    let mut done = Ok(());
    for (start, len) in memory.foreign(start, pages) {
        if call(start, len) != 0 {
            done = Err(last_errno().into());
        }
    }
    done
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

/// mlockall(2). Fails: it would lock the whole reservation, which the limit forbids.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    match process() {
        Some(_) => fail(libc::ENOMEM),
        None => system_call!(libc::SYS_mlockall, flags) as c_int,
    }
}
