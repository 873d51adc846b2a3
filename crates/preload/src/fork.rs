//! Fork: the child sees memory as it was, swapped pages included, and pages for itself.
//!
//! Owns: the handlers around fork, registered first so that they run last before the fork and first
//! after it.
//!
//! ```text
//! parent  take the gate · bring in what libc's child touches before us · park the pager's threads
//!         · make the child a holder of every slot
//! child   lock its place among the members · open a userfaultfd over the inherited range · start
//!         threads of its own · open the gate
//! parent  let the threads go on · open the gate
//! ```
//!
//! Invariant: between the two halves nothing moves, so both processes hold the same pages in the same
//! places. Not covered: children made by a raw `clone` system call, where swapped pages read as
//! zeros.
//! Rejected: UFFD_FEATURE_EVENT_FORK. It needs CAP_SYS_PTRACE and leaves the child's pages with the
//! parent, which cannot reach them.

use crate::fds;
use crate::heap::PagerScope;
use crate::pager::{Process, any_process, is_managed, say};
use crate::real::Next;
use libc::{c_void, pid_t};
use overspill_area::MemberNo;
use overspill_base::PAGE_SIZE;
use std::cell::UnsafeCell;
use std::sync::RwLockWriteGuard;

/// What the first half leaves for the second, in both processes.
struct Forking {
    gate: Option<RwLockWriteGuard<'static, ()>>,
    child: Option<MemberNo>,
}

/// Written by the thread that holds the gate exclusively.
struct Baton(UnsafeCell<Forking>);

// SAFETY: only the thread that has the gate's write lock, taken in `before` and given back in
// `in_parent` or `in_child`, touches the cell. Two forking threads take turns at the gate.
unsafe impl Sync for Baton {}

static BATON: Baton = Baton(UnsafeCell::new(Forking { gate: None, child: None }));

/// Has libc call us around every fork.
pub(crate) fn register() {
    // SAFETY: three functions that stay where they are: the object is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    let Some(process) = any_process() else { return };
    let _scope = PagerScope::enter();
    let gate = process.gate.write().unwrap_or_else(|e| e.into_inner());
    park_with_streams_in_memory(process);
    let child = process.session.reserve_member().filter(|&child| {
        let shared = process.pager.share_with(child);
        if let Err(error) = shared {
            say(&format!("the child of this fork cannot have the swapped pages: {error}"));
        }
        shared.is_ok()
    });
    // SAFETY: we have just taken the gate.
    unsafe { *BATON.0.get() = Forking { gate: Some(gate), child } };
}

unsafe extern "C" fn in_parent() {
    let Some(process) = any_process() else { return };
    let _scope = PagerScope::enter();
    process.pager.after_fork_in_parent();
    // SAFETY: `before` took the gate on this thread.
    let forking = unsafe { &mut *BATON.0.get() };
    forking.child = None;
    drop(forking.gate.take());
}

unsafe extern "C" fn in_child() {
    let Some(process) = any_process() else { return };
    let _scope = PagerScope::enter();
    // SAFETY: `before` took the gate on this thread, the only one there is.
    let forking = unsafe { &mut *BATON.0.get() };
    if let Err(error) = adopt(process, forking.child.take()) {
        say(&format!("a forked child cannot page and ends: {error}"));
        // SAFETY: nothing of the child's has run.
        unsafe { libc::_exit(125) };
    }
    drop(forking.gate.take());
}

fn adopt(process: &Process, member: Option<MemberNo>) -> Result<(), String> {
    let member = member.ok_or("too many processes of this run are alive")?;
    process.session.confirm_member(member).map_err(|e| e.to_string())?;
    fds::close_inherited();
    let high = fds::HighNumbers::only();
    process.pager.after_fork_in_child(member).map_err(|e| e.to_string())?;
    fds::protect(high);
    process.memory().wipe_after_fork();
    Ok(())
}

unsafe extern "C" {
    fn setaliasent();
    fn endaliasent();
}

/// Has libc allocate, from its own heap, the state of its name service switch. Its fork locks that
/// state after our last word before the fork and writes it before our first one after it, so it must
/// not be in managed memory. Aliases are looked up in files, without loading anything.
pub(crate) fn settle_libc() {
    // SAFETY: begins and ends an enumeration before any other thread could have one.
    unsafe {
        setaliasent();
        endaliasent();
    }
}

/// The part of libc's FILE that every program compiled against it knows, so it cannot change.
#[repr(C)]
struct Stream {
    _flags: i32,
    _buffers: [*mut c_void; 12],
    chain: *mut Stream,
    _rest: [usize; 3],
    lock: *mut c_void,
}

unsafe extern "C" {
    #[link_name = "_IO_list_all"]
    static mut STREAMS: *mut Stream;
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// Parks the pager with all stdio streams in memory: in the child, libc resets their locks before it
/// calls us, when a page that is out would read as zeros.
fn park_with_streams_in_memory(process: &Process) {
    loop {
        let pages = touch_streams();
        process.pager.before_fork();
        let space = process.memory().space();
        let resident =
            |&address: &usize| process.pager.engine().is_resident(space.page_at(address));
        if pages.iter().all(resident) {
            return;
        }
        process.pager.after_fork_in_parent();
    }
}

/// Touches every stream; returns addresses in each managed page they have.
fn touch_streams() -> Vec<usize> {
    let mut pages = Vec::new();
    let mut touch = |address: usize| {
        if is_managed(address) {
            // SAFETY: a byte of a stream or of its lock, alive while the list is locked.
            unsafe { std::ptr::read_volatile(address as *const u8) };
            pages.push(address / PAGE_SIZE * PAGE_SIZE);
        }
    };
    // SAFETY: the list's own lock keeps streams from coming and going. The pager runs, so touching
    // them is answered.
    unsafe {
        _IO_list_lock();
        let mut at = STREAMS;
        while let Some(stream) = at.as_ref() {
            touch(std::ptr::from_ref(stream).addr());
            touch(std::ptr::from_ref(stream).addr() + size_of::<Stream>() - 1);
            touch(stream.lock.addr());
            touch(stream.lock.addr() + 15);
            at = stream.chain;
        }
        _IO_list_unlock();
    }
    pages.sort_unstable();
    pages.dedup();
    pages
}

/// _Fork(3): fork without handlers. The pager needs its own all the same.
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> pid_t {
    static NEXT: Next = Next::new(c"_Fork");
    // SAFETY: libc's function of this name and type; the three halves in their order.
    unsafe {
        let next: unsafe extern "C" fn() -> pid_t = std::mem::transmute(NEXT.address());
        before();
        let pid = next();
        if pid == 0 {
            in_child();
        } else {
            in_parent();
        }
        pid
    }
}
