//! Fork: the child sees memory as it was, including swapped pages, and has its own pager.
//!
//! Owns: `fork` as the program calls it, and the handlers around libc's, registered before all
//! others so that they run last before the fork and first after it.
//!
//! ```text
//! parent  reserve a member number and a channel to the supervisor, or EAGAIN
//!         take the gate · make resident what libc's child touches before us · park the pager's
//!         threads · make the child a holder of every slot
//! child   start its own pager, which gets its descriptors through the channel, opens a
//!         userfaultfd over the inherited range and starts threads · open the gate
//! parent  let the threads go on · open the gate · wait until the child has started, or EAGAIN
//! ```
//!
//! Invariants: between the two halves no page moves, so both processes have the same pages in the
//! same places. A program never sees a child that cannot page: its fork fails. Not covered:
//! children made by a system call without libc. They do not have the managed memory, and die when
//! they first touch it.
//! Rejected: UFFD_FEATURE_EVENT_FORK. It needs CAP_SYS_PTRACE and leaves the child's pages with the
//! parent, which cannot reach them.

mod streams;

use crate::apart;
use crate::calls;
use crate::cpus;
use crate::heap::PagerScope;
use crate::pager::{Process, any_process, process, say};
use crate::real::{Next, fail};
use crate::signals::Blocked;
use libc::{c_int, c_void, pid_t};
use overspill::session::{Channel, Place};
use overspill_area::MemberNo;
use overspill_base::errand;
use overspill_space::RangesKept;
use rustix::fd::AsRawFd;
use std::cell::UnsafeCell;
use std::sync::RwLockWriteGuard;
use std::time::Duration;

/// What a child needs to page.
struct Ticket {
    place: Place,
    /// Open in this process only during the fork.
    channel: Channel,
    /// The swap areas that this process had before the channel.
    areas: u32,
}

impl Ticket {
    /// Under the gate: has a channel with the descriptors of all areas that this process has by
    /// now; none if that cannot be had.
    fn up_to_date(self, process: &Process) -> Option<Self> {
        if self.areas == process.session.areas_taken() {
            return Some(self);
        }
        let channel = channel(process)?;
        Some(Self { channel, areas: process.session.areas_taken(), ..self })
    }
}

unsafe extern "C" {
    /// Stores a thread's ticket in its own variable; returns the previous value.
    fn overspill_fork_ticket(ticket: *mut c_void) -> *mut c_void;
}

/// Replaces the ticket of this thread.
fn swap_ticket(ticket: Option<Ticket>) -> Option<Ticket> {
    let ticket = ticket.map(|ticket| Box::into_raw(Box::new(ticket)));
    // SAFETY: only this function stores to the variable, and each ticket leaves it once.
    unsafe {
        let ticket = ticket.map_or(std::ptr::null_mut(), <*mut Ticket>::cast);
        let before = overspill_fork_ticket(ticket);
        (!before.is_null()).then(|| *Box::from_raw(before.cast::<Ticket>()))
    }
}

/// What the first half leaves for the second, in both processes.
struct Forking {
    gate: Option<RwLockWriteGuard<'static, ()>>,
    ticket: Option<Ticket>,
    calls: Option<calls::Locked>,
    ranges: Option<RangesKept<'static>>,
    blocked: Option<Blocked>,
}

/// Written by the thread that holds the gate exclusively.
struct Baton(UnsafeCell<Forking>);

// SAFETY: only the thread with the gate's write lock, taken in `before` and released in `in_parent`
// or `in_child`, touches the cell. Two forking threads take turns at the gate.
unsafe impl Sync for Baton {}

static BATON: Baton = Baton(UnsafeCell::new(Forking {
    gate: None,
    ticket: None,
    calls: None,
    ranges: None,
    blocked: None,
}));

/// Registers our handlers around every fork.
pub(crate) fn register() {
    // SAFETY: the three functions stay valid: the object is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

type Handler = Option<unsafe extern "C" fn()>;
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// What `pthread_atfork` calls. libc reads its list of handlers in a child before ours has run, so
/// the list is kept in libc's heap.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: Handler,
    in_parent: Handler,
    in_child: Handler,
    object: *mut c_void,
) -> c_int {
    static NEXT: Next = Next::new(c"__register_atfork");
    let _scope = PagerScope::enter();
    // SAFETY: libc's function of this name and type; the rest is passed on.
    unsafe {
        let next: RegisterAtfork = std::mem::transmute(NEXT.address());
        next(before, in_parent, in_child, object)
    }
}

/// Makes a channel for a child, if the supervisor goes on.
fn channel(process: &Process) -> Option<Channel> {
    let channel =
        apart::has_supervisor().then(|| process.session.channel_for_child(&process.address));
    channel?.ok()
}

