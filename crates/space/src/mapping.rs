//! Anonymous mappings: the reservation, and system calls on parts of it by address.
//!
//! Owns: these system calls and their flags.
//! Invariants: only our own range, and memory the engine has given to it, is changed.
//! Not here: what each part of the range is used for (`ranges`), userfaultfd (`uffd`).

use overspill_base::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Alignment of the reservation, so that aligned page numbers are aligned addresses.
pub(crate) const BASE_ALIGN: usize = 1 << 30;

fn access(is_accessible: bool) -> ProtFlags {
    if is_accessible { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() }
}

/// Reserves `len` bytes at a multiple of [`BASE_ALIGN`], readable and writable if `is_accessible`.
/// A forked child does not have them: pages that are out would read as zeros there.
pub(crate) fn reserve_aligned(len: usize, is_accessible: bool) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = access(is_accessible);
    // SAFETY: a new mapping at an address of the kernel's choice, trimmed to the aligned part.
    unsafe {
        let whole =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len + BASE_ALIGN, prot, flags)?;
        let start = whole.addr().next_multiple_of(BASE_ALIGN);
        let (head, tail) = (start - whole.addr(), BASE_ALIGN - (start - whole.addr()));
        if head > 0 {
            rustix::mm::munmap(whole, head)?;
        }
        if tail > 0 {
            rustix::mm::munmap((start + len) as *mut _, tail)?;
        }
        forbid_huge_pages(start, len);
        hide_from_dumps(start, len);
        set_advice(start, len, Advice::LinuxDontFork);
        Ok(start)
    }
}

/// Gives the range back with all that is mapped in it.
pub(crate) fn release(start: usize, len: usize) {
    // SAFETY: the range is ours, and its owner ends: whoever uses a part of it keeps the owner. If
    // not, that part would be gone under its user. It fails only if the kernel would need another
    // mapping, which the whole of a range does not.
    let _ = unsafe { rustix::mm::munmap(start as *mut _, len) };
}

/// Keeps the kernel from using huge pages.
pub(crate) fn forbid_huge_pages(start: usize, len: usize) {
    // Fails on kernels without huge pages.
    set_advice(start, len, Advice::LinuxNoHugepage);
}

/// Gives the kernel advice on a part of the range that does not change its content.
pub(crate) fn set_advice(start: usize, len: usize, advice: Advice) {
    // SAFETY: advice on our own mapping that changes no content.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, len, advice) };
}

/// Excludes the range from core dumps, which would be as large; what is mapped in it is included
/// again (`dumps`).
fn hide_from_dumps(start: usize, len: usize) {
    set_advice(start, len, Advice::LinuxDontDump);
}

/// Unshares present pages that a forked process shares, as a write would; forks are not reported,
/// so any busy page may be shared. False if that fails.
pub(crate) fn unshare(start: usize, len: usize) -> bool {
    // SAFETY: the engine holds the locks of these pages, which are present; no content changes.
    unsafe { rustix::mm::madvise(start as *mut _, len, Advice::LinuxPopulateWrite) }.is_ok()
}

/// Drops pages with their content. What the kernel refuses to drop (EINVAL: locked in memory)
/// stays.
pub(crate) fn drop_pages(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the engine holds the locks of these pages, or they are unused staging pages. The
    // caller wants their content dropped.
    unsafe { rustix::mm::madvise(start as *mut _, len, Advice::LinuxDontNeed) }
}

/// Looks up which pages of 4 KiB are in memory. A page counts as absent if that fails.
pub(crate) fn are_resident(start: usize, resident: &mut [bool]) {
    for (n, resident) in resident.iter_mut().enumerate() {
        let (page, mut byte) = ((start + n * PAGE_SIZE) as *mut _, 0u8);
        // SAFETY: one byte is written, for the one page queried.
        let told = unsafe { libc::mincore(page, PAGE_SIZE, (&raw mut byte).cast()) } == 0;
        *resident = told && byte & 1 != 0;
    }
}

/// Makes pages look unused, as the kernel's aging does; then touches each.
pub(crate) fn age_and_touch(start: usize, pages: usize) {
    // SAFETY: advice on our own mapping that changes no content.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, pages * PAGE_SIZE, Advice::LinuxCold) };
    for n in 0..pages {
        // SAFETY: our own mapping. No other thread writes to it, and the byte is not used.
        let _ = unsafe { ((start + n * PAGE_SIZE) as *const u8).read_volatile() };
    }
}
