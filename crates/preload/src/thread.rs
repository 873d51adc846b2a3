//! Thread creation.
//!
//! libc allocates a new thread's dynamic TLS vector with `calloc`. The pager's code runs on program
//! threads too and may touch it while it holds a lock, so it must not be in managed memory.

use crate::exits::{self, PthreadCreate, StartRoutine};
use crate::heap::PagerScope;
use crate::real::Next;
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

/// Returns libc's own function.
fn next() -> PthreadCreate {
    static NEXT: Next = Next::new(c"pthread_create");
    // SAFETY: libc's function of this name and type.
    unsafe { std::mem::transmute(NEXT.address()) }
}

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
    let _scope = PagerScope::enter();
    // SAFETY: passed on. The new thread's own depth starts at zero.
    unsafe { exits::create(next(), thread, attr, start, arg) }
}

/// thrd_create(3): libc's own does not come by `pthread_create`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut pthread_t,
    start: StartRoutine,
    arg: *mut c_void,
) -> c_int {
    const THRD_ERROR: c_int = 2;
    const THRD_NOMEM: c_int = 3;
    // SAFETY: passed on. The function returns an int, in the same register as a pointer; thrd_join
    // looks at no more of it.
    match unsafe { pthread_create(thread, std::ptr::null(), start, arg) } {
        0 => 0,
        libc::EAGAIN | libc::ENOMEM => THRD_NOMEM,
        _ => THRD_ERROR,
    }
}

/// Starts a thread before the program does: libc skips its heap's locks until it has started one.
pub(crate) fn prepare() {
    extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
        std::ptr::null_mut()
    }
    let (mut thread, nobody) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
    // SAFETY: a thread that does nothing, joined if it was made.
    unsafe {
        if next()(thread.as_mut_ptr(), std::ptr::null(), nothing, nobody) == 0 {
            libc::pthread_join(thread.assume_init(), std::ptr::null_mut());
        }
    }
}
