//! What is known of a thread whose system calls are caught.
//!
//! Owns: the state's memory, with the stack of the thread's signals in front of it. It is not
//! managed: the kernel reads and writes both.
//! Invariants: only the thread itself uses its state, and a child that shares its memory while it
//! waits (vfork). The state of a thread that has ended serves the next.

use super::system;
use crate::pager::Process;
use libc::{c_int, c_void, pid_t, stack_t};
use overspill_base::PAGE_SIZE;
use overspill_engine::Holder;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};

/// Calls of the thread are caught, or pass. The kernel reads a byte of this.
pub(super) const PASS: u8 = 0;
pub(super) const CAUGHT: u8 = 1;

/// vforks by children of vforks.
const VFORKS_MAX: usize = 16;
/// Vectors of a call that is cut.
pub(super) const VECTORS_MAX: usize = 64;

/// A set of signals as the kernel has it.
pub(super) type Mask = u64;

/// The state.
#[repr(C)]
pub(super) struct Thread {
    /// [`PASS`] or [`CAUGHT`]: the first byte, for the kernel.
    pub(super) selector: u8,
    /// Signals of ours that the program believes to be blocked.
    pub(super) believed: Mask,
    /// The first word of its holder.
    hold: *const AtomicU64,
    pub(super) vfork_depth: usize,
    /// Where vforks go on.
    pub(super) vforks: [usize; VFORKS_MAX],
    /// For what calls touch.
    pub(super) holder: Holder,
    /// For what our handlers touch.
    pub(super) own_holder: Holder,
    number: pid_t,
    /// The program's own stack for signals.
    pub(super) stack: stack_t,
    /// The mask while the call of [`system::resume`] waits, if it has one for that.
    pub(super) wait_mask: Option<Mask>,
    /// The mask of a handler that is about to begin.
    pub(super) handler_mask: Mask,
    /// Vectors of a call that is cut, and the header of one that has them there.
    pub(super) vectors: [libc::iovec; VECTORS_MAX],
    pub(super) header: libc::msghdr,
}

pub(super) const HOLD: usize = offset_of!(Thread, hold);
pub(super) const VFORK_DEPTH: usize = offset_of!(Thread, vfork_depth);
pub(super) const VFORKS: usize = offset_of!(Thread, vforks);

/// The stack of our signal handlers: the kernel's frame, of up to 12 KiB with all registers there
/// are, and ours.
const STACK_BYTES: usize = 64 << 10;

pub(super) const NO_VECTOR: libc::iovec = libc::iovec { iov_base: null_mut(), iov_len: 0 };
const NO_STACK: stack_t = stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };

unsafe extern "C" {
    fn overspill_caught_get() -> *mut c_void;
    fn overspill_caught_set(state: *mut c_void);
}

/// Returns this thread's state, if its calls are caught.
#[inline]
pub(super) fn current<'a>() -> Option<&'a mut Thread> {
    // SAFETY: reads a variable of this thread, which is null or points to a state in use. No other
    // reference lives: those who have one run with signals blocked, or on their last line.
    unsafe { overspill_caught_get().cast::<Thread>().as_mut() }
}

/// The states of all threads, those that have ended too.
static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Locks them. The caller has all signals blocked: a handler may fork, which locks them too.
pub(super) fn all() -> MutexGuard<'static, Vec<usize>> {
    ALL.lock().unwrap_or_else(|e| e.into_inner())
}

/// Makes a state for this thread and has its calls caught from now on.
pub(super) fn begin(process: &Process) -> Result<(), c_int> {
    let number = gettid();
    let state = match reuse(process, number) {
        Some(state) => state,
        None => make(process, number)?,
    };
    system::set_signal_stack((state.addr() - STACK_BYTES) as *mut c_void, STACK_BYTES);
    // SAFETY: this thread's variable.
    unsafe { overspill_caught_set(state.cast()) };
    system::catch(state)
}

fn gettid() -> pid_t {
    // SAFETY: touches no memory.
    unsafe { system::call(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) as pid_t }
}

/// Takes over the state of a thread that has ended.
fn reuse(process: &Process, number: pid_t) -> Option<*mut Thread> {
    let own = crate::apart::program().as_raw_pid() as usize;
    let all = all();
    all.iter().map(|&state| state as *mut Thread).find(|&state| {
        // SAFETY: states are never unmapped. The number of one that is in use belongs to a thread
        // of this process; under the lock no other looks for one.
        unsafe {
            let kill = libc::SYS_tgkill;
            let gone = system::call(kill, own, (*state).number as usize, 0, 0, 0, 0) != 0;
            if gone {
                (*state).release(process);
                (*state).renew(number);
            }
            gone
        }
    })
}

fn make(process: &Process, number: pid_t) -> Result<*mut Thread, c_int> {
    let engine = process.pager.engine();
    let holder = engine.become_holder().ok_or(libc::EAGAIN)?;
    let own_holder = engine.become_holder().ok_or(libc::EAGAIN)?;
    let state_bytes = size_of::<Thread>().next_multiple_of(PAGE_SIZE);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = PAGE_SIZE + STACK_BYTES + state_bytes;
    let room = crate::real::kernel_mmap(null_mut(), bytes, protection, flags, -1, 0);
    if room == libc::MAP_FAILED {
        engine.end_holder(holder);
        engine.end_holder(own_holder);
        return Err(libc::ENOMEM);
    }
    // SAFETY: a new mapping; its lowest page ends the stack above it, the state begins where the
    // stack does.
    unsafe {
        system::call(libc::SYS_mprotect, room.addr(), PAGE_SIZE, 0, 0, 0, 0);
        let state = room.byte_add(PAGE_SIZE + STACK_BYTES).cast::<Thread>();
        state.write(Thread::new(number, [holder, own_holder], engine.hold_word(holder)));
        all().push(state.addr());
        Ok(state)
    }
}

impl Thread {
    fn new(number: pid_t, [holder, own_holder]: [Holder; 2], hold: &AtomicU64) -> Self {
        Self {
            selector: PASS,
            believed: 0,
            hold,
            vfork_depth: 0,
            vforks: [0; VFORKS_MAX],
            holder,
            own_holder,
            number,
            stack: NO_STACK,
            wait_mask: None,
            handler_mask: 0,
            vectors: [NO_VECTOR; VECTORS_MAX],
            // SAFETY: plain data.
            header: unsafe { std::mem::zeroed() },
        }
    }

    /// Ends what a thread held that is no more.
    fn release(&mut self, process: &Process) {
        let engine = process.pager.engine();
        [self.holder, self.own_holder].into_iter().for_each(|holder| engine.let_go(holder));
    }

    fn renew(&mut self, number: pid_t) {
        self.number = number;
        self.selector = PASS;
        self.believed = 0;
        self.vfork_depth = 0;
        self.stack = NO_STACK;
        self.wait_mask = None;
    }
}

/// Has calls caught again in a forked child, whose only thread this is.
pub(super) fn begin_in_child(process: &Process) -> Result<(), c_int> {
    let Some(thread) = current() else { return Ok(()) };
    let own = std::ptr::from_ref(thread).addr();
    for &other in all().iter().filter(|&&state| state != own) {
        // SAFETY: states are never unmapped; the thread that this was copied from is not here.
        unsafe { (*(other as *mut Thread)).release(process) };
    }
    thread.number = gettid();
    thread.vfork_depth = 0;
    system::catch(thread)
}