/// Makes a ticket for a child, if it can be served.
fn ticket(process: &Process) -> Option<Ticket> {
    let areas = process.session.areas_taken();
    let channel = channel(process)?;
    let in_engine = process.pager.engine().areas();
    let place = errand::run(|| process.session.reserve_or_salvage(in_engine))?;
    Some(Ticket { place, channel, areas })
}

unsafe extern "C" fn before() {
    let Some(process) = any_process() else { return };
    let _scope = PagerScope::enter();
    let blocked = Blocked::begin();
    // Some functions of libc fork by themselves.
    let ticket = swap_ticket(None).or_else(|| ticket(process));
    streams::lock();
    let gate = process.gate.write().unwrap_or_else(|e| e.into_inner());
    park_with_memory_in_place(process);
    process.memory().space().let_fork_copy(true);
    let ticket = ticket.and_then(|ticket| ticket.up_to_date(process)).filter(|ticket| {
        let shared = process.pager.share_with(ticket.place.member);
        if let Err(error) = shared {
            say(&format!("the child of this fork cannot have the swapped pages: {error}"));
        }
        shared.is_ok()
    });
    let calls = Some(calls::Locked::take());
    let ranges = Some(process.memory().space().keep_ranges());
    let gate = Some(gate);
    // SAFETY: we have just taken the gate.
    unsafe {
        *BATON.0.get() = Forking { gate, ticket, calls, ranges, blocked: Some(blocked) };
    }
}

unsafe extern "C" fn in_parent() {
    let Some(process) = any_process() else { return };
    let _scope = PagerScope::enter();
    // SAFETY: `before` took the gate on this thread.
    let forking = unsafe { &mut *BATON.0.get() };
    drop(forking.ranges.take());
    errand::run(|| process.pager.after_fork_in_parent());
    process.memory().space().let_fork_copy(false);
    let (gate, blocked) = (forking.gate.take(), forking.blocked.take());
    // The child has copies of both; the channel is closed here.
    drop(forking.ticket.take());
    forking.calls = None;
    drop(gate);
    streams::unlock();
    drop(blocked);
}

unsafe extern "C" fn in_child() {
    let Some(process) = any_process() else { return };
    let _scope = PagerScope::enter();
    // SAFETY: `before` took the gate on this thread, the only one there is.
    let forking = unsafe { &mut *BATON.0.get() };
    drop(forking.ranges.take());
    apart::forget();
    overspill_space::forget_narrowed();
    if let Err(reason) = adopt(process, forking.ticket.take()) {
        say(&format!("a forked child cannot page and ends: {reason}"));
        // SAFETY: none of the child's code has run.
        unsafe { libc::_exit(125) };
    }
    forking.calls = None;
    calls::begin_in_child(process);
    let (gate, blocked) = (forking.gate.take(), forking.blocked.take());
    drop(gate);
    drop(blocked);
}

/// Starts a pager for this process, a forked child.
fn adopt(process: &'static Process, ticket: Option<Ticket>) -> Result<(), String> {
    let Ticket { place, channel, .. } = ticket.ok_or("too many processes of this run are alive")?;
    let opening = move || {
        let opened = open_in_child(process, place);
        if opened.is_err() {
            process.session.fail_member(place, process.pager.engine().areas());
        }
        opened
    };
    apart::start(Some(channel.as_raw_fd()), Box::new(opening))?;
    process.memory().space().let_fork_copy(false);
    Ok(())
}

/// Opens the pager of a forked child.
fn open_in_child(process: &'static Process, place: Place) -> Result<(), String> {
    apart::receive_again(&process.session)?;
    process.session.become_member(place.member);
    process.session.areas_left().for_each(apart::close_device);
    process.pager.after_fork_in_child(place.member).map_err(|e| e.to_string())?;
    process.memory().wipe_after_fork();
    apart::entrust_faults(process.memory().space())?;
    process.session.confirm_member(place, apart::program()).map_err(|e| e.to_string())
}

unsafe extern "C" {
    fn setaliasent();
    fn endaliasent();
}

/// Makes libc allocate the state of its name service switch from its own heap. fork locks that
/// state after our last handler before the fork and writes it before our first one after it, so it
/// must not be in managed memory. Aliases are looked up in files, without loading anything.
pub(crate) fn prepare_libc() {
    // SAFETY: begins and ends an enumeration before any other thread can have one.
    unsafe {
        setaliasent();
        endaliasent();
    }
}

/// Parks the pager with all that is touched before it runs again in memory: in the child, libc
/// resets locks and lists before it calls us, when a page that is not resident would read as zeros.
fn park_with_memory_in_place(process: &Process) {
    loop {
        let pages = streams::touch_all(process);
        errand::run(|| process.pager.before_fork());
        let space = process.memory().space();
        let resident =
            |&address: &usize| process.pager.engine().is_resident(space.page_at(address));
        if pages.iter().all(resident) {
            return;
        }
        errand::run(|| process.pager.after_fork_in_parent());
    }
}

