//! Thread creation.
//!
//! libc allocates a new thread's dynamic TLS vector with `calloc`. The pager's code runs on program
//! threads too and may reach it while it holds a lock, so it must not be in managed memory. And a
//! thread the pager starts must be the pager's from its first instruction: libc and std allocate
//! before they call its body.

use crate::heap::{PagerScope, in_pager};
use crate::real::Next;
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

type StartRoutine = extern "C" fn(*mut c_void) -> *mut c_void;
type PthreadCreate =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, StartRoutine, *mut c_void) -> c_int;

/// pthread_create(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attr: *const pthread_attr_t,
    start: StartRoutine,
    arg: *mut c_void,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_create");
    // SAFETY: libc's function of this name and type.
    let next: PthreadCreate = unsafe { std::mem::transmute(NEXT.address()) };
    if in_pager() {
        let body = Box::into_raw(Box::new(Body { start, arg }));
        // SAFETY: passed on; `run_in_pager` takes the box over.
        let result = unsafe { next(thread, attr, run_in_pager, body.cast()) };
        if result != 0 {
            // SAFETY: no thread has taken it.
            drop(unsafe { Box::from_raw(body) });
        }
        return result;
    }
    let _scope = PagerScope::enter();
    // SAFETY: passed on. The new thread's own depth starts at zero.
    unsafe { crate::exits::create(next, thread, attr, start, arg) }
}

struct Body {
    start: StartRoutine,
    arg: *mut c_void,
}

extern "C" fn run_in_pager(body: *mut c_void) -> *mut c_void {
    PagerScope::forever();
    // SAFETY: the box `pthread_create` made for this thread.
    let Body { start, arg } = *unsafe { Box::from_raw(body.cast::<Body>()) };
    start(arg)
}
