//! The program's environment, before libc has looked at it.
//!
//! The pager starts before libc has initialised itself, so variables are found in the array that
//! the kernel made, and changed there.

use libc::c_char;
use overspill::session::SESSION_VARIABLE;
use std::ffi::CStr;

const PRELOAD: &str = "LD_PRELOAD";

/// The entries of an environment.
///
/// # Safety
/// `array` is null, or an array of strings that ends with null and stays for as long as the
/// iterator.
unsafe fn entries(array: *mut *mut c_char) -> impl Iterator<Item = *mut *mut c_char> {
    let mut next = array;
    std::iter::from_fn(move || {
        // SAFETY: contract: we have not passed the end.
        let found = (!next.is_null() && unsafe { !(*next).is_null() }).then_some(next)?;
        // SAFETY: as above; after an entry comes another one, or the end.
        next = unsafe { next.add(1) };
        Some(found)
    })
}

/// The value in `NAME=VALUE`.
///
/// # Safety
/// `entry` points to a string.
unsafe fn value_of(entry: *mut *mut c_char, name: &str) -> Option<&'static CStr> {
    // SAFETY: contract; the strings of the first environment are never moved.
    let text = unsafe { CStr::from_ptr(*entry) };
    let value = text.to_bytes_with_nul().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    CStr::from_bytes_with_nul(value).ok()
}

/// Where the supervisor of this process's run is, if it is part of one.
///
/// # Safety
/// As [`entries`].
pub(crate) unsafe fn session(array: *mut *mut c_char) -> Option<String> {
    // SAFETY: passed on.
    let value = unsafe { entries(array).find_map(|entry| value_of(entry, SESSION_VARIABLE)) }?;
    Some(value.to_string_lossy().into_owned())
}

/// Keeps programs that this one starts from finding us.
///
/// # Safety
/// As [`entries`], and nobody else reads the environment meanwhile.
pub(crate) unsafe fn forget(array: *mut *mut c_char) {
    // SAFETY: passed on. What is removed or shortened stays a string, or an array with an end.
    unsafe {
        let session = entries(array).find(|&entry| value_of(entry, SESSION_VARIABLE).is_some());
        session.into_iter().for_each(|entry| remove(entry));
        let preload = entries(array).find_map(|e| value_of(e, PRELOAD).map(|value| (e, value)));
        let Some((entry, value)) = preload else { return };
        match value.to_bytes().iter().position(|b| b": ".contains(b)) {
            Some(end) => shorten(value, end + 1),
            None => remove(entry),
        }
    }
}

/// Takes an entry out of its array.
///
/// # Safety
/// It is one, and nobody else reads the array.
unsafe fn remove(entry: *mut *mut c_char) {
    let mut at = entry;
    // SAFETY: contract: the array ends with null.
    unsafe {
        while !(*at).is_null() {
            *at = *at.add(1);
            at = at.add(1);
        }
    }
}

/// Drops the first `bytes` bytes of a value, in place.
///
/// # Safety
/// It has so many, in memory that may be written.
unsafe fn shorten(value: &CStr, bytes: usize) {
    let (start, len) = (value.as_ptr().cast_mut(), value.to_bytes_with_nul().len());
    // SAFETY: contract; the two ranges lie within the value.
    unsafe { std::ptr::copy(start.add(bytes), start, len - bytes) };
}
