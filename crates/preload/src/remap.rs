//! mremap, and System V shared memory.
//!
//! Owns: every way in which a mapping of one kind replaces one of another kind.
//! Invariant: the old mapping is removed only when the new one has been made, elsewhere.
//! Not here: mmap over managed memory ([`crate::mm`]). remap_file_pages needs nothing: the kernel
//! accepts it only for shared file mappings, whose place it does not change.

use crate::mm::{
    is_aligned, is_managed_range, map_failed, pager_of, pages, put_over, touches_managed,
};
use crate::pager::{Process, any_process, is_managed};
use crate::real::{fail, kernel_mmap, kernel_mremap, system_call};
use libc::{c_int, c_void};
use overspill_base::PAGE_SIZE;
use overspill_space::remap::Target;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

const MOVE: c_int = libc::MREMAP_MAYMOVE;
const KNOWN: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;

/// The arguments of a call.
#[derive(Clone, Copy)]
struct Call {
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
}

impl Call {
    fn is_fixed(self) -> bool {
        self.flags & libc::MREMAP_FIXED != 0
    }

    fn stays(self) -> bool {
        self.flags & libc::MREMAP_DONTUNMAP != 0
    }

    /// Checks what the kernel requires of any call, except for what is mapped where.
    fn is_sound(self) -> bool {
        let flags = self.flags & !KNOWN == 0
            && (self.flags & MOVE != 0 || !self.is_fixed() && !self.stays());
        let sizes = self.new_len > 0 && (!self.stays() || self.old_len == self.new_len);
        let apart = !self.is_fixed()
            || is_aligned(self.new)
                && (self.new.saturating_add(self.new_len) <= self.old
                    || self.old.saturating_add(self.old_len) <= self.new);
        flags && sizes && apart && is_aligned(self.old)
    }

    fn by_kernel(self) -> *mut c_void {
        kernel_mremap(self.old, self.old_len, self.new_len, self.flags, self.new)
    }
}

/// mremap(2). The new address exists only with MREMAP_FIXED.
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
    let new = if flags & libc::MREMAP_FIXED != 0 { new.addr() } else { 0 };
    let call = Call { old: old.addr(), old_len, new_len, flags, new };
    let onto_managed = call.is_fixed() && touches_managed(call.new, new_len);
    match pager_of(call.old) {
        None if touches_managed(call.old, old_len) => map_failed(libc::EFAULT),
        None if !onto_managed => call.by_kernel(),
        _ if !call.is_sound() => map_failed(libc::EINVAL),
        _ if onto_managed && !is_managed_range(call.new, new_len) => map_failed(libc::EINVAL),
        None => from_outside(call),
        Some(process) => from_inside(process, call, onto_managed),
    }
}

/// Moves a kernel mapping into the managed range.
fn from_outside(call: Call) -> *mut c_void {
    let Some(process) = any_process() else { return map_failed(libc::EINVAL) };
    let (none, private) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let place = kernel_mmap(std::ptr::null_mut(), call.new_len, none, private, -1, 0);
    if place == libc::MAP_FAILED {
        return place;
    }
    let moved = Call { new: place.addr(), ..call }.by_kernel();
    if moved == libc::MAP_FAILED {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM);
        system_call!(libc::SYS_munmap, place, call.new_len);
        return map_failed(errno);
    }
    put_over(process, moved, call.new_len, call.new as *mut c_void)
}

fn from_inside(process: &'static Process, call: Call, onto_managed: bool) -> *mut c_void {
    if call.old_len == 0 || !is_managed_range(call.old, call.old_len) {
        return map_failed(libc::EINVAL);
    }
    let foreign = process.memory().foreign(call.old, pages(call.old_len));
    if let [(_, len)] = foreign[..]
        && pages(len) == pages(call.old_len)
    {
        return foreign_from_inside(process, call, onto_managed);
    }
    if call.is_fixed() && !onto_managed {
        // Managed memory cannot leave the managed range.
        return map_failed(libc::EINVAL);
    }
    let target = match call.flags & MOVE {
        _ if call.is_fixed() => Target::At(call.new),
        _ if call.stays() => Target::Elsewhere,
        0 => Target::Here,
        _ => Target::Anywhere,
    };
    let (old, new) = (pages(call.old_len), pages(call.new_len));
    let moved = process.call(move |memory| memory.remap(call.old, old, new, target, call.stays()));
    match moved {
        Ok(address) => address as *mut c_void,
        Err(error) => map_failed(error.errno()),
    }
}

