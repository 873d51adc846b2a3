//! Anonymous mappings: the reservation, and what is done to parts of it by address.
//!
//! Owns: these system calls and their flags. Invariants: nothing but our own range, and memory the
//! engine has given to it, is changed.
//! Not here: which part of the range is whose (`ranges`), userfaultfd (`uffd`).

use overspill_base::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Alignment of the reservation, so that aligned mappings in it are aligned addresses.
pub(crate) const BASE_ALIGN: usize = 1 << 30;

/// Reserves `len` bytes, readable and writable, at a multiple of [`BASE_ALIGN`].
pub(crate) fn reserve_aligned(len: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice, trimmed to the aligned part.
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
        Ok(start)
    }
}

/// Puts fresh memory over a part of the range.
pub(crate) fn map_fixed(start: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: replaces a part of our own range on which the program has given up its mapping.
    unsafe { rustix::mm::mmap_anonymous(start as *mut _, len, prot, flags) }?;
    forbid_huge_pages(start, len);
    Ok(())
}

/// Keeps the kernel from joining pages.
pub(crate) fn forbid_huge_pages(start: usize, len: usize) {
    // Kernels without huge pages refuse.
    set_advice(start, len, Advice::LinuxNoHugepage);
}

/// Gives the kernel advice on a part of the range that changes no content.
pub(crate) fn set_advice(start: usize, len: usize, advice: Advice) {
    // SAFETY: advice on our own mapping that changes no content.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, len, advice) };
}

/// Keeps the range out of core dumps, which would be as large as it; what is mapped in it is put
/// back (`marks`).
fn hide_from_dumps(start: usize, len: usize) {
    set_advice(start, len, Advice::LinuxDontDump);
}

/// Makes present pages that a forked process shares our own, as a write would; nobody says when
/// a process forks, so every page that is busy may be such a one. False if that cannot be done.
pub(crate) fn unshare(start: usize, len: usize) -> bool {
    // SAFETY: the engine holds the locks of these pages, which are present; no content changes. A
    // write of our own would end the process if the program has just made the page read-only.
    unsafe { rustix::mm::madvise(start as *mut _, len, Advice::LinuxPopulateWrite) }.is_ok()
}

/// Drops pages with their content. What the kernel refuses to drop (EINVAL: locked in memory)
/// stays.
pub(crate) fn drop_pages(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the engine holds the locks of these pages, or they are staging pages nobody uses.
    // Their content is lost, which is what was asked for.
    unsafe { rustix::mm::madvise(start as *mut _, len, Advice::LinuxDontNeed) }
}

/// Which pages of 4 KiB are in memory. What cannot be told is not.
pub(crate) fn are_resident(start: usize, resident: &mut [bool]) {
    for (n, resident) in resident.iter_mut().enumerate() {
        let (page, mut byte) = ((start + n * PAGE_SIZE) as *mut _, 0u8);
        // SAFETY: one byte is written, for the one page asked about.
        let told = unsafe { libc::mincore(page, PAGE_SIZE, (&raw mut byte).cast()) } == 0;
        *resident = told && byte & 1 != 0;
    }
}

/// Makes pages look as if nobody had touched them lately, as the kernel does by itself; then
/// touches each.
pub(crate) fn age_and_touch(start: usize, pages: usize) {
    // SAFETY: advice on our own mapping that changes no content.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, pages * PAGE_SIZE, Advice::LinuxCold) };
    for n in 0..pages {
        // SAFETY: our own mapping. Nobody else writes to it, and the byte is not used.
        let _ = unsafe { ((start + n * PAGE_SIZE) as *const u8).read_volatile() };
    }
}
