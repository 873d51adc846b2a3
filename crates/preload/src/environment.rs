//! The program's environment, before libc has read it.
//!
//! The pager starts before libc has initialised itself, so variables are looked up and changed in
//! the array that the kernel made.

use libc::c_char;
use overspill::session::SESSION_VARIABLE;
use std::ffi::CStr;

const PRELOAD: &str = "LD_PRELOAD";

/// The entries of an environment.
///
/// # Safety
/// `array` is null, or a null-terminated array of strings that lives as long as the iterator.
unsafe fn entries(array: *mut *mut c_char) -> impl Iterator<Item = *mut *mut c_char> {
    let mut next = array;
    std::iter::from_fn(move || {
        // SAFETY: contract; the end has not been passed.
        let found = (!next.is_null() && unsafe { !(*next).is_null() }).then_some(next)?;
        // SAFETY: as above; an entry is followed by another one or by the end.
        next = unsafe { next.add(1) };
        Some(found)
    })
}

/// Returns the value in `NAME=VALUE`.
///
/// # Safety
/// `entry` points to a string.
unsafe fn value_of(entry: *mut *mut c_char, name: &str) -> Option<&'static CStr> {
    // SAFETY: contract; the strings of the first environment are never moved.
    let text = unsafe { CStr::from_ptr(*entry) };
    let value = text.to_bytes_with_nul().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    CStr::from_bytes_with_nul(value).ok()
}

/// Returns the supervisor's address, if this process is part of a run.
///
/// # Safety
/// As [`entries`].
pub(crate) unsafe fn session(array: *mut *mut c_char) -> Option<String> {
    // SAFETY: passed on.
    let value = unsafe { entries(array).find_map(|entry| value_of(entry, SESSION_VARIABLE)) }?;
    Some(value.to_string_lossy().into_owned())
}

/// Keeps programs started by this one out of the run.
///
/// # Safety
/// As [`entries`], and no other thread reads the environment meanwhile.
pub(crate) unsafe fn forget(array: *mut *mut c_char) {
    // SAFETY: passed on. Strings stay strings, and the array keeps its end.
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

/// Removes an entry from its array.
///
/// # Safety
/// `entry` is one, and no other thread reads the array.
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
/// The value has that many, in writable memory.
unsafe fn shorten(value: &CStr, bytes: usize) {
    let (start, len) = (value.as_ptr().cast_mut(), value.to_bytes_with_nul().len());
    // SAFETY: contract; the two ranges lie within the value.
    unsafe { std::ptr::copy(start.add(bytes), start, len - bytes) };
}