/// Moves a kernel mapping that lies in the managed range: managed memory takes its place in one
/// step, so that no other mapping can.
fn foreign_from_inside(process: &'static Process, call: Call, onto_managed: bool) -> *mut c_void {
    let (old, old_pages, new_pages) = (call.old, pages(call.old_len), pages(call.new_len));
    let gives_up = move |from: usize, pages: usize| {
        let _ = process.call(move |memory| memory.unmap(from, pages));
    };
    if !call.is_fixed() && !call.stays() && new_pages <= old_pages {
        gives_up(old + new_pages * PAGE_SIZE, old_pages - new_pages);
        return old as *mut c_void;
    }
    if call.flags & MOVE == 0 {
        return map_failed(libc::ENOMEM);
    }
    let leaves = MOVE | libc::MREMAP_DONTUNMAP;
    let place = kernel_mremap(old, call.old_len, call.old_len, leaves, 0);
    if place == libc::MAP_FAILED {
        return place;
    }
    let beyond = call.is_fixed() && !onto_managed;
    let (flags, new) = if beyond { (MOVE | libc::MREMAP_FIXED, call.new) } else { (MOVE, 0) };
    let sized = kernel_mremap(place.addr(), call.old_len, call.new_len, flags, new);
    if sized == libc::MAP_FAILED {
        // Back over what the kernel has left there.
        let back = MOVE | libc::MREMAP_FIXED;
        kernel_mremap(place.addr(), call.old_len, call.old_len, back, old);
        return map_failed(libc::ENOMEM);
    }
    if !call.stays() {
        gives_up(old, old_pages);
    }
    match onto_managed {
        true => put_over(process, sized, call.new_len, call.new as *mut c_void),
        false => sized,
    }
}

/// Shared memory attached in the managed range: address and bytes.
static ATTACHED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn attached() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    ATTACHED.lock().unwrap_or_else(|e| e.into_inner())
}

/// shmat(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let by_kernel = |address: *const c_void, flags: c_int| {
        system_call!(libc::SYS_shmat, id, address, flags) as *mut c_void
    };
    let Some(process) = pager_of(address.addr()) else { return by_kernel(address, flags) };
    let rounds = flags & libc::SHM_RND != 0;
    let start = if rounds { address.addr() / PAGE_SIZE * PAGE_SIZE } else { address.addr() };
    if flags & libc::SHM_REMAP == 0 || !is_aligned(start) {
        return map_failed(libc::EINVAL);
    }
    let Some(bytes) = segment_bytes(id) else { return libc::MAP_FAILED };
    let len = pages(bytes) * PAGE_SIZE;
    if len == 0 || !is_managed_range(start, len) {
        return map_failed(libc::EINVAL);
    }
    let place = by_kernel(std::ptr::null(), flags & !(libc::SHM_REMAP | libc::SHM_RND));
    if place == libc::MAP_FAILED {
        return place;
    }
    let at = put_over(process, place, len, start as *mut c_void);
    if at != libc::MAP_FAILED {
        let _scope = crate::heap::PagerScope::enter();
        attached().insert(start, len);
    }
    at
}

fn segment_bytes(id: c_int) -> Option<usize> {
    let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    let done = system_call!(libc::SYS_shmctl, id, libc::IPC_STAT, about.as_mut_ptr());
    // SAFETY: zeros are a valid value, and the kernel has filled it in.
    (done == 0).then(|| unsafe { about.assume_init() }.shm_segsz)
}

/// shmdt(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    if !is_managed(address.addr()) {
        return system_call!(libc::SYS_shmdt, address) as c_int;
    }
    let start = address.addr();
    let len = {
        let _scope = crate::heap::PagerScope::enter();
        attached().remove(&start)
    };
    let (Some(len), Some(process)) = (len, pager_of(start)) else { return fail(libc::EINVAL) };
    // Parts mapped over it since are not part of it.
    let foreign = process.memory().foreign(start, pages(len));
    let own = foreign.iter().all(|&part| part == (start, len));
    match own {
        true => crate::mm::result(process.call(move |memory| memory.unmap(start, pages(len)))),
        false => system_call!(libc::SYS_shmdt, address) as c_int,
    }
}
