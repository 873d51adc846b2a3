//! The CPUs on which the program's threads may run.
//!
//! Owns: that the program neither sees nor passes on what the pager narrows, while faults come in
//! quick succession (`space`: `placement`).
//! Invariants: a thread that was started has the affinity of the one that started it, as without
//! us, and so has a program. What is asked or set here is the thread's own.
//! Not here: `fork`, for which the pager parks. A raw system call is not seen.
//! Rejected: looking only before a thread is started. `pthread_create` touches memory itself.

use crate::pager::any_process;
use crate::real::Next;
use crate::signals::blocked;
use libc::{c_char, c_int, c_void, cpu_set_t, pid_t, pthread_attr_t, pthread_t, size_t};
use overspill_space::{keep_own_cpus, restore_own_cpus};
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
    any_process()?;
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
    if any_process().is_some() {
        let thread = if thread == 0 { gettid().as_raw_pid() } else { thread };
        blocked(|| what(thread));
    }
}

/// As above; other threads' numbers are not known here.
fn of_self(thread: pthread_t, what: fn(i32)) {
    // SAFETY: without preconditions.
    if thread == unsafe { libc::pthread_self() } {
        of(0, what);
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
