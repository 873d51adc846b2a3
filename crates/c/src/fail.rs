//! How a call fails: NULL or -1, and a message.
//!
//! Owns: each thread's last message.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::ptr::null_mut;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps `why` as this thread's message.
fn note(why: impl Display) {
    let words = why.to_string().replace('\0', " ");
    LAST.set(CString::new(words).unwrap_or_default());
}

/// What C calls `number`, a value of the enum `name`.
pub(crate) fn choice<T: Copy>(name: &str, of: &[T], number: c_int) -> Result<T, String> {
    let known = usize::try_from(number).ok().and_then(|number| of.get(number));
    known.copied().ok_or_else(|| {
        format!("{number} is no {name}, which has 0 to {}: is the header newer?", of.len() - 1)
    })
}

/// A new handle, or NULL.
pub(crate) fn handle<T, E: Display>(made: Result<T, E>) -> *mut T {
    match made {
        Ok(made) => Box::into_raw(Box::new(made)),
        Err(why) => {
            note(why);
            null_mut()
        }
    }
}

/// Ends a handle, unless it is NULL.
///
/// # Safety
/// `made` is from [`handle`] and not used again.
pub(crate) unsafe fn end<T>(made: *mut T) {
    if !made.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(made) });
    }
}

/// 0, or -1.
pub(crate) fn status<E: Display>(done: Result<(), E>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(why) => {
            note(why);
            -1
        }
    }
}

/// The text at `text`.
///
/// # Safety
/// NULL, or a string that ends with 0.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, String> {
    if text.is_null() {
        return Err("a text is NULL".to_owned());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| format!("{text:?} is not UTF-8"))
}

/// Why the last call of this thread that failed did so, and what to do about it. Valid until this
/// thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
