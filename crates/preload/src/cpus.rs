//! The CPUs on which the program's threads may run.
//!
//! Owns: that the program neither sees nor passes on what the pager narrows, while faults come in
//! quick succession (`space`: `placement`).
//! Invariants: a thread that was started has the affinity of the one that started it, as without
//! us, and so has a program. What is asked or set here is the thread's own. A program that filters
//! its calls has no thread narrowed: what is done here may not be allowed to it.
//! Not here: `fork`, for which the pager parks. A system call made without libc is not seen.
//! Rejected: looking only before a thread is started. `pthread_create` touches memory itself.

use crate::apart;
use crate::pager::any_process;
use crate::real::Next;
use crate::sandbox;
use crate::signals::blocked;
use libc::{c_char, c_int, c_long, c_void, cpu_set_t, pid_t, pthread_attr_t, pthread_t, size_t};
use overspill_space::{keep_own_cpus, narrow_no_more, restore_all_cpus, restore_own_cpus};
use rustix::thread::{self, CpuSet, gettid};
use std::ffi::CStr;

/// Lets the calling thread run where it may by its own choice.
fn restore_own() {
    of(0, restore_own_cpus);
}

/// As above, also for a while: what it passes on is its own.
pub(crate) fn keep_own() {
    of(0, keep_own_cpus);
}

/// Returns what a thread started with `attr` inherits; none if `attr` says where it may run.
///
/// # Safety
/// `attr` is null or initialised.
pub(crate) unsafe fn to_inherit(attr: *const pthread_attr_t) -> Option<CpuSet> {
    any_process().filter(|_| !sandbox::is_filtered())?;
    if !attr.is_null() {
        let mut set = std::mem::MaybeUninit::<cpu_set_t>::zeroed();
        let len = size_of::<cpu_set_t>();
        // SAFETY: contract; a set of this size to write to, which begins as zeros.
        let set = unsafe {
            libc::pthread_attr_getaffinity_np(attr, len, set.as_mut_ptr());
            set.assume_init()
        };
        // All there can be, if none were set.
        // SAFETY: a set.
        if unsafe { libc::CPU_COUNT(&set) } < libc::CPU_SETSIZE {
            return None;
        }
    }
    restore_own();
    thread::sched_getaffinity(None).ok()
}

/// In a new thread: takes on what it was to inherit, if it was narrowed instead.
pub(crate) fn inherit(set: Option<CpuSet>) {
    let Some(set) = set.filter(|set| set.count() > 1) else { return };
    restore_own();
    if thread::sched_getaffinity(None).is_ok_and(|own| own.count() == 1) {
        let _ = thread::sched_setaffinity(None, &set);
    }
}

/// Does `what` to the thread that is meant: 0 is the caller.
fn of(thread: pid_t, what: fn(i32)) {
    if any_process().is_some() && !sandbox::is_filtered() {
        let thread = if thread == 0 { gettid().as_raw_pid() } else { thread };
        blocked(|| what(thread));
    }
}

/// As above; others' numbers are not known here, so all have their CPUs back.
fn of_self(thread: pthread_t, what: fn(i32)) {
    // SAFETY: without preconditions.
    if thread == unsafe { libc::pthread_self() } {
        of(0, what);
    } else {
        of(0, |_| restore_all_cpus(apart::program()));
    }
}

/// Before a system call made by libc's `syscall`.
pub(crate) fn before(number: c_long, first: c_long) {
    match number {
        libc::SYS_sched_getaffinity => of(first as pid_t, restore_own_cpus),
        libc::SYS_sched_setaffinity => of(first as pid_t, keep_own_cpus),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_execve => keep_own(),
        _ => {}
    }
}

/// Before the program filters its system calls.
pub(crate) fn before_a_filter() {
    if any_process().is_some() && !sandbox::is_filtered() {
        blocked(|| narrow_no_more(apart::program()));
    }
}

/// A function of libc that is called after `$first`.
macro_rules! after {
    ($first:expr, $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        #[doc = concat!(stringify!($name), ".")]
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            });
            $first;
            // SAFETY: libc's function of this name and type; passed on.
            unsafe {
                let next: unsafe extern "C" fn($($type),*) -> $result =
                    std::mem::transmute(NEXT.address());
                next($($arg),*)
            }
        }
    };
}

type Set = *mut cpu_set_t;

after!(
    of(thread, restore_own_cpus),
    sched_getaffinity(thread: pid_t, len: size_t, set: Set) -> c_int
);
after!(
    of(thread, keep_own_cpus),
    sched_setaffinity(thread: pid_t, len: size_t, set: Set) -> c_int
);
after!(
    of_self(thread, restore_own_cpus),
    pthread_getaffinity_np(thread: pthread_t, len: size_t, set: Set) -> c_int
);
after!(
    of_self(thread, keep_own_cpus),
    pthread_setaffinity_np(thread: pthread_t, len: size_t, set: Set) -> c_int
);
after!(keep_own(), system(command: *const c_char) -> c_int);
after!(keep_own(), popen(command: *const c_char, kind: *const c_char) -> *mut c_void);