/// Longest time for a child to start; one stopped by a signal takes longer, but does start.
const START_MAX: Duration = Duration::from_secs(10);

/// Waits in the parent when `fork` has returned: true if the child runs, or has run. A child that
/// could not start is reaped.
fn has_started(process: &Process, member: MemberNo, child: pid_t) -> bool {
    let begun = std::time::Instant::now();
    loop {
        let limit = Duration::from_millis(20);
        match process.session.has_started(member, limit) {
            Some(true) => return true,
            None if !has_ended(child, libc::WNOWAIT) && begun.elapsed() < START_MAX => {}
            // Killed before it joined.
            None => return true,
            Some(false) => {
                while !has_ended(child, 0) && begun.elapsed() < START_MAX {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return false;
            }
        }
    }
}

fn has_ended(child: pid_t, more: c_int) -> bool {
    // SAFETY: siginfo_t is plain data, and the kernel writes one.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOHANG | more;
        let (kind, id) = (libc::P_PID, child as libc::id_t);
        libc::syscall(libc::SYS_waitid, kind, id, &raw mut info, how, 0usize) != 0
            || info.si_pid() != 0
    }
}

/// Forks by `make`, which calls the handlers; fails with EAGAIN if the child could not page.
fn fork_by(make: impl FnOnce() -> pid_t) -> pid_t {
    let Some(process) = process() else { return make() };
    let (place, outer) = {
        let _scope = PagerScope::enter();
        let _blocked = Blocked::begin();
        let Some(ticket) = ticket(process) else { return fail(libc::EAGAIN) };
        // A handler may fork during a fork.
        (ticket.place, swap_ticket(Some(ticket)))
    };
    let child = make();
    if child == 0 {
        return 0;
    }
    let _scope = PagerScope::enter();
    let _blocked = Blocked::begin();
    // Left over if no handler was called.
    drop(swap_ticket(outer));
    if child < 0 {
        // SAFETY: this thread's errno.
        let errno = unsafe { *libc::__errno_location() };
        process.session.fail_member(place, process.pager.engine().areas());
        return fail(errno);
    }
    if has_started(process, place.member, child) { child } else { fail(libc::EAGAIN) }
}

/// fork(2).
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> pid_t {
    static NEXT: Next = Next::new(c"fork");
    // SAFETY: libc's function of this name and type.
    let next: unsafe extern "C" fn() -> pid_t = unsafe { std::mem::transmute(NEXT.address()) };
    // SAFETY: takes nothing.
    fork_by(|| unsafe { next() })
}

/// Forks by `make`, which calls no handlers: the pager's are run all the same.
pub(crate) fn fork_plainly(make: impl FnOnce() -> pid_t) -> pid_t {
    // SAFETY: the three handlers in their order.
    fork_by(|| unsafe {
        before();
        let pid = make();
        if pid == 0 {
            in_child();
        } else {
            in_parent();
        }
        pid
    })
}

/// _Fork(3): fork without handlers.
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> pid_t {
    static NEXT: Next = Next::new(c"_Fork");
    // SAFETY: libc's function of this name and type.
    let next: unsafe extern "C" fn() -> pid_t = unsafe { std::mem::transmute(NEXT.address()) };
    // SAFETY: takes nothing.
    fork_plainly(|| unsafe { next() })
}

type Body = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a child made by `clone` is to do.
struct Cloned {
    body: Body,
    arg: *mut c_void,
}

extern "C" fn run_clone(cloned: *mut c_void) -> c_int {
    // SAFETY: half of the fork, in the child.
    unsafe { in_child() };
    // SAFETY: the box that `clone` made, in this process's copy of memory; the program's own
    // function.
    unsafe {
        let Cloned { body, arg } = *Box::from_raw(cloned.cast::<Cloned>());
        body(arg)
    }
}

/// clone(2). Without shared memory it is a fork on another stack.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: Body,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent_tid: *mut c_int,
    tls: *mut c_void,
    child_tid: *mut c_int,
) -> c_int {
    if process().is_none() || flags & libc::CLONE_VM != 0 || stack.is_null() {
        cpus::keep_own();
        // SAFETY: passed on.
        return unsafe { apart::libc_clone(body, stack, flags, arg, parent_tid, tls, child_tid) };
    }
    fork_by(|| {
        let cloned = {
            let _scope = PagerScope::enter();
            Box::into_raw(Box::new(Cloned { body, arg })).cast::<c_void>()
        };
        // SAFETY: the handlers in their order; the child's is in `run_clone`. The rest is passed
        // on.
        unsafe {
            before();
            let pid =
                apart::libc_clone(run_clone, stack, flags, cloned, parent_tid, tls, child_tid);
            in_parent();
            let _scope = PagerScope::enter();
            drop(Box::from_raw(cloned.cast::<Cloned>()));
            pid
        }
    })
}
