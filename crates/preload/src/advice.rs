//! madvise and posix_madvise.
//!
//! Owns: what each advice does to managed memory.
//! Invariants: advice with a meaning is served, or refused with EINVAL as by a kernel that does not
//! know it; it is ignored only if it already holds or affects nothing but speed. The kernel gets
//! the foreign parts of a range.
//! Not here: what the pager does about it (`overspill_space::memory`).

use crate::mm::{
    each_foreign, is_aligned, is_managed_range, pager_of, pages, result, touches_managed,
};
use crate::real::{fail, system_call};
use libc::{c_int, c_void};
use overspill_space::{Advice, ManagedMemory, MemoryError};

/// Not yet in the libc crate.
const DONTNEED_LOCKED: c_int = 24;

/// What an advice does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    Page(Advice),
    /// Drops the content.
    Drop,
    /// Makes pages resident, by reads or by writes.
    Populate {
        write: bool,
    },
    /// Has forked children find zeros, or no longer.
    Wipe(bool),
    /// Includes the pages in core dumps, or not.
    Show(bool),
    /// Already true, or affects only speed.
    Nothing,
    Refuse,
}

fn decide(advice: c_int) -> Decision {
    match advice {
        libc::MADV_NORMAL => Decision::Page(Advice::Normal),
        libc::MADV_SEQUENTIAL => Decision::Page(Advice::Sequential),
        libc::MADV_RANDOM => Decision::Page(Advice::Random),
        libc::MADV_WILLNEED => Decision::Page(Advice::WillNeed),
        libc::MADV_COLD => Decision::Page(Advice::Cold),
        libc::MADV_PAGEOUT => Decision::Page(Advice::PageOut),
        libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED => Decision::Drop,
        libc::MADV_POPULATE_READ => Decision::Populate { write: false },
        libc::MADV_POPULATE_WRITE => Decision::Populate { write: true },
        libc::MADV_WIPEONFORK => Decision::Wipe(true),
        libc::MADV_KEEPONFORK => Decision::Wipe(false),
        libc::MADV_DONTDUMP => Decision::Show(false),
        libc::MADV_DODUMP => Decision::Show(true),
        // Forked children have all managed memory, and its pages are never huge or merged.
        libc::MADV_DOFORK | libc::MADV_NOHUGEPAGE | libc::MADV_UNMERGEABLE => Decision::Nothing,
        // Like a kernel that finds no huge page.
        libc::MADV_HUGEPAGE => Decision::Nothing,
        // MADV_DONTFORK: the child's pager needs the whole range. MADV_MERGEABLE: merged pages
        // could not be moved out. MADV_COLLAPSE must not report success. MADV_REMOVE,
        // MADV_HWPOISON, MADV_SOFT_OFFLINE, MADV_GUARD_INSTALL and _REMOVE, and unknown advice.
        _ => Decision::Refuse,
    }
}

fn carry_out(
    memory: &ManagedMemory,
    start: usize,
    pages: usize,
    decision: Decision,
) -> Result<(), MemoryError> {
    match decision {
        Decision::Page(advice) => memory.advise(start, pages, advice),
        Decision::Drop => memory.discard(start, pages),
        Decision::Populate { write } => memory.populate(start, pages, write),
        Decision::Wipe(wipe) => memory.wipe_on_fork(start, pages, wipe),
        Decision::Show(show) => memory.show_in_dumps(start, pages, show),
        Decision::Nothing => Ok(()),
        Decision::Refuse => Err(rustix::io::Errno::INVAL.into()),
    }
}

/// madvise(2). Drops the content where the advice does; advice about paging goes to the pager.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let start = address.addr();
    let Some(process) = pager_of(start) else {
        if touches_managed(start, len) {
            return fail(libc::ENOMEM);
        }
        return system_call!(libc::SYS_madvise, address, len, advice) as c_int;
    };
    let decision = decide(advice);
    let sound = is_aligned(start) && (len == 0 || is_managed_range(start, len));
    let only_foreign = move || {
        let parts = process.memory().foreign(start, pages(len));
        parts.iter().map(|(_, len)| pages(*len)).sum::<usize>() == pages(len)
    };
    if !sound || decision == Decision::Refuse && (len == 0 || !only_foreign()) {
        return fail(libc::EINVAL);
    }
    if len == 0 {
        return 0;
    }
    result(process.call(move |memory| {
        let pages = pages(len);
        let ours = if only_foreign() { Ok(()) } else { carry_out(memory, start, pages, decision) };
        let theirs = each_foreign(memory, start, pages, |start, len| {
            system_call!(libc::SYS_madvise, start, len, advice)
        });
        theirs.and(ours)
    }))
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
    // SAFETY: passed on; the remaining values are the same as madvise's.
    match unsafe { madvise(address, len, advice) } {
        0 => 0,
        // SAFETY: this thread's errno.
        _ => unsafe { *libc::__errno_location() },
    }
}
